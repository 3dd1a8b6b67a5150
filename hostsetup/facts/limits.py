"""Knows the limits of a session on a host: locked memory, open files, processes. Raises none.

They are those of the session that asked. What a container gets is up to its engine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe(
        "ulimit",
        """ulimit -a
cat /proc/self/limits 2>/dev/null
for f in kernel/pid_max fs/file-max; do
  [ -r "/proc/sys/$f" ] && echo "sysctl $f $(cat "/proc/sys/$f")"  # dash's `read` gets one digit of such a file
done
exit 0""",
    ),
)

_OPTIONS = {"l": "memlock", "n": "nofile", "u": "nproc"}  # by the letter that ulimit takes
_OPTION = re.compile(r"(?<![\w-])-([lnu])[:)]")
_VALUE = r"(unlimited|-?\d{1,20})"
_ASKED = re.compile(r"\bulimit -S?([lnu])$")  # what somebody typed; its answer is a number alone
_LAST = re.compile(rf"\s{_VALUE}$", re.ASCII)
_DASH = re.compile(rf"(locked memory\(kbytes\)|process|nofiles)\s+{_VALUE}", re.ASCII)
_DASH_NAMES = {"locked memory(kbytes)": "memlock", "process": "nproc", "nofiles": "nofile"}
_PAIR = re.compile(
    rf"(Max locked memory|Max open files|Max processes|MEMLOCK|NOFILE|NPROC)\b.*?\s{_VALUE}\s+{_VALUE}(?:\s+\w+)?",
    re.ASCII,
)
_PAIR_NAMES = {"Max locked memory": "memlock", "Max open files": "nofile", "Max processes": "nproc"}
_SYSCTL = re.compile(r"sysctl (kernel/pid_max|fs/file-max) (\d{1,20})", re.ASCII)
_KIB = 1024
LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: what holds, and how far a program may raise it (None: not said). Without limit: infinity."""

    soft: float
    hard: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The session's limits, and the kernel's own on all processes and open files. None: not said."""

    memlock_kib: Limit | None = None
    nofile: Limit | None = None
    nproc: Limit | None = None
    pid_max: int | None = None
    file_max: int | None = None


def parse_limits(text: str) -> Limits:
    """Read `ulimit -a` as bash, ksh, zsh, dash or busybox print it, /proc/PID/limits, prlimit, and lines `sysctl FILE N`."""
    found: dict[str, Limit] = {}
    system: dict[str, int] = {}
    asked = ""
    for line in (line.strip() for line in text.splitlines() if len(line) < LONGEST_LINE):
        alone, asked = asked, found_one[1] if (found_one := _ASKED.search(line)) else ""
        if alone and re.fullmatch(_VALUE, line, re.ASCII):
            found.setdefault(_OPTIONS[alone], Limit(_number(line)))
        elif pair := _PAIR.fullmatch(line):
            name = _PAIR_NAMES.get(pair[1]) or pair[1].lower()
            scale = _KIB if name == "memlock" else 1  # bytes there, kilobytes in ulimit
            found[name] = Limit(_number(pair[2], scale), _number(pair[3], scale))
        elif sysctl := _SYSCTL.fullmatch(line):
            system[sysctl[1]] = int(sysctl[2])
        elif told := _ulimit(line):
            found.setdefault(told[0], Limit(told[1]))
    if not found:
        raise ValueError("neither `ulimit -a` nor /proc/PID/limits")
    return Limits(
        found.get("memlock"),
        found.get("nofile"),
        found.get("nproc"),
        system.get("kernel/pid_max"),
        system.get("fs/file-max"),
    )


def _ulimit(line: str) -> tuple[str, float] | None:
    if dash := _DASH.fullmatch(line):
        return _DASH_NAMES[dash[1]], _number(dash[2])
    option, value = _OPTION.search(line), _LAST.search(line)
    return (_OPTIONS[option[1]], _number(value[1])) if option and value else None


def _number(text: str, scale: int = 1) -> float:
    return math.inf if text in {"unlimited", "-1"} else int(text) / scale


def read(evidence: Evidence) -> Known[Limits] | Unknown:
    """Return the limits of the session."""
    reply = evidence.answer("ulimit")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_limits(reply.text))
    except ValueError as error:
        return Unknown(f"`ulimit`: {error}")


def tell(limits: Limits) -> dict[str, Any]:
    """Return the facts for JSON."""
    told: Mapping[str, Limit | None] = {
        "memlock_kib": limits.memlock_kib,
        "nofile": limits.nofile,
        "nproc": limits.nproc,
    }
    return {name: "unlimited" if math.isinf(one.soft) else int(one.soft) for name, one in told.items() if one}
