"""A PCIe switch sends traffic between two devices up to the CPU instead of across.

What it means
    Two GPUs, or a GPU and an RDMA NIC, hang below one PCIe switch, and a port where their paths split has a redirect bit
    of Access Control Services (ACS) set: ReqRedir, CmpltRedir or EgressCtrl. Their requests or answers then travel to
    the root complex and back instead of turning round in the switch.

Why it matters to training
    At best the transfers are slow: they share the switch's uplink. With a translating IOMMU they fail: collectives hang
    at the first all-reduce, data arrives corrupted, or InfiniBand reports status 4, local protection error.

How we tell
    For every pair of GPUs and every GPU with an RDMA NIC we look up the bridge that both paths share and read the control
    word of its two ports where the paths split; nothing above or below them matters. SrcValid alone redirects nothing.
    Ports that lead to NVSwitches or disks do not count. Pairs that meet only at the root complex pass it in any case.
    A pair that also has NVLink gets a warning, not a failure: NCCL takes NVLink. GeForce RTX cards do not offer
    peer access over PCIe, so nothing is lost. Two functions of one device are judged by their own words. Virtual machines
    show a PCI tree that is not the machine's, and Grace and DirectNIC platforms prescribe words of their own, which are
    not zero: neither is judged. A register that could not be read is never clean. Lines without an address (the output of
    a grep) show that a port redirects, but not whose.

What to do
    First choice: switch ACS off in the firmware, or the IOMMU (VT-d, AMD-Vi) if no virtual machines run here; the
    operating system then leaves the bits alone. Second: the boot parameter `pci=disable_acs_redir=PORT;PORT` (Linux 4.20
    and newer; quote the semicolon in GRUB's files) and a reboot. At once, until the next reboot: clear the bits of these
    ports by setpci, as the commands of the finding do; under kernel lockdown (host.lockdown) that is refused, and the
    finding offers none. Do not do so on hosts
    that pass devices to virtual machines: isolation depends on these bits. The boot parameters of the ACS override patch
    change no register and do not help; `iommu=pt` does not either.

How to undo
    Reboot after setpci; remove the boot parameter and reboot; or set the firmware option back.

Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs
    https://git.zx2c4.com/linux-dev/commit/?id=aaca43fda742223e4f62bd73e13055f5364e9a9b
    https://github.com/NVIDIA/nccl/issues/606
    https://github.com/linux-rdma/rdma-core/blob/master/kernel-boot/rdma_topo
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.pci_acs import REDIRECTS, flags, redirecting
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.acs import Acs
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.lockdown import Lockdown
    from hostsetup.facts.pci_tree import Pair, Pci
    from hostsetup.facts.topology import Topology

ID = "pcie.acs.redirect"
SOURCE = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs"
)

WANTED = "redirect bits off on the ports where the two devices' paths split"


def skip(pci: Pci, cpu: Cpu | None = None) -> str:
    """Spare virtual machines, Grace, and hosts where no two devices share a switch."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci.virtual):
        return "a virtual machine: its PCI tree is not the machine's"
    if pci.own_acs:
        return f"{pci.own_acs} prescribes its own ACS words: ask `rdma_topo check`"
    if pci.loose and not pci.functions:
        return ""
    if len(pci.gpus) + len(pci.rdma_nics) < 2 or not pci.gpus:
        return "fewer than two GPUs, or a GPU and an RDMA NIC"
    if not any(pair.shared for pair in pci.pairs()):
        return "no two of the GPUs and RDMA NICs share a PCIe switch"
    return ""


def judge(pci: Pci, acs: Acs, topology: Topology | None = None, lockdown: Lockdown | None = None) -> Iterator[Finding]:
    """Say of each pair below one switch whether its traffic turns round there."""
    if acs.loose and not pci.functions:
        yield _anonymous(acs)
        return
    clean = 0
    locked = lockdown is not None and lockdown.locked
    for pair in pci.pairs():
        if not pair.shared:
            continue
        words = {port: acs.words.get(port, 0) for port in pair.ports}
        unread = [port for port in pair.ports if not _was_read(pci, port)]
        if any(word & REDIRECTS for word in words.values()):
            yield _redirected(pair, words, acs, nvlink=_nvlink(pci, pair, topology), locked=locked)
        elif unread:
            yield Finding(
                State.UNKNOWN,
                saw=f"the ACS register of {', '.join(unread)} could not be read",
                wanted=WANTED,
                subject=pair.subject,
                scope="pair",
            )
        else:
            clean += 1
    if clean:
        yield Finding(State.PASS, saw=f"{clean} pairs below a shared switch reach each other directly", wanted=WANTED)


def _was_read(pci: Pci, port: str) -> bool:
    function = pci.functions.get(port)
    return function is not None and (function.acs is not None or function.acs_absent)


def _anonymous(acs: Acs) -> Finding:
    bad = [word for word in acs.loose if word & REDIRECTS]
    if not bad:
        return Finding(
            State.INFO,
            saw=f"none of {len(acs.loose)} ports redirects; which ports these are is not shown",
            wanted=WANTED,
        )
    kinds = sorted({f"{word:04x}" for word in bad})
    return Finding(
        State.WARN,
        saw=f"{len(bad)} of {len(acs.loose)} ports redirect ({', '.join(kinds)}); which ports these are is not shown",
        wanted=WANTED,
        remedy=Remedy(
            "Read the registers with their addresses, as root, and judge the ports between the devices.",
            ("sudo lspci -D -vvv",),
            needs_root=True,
        ),
        evidence=tuple(f"{acs.loose_source}: ACSCtl: {flags(word)}" for word in bad[:5]),
    )


def _nvlink(pci: Pci, pair: Pair, topology: Topology | None) -> bool:
    if not (pair.a.is_gpu and pair.b.is_gpu):
        return False
    nvidia = [gpu.address for gpu in pci.gpus if gpu.vendor == "10de"]
    if topology is not None and topology.gpus == len(nvidia) and pair.a.vendor == pair.b.vendor == "10de":
        # the driver numbers GPUs in bus order
        first, second = nvidia.index(pair.a.address), nvidia.index(pair.b.address)
        return topology.links.get((first, second), "").startswith("NV")
    return topology is None and any(function.is_nvswitch for function in pci.functions.values())


def _redirected(pair: Pair, words: dict[str, int], acs: Acs, *, nvlink: bool, locked: bool) -> Finding:
    bad = {port: word for port, word in words.items() if word & REDIRECTS}
    saw = "; ".join(f"{redirecting(word)} at {port}" for port, word in bad.items())
    state = State.FAIL
    if nvlink:
        state, saw = State.WARN, f"{saw}; NCCL uses the pair's NVLink instead"
    elif pair.b.is_gpu and all("GeForce RTX" in device.name for device in (pair.a, pair.b)):
        state, saw = State.INFO, f"{saw}; GeForce RTX cards offer no peer access over PCIe, so nothing is lost"
    evidence = tuple(acs.lines[port] for port in bad)
    return Finding(state, saw, WANTED, pair.subject, _remedy(bad, locked=locked), evidence, scope="pair")


def _remedy(bad: dict[str, int], *, locked: bool) -> Remedy:
    permanent = (
        "Switch ACS (or an IOMMU that nothing uses) off in the firmware; or boot with "
        f"pci=disable_acs_redir={';'.join(bad)} (quoted)"
    )
    if locked:
        text = f"{permanent}. The kernel is locked down: setpci would be refused."
        return Remedy(text, needs_root=True, needs_reboot=True, needs_firmware=True)
    # only the redirect bits are cleared (value:mask); the others stay as they are
    return Remedy(
        f"{permanent}; the commands clear the bits until the next reboot.",
        tuple(f"sudo setpci -s {port} ECAP_ACS+6.w=0:{REDIRECTS:x}" for port in bad),
        needs_root=True,
        needs_firmware=True,
    )
