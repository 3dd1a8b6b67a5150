"""PCIe access control is on where it redirects no traffic between GPUs.

What it means
    Some ports have bits of Access Control Services (ACS) set that do not stand between two devices that talk to each
    other: SrcValid alone, redirect bits at a port that leads to NVSwitches or disks, or at a port above or below the one
    where two paths split.

Why it matters to training
    It does not, by itself. It is shown because other tools flag it, and because it tells where the bits come from: the
    word 001d on many ports at once was written by the kernel when it found an active IOMMU, a single odd port is a
    default of the firmware. When peer transfers hang although pcie.acs.redirect passes, cleared words rule ACS out for
    good. TransBlk is the exception: it blocks requests whose address a device has already translated (ATS).

How we tell
    All ports with a bit set are sorted by what it does and by what is below them. SrcValid checks that a request bears a
    bus number from below the port, and lets it pass: it redirects nothing. A redirect bit matters only at the two ports
    where the paths of two devices split, which pcie.acs.redirect judges. Root ports of Intel's chipset (PCH) lay the
    register out in their own way, so what lspci shows of them is not to be trusted. This check never fails a host.

What to do
    Nothing. To rule ACS out while you look for the cause of a hang, follow pcie.acs.redirect.

How to undo
    Nothing is changed.

Sources
    https://github.com/NVIDIA/nccl/issues/606
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs
    https://git.zx2c4.com/linux-dev/commit/?id=10dbc9fedcf151ab794f5e22d4f34f1eff01a08f
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.facts.pci_acs import BY_KERNEL, REDIRECTS, SRC_VALID, TRANSLATION
from hostsetup.model import Finding, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.acs import Acs
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.pci_tree import Function, Pci

ID = "pcie.acs.other"
SOURCE = "https://github.com/NVIDIA/nccl/issues/606"

_SHOWN = 8
_KINDS = {
    **dict.fromkeys(("0300", "0302", "0380", "1200"), "GPUs"),
    **dict.fromkeys(("0200", "0207", "0280"), "NICs"),
    "0108": "NVMe disks",
    "0680": "bridge devices",
}


def skip(pci: Pci, acs: Acs | None = None, cpu: Cpu | None = None) -> str:
    """Spare virtual machines, and hosts without GPUs and RDMA NICs that show no word."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci.virtual):
        return "a virtual machine: its PCI tree is not the machine's"
    if not pci.gpus and not pci.rdma_nics and not (acs and (any(acs.words.values()) or acs.loose)) and not pci.excerpt:
        return "no GPU and no RDMA NIC"
    return ""


def judge(pci: Pci, acs: Acs) -> Iterator[Finding]:
    """Remark on every bit that is set where pcie.acs.redirect does not look."""
    splits = {port for pair in pci.pairs() if pair.shared for port in pair.ports}
    words = {port: word for port, word in acs.words.items() if word}
    redirecting = [port for port, word in words.items() if word & REDIRECTS and port not in splits]
    valid = [port for port, word in words.items() if word & SRC_VALID and not word & REDIRECTS]
    blocking = [port for port, word in words.items() if word & TRANSLATION]
    if redirecting:
        kernel = sum(words[port] == BY_KERNEL for port in redirecting)
        origin = f"; {kernel} of them hold 001d, the kernel's own word" if kernel > 1 else ""
        shown = ", ".join(f"{port} ({_below(pci, port)})" for port in redirecting[:_SHOWN])
        yield _info(
            f"redirect bits where no two devices' paths split: {shown}{_more(redirecting)}{origin}", redirecting, acs
        )
    if valid:
        ours = sum(port in splits for port in valid)
        place = f"; {ours} of them stand where two devices' paths split" if ours else ""
        yield _info(f"SrcValid without redirection: {', '.join(valid[:_SHOWN])}{_more(valid)}{place}", valid, acs)
    if blocking:
        yield _info(f"TransBlk: translated requests are blocked at {', '.join(blocking[:_SHOWN])}", blocking, acs)
    loose = sum(1 for word in acs.loose if word)
    if loose:
        yield Finding(State.INFO, saw=f"{loose} ports whose address is not shown have ACS bits set")
    if redirecting or valid or blocking or loose:
        return
    unread = [f.address for f in pci.functions.values() if f.is_bridge and f.acs is None and not f.acs_absent]
    if unread:
        yield Finding(
            State.UNKNOWN, saw=f"the ACS registers of {len(unread)} bridges were not read; the others are clear"
        )
    elif splits & words.keys():
        yield Finding(State.PASS, saw="no port has an ACS bit set beside those that pcie.acs.redirect judges")
    else:
        ports = len(acs.words) + len(acs.loose)
        yield Finding(State.PASS, saw=f"no ACS bit is set on any of {ports} ports that have them")


def _info(saw: str, ports: list[str], acs: Acs) -> Finding:
    return Finding(State.INFO, saw=saw, evidence=tuple(acs.lines[port] for port in ports[:_SHOWN] if port in acs.lines))


def _more(ports: list[str]) -> str:
    return f" and {len(ports) - _SHOWN} more" if len(ports) > _SHOWN else ""


def _below(pci: Pci, port: str) -> str:
    kinds = Counter(_kind(function) for function in pci.below(port))
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3)) or "nothing below"


def _kind(function: Function) -> str:
    if function.is_nvswitch:
        return "NVSwitches"
    if function.class_code == "0300" and not function.is_gpu:
        return "displays of the management controller"
    return _KINDS.get(function.class_code, "other devices")
