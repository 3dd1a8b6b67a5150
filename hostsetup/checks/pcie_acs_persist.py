"""PCIe access control is off between the GPUs now, and will be back after the next reboot.

What it means
    The ports between the devices redirect nothing at present, but an IOMMU is active, and nothing on this host tells the
    kernel to leave the ports alone. Most likely somebody cleared the bits by setpci.

Why it matters to training
    While it boots with an active IOMMU, the kernel switches ACS on at every port that has it, also where devices are
    passed through (`iommu=pt`). What setpci cleared is on again after a reboot, and possibly after a port is reset: runs
    that were fast yesterday hang or crawl today, on the one host that was rebooted.

How we tell
    Where every port on which two devices' paths split is clear, we ask what keeps it so: no active IOMMU; ports that
    cannot redirect (their capability word lacks the bits); `pci=disable_acs_redir=` or `pci=config_acs=` in the boot
    line; or something that runs at boot and changes ACS: an enabled unit or its program, rc.local, a udev rule, cron. A
    program is taken at its word, for it is not run here: after a reboot, pcie.acs.redirect tells. Ports that redirect
    now are left to that check.

What to do
    Switch the IOMMU or ACS off in the firmware if no virtual machines run here. Otherwise boot with
    `pci=disable_acs_redir=PORT;PORT` (Linux 4.20 and newer), quoted, so that neither the shell nor GRUB takes the semicolon
    for the end of the line; see cmdline.acs_params. A unit that runs setpci at every boot works, too, but is refused
    under kernel lockdown.

How to undo
    Remove the parameter or the unit, and reboot.

Sources
    https://github.com/NVIDIA/nccl/issues/304
    https://git.zx2c4.com/linux-dev/commit/?id=aaca43fda742223e4f62bd73e13055f5364e9a9b
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.acs_params import acs_entries
from hostsetup.facts.pci_acs import REDIRECTS
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.acs import Acs
    from hostsetup.facts.acs_params import AcsEntry
    from hostsetup.facts.acs_scripts import AcsScripts
    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.iommu import Iommu
    from hostsetup.facts.pci_tree import Pci

ID = "pcie.acs.persist"
SOURCE = "https://github.com/NVIDIA/nccl/issues/304"

WANTED = "a boot parameter, a unit or the firmware that keeps the ports clear"


def skip(pci: Pci, acs: Acs | None = None, cpu: Cpu | None = None) -> str:
    """Spare hosts where no port is clear that could be otherwise."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci.virtual):
        return "a virtual machine: its PCI tree is not the machine's"
    if pci.own_acs:
        return f"{pci.own_acs} prescribes its own ACS words"
    splits = _splits(pci)
    if not splits:
        return "no two of the GPUs and RDMA NICs share a PCIe switch"
    if acs is not None and any(acs.words.get(port, 0) & REDIRECTS for port in splits):
        return "ports redirect now: pcie.acs.redirect speaks of them"
    return ""


def judge(
    pci: Pci,
    acs: Acs,
    iommu: Iommu | None = None,
    cmdline: Cmdline | None = None,
    acs_scripts: AcsScripts | None = None,
) -> Iterator[Finding]:
    """Ask of every clear port what keeps it so."""
    splits = _splits(pci)
    unread = [port for port in splits if port not in acs.words and not pci.functions[port].acs_absent]
    if unread:
        yield Finding(State.UNKNOWN, saw=f"not readable: {', '.join(unread[:8])}", wanted=WANTED)
        return
    able = [port for port in splits if _can_redirect(pci, acs, port)]
    if not able:
        yield Finding(State.PASS, saw="no port where two devices' paths split can redirect")
        return
    active = iommu.active if iommu else None
    if active is False:
        yield Finding(State.PASS, saw="clear, and no IOMMU is active: the kernel leaves ACS as the firmware set it")
        return
    if cmdline is None or cmdline.running is None:
        yield Finding(State.UNKNOWN, saw="the running boot line is not known", wanted=WANTED)
        return
    entries = acs_entries(cmdline.running)
    kept = {function.address for entry in entries for function in entry.devices(pci)}
    left = [port for port in able if port not in kept]
    if not left:
        yield Finding(State.PASS, saw="clear, and the boot line keeps it so", evidence=_shown(entries))
    elif acs_scripts is not None and acs_scripts.lines:
        saw = f"clear, and {', '.join(acs_scripts.files[:3])} changes ACS at every boot"
        yield Finding(
            State.PASS, saw=saw, evidence=tuple(f"acs-scripts: {p}: {line}" for p, line in acs_scripts.lines[:3])
        )
    elif active is None:
        yield Finding(State.UNKNOWN, saw="clear, but whether an IOMMU is active is not known", wanted=WANTED)
    elif acs_scripts is None:
        yield Finding(State.UNKNOWN, saw="clear, but what runs at boot is not known", wanted=WANTED)
    else:
        units = tuple(f"sysfs-pcie: iommu {name}" for name in (iommu.units if iommu else ())[:2])
        yield _lost(left, acs, units, entries=bool(entries))


def _splits(pci: Pci) -> list[str]:
    return sorted({port for pair in pci.pairs() if pair.shared for port in pair.ports})


def _can_redirect(pci: Pci, acs: Acs, port: str) -> bool:
    able = pci.functions[port].acs_able
    return port in acs.words and (able is None or bool(able & REDIRECTS))


def _shown(entries: tuple[AcsEntry, ...]) -> tuple[str, ...]:
    return tuple(f"proc-cmdline: {entry.option}={entry.text}" for entry in entries[:4])


def _lost(left: list[str], acs: Acs, units: tuple[str, ...], *, entries: bool) -> Finding:
    some = "the boot line names other ports, but not " if entries else ""
    return Finding(
        State.WARN,
        saw=f"clear now, while an IOMMU is active and nothing keeps it so: {some}{', '.join(left[:8])}",
        wanted=WANTED,
        remedy=Remedy(
            f"Boot with pci=disable_acs_redir={';'.join(left)} (quoted), or switch ACS off in the firmware; "
            "otherwise the next boot switches the bits on again.",
            needs_root=True,
            needs_reboot=True,
        ),
        evidence=(*(acs.lines[port] for port in left[:4]), *units),
    )
