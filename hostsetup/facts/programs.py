"""Knows which of the programs that matter here are installed on a host, and the names of what runs. Starts none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

TOOLS = (
    *("lspci", "lscpu", "ethtool", "ip", "ss", "ping", "nvidia-smi", "docker", "nvidia-ctk"),
    *(
        "ibv_devinfo",
        "ibstat",
        "rdma",
        "chronyc",
        "timedatectl",
        "journalctl",
        "systemctl",
        "timeout",
        "setsid",
        "setpci",
    ),
)
# names of kernel threads hold a slash, hundreds of them; busybox has an lspci and an ip of its own, which print something else
PROBES = (
    Probe(
        "programs",
        f"""b=$(command -v busybox)
for t in {" ".join(TOOLS)}; do
  p=$(command -v "$t") || p=-
  m=
  case $p in /*) [ -n "$b" ] && [ "$p" -ef "$b" ] && m=' busybox' ;; esac
  printf 'tool %s %s%s\\n' "$t" "$p" "$m"
done
[ -r /proc/1/comm ] && echo whole
cat /proc/[0-9]*/comm 2>/dev/null | grep -v / | sort | uniq -c | head -n 3000
exit 0""",
    ),
)
COMM = 15  # letters of a program's name that the kernel keeps
_TOOL = re.compile(r"tool ([A-Za-z0-9_.-]{1,40}) (\S{1,300})( busybox)?", re.ASCII)
_RUNS = re.compile(r" *(\d{1,7}) (.{1,64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Programs:
    """`paths`: of installed tools by name. `missing`: asked for and not found. `busybox`: tools that are busybox's.

    `running`: how many processes have a name (its first 15 letters). `whole`: the processes of other users show, too.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    busybox: frozenset[str] = frozenset()
    running: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False

    def runs(self, *names: str) -> tuple[str, ...]:
        """Return those of the programs that run."""
        return tuple(name for name in names if name[:COMM] in self.running)


def parse_programs(text: str) -> Programs:
    """Read the lines `tool NAME PATH [busybox]`, `whole` and `COUNT NAME`."""
    paths: dict[str, str] = {}
    missing, busybox = set[str](), set[str]()
    running: dict[str, int] = {}
    whole = False
    for line in text.splitlines()[:4000]:
        if found := _TOOL.fullmatch(line):
            if found[2] == "-":
                missing.add(found[1])
            else:
                paths[found[1]] = found[2]
            if found[3]:
                busybox.add(found[1])
        elif line == "whole":
            whole = True
        elif found := _RUNS.fullmatch(line):
            running[found[2]] = int(found[1])
    if not paths and not missing:
        raise ValueError("no line tells of a tool")
    return Programs(paths, frozenset(missing), frozenset(busybox), running, whole)


def read(evidence: Evidence) -> Known[Programs] | Unknown:
    """Return the programs."""
    reply = evidence.answer("programs")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_programs(reply.text))
    except ValueError as error:
        return Unknown(f"`programs`: {error}")
