"""The kernel that boots next has no NVIDIA module.

What it means
    A kernel is installed that will be booted by default, and the module `nvidia` was not built for it, or not installed
    with it.

Why it matters to training
    The host works until it is rebooted, and then has no GPUs. It shows at the worst time: after the reboot that was
    meant to repair something else.

How we tell
    Each kernel's own list of modules (/lib/modules/KERNEL/modules.dep) names `nvidia.ko`, compressed or not, whoever put
    it there: DKMS, a precompiled package, weak-updates. That is more than `dkms status` says, and faster. The next
    kernel is the newest of the running one's flavour that can be booted; a boot loader may be set to another. Akmods
    builds its module during the boot itself; there this warning may be groundless.

What to do
    DKMS: install the headers of that kernel, then `dkms autoinstall -k KERNEL`. Precompiled: install the package for it
    (linux-modules-nvidia-...-KERNEL). Then look here again before you reboot.

How to undo
    `dkms remove nvidia/VERSION -k KERNEL`, or remove the package.

Sources
    https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
    https://github.com/dkms-project/dkms
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import NVIDIA
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.kernels import Kernel, Kernels
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.virt import Virt

ID = "os.dkms"
SOURCE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"


def skip(pci: Pci, virt: Virt | None = None) -> str:
    """Spare hosts without NVIDIA GPUs, and containers."""
    if virt is not None and virt.container:
        return "a container: the kernel is its machine's"
    return "" if any(gpu.vendor == NVIDIA for gpu in pci.gpus) else "no NVIDIA GPU on this host"


def judge(kernels: Kernels, pci: Pci) -> Iterator[Finding]:
    """Warn when the next kernel has no module."""
    following = kernels.next
    if following is None:
        yield Finding(State.UNKNOWN, saw="which kernels can be booted is not readable (/boot, /lib/modules)")
    elif following.module is None:
        yield Finding(State.UNKNOWN, saw=f"the list of modules of kernel {following.name} is not readable")
    elif following.module:
        when = "runs and boots next" if following.name == kernels.running else "boots next"
        yield Finding(State.PASS, saw=f"kernel {following.name} {when} and has {following.module.rpartition('/')[2]}")
    else:
        yield _missing(following, kernels, len(pci.gpus))


def _missing(following: Kernel, kernels: Kernels, gpus: int) -> Finding:
    name = shlex.quote(following.name)
    versions = sorted({version for entry in kernels.dkms if (version := entry.partition("/")[2])[:1].isdigit()})
    source = f"; DKMS has the source {', '.join(versions[:3])}" if versions else "; DKMS has no source of it"
    headers = "" if following.headers else f" Install the headers of {following.name} first."
    text = (
        f"Build the module for {following.name}.{headers}"
        if versions
        else (f"Install the package that brings the module for {following.name}, or the driver with DKMS.")
    )
    return Finding(
        State.WARN,
        saw=f"kernel {following.name} boots next and has no nvidia module: {gpus} GPUs would be gone{source}",
        wanted="nvidia.ko in the tree of the kernel that boots next",
        subject=following.name,
        remedy=Remedy(text, (f"sudo dkms autoinstall -k {name}",) if versions else (), needs_root=True),
        evidence=(
            f"kernels: running {kernels.running}",
            f"kernels: kernel {following.name} image, no nvidia.ko in modules.dep",
        ),
    )
