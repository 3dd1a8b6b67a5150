"""Knows what the kernel wrote since it booted, line by line. Draws no conclusion from a line that is not there.

The kernel's ring buffer forgets its first lines, the journal does not; `whole` says whether the boot itself is still in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from re import Pattern

PROBES = (Probe("dmesg", "journalctl -k -b -q --no-pager -o short-monotonic 2>/dev/null | grep . || dmesg", root=True),)

LONGEST_LINE = 2000
_DENIED = re.compile(r"operation not permitted|permission denied", re.IGNORECASE)
_FIRST = re.compile(r"\bLinux version \d|\bCommand line: ")


@dataclass(frozen=True, slots=True)
class KernelLog:
    """`lines`: oldest first, without blank ones, each at most 2000 characters. `whole`: the first lines of the boot are there."""

    lines: tuple[str, ...]
    whole: bool

    def find(self, pattern: Pattern[str]) -> tuple[str, ...]:
        """Return the lines in which a pattern is found."""
        return tuple(line for line in self.lines if pattern.search(line))


def parse_kernel_log(text: str) -> KernelLog:
    """Read `dmesg` or `journalctl -k` of one boot."""
    lines = tuple(line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip())
    if not lines:
        raise ValueError("the kernel log is empty")
    if len(lines) < 3 and any(_DENIED.search(line) for line in lines):
        raise ValueError("the kernel log may not be read: that needs root, or the group systemd-journal or adm")
    return KernelLog(lines, whole=any(_FIRST.search(line) for line in lines[:50]))


def read(evidence: Evidence) -> Known[KernelLog] | Unknown:
    """Return the log of this boot."""
    reply = evidence.answer("dmesg")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_kernel_log(reply.text or reply.error_text))
    except ValueError as error:
        return Unknown(f"`dmesg`: {error}")
