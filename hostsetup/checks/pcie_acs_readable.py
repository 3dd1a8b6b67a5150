"""Nobody can tell whether PCIe access control stands between the GPUs.

What it means
    The ACS control registers of the bridges above the GPUs and RDMA NICs were not readable. An unprivileged lspci simply
    leaves the line out, and setpci says that the capability does not exist; both look like a host without ACS.

Why it matters to training
    A redirecting port makes collectives slow, or hang. As long as its register is unread, that risk is neither there
    nor gone, and pcie.acs.redirect stays unknown.

How we tell
    A bridge counts as read when its ACS control word is known, or when its extended configuration space was read and
    holds no ACS capability. Configuration space that ends after 64 bytes (no root) or 256 bytes (an old access method)
    shows nothing of it, nor does a bridge whose registers read as all ones. Hosts with fewer than two GPUs or RDMA NICs
    have no peer traffic to redirect, and virtual machines are not judged. A listing that shows no capability of any kind
    (lspci without -vvv) reads nothing either. Kernel lockdown forbids writing these registers, not reading them.

What to do
    Audit as root, or let the account use `sudo -n` (see priv.sudo). If root sees no extended space either, the firmware
    does not offer the memory-mapped access method (MMCONFIG): look for it in the boot log.

How to undo
    Nothing is changed.

Sources
    https://man7.org/linux/man-pages/man8/lspci.8.html
    https://docs.kernel.org/PCI/sysfs-pci.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.acs import Acs
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.pci_tree import Pci

ID = "pcie.acs.readable"
SOURCE = "https://man7.org/linux/man-pages/man8/lspci.8.html"


def skip(pci: Pci, cpu: Cpu | None = None) -> str:
    """Spare virtual machines and hosts without two devices that could talk to each other."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci.virtual):
        return "a virtual machine: its PCI tree is not the machine's"
    if len(pci.gpus) + len(pci.rdma_nics) < 2 and not pci.excerpt:
        return "fewer than two GPUs and RDMA NICs: no peer traffic to redirect"
    return ""


def judge(pci: Pci, acs: Acs) -> Iterator[Finding]:
    """Pass when every port where two paths split was read; name the ones that were not."""
    splits = {port for pair in pci.pairs() if pair.shared for port in pair.ports}
    unread = sorted(port for port in splits if not _was_read(pci, port))
    if unread:
        yield Finding(
            State.UNKNOWN,
            saw=f"not readable: {', '.join(unread[:8])}{', ...' if len(unread) > 8 else ''}",
            wanted="the ACS register of every port where two devices' paths split",
            remedy=Remedy("Audit as root, or let the account use `sudo -n`; a port that reads as all ones is dead."),
        )
        return
    others = len(acs.unreadable)
    beside = f"; {others} other bridges were not, and do not matter to any pair" if others else ""
    yield Finding(State.PASS, saw=f"the ACS registers on the devices' paths were read{beside}")


def _was_read(pci: Pci, port: str) -> bool:
    function = pci.functions.get(port)
    return function is not None and (function.acs is not None or function.acs_absent)
