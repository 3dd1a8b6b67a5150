"""Knows which processes compute on a host's NVIDIA GPUs, and which of those are still there. Stops none.

A process that nvidia-smi shows may end before anybody looks, or live in another PID namespace: `here` tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE = "nvidia-smi-apps"
PROBES = (
    Probe(
        PROBE,
        """out=$(nvidia-smi --query-compute-apps=pid,gpu_bus_id,used_gpu_memory,process_name --format=csv,nounits); rc=$?
printf '%s\\n' "$out" | head -n 1000
[ "$rc" = 0 ] || exit "$rc"
printf '%s\\n' "$out" | head -n 200 | while IFS=', ' read -r pid rest; do
  case $pid in ''|*[!0-9]*) continue;; esac
  if [ -e "/proc/$pid/comm" ]; then
    read -r comm <"/proc/$pid/comm"; uid=
    while read -r key id rest; do [ "$key" = Uid: ] && { uid=$id; break; }; done <"/proc/$pid/status"
    echo "here $pid ${uid:-?} $comm"
  else echo "gone $pid"; fi
done 2>/dev/null
exit 0""",
        timeout_s=30,
        tool="nvidia-smi",
    ),
)

MAX_PROCESSES = 1000
_HEADER = re.compile(r"pid\s*,\s*gpu_bus_id\s*,", re.ASCII)
_ROW = re.compile(r"(\d{1,9}|\[[^\]]{1,40}\]|-)\s*,\s*([0-9A-Fa-f:.]{7,20})\s*,\s*([^,]{1,40}?)\s*,\s*(.*)", re.ASCII)
_HERE = re.compile(r"here (\d{1,9}) (\d{1,10}|\?) ?(.*)", re.ASCII)
_GONE = re.compile(r"gone (\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU. `pid` None: nvidia-smi hides it. `here`: it was seen in /proc as well; None: nobody looked.

    `memory_mib` None: not told (WDDM, vGPU). `uid`: whose it is; empty: not known.
    """

    pid: int | None
    address: str
    memory_mib: int | None
    name: str
    here: bool | None = None
    uid: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """The compute processes of all GPUs of a host; none of them: the GPUs are idle as far as anybody sees."""

    processes: tuple[Process, ...]


def parse_gpu_processes(text: str) -> GpuProcesses:
    """Read the table and the lines `here PID UID COMM` and `gone PID` after it; a table without a row is an answer, too."""
    lines = [line.strip() for line in text.splitlines()]
    if not any(map(_HEADER.match, lines)):
        raise ValueError((next(filter(None, lines), "") or "no table of nvidia-smi --query-compute-apps")[:200])
    here = {found[1]: (found[2], found[3]) for line in lines if (found := _HERE.fullmatch(line))}
    gone = {found[1] for line in lines if (found := _GONE.fullmatch(line))}
    return GpuProcesses(tuple(_processes(lines, here, gone)))


def _processes(lines: list[str], here: dict[str, tuple[str, str]], gone: set[str]) -> Iterator[Process]:
    seen = 0
    for line in lines:
        found = _ROW.fullmatch(line)
        if found is None or seen >= MAX_PROCESSES:
            continue
        seen += 1
        pid, address, memory, name = found.groups()
        uid, comm = here.get(pid, ("", ""))
        named = name.strip() if name.strip() not in {"", "-"} and not name.startswith("[") else comm
        yield Process(
            pid=int(pid) if pid.isdigit() else None,
            address=_address(address),
            memory_mib=int(memory) if memory.isdigit() and len(memory) < 12 else None,
            name=named[:200],
            here=True if pid in here else False if pid in gone else None,
            uid=uid.replace("?", ""),
            line=line[:200],
        )


def _address(text: str) -> str:
    try:
        return full_address(text)
    except ValueError:
        return ""


def read(evidence: Evidence) -> Known[GpuProcesses] | Unknown:
    """Return the processes, or in nvidia-smi's own words why they are not known."""
    reply = evidence.answer(PROBE)
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_gpu_processes(reply.text.strip() or reply.error_text))
    except ValueError as error:
        return Unknown(f"`{PROBE}`: {error}")
