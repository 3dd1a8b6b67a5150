"""The kernel moves memory between NUMA nodes by itself.

What it means
    Automatic NUMA balancing is on: the kernel unmaps pages now and then, sees from the page fault which CPU wants them,
    and moves them there.

Why it matters to training
    The faults and moves cost time at random moments, and a rank that is bound to its node gains nothing. With AMD GPUs it
    can stall transfers for long, which is why ROCm wants it off and RCCL warns about it. With NVIDIA GPUs it is mostly
    noise, except on Grace systems, whose GPU memory is a node of its own.

How we tell
    `kernel.numa_balancing`: 0 is off, 1 on, 2 moves pages between tiers of memory only. A kernel without the file has no
    balancing; one with a single node does not balance and says 0. A warning with AMD GPUs, an information with others or
    where the GPUs are not known. Hosts without GPUs are not judged.

What to do
    `sudo sysctl -w kernel.numa_balancing=0`, and to keep it: a file in /etc/sysctl.d. No reboot.

How to undo
    `sudo sysctl -w kernel.numa_balancing=1` and remove the file.

Sources
    https://rocm.docs.amd.com/en/docs-6.3.3/how-to/rocm-for-ai/training/prerequisite-system-validation.html
    https://docs.kernel.org/admin-guide/sysctl/kernel.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import AMD
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.numa import Numa
    from hostsetup.facts.pci_tree import Pci

ID = "numa.balancing"
SOURCE = "https://rocm.docs.amd.com/en/docs-6.3.3/how-to/rocm-for-ai/training/prerequisite-system-validation.html"

_REMEDY = Remedy(
    "Switch automatic NUMA balancing off, now and at every boot.",
    commands=(
        "sudo sysctl -w kernel.numa_balancing=0",
        "echo kernel.numa_balancing=0 | sudo tee /etc/sysctl.d/90-numa-balancing.conf",
    ),
    needs_root=True,
)


def skip(numa: Numa, pci: Pci | None = None) -> str:
    """Spare kernels that cannot balance, and hosts without GPUs."""
    if numa.balancing is None:
        return "this kernel has no automatic NUMA balancing"
    return "no GPU on the PCI bus" if pci is not None and not pci.gpus else ""


def judge(numa: Numa, pci: Pci | None = None) -> Iterator[Finding]:
    """Warn where AMD GPUs suffer from it; tell of it elsewhere."""
    saw, wanted = f"kernel.numa_balancing is {numa.balancing}", "0"
    evidence = (f"sysfs-numa: balancing {numa.balancing}",)
    if not numa.balancing:
        yield Finding(State.PASS, saw, wanted)
    elif pci is not None and any(gpu.vendor == AMD for gpu in pci.gpus):
        yield Finding(State.WARN, f"{saw}, with AMD GPUs", wanted, remedy=_REMEDY, evidence=evidence)
    else:
        yield Finding(State.INFO, saw, wanted, remedy=_REMEDY, evidence=evidence)
