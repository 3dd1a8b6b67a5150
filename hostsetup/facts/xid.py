"""Knows the Xids that NVIDIA's driver wrote to the kernel log since the host booted, GPU by GPU. Judges none of them.

Repeats are one event with a count. A GPU that fell off the bus counts although no number was printed for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostsetup.facts.kernel_log import KernelLog

TELLS = "xids"  # the name of these facts in JSON
SOURCE = "dmesg"

MAX_EVENTS = 1000
MAX_PIDS = 16
_BLOCK = 4  # lines over which the sentence about a lost GPU is spread
_XID = re.compile(
    r"\bNVRM:\s*(?:GPU\s?[0-9a-f:.]*[:,]?\s*)?Xid\s*(?:\(([^)]{0,60})\))?\s*:\s*(\d{1,6})\b[,:]?\s*(.*)", re.IGNORECASE
)
_ADDRESS = re.compile(r"\b((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2})(?:\.([0-7]))?\b", re.IGNORECASE | re.ASCII)
_LOST = re.compile(r"fallen off the bus", re.IGNORECASE)
_INSTALLED = re.compile(r"NVRM:.*\bNVIDIA GPU\b", re.IGNORECASE)
_BOOT = re.compile(r"\bLinux version \d")
_ACTION = re.compile(r"recovery action.*\bto\s+0x[0-9a-f]+\s*\(([^)]{1,60})\)", re.IGNORECASE)
_SEVERITY = re.compile(r"\b(non-?fatal|fatal)\b", re.IGNORECASE)
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_PID = re.compile(r"\bpid='?(\d{1,9})")
_TIMES = (
    re.compile(r"\[\s*([^\]]{1,40}?)\s*\]"),
    re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,20})"),
    re.compile(r"(\S{1,12}\s+\S{1,12}\s+\d\d:\d\d:\d\d)"),
)


@dataclass(slots=True)
class Event:
    """One Xid of one GPU. `number` None: the GPU fell off the bus, and no Xid was printed.

    `address`: as the kernel writes it elsewhere, with function 0; empty: the line does not say. `fatal`: what the line
    itself says, None: nothing. `action`: what an Xid 154 recommends. `at`, `until`: the first and last line, counted.
    """

    number: int | None
    address: str
    line: str
    fatal: bool | None = None
    action: str = ""
    count: int = 0
    first: str = ""
    last: str = ""
    at: int = 0
    until: int = 0
    pids: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class XidLog:
    """The events in the order of their first lines. `whole`: the log reaches back to the boot. `lines`: its length."""

    events: tuple[Event, ...]
    whole: bool
    lines: int


def xids_in(lines: Iterable[str]) -> tuple[Event, ...]:
    """Return the events of the last boot that the lines tell of."""
    events: dict[tuple[object, ...], Event] = {}
    lost: list[tuple[int, str, str]] = []
    naming = (-_BLOCK, "", "")  # where a GPU was named, whose fate the next lines may tell
    for at, line in enumerate(lines):
        if "Linux version " in line and _BOOT.search(line):
            events, lost = {}, []
        elif "NVRM" not in line and not _LOST.search(line):
            continue
        elif found := _XID.search(line):
            _note(events, at, line, address_of(found[1] or ""), int(found[2]), found[3])
        elif _LOST.search(line):
            named = address_of(_said(line))
            if not named and at - naming[0] < _BLOCK:
                named, line = naming[1], f"{naming[2].strip()} / {line.strip()}"  # noqa: PLW2901 - one sentence
            lost.append((at, named, line))
        elif _INSTALLED.search(line) and (address := address_of(_said(line))):
            naming = (at, address, line)
    _add_lost(events, lost)
    return tuple(sorted(events.values(), key=lambda event: event.at))


def _said(line: str) -> str:
    """Return what the driver says, without the time before it: `16:22:15` looks like an address."""
    return line.partition("NVRM:")[2] or line.rpartition("kernel:")[2]


def _note(events: dict[tuple[object, ...], Event], at: int, line: str, address: str, number: int, text: str) -> None:
    severity = _SEVERITY.search(text)
    fatal = None if severity is None else severity[1].lower() == "fatal"
    action = found[1].strip() if number == 154 and (found := _ACTION.search(text)) else ""
    key = (address, number, fatal, action)
    if key not in events and len(events) >= MAX_EVENTS:
        return
    event = events.setdefault(key, Event(number, address, line.strip()[:400], fatal, action, at=at))
    event.count += 1
    event.until = at
    event.last = when(line)
    event.first = event.first or event.last
    if len(event.pids) < MAX_PIDS and (pid := _PID.search(text)):
        event.pids.add(pid[1])
    if len(event.links) < MAX_PIDS and (link := _LINK.search(text)):
        event.links.add(link[1])


def _add_lost(events: dict[tuple[object, ...], Event], lost: Iterable[tuple[int, str, str]]) -> None:
    """Add the GPUs that fell off the bus and have no Xid 79 of their own."""
    numbered = {event.address for event in events.values() if event.number == 79}
    for at, address, line in lost:
        if address in numbered or (not address and numbered) or len(events) >= MAX_EVENTS:
            continue
        event = events.setdefault((address, None), Event(None, address, line.strip()[:400], at=at))
        event.count += 1
        event.until = at
        event.last = when(line) or event.last
        event.first = event.first or event.last


def address_of(text: str) -> str:
    """Return the address of a GPU that a text names, with a domain and function 0; empty: it names none."""
    found = _ADDRESS.search(text.replace("PCI:", ""))
    if found is None:
        return ""
    try:
        return full_address(f"{found[1]}.{found[2] or 0}")
    except ValueError:
        return ""


def when(line: str) -> str:
    """Return the time that stands before a line of the driver, as it is written; empty: none does."""
    head = re.split(r"NVRM:|nvidia-nvswitch", line, maxsplit=1)[0][:80]
    return next((found[1] for pattern in _TIMES if (found := pattern.search(head))), "")


def read(kernel_log: KernelLog) -> Known[XidLog]:
    """Return the Xids of this boot."""
    told = xids_in(kernel_log.lines) if kernel_log.holds("nvrm", "off the bus") else ()
    return Known(XidLog(told, kernel_log.whole, len(kernel_log.lines)))


def tell(xid: XidLog) -> list[int]:
    """Return the numbers that were printed."""
    return sorted({event.number for event in xid.events if event.number is not None})
