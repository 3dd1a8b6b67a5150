"""Knows how a host's GPUs and NICs are linked, as `nvidia-smi topo -m` draws it. Ranks nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROBES = (Probe("nvidia-smi-topo", "nvidia-smi topo -m", timeout_s=30),)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|(?:mlx|bnxt|irdma|efa|hfi|rocep|ibp|rdmap|roceo|mana)[\w.]*", re.ASCII)
_LINK = re.compile(r"X|NV\d{1,3}|C2C|PIX|PXB|PHB|NODE|SYS|SOC", re.ASCII)
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*", re.ASCII)
_AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
MAX_DEVICES = 256


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix. `links`: class between GPUs, by (lower, higher) index; `nic_links`: by (GPU index, NIC name).

    `cpu_affinity`, `numa_affinity`: by GPU index, absent where the driver says none. SOC (old drivers) is read as SYS.
    """

    gpus: int
    nics: tuple[str, ...]
    links: Mapping[tuple[int, int], str]
    nic_links: Mapping[tuple[int, str], str]
    cpu_affinity: Mapping[int, str]
    numa_affinity: Mapping[int, str]

    @property
    def all_nvlink(self) -> bool:
        """Whether every pair of GPUs is joined by NVLink."""
        return all(link.startswith("NV") for link in self.links.values())


def parse_topo(text: str) -> Topology:
    """Read the matrix: cells parted by tabs, or by blanks where the text was pasted; NIC names by the legend.

    Raises ValueError when there is no matrix, when it is cut off, or when it is not symmetric.
    """
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    at = next((i for i, line in enumerate(lines) if _DEVICE.match(line.strip()) and _header(line)), None)
    if at is None:
        raise ValueError("no header of a topology matrix")
    devices = _header(lines[at])
    columns = [name for name in _AFFINITY if re.search(name.replace(" ", r"\s+"), lines[at])]
    if len(set(devices)) != len(devices) or len(devices) > MAX_DEVICES:
        raise ValueError("a device appears twice in the header, or there are too many")
    cells: dict[str, list[str]] = {}
    tails: dict[str, list[str]] = {}
    for line in lines[at + 1 :]:
        words = line.split()
        # rows only: legend lines begin with a class (`SYS = ...`) or end the name with a colon
        if words and words[0] in devices and len(words) > 1 and words[1] != "=" and words[0] not in cells:
            name = words[0]
            cells[name], tails[name] = _row(line, len(devices), columns)
    missing = [name for name in devices if name not in cells]
    if missing:
        raise ValueError(f"the matrix is cut off: no row for {missing[0]}")
    for i, name in enumerate(devices):
        for j, other in enumerate(devices):
            if (cells[name][j] == "X") != (i == j) or cells[name][j] != cells[other][i]:
                raise ValueError(f"the matrix is not symmetric: {name} to {other}")
    return _build(
        devices, cells, dict(_legend(lines)), {name: dict(zip(columns, tails[name], strict=False)) for name in tails}
    )


def _header(line: str) -> list[str]:
    devices: list[str] = []
    for word in line.split():
        if not _DEVICE.fullmatch(word):
            break
        devices.append(word)
    # one word is a row or a legend unless the affinity columns follow
    return devices if len(devices) > 1 or "Affinity" in line else []


def _row(line: str, count: int, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    name, *rest = line.split()
    links = [{"SOC": "SYS"}.get(word, word) for word in rest[:count]]
    if len(links) < count or not all(_LINK.fullmatch(link) for link in links):
        raise ValueError(f"the row of {name} is not {count} link classes")
    tail = rest[count:]
    if "\t" in line and len(tail) < len(columns):
        # a cell may be empty; the driver also pads with a second tab, so only a full set of cells tells which one it is
        after = [cell.strip() for cell in line.rstrip("\n").split("\t")][count + 1 :]
        if len(after) == len(columns):
            tail = after
        elif after and not after[0]:
            tail = []
    return links, tail


def _legend(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if found := _LEGEND.fullmatch(line):
            yield found[1], found[2]


def _build(
    devices: Sequence[str],
    cells: Mapping[str, list[str]],
    legend: Mapping[str, str],
    tails: Mapping[str, Mapping[str, str]],
) -> Topology:
    gpus = sorted((int(name[3:]), at) for at, name in enumerate(devices) if name.startswith("GPU"))
    nics = [(legend.get(name, name), at) for at, name in enumerate(devices) if not name.startswith("GPU")]
    if not gpus:
        raise ValueError("the matrix holds no GPU")

    def affinity(column: str) -> dict[int, str]:
        said = {gpu: tails[devices[at]].get(column, "") for gpu, at in gpus}
        return {gpu: value for gpu, value in said.items() if value and value != "N/A"}

    return Topology(
        gpus=len(gpus),
        nics=tuple(name for name, _ in nics),
        links={(a, b): cells[devices[i]][j] for a, i in gpus for b, j in gpus if a < b},
        nic_links={(gpu, name): cells[devices[i]][j] for gpu, i in gpus for name, j in nics},
        cpu_affinity=affinity("CPU Affinity"),
        numa_affinity=affinity("NUMA Affinity"),
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
