"""The PCIe links of GPUs or RDMA NICs have reported errors since the host booted.

What it means
    Devices report errors of their links (AER): correctable ones, which the link repaired by sending again; non-fatal
    ones, by which a transfer was lost; and fatal ones, after which the link was reset. Or a card reports that its slot
    gives too little power.

Why it matters to training
    Each repair costs time: a link that repairs all day is slow. A lost transfer ends as a CUDA error, an Xid, or a hung
    collective.

How we tell
    sysfs counts errors by device since boot (aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal), for GPUs, RDMA NICs and
    the bridges above them; no root needed. The kernel's log is read for what the counters leave out. Non-fatal and fatal
    errors are a warning, so are correctable ones above a number that the site may set
    (`pcie.errors.correctable`): a handful since boot is normal, and one audit cannot see a rate. Where firmware handles the
    errors first, the kernel counts none and the files are absent: then it is unknown, unless the log shows some.

What to do
    Look at which link it is: the bridge above counts what the card below it sends. Reseat the card, its riser and cables;
    update the firmware of card and board. A storm of correctable errors on a workstation often ends with
    `pcie_aspm=off` in the boot line. Too little power: connect the card's power cables, or allow more in the firmware.

How to undo
    Remove the parameter, regenerate, reboot.

Sources
    https://docs.kernel.org/PCI/pcieaer-howto.html
    https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats
    https://docs.kernel.org/admin-guide/kernel-parameters.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pci_tree import Function, Pci
    from hostsetup.facts.pcie import Pcie, Port

ID = "pcie.errors"
SOURCE = "https://docs.kernel.org/PCI/pcieaer-howto.html"
EXPECTS = {
    "pcie.errors.correctable": Want(int, "correctable errors of one device since boot that are still normal", 100)
}

WANTED = "no lost transfers, and few repaired ones"
_LOST = re.compile(
    r"PCIe Bus Error: severity=Uncorrect\w* ?\((Non-Fatal|Fatal)\)|PCIe Bus Error: severity=Uncorrected", re.IGNORECASE
)
_REPAIRED = re.compile(r"PCIe Bus Error: severity=Correct", re.IGNORECASE)
_TOO_LITTLE = "too little power from the PCIe slot"
_POWER = re.compile(r"insufficient power on (?:the )?PCIe slot|Detected insufficient power", re.IGNORECASE)
_ADDRESS = re.compile(r"\b((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE | re.ASCII)


def skip(pci: Pci | None = None, cpu: Cpu | None = None) -> str:
    """Spare virtual machines, and hosts without GPUs and RDMA NICs."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci is not None and pci.virtual):
        return "a virtual machine: its links are not the machine's"
    return "no GPU and no RDMA NIC" if pci is not None and not pci.gpus and not pci.rdma_nics else ""


def judge(pci: Pci, expect: Expect, pcie: Pcie | None = None, kernel_log: KernelLog | None = None) -> Iterator[Finding]:
    """Name the devices on the paths that have lost transfers, or repaired too many."""
    paths = {end: device for device in (*pci.gpus, *pci.rdma_nics) for end in (*device.parents, device.address)}
    limit = expect.whole("pcie.errors.correctable")
    counted = {address: port for address in paths if pcie and (port := pcie.ports.get(address)) and port.errors}
    findings = [
        finding
        for address, port in counted.items()
        if (finding := _counted(address, port, paths[address], 100 if limit is None else limit))
    ]
    named = {finding.subject for finding in findings}
    # the counters say more than the log does, but nothing of power
    findings += [one for one in _logged(kernel_log, paths) if one.subject not in named or _TOO_LITTLE in one.saw]
    if counted:
        findings = [one for one in findings if one.state is not State.INFO]
    yield from findings
    if findings:
        return
    if not counted:
        yield Finding(
            State.UNKNOWN,
            saw="the kernel counts no PCIe errors here (the firmware handles them first, or sysfs was not asked)",
            wanted=WANTED,
        )
        return
    repaired = sum(port.errors.get("correctable", 0) for port in counted.values())
    yield Finding(
        State.PASS, saw=f"no lost transfers on {len(counted)} devices; {repaired} repaired since boot", wanted=WANTED
    )


def _counted(address: str, port: Port, device: Function, limit: int) -> Finding | None:
    lost = {severity: port.errors.get(severity, 0) for severity in ("fatal", "nonfatal") if port.errors.get(severity)}
    repaired = port.errors.get("correctable", 0)
    if not lost and repaired <= limit:
        return None
    told = [f"{count} {severity}" for severity, count in lost.items()]
    if repaired:
        told.append(f"{repaired} correctable")
    where = "" if address == device.address else f" at a bridge above {device.address}"
    kinds = tuple(f"sysfs-pcie: {address}: {kind} {count}" for kind, count in list(port.kinds.items())[:6])
    totals = " ".join(f"{severity} {count}" for severity, count in port.errors.items())
    return Finding(
        State.WARN,
        saw=f"{', '.join(told)} errors since boot{where}",
        wanted=WANTED if lost else f"at most {limit} correctable errors",
        subject=address,
        remedy=_remedy(storm=not lost),
        evidence=kinds or (f"sysfs-pcie: {address}: {totals}",),
        scope="gpu" if device.is_gpu else "nic",
    )


def _remedy(*, storm: bool) -> Remedy:
    aspm = " On a workstation, try pcie_aspm=off in the boot line." if storm else ""
    return Remedy(
        f"Reseat the card, its riser and cables, and update the firmware of card and board.{aspm}",
        needs_root=True,
        needs_reboot=True,
    )


def _logged(kernel_log: KernelLog | None, paths: Mapping[str, Function]) -> Iterator[Finding]:
    if kernel_log is None:
        return
    for pattern, saw in (
        (_POWER, _TOO_LITTLE),
        (_LOST, "the kernel's log shows lost transfers"),
    ):
        by_device: dict[str, list[str]] = {}
        for line in kernel_log.find(pattern):
            at = _ADDRESS.search(line)
            address = at[1].lower() if at else ""
            address = address if address.count(":") == 2 or not address else f"0000:{address}"
            if address in paths:
                by_device.setdefault(address, []).append(line)
        for address, lines in by_device.items():
            evidence = tuple(f"dmesg: {line}" for line in lines[:3])
            remedy = _remedy(storm=False)
            if pattern is _POWER:
                text = "Connect the card's power cables, or allow the slot more power in the firmware."
                remedy = Remedy(text, needs_root=True, needs_firmware=True)
            yield Finding(State.WARN, f"{saw} ({len(lines)} lines)", WANTED, address, remedy, evidence)
    repaired = [line for line in kernel_log.find(_REPAIRED) if (at := _ADDRESS.search(line)) and at[1].lower() in paths]
    if repaired:
        evidence = tuple(f"dmesg: {line}" for line in repaired[:3])
        yield Finding(
            State.INFO, f"{len(repaired)} reports of correctable errors in the kernel's log", evidence=evidence
        )
