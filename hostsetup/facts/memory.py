"""Knows a host's memory: how much there is and is free, swap, huge pages and transparent huge pages. Frees none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES = (
    Probe(
        "proc-meminfo",
        """cat /proc/meminfo || exit
cat /proc/swaps 2>/dev/null
t=/sys/kernel/mm/transparent_hugepage
if [ -d "$t" ]; then
  for f in enabled defrag; do [ -r "$t/$f" ] && { read -r v <"$t/$f"; echo "thp $f $v"; }; done
else
  echo 'thp absent'
fi
exit 0""",
    ),
)

_FIELD = re.compile(r"([A-Za-z][\w()]{0,40}):\s+(\d{1,18})(?: kB)?", re.ASCII)
_SWAP = re.compile(r"(\S+)\s+(partition|file)\s+(\d{1,18})\s+(\d{1,18})\s+-?\d{1,10}", re.ASCII)
_THP = re.compile(r"thp (enabled|defrag) .*\[([\w+-]{1,40})\].*", re.ASCII)
MAX_SWAPS = 32


@dataclass(frozen=True, slots=True)
class Swap:
    """One place that memory is swapped to."""

    name: str
    size_kib: int
    used_kib: int

    @property
    def is_compressed_memory(self) -> bool:
        """Whether it is memory itself, compressed, and no disk."""
        return "zram" in self.name


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory in KiB, as the kernel counts it. `available_kib`: None on kernels that do not tell.

    `swaps` is None where the list was not read. `thp`: the mode of transparent huge pages, empty where the kernel has
    none, None where it was not read.
    """

    total_kib: int
    available_kib: int | None
    swap_total_kib: int
    swap_free_kib: int
    huge_free_kib: int
    huge_total_kib: int
    swaps: tuple[Swap, ...] | None = None
    thp: str | None = None
    thp_defrag: str | None = None


def parse_meminfo(text: str) -> Memory:
    """Read /proc/meminfo, and if they follow the lines of /proc/swaps and `thp FILE VALUE`."""
    fields: dict[str, int] = {}
    swaps: list[Swap] = []
    swaps_read = False
    thp: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if found := _FIELD.fullmatch(line):
            fields.setdefault(found[1], int(found[2]))
        elif found := _SWAP.fullmatch(line):
            swaps.append(Swap(found[1][:100], int(found[3]), int(found[4])))
        elif found := _THP.fullmatch(line):
            thp[found[1]] = found[2]
        elif line == "thp absent":
            thp["enabled"] = ""
        swaps_read = swaps_read or line.startswith("Filename")
    if not fields.get("MemTotal"):
        raise ValueError("not /proc/meminfo: no MemTotal")
    page = fields.get("Hugepagesize", 0)
    return Memory(
        total_kib=fields["MemTotal"],
        available_kib=fields.get("MemAvailable"),
        swap_total_kib=fields.get("SwapTotal", 0),
        swap_free_kib=fields.get("SwapFree", 0),
        # what is reserved for a mapping is free only until it is touched
        huge_free_kib=max(0, fields.get("HugePages_Free", 0) - fields.get("HugePages_Rsvd", 0)) * page,
        huge_total_kib=fields.get("HugePages_Total", 0) * page,
        swaps=tuple(swaps[:MAX_SWAPS]) if swaps_read else None,
        thp=thp.get("enabled"),
        thp_defrag=thp.get("defrag"),
    )


def read(evidence: Evidence) -> Known[Memory] | Unknown:
    """Return the memory."""
    reply = evidence.answer("proc-meminfo")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_meminfo(reply.text))
    except ValueError as error:
        return Unknown(f"`proc-meminfo`: {error}")


def tell(memory: Memory) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"total_kib": memory.total_kib, "swap_total_kib": memory.swap_total_kib}
