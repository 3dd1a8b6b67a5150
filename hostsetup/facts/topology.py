"""Knows how a host's GPUs and NICs are linked, as `nvidia-smi topo -m` draws it. Ranks nothing.

The matrix changes shape between drivers, and pastes wrap it: it is read by its words, never by its columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.smi_query import TOOL
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROBES = (Probe("nvidia-smi-topo", "nvidia-smi topo -m", timeout_s=30, tool=TOOL),)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|(?:mlx|bnxt|irdma|efa|hfi|rocep|ibp|rdmap|roceo|mana)[\w.]*", re.ASCII)
_LINK = re.compile(r"NV\d{1,3}|C2C|PIX|PXB|PHB|NODE|SYS|SOC|X", re.ASCII)
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*", re.ASCII)
_LAST = "GPU NUMA ID"
_AFFINITY = ("CPU Affinity", "NUMA Affinity", _LAST)
_AFFINITY_WORD = re.compile(r"[\d,N/A-]+", re.ASCII)
_AFFINITY_CELL = re.compile(r"N/A|[\d,-]*", re.ASCII)
_PIECE = re.compile(r"[A-Z\d,/-]+", re.ASCII)
MAX_DEVICES = 256
_MAX_LINES = 2000
_NARROWEST, _WIDEST = 40, 500  # columns of a terminal
_WRAPS = 6  # lines that one row of a paste may spread over


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix. `links`: class between GPUs, by (lower, higher) index; `nic_links`: by (GPU index, NIC name).

    `cpu_affinity`, `numa_affinity`: by GPU index, absent where the driver says none. SOC (old drivers) is read as SYS.
    `cut`: the first GPU without a row where the text ends early; then `links` holds the pairs that a row shows.
    """

    gpus: int
    nics: tuple[str, ...]
    links: Mapping[tuple[int, int], str]
    nic_links: Mapping[tuple[int, str], str]
    cpu_affinity: Mapping[int, str]
    numa_affinity: Mapping[int, str]
    cut: str = ""

    @property
    def all_nvlink(self) -> bool:
        """Whether every pair of GPUs is joined by NVLink."""
        return not self.cut and all(link.startswith("NV") for link in self.links.values())


@dataclass(frozen=True, slots=True)
class _Row:
    links: list[str]
    tail: list[str]


def parse_topo(text: str) -> Topology:
    """Read the matrix: cells parted by tabs, or by blanks where the text was pasted; NIC names by the legend.

    Raises ValueError when there is no matrix, when no row is left of it, or when it is not symmetric.
    """
    lines = [_ANSI.sub("", line) for line in text[:1_000_000].splitlines()[:_MAX_LINES]]
    at = next((i for i, line in enumerate(lines) if _DEVICE.match(line.strip()) and _header(line)), None)
    if at is None:
        raise ValueError("no header of a topology matrix")
    try:
        return _matrix(lines, at, " ")
    except ValueError:
        # a terminal wraps within words, too; blanks at its edge may have been lost
        width = max(map(len, lines[at:]))
        if not _NARROWEST <= width <= _WIDEST:
            raise
        return _matrix([line.ljust(width) for line in lines], at, "")


def _matrix(lines: Sequence[str], at: int, glue: str) -> Topology:
    head, below = _whole_header(lines, at, glue)
    devices = _header(head)
    if len(set(devices)) != len(devices) or len(devices) > MAX_DEVICES:
        raise ValueError("a device appears twice in the header, or there are too many")
    after = head.split()[len(devices) :]
    if after and (after[0] not in {"CPU", "NUMA", "GPU"} or any(map(_DEVICE.fullmatch, after))):
        raise ValueError("the header is neither devices nor columns: it was wrapped within a word")
    rows: dict[str, _Row] = {}
    for line in _unwrapped(lines[below:], devices, glue):
        name = line.split()[0]
        if name not in rows:
            rows[name] = _row(line, len(devices), _columns(head, len(devices)))
    if not rows:
        raise ValueError(f"the matrix is cut off: no row for {devices[0]}")
    for i, name in enumerate(devices):
        for j, other in enumerate(devices):
            here, there = (rows[one].links[k] if one in rows else None for one, k in ((name, j), (other, i)))
            if (here is not None and (here == "X") != (i == j)) or (here and there and here != there):
                raise ValueError(f"the matrix is not symmetric: {name} to {other}")
    return _build(devices, rows, dict(_legend(lines)), _columns(head, len(devices)))


def _header(line: str) -> list[str]:
    devices: list[str] = []
    for word in line.split():
        if not _DEVICE.fullmatch(word):
            break
        devices.append(word)
    # one word is a row or a legend unless the affinity columns follow
    return devices if len(devices) > 1 or "Affinity" in line else []


def _whole_header(lines: Sequence[str], at: int, glue: str) -> tuple[str, int]:
    """Return the header with what a paste wrapped to the next lines, and where the rows begin."""
    head, below = lines[at], at + 1
    while below < len(lines) and below < at + 4:
        words = lines[below].split()
        if not words or (_DEVICE.fullmatch(words[0]) and len(words) > 1 and _cells(words[1])):
            break
        head, below = f"{head}{glue}{lines[below]}", below + 1
    return head, below


def _columns(head: str, devices: int) -> list[str]:
    after = "".join(head.split()[devices:])  # a wrapped line may part a word
    if after == "NUMA":  # a table that somebody drew
        return ["NUMA Affinity"]
    return [name for name in _AFFINITY if name.replace(" ", "") in after]


def _cells(word: str) -> list[str]:
    """Return the link classes in a word: none, one, or several where a wrapped line lost the blank between two cells."""
    found = _LINK.findall(word)
    return ["SYS" if link == "SOC" else link for link in found] if "".join(found) == word else []


def _unwrapped(lines: Sequence[str], devices: Sequence[str], glue: str) -> Iterator[str]:
    """Yield the rows, each with what a paste wrapped to the next line; leaves legends out."""
    row: list[str] = []
    for line in lines:
        words = line.split()
        if words and words[0] in devices and len(words) > 1 and _cells(words[1]):
            if row:
                yield glue.join(row)
            row = [line]
        elif row and len(row) < _WRAPS and words and all(map(_is_cell if glue else _PIECE.fullmatch, words)):
            row.append(line)
        elif row:
            yield glue.join(row)
            row = []
    if row:
        yield glue.join(row)


def _is_cell(word: str) -> bool:
    return bool(_cells(word) or _AFFINITY_WORD.fullmatch(word))


def _row(line: str, count: int, columns: Sequence[str]) -> _Row:
    name, *words = line.split()
    links: list[str] = []
    while words and len(links) < count and (cells := _cells(words[0])):
        links += cells
        words.pop(0)
    if len(links) != count or (words and _cells(words[0])):
        raise ValueError(f"the row of {name} is not {count} link classes")
    if "\t" in line and len(words) < len(columns):
        # a cell may be empty, and the driver puts a second tab before the last column: a full set of cells tells which
        cells = [cell.strip() for cell in line.rstrip("\n").split("\t")][count + 1 :]
        if len(cells) == len(columns) + 1 and columns[-1] == _LAST and not cells[-2]:
            del cells[-2]
        words = cells if len(cells) == len(columns) else words if cells and cells[0] else []
    if len(words) > len(columns) > 0 or not all(map(_AFFINITY_CELL.fullmatch, words)):
        raise ValueError(f"the row of {name} ends with cells that are none of the header's")
    return _Row(links, words)


def _legend(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if found := _LEGEND.fullmatch(line):
            yield found[1], found[2]


def _build(
    devices: Sequence[str], rows: Mapping[str, _Row], legend: Mapping[str, str], columns: Sequence[str]
) -> Topology:
    gpus = sorted((int(name[3:]), at) for at, name in enumerate(devices) if name.startswith("GPU"))
    nics = [(legend.get(name, name), at) for at, name in enumerate(devices) if not name.startswith("GPU")]
    if not gpus:
        raise ValueError("the matrix holds no GPU")

    def link(i: int, j: int) -> str:
        for one, other in ((i, j), (j, i)):
            if devices[one] in rows:
                return rows[devices[one]].links[other]
        return ""

    def affinity(column: str) -> dict[int, str]:
        known = {gpu: rows[devices[at]].tail for gpu, at in gpus if devices[at] in rows}
        said = {gpu: dict(zip(columns, tail, strict=False)).get(column, "") for gpu, tail in known.items()}
        return {gpu: value for gpu, value in said.items() if value and value != "N/A"}

    return Topology(
        gpus=len(gpus),
        nics=tuple(name for name, _ in nics),
        links={(a, b): one for a, i in gpus for b, j in gpus if a < b and (one := link(i, j))},
        nic_links={(gpu, name): one for gpu, i in gpus for name, j in nics if (one := link(i, j))},
        cpu_affinity=affinity("CPU Affinity"),
        numa_affinity=affinity("NUMA Affinity"),
        cut=next((devices[at] for _, at in gpus if devices[at] not in rows), ""),
    )


def read(evidence: Evidence) -> Known[Topology] | Unknown:
    """Return the matrix that the driver draws."""
    reply = evidence.answer("nvidia-smi-topo")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_topo(reply.text))
    except ValueError as error:
        said = (reply.error_text or reply.text).strip().splitlines()
        return Unknown(f"`nvidia-smi-topo`: {error}" + (f" ({said[-1][:120]})" if reply.exit_code and said else ""))


def tell(topology: Topology) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "gpus": topology.gpus,
        "nics": len(topology.nics),
        "links": {f"{a}-{b}": link for (a, b), link in topology.links.items()},
        "numa": {str(gpu): node for gpu, node in topology.numa_affinity.items()},
    }
