r"""A boot parameter about PCIe access control does not do what it says.

What it means
    `pci=disable_acs_redir=` or `pci=config_acs=` is on the boot line, but names a device that is not there or not between
    the GPUs, cannot be read, was cut off, or left a register other than it asks for.

Why it matters to training
    Somebody believes that the ports are clear. Peer transfers are redirected all the same, and the next who looks for
    the cause will trust the parameter.

How we tell
    Each device of the list is looked up in the PCI tree: by address, by a path from a bridge, or by vendor and device. Bus
    numbers move when a card is added or taken out, so a list of addresses grows stale. What was done is read from the
    registers, not from the kernel's version: mainline knows disable_acs_redir since 4.20 and config_acs since about 6.11,
    kernels up to about 6.14 misread lists of several devices for config_acs, and distributions add, fix and revert
    features in any version. Where the register was not read, the version decides whether there is reason to doubt. In
    GRUB's files the semicolon has to be quoted twice, for the shell that reads /etc/default/grub and for GRUB itself:
    otherwise it ends the line, and all that follows is lost.

What to do
    Name the ports that pcie.acs.redirect names now. In /etc/default/grub, write
    `GRUB_CMDLINE_LINUX="... \"pci=disable_acs_redir=PORT;PORT\""`, regenerate, look at the generated file, reboot, and
    audit again. One `pci=` may hold several options between commas; of two lists of one kind, the kernel takes the last.

How to undo
    Remove the option, regenerate, reboot.

Sources
    https://docs.kernel.org/admin-guide/kernel-parameters.html
    https://git.zx2c4.com/linux-dev/commit/?id=aaca43fda742223e4f62bd73e13055f5364e9a9b
    https://lore.kernel.org/lkml/20250123033716.112115-1-tdave@nvidia.com/
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts.acs_params import CONFIG, DISABLE, AcsEntry, acs_entries
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.acs import Acs
    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.release import Release

ID = "cmdline.acs_params"
SOURCE = "https://docs.kernel.org/admin-guide/kernel-parameters.html"

WANTED = "every device of the list on a path between GPUs and RDMA NICs, and its register as asked for"
_SINCE = {DISABLE: (4, 20), CONFIG: (6, 11)}
_LISTS_FIXED = (6, 15)
_ADDRESS = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def skip(cmdline: Cmdline) -> str:
    """Spare hosts without such a parameter."""
    if cmdline.running is None:
        return ""
    lost = any(map(_ADDRESS.search, cmdline.lost))
    return (
        ""
        if acs_entries((*cmdline.running, *(cmdline.configured or ()))) or lost
        else "no ACS parameter in the boot line"
    )


def judge(
    cmdline: Cmdline, pci: Pci | None = None, acs: Acs | None = None, release: Release | None = None
) -> Iterator[Finding]:
    """Hold every entry against the tree and the registers."""
    lost = [word for word in cmdline.lost if _ADDRESS.search(word)]
    if lost:
        yield _cut(cmdline)
    if cmdline.running is None:
        yield Finding(State.UNKNOWN, saw="the running boot line is not known", wanted=WANTED)
        return
    entries = acs_entries(cmdline.running)
    if not entries:
        if not lost:
            yield Finding(State.INFO, saw="an ACS parameter waits in GRUB's defaults; the running boot line has none")
        return
    good = 0
    many = sum(entry.option == CONFIG for entry in entries) > 1
    for entry in entries:
        finding = _entry(entry, pci, acs, _doubt(entry, release, many=many))
        if finding is None:
            good += 1
        else:
            yield finding
    if good:
        yield Finding(State.PASS, saw=f"{good} of {len(entries)} devices in the list are there, and as asked for")


def _entry(entry: AcsEntry, pci: Pci | None, acs: Acs | None, doubt: str) -> Finding | None:
    if not entry.valid:
        return _warn(entry, f"{entry.option}={entry.text}: the kernel cannot read this entry")
    if pci is None:
        return _unknown(entry, "the PCI tree is not known")
    devices = entry.devices(pci)
    if not devices:
        return _warn(entry, f"{entry.option} names {entry.device}, and there is no such device")
    above = {parent for device in (*pci.gpus, *pci.rdma_nics) for parent in device.parents}
    splits = {port for pair in pci.pairs() for port in pair.ports}
    if not any(device.address in above | splits for device in devices):
        kind = "a bridge above no GPU and no RDMA NIC" if any(device.is_bridge for device in devices) else "no bridge"
        return _warn(entry, f"{entry.option} names {entry.device}, which is {kind}: have bus numbers moved?")
    words = {device.address: acs.words[device.address] for device in devices if acs and device.address in acs.words}
    wrong = {address: word for address, word in words.items() if entry.wrong(word)}
    if wrong and acs is not None:
        told = "; ".join(f"{address} holds {word:04x}" for address, word in wrong.items())
        lines = tuple(acs.lines[address] for address in wrong)
        return _warn(entry, f"{entry.option}={entry.text} took no effect: {told}{doubt}", lines)
    if not words and all(device.acs_absent for device in devices):
        return _warn(entry, f"{entry.option} names {entry.device}, which has no ACS to change")
    if len(words) < len(devices):
        return _unknown(entry, f"the register of {entry.device} was not read{doubt}")
    return None


def _doubt(entry: AcsEntry, release: Release | None, *, many: bool) -> str:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release.kernel) if release else None
    if found is None or release is None:
        return ""
    version = int(found[1]), int(found[2])
    major, minor = _SINCE[entry.option]
    if version < (major, minor):
        return f"; mainline knows {entry.option} since {major}.{minor}, this is {release.kernel}"
    if entry.option == CONFIG and many and version < _LISTS_FIXED:
        return f"; kernels before {'.'.join(map(str, _LISTS_FIXED))} misread lists of several devices, this is {release.kernel}"
    return ""


def _warn(entry: AcsEntry, saw: str, lines: tuple[str, ...] = ()) -> Finding:
    remedy = Remedy(
        "Name the ports that pcie.acs.redirect names, regenerate the boot files, look at the generated line, and reboot.",
        needs_root=True,
        needs_reboot=True,
    )
    evidence = (f"proc-cmdline: {entry.option}={entry.text}", *lines)
    return Finding(State.WARN, saw, WANTED, entry.device, remedy, evidence)


def _unknown(entry: AcsEntry, saw: str) -> Finding:
    return Finding(State.UNKNOWN, saw, WANTED, entry.device)


def _cut(cmdline: Cmdline) -> Finding:
    return Finding(
        State.WARN,
        saw=f"in GRUB's defaults an unquoted `;` ends the line: {' '.join(cmdline.lost)[:200]} is lost",
        wanted="the whole parameter within quotes that reach GRUB",
        remedy=Remedy(
            'Write GRUB_CMDLINE_LINUX="... \\"pci=disable_acs_redir=PORT;PORT\\"" with the inner quotes escaped, regenerate, '
            "look at the generated line, and reboot.",
            needs_root=True,
            needs_reboot=True,
        ),
        evidence=(f"etc-default-grub: {' '.join(cmdline.configured or ())[-200:]}",),
    )
