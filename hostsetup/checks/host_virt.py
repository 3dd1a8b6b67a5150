"""The host is a virtual machine or a container.

What it means
    The audit sees what a hypervisor or a container engine shows, not the machine below.

Why it matters to training
    Nothing is wrong with it, but other rules apply. In a virtual machine PCIe ports, NUMA nodes and firmware are made up
    by the hypervisor: NCCL may need the provider's topology file (NCCL_TOPO_FILE) to find the real links, and PCIe
    access control can only be changed on the machine below. A container shares its machine's kernel, clock, boot
    parameters and GPUs with others; settings of the machine are better audited on the machine itself.

How we tell
    `systemd-detect-virt`, once for machines and once for containers. Where it is missing: the marks of container
    engines (/.dockerenv, /run/.containerenv), then the hypervisor flag of the processor, then the product name of the
    firmware. Bare-metal instances of clouds have neither flag nor such a name. Silence of all of these is unknown.

What to do
    Nothing. In a cloud's virtual machine use the provider's image or its NCCL topology file.

How to undo
    There is nothing to undo.

Sources
    https://www.freedesktop.org/software/systemd/man/latest/systemd-detect-virt.html
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.virt import Virt

ID = "host.virt"
SOURCE = "https://www.freedesktop.org/software/systemd/man/latest/systemd-detect-virt.html"


def judge(virt: Virt) -> Iterator[Finding]:
    """Tell what the host is."""
    evidence = (f"{virt.source}: {virt.said}",)
    if virt.container:
        on = f" on a virtual machine ({virt.vm})" if virt.vm else ""
        saw = f"a container ({virt.container}){on}: what is told of the kernel and the devices is its machine's"
        yield Finding(State.INFO, saw=saw, evidence=evidence)
    elif virt.vm:
        saw = f"a virtual machine ({virt.vm}): PCIe, NUMA and firmware are what its hypervisor shows"
        yield Finding(State.INFO, saw=saw, evidence=evidence)
    else:
        saw = "bare metal" if virt.source != "lscpu" else "lscpu names no hypervisor"
        yield Finding(State.PASS, saw=saw, evidence=evidence)
