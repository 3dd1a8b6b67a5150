"""Knows what the kernel wrote since it booted, line by line. Draws no conclusion from a line that is not there.

The kernel's ring buffer forgets its first lines, the journal does not; `whole` says whether the boot itself is still in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

try:  # there is no public way to ask a pattern what it holds; without this one, every line is searched
    from re import _constants, _parser  # type: ignore[attr-defined]
except ImportError:  # pragma: no cover
    _constants = _parser = None

if TYPE_CHECKING:
    from re import Pattern

PROBES = (Probe("dmesg", "journalctl -k -b -q --no-pager -o short-monotonic 2>/dev/null | grep . || dmesg", root=True),)

LONGEST_LINE = 2000
SHORTEST_NEEDLE = 3
_DENIED = re.compile(r"operation not permitted|permission denied", re.IGNORECASE)
_FIRST = re.compile(r"\bLinux version \d|\bCommand line: ")


@dataclass(frozen=True, slots=True)
class KernelLog:
    """`lines`: oldest first, without blank ones, each at most 2000 characters. `whole`: the first lines of the boot are there."""

    lines: tuple[str, ...]
    whole: bool

    text: str = field(default="", repr=False, compare=False)  # all lines in lower case

    def holds(self, *words: str) -> bool:
        """Return whether one of these words, in lower case, is anywhere in the log."""
        text = self.text or "\n".join(self.lines).lower()
        return any(word in text for word in words)

    def find(self, pattern: Pattern[str]) -> tuple[str, ...]:
        """Return the lines in which a pattern is found."""
        words = needles(pattern)
        if words is None:
            return tuple(line for line in self.lines if pattern.search(line))
        text = self.text or "\n".join(self.lines).lower()
        there = [word for word in words if word in text]
        if not there:  # nearly always: a log of a thousand lines is not worth a thousand searches
            return ()
        return tuple(line for line in self.lines if _any(there, line.lower()) and pattern.search(line))


def _any(words: list[str], line: str) -> bool:
    return any(word in line for word in words)


@cache
def needles(pattern: Pattern[str]) -> frozenset[str] | None:
    """Return words of which every match of a pattern holds one, in lower case; None where no such words are found."""
    return _of_sequence(_parser.parse(pattern.pattern, pattern.flags)) if _parser is not None else None


def _of_sequence(parsed: Any) -> frozenset[str] | None:
    """Return the words of that part of a sequence which is the most telling: whose shortest word is the longest."""
    best: frozenset[str] | None = None
    run = ""
    for kind, value in [*parsed, (None, None)]:
        if kind is _constants.LITERAL:
            run += chr(value)
            continue
        found = frozenset({run.lower()}) if len(run) >= SHORTEST_NEEDLE else None
        run = ""
        for words in (found, _of_part(kind, value)):
            if words and (best is None or min(map(len, words)) > min(map(len, best))):
                best = words
    return best


def _of_part(kind: Any, value: Any) -> frozenset[str] | None:
    if kind is _constants.SUBPATTERN:
        return _of_sequence(value[3])
    if kind is _constants.MAX_REPEAT and value[0] > 0:
        return _of_sequence(value[2])
    if kind is _constants.BRANCH:
        branches = [_of_sequence(branch) for branch in value[1]]
        if all(branches):
            return frozenset(word for words in branches for word in words or ())
    return None


def parse_kernel_log(text: str) -> KernelLog:
    """Read `dmesg` or `journalctl -k` of one boot."""
    lines = tuple(line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip())
    if not lines:
        raise ValueError("the kernel log is empty")
    if len(lines) < 3 and any(_DENIED.search(line) for line in lines):
        raise ValueError("the kernel log may not be read: that needs root, or the group systemd-journal or adm")
    return KernelLog(lines, any(_FIRST.search(line) for line in lines[:50]), "\n".join(lines).lower())


def read(evidence: Evidence) -> Known[KernelLog] | Unknown:
    """Return the log of this boot."""
    reply = evidence.answer("dmesg")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_kernel_log(reply.text or reply.error_text))
    except ValueError as error:
        return Unknown(f"`dmesg`: {error}")
