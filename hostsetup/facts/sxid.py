"""Knows the SXids, errors of NVSwitches, that the driver wrote to the kernel log since the host booted. Judges none.

One error takes several lines; those with a severity and a link are counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostsetup.facts.xid import address_of, when
from hostsetup.model import Known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostsetup.facts.kernel_log import KernelLog

SOURCE = "dmesg"
MAX_EVENTS = 1000
MAX_LINKS = 128

_SXID = re.compile(r"\bSXid\s*\(([^)]{0,60})\)\s*:\s*(\d{1,6})\s*,\s*(.*)", re.IGNORECASE)
_SEVERITY = re.compile(r"(non-?fatal|fatal)\b", re.IGNORECASE)
_NUMBERED = re.compile(r"Severity (\d{1,2})\b", re.IGNORECASE)
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_BOOT = re.compile(r"\bLinux version \d")


@dataclass(slots=True)
class SwitchEvent:
    """One SXid of one NVSwitch. `fatal` None: no line said."""

    number: int
    address: str
    line: str
    fatal: bool | None = None
    count: int = 0
    first: str = ""
    last: str = ""
    links: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class SxidLog:
    """The events in the order of their first lines. `whole`: the log reaches back to the boot. `lines`: its length."""

    events: tuple[SwitchEvent, ...]
    whole: bool
    lines: int


def sxids_in(lines: Iterable[str]) -> tuple[SwitchEvent, ...]:
    """Return the events of the last boot that the lines tell of."""
    events: dict[tuple[str, int], SwitchEvent] = {}
    for line in lines:
        if "Linux version " in line and _BOOT.search(line):
            events = {}
        found = _SXID.search(line) if "SXid" in line else None
        if found is None:
            continue
        address, number, text = address_of(found[1]), int(found[2]), found[3]
        if (address, number) not in events and len(events) >= MAX_EVENTS:
            continue
        event = events.setdefault((address, number), SwitchEvent(number, address, line.strip()[:400]))
        _note(event, line, text)
    return tuple(events.values())


def _note(event: SwitchEvent, line: str, text: str) -> None:
    event.last = when(line) or event.last
    event.first = event.first or event.last
    if severity := _SEVERITY.match(text):
        if event.count == 0:
            event.line = line.strip()[:400]
        event.count += 1
        event.fatal = bool(event.fatal) or severity[1].lower() == "fatal"
        if (link := _LINK.search(text)) and len(event.links) < MAX_LINKS:
            event.links.add(link[1])
    elif (numbered := _NUMBERED.match(text)) and event.fatal is None:
        event.fatal = numbered[1] != "0"


def read(kernel_log: KernelLog) -> Known[SxidLog]:
    """Return the SXids of this boot."""
    told = sxids_in(kernel_log.lines) if kernel_log.holds("sxid") else ()
    return Known(SxidLog(told, kernel_log.whole, len(kernel_log.lines)))
