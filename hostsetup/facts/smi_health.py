"""Knows whether nvidia-smi answers at all, what it exits with, and which processes hang in the kernel. Waits for none.

Depends on no answer of nvidia-smi: a probe that was left behind is what it looks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import LATE, MISSING, Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

# Only stat and wchan: reading cmdline of a process that hangs can hang, too.
PROBES = (
    Probe(
        "stuck-processes",
        r"""cd /proc || exit 1
echo stuck
grep -shE '^[0-9]+ \(.*\) D ' /proc/[0-9]*/stat | head -n 60 | while read -r pid rest; do
  wait=; read -r wait 2>/dev/null <"/proc/$pid/wchan"
  echo "$pid ${rest%%) D *}) ${wait:--}"
done
exit 0""",
    ),
)
MEANINGS = {
    2: "an argument or a field that this nvidia-smi does not know",
    3: "the operation is not available on this GPU",
    4: "the user may not do this",
    6: "no GPU was found",
    8: "an external power cable of a GPU is not attached",
    9: "the driver is not loaded",
    10: "the kernel has a problem with a GPU's interrupts",
    12: "the NVML library was not found",
    13: "the NVML library lacks a function",
    14: "a GPU's InfoROM is corrupt",
    15: "a GPU is no longer accessible: it has fallen off the bus",
    18: "the driver's library and its kernel module are of two versions",
    255: "another error inside the driver",
}
_PREFIX = "nvidia-smi"
_UNASKED = re.compile(r"^muster: not asked, for nvidia-smi had given no answer in time", re.MULTILINE)
_STUCK = re.compile(r"(\d{1,10}) \((.{1,80})\) (\S{1,80})", re.ASCII)
_ERROR = re.compile(
    r"GPU is lost|Unable to determine the device handle|fallen off the bus|GPU requires reset|infoROM is corrupted"
    r"|couldn't communicate|could not communicate|Failed to (?:properly )?(?:initialize|shut down) NVML|No devices were found"
    r"|NVML library version|mismatch|Unknown Error",
    re.IGNORECASE,
)
# it says nothing of any GPU then, whatever stands beside it where somebody pasted it
_ALONE = re.compile(r"(?:couldn't|could not) communicate|Failed to (?:properly )?initialize NVML|No devices were found")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process in uninterruptible sleep: its number, its name, and the kernel function it waits in (`-`: not told)."""

    pid: int
    name: str
    waits_in: str


@dataclass(frozen=True, slots=True)
class SmiHealth:
    """`late`: probes without an answer in time. `codes`: the others' exit codes. `said`: `PROBE: line` of what sounds wrong.

    `usable`: probes that printed something besides an error. `stuck`: None where the processes were not seen.
    """

    late: tuple[str, ...]
    codes: dict[str, int]
    usable: frozenset[str]
    said: tuple[str, ...]
    stuck: tuple[Stuck, ...] | None


def parse_stuck(text: str) -> tuple[Stuck, ...]:
    """Read a line a process: number, name in brackets, kernel function."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "stuck":
        raise ValueError("not the answer of the process probe")
    found = (_STUCK.fullmatch(line.strip()) for line in lines[1:100])
    return tuple(Stuck(int(one[1]), one[2], one[3]) for one in found if one)


def _said(name: str, text: str) -> Iterator[str]:
    for line in text[:20_000].splitlines():
        if _ERROR.search(line):
            yield f"{name}: {line.strip()[:300]}"


def read(evidence: Evidence) -> Known[SmiHealth] | Unknown:
    """Return how nvidia-smi behaved over all its probes; unknown where none was asked or it is not installed."""
    late: list[str] = []
    codes: dict[str, int] = {}
    usable = set[str]()
    said: list[str] = []
    missing = False
    for name, reply in sorted(evidence.replies.items()):
        if _UNASKED.search(reply.error_text[:500]):
            late.append(name)
        if not name.startswith(_PREFIX) or name in late:
            continue
        if reply.exit_code in LATE:
            late.append(name)
        elif reply.exit_code in MISSING and not reply.stdout.strip():
            missing = True
        else:
            codes[name] = reply.exit_code or 0
            wrong = (*_said(name, reply.text), *_said(name, reply.error_text))
            said += wrong
            if len(reply.text.splitlines()) > len(wrong) and not any(map(_ALONE.search, wrong)):
                usable.add(name)
    if not late and not codes:
        return Unknown(
            "nvidia-smi is not installed" if missing else "nvidia-smi was not asked, or its answers were lost"
        )
    return Known(SmiHealth(tuple(late), codes, frozenset(usable), tuple(said[:_SHOWN]), _stuck(evidence)))


def _stuck(evidence: Evidence) -> tuple[Stuck, ...] | None:
    reply = evidence.answer("stuck-processes")
    if isinstance(reply, Unknown):
        return None
    try:
        return parse_stuck(reply.text)
    except ValueError:
        return None
