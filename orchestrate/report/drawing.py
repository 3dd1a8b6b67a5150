"""What a picture of a host shows: its PCIe tree with the ports at fault, and the matrix of its GPU links. Draws nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Known, State
from orchestrate.report.fold import worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostsetup.facts.pci_tree import Function, Pci
    from hostsetup.facts.topology import Topology
    from hostsetup.host import HostFacts
    from hostsetup.model import Finding

MOST_DEVICES = 128  # of one host: more are counted, not drawn
MOST_COLUMNS = 48
_AT_FAULT = frozenset({State.FAIL, State.WARN, State.UNKNOWN})
_ADDRESS = re.compile(
    r"(?<![\w:.])(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![\w:.]*\w)", re.IGNORECASE | re.ASCII
)
_GPU = re.compile(r"\bGPU ?(\d{1,3})\b", re.ASCII)
_BRACKETS = re.compile(r"\[([^\[\]]{3,60})\]\s*$")
_VENDORS = re.compile(r"^(NVIDIA Corporation|Mellanox Technologies|Intel Corporation|Advanced Micro Devices, Inc\.) ")
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Mark:
    """What is wrong with a function: the worst state of the findings that name it, and their checks."""

    state: State
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One PCI function of the picture. `kind`: gpu, nic, nvswitch, bridge or device."""

    address: str
    kind: str
    name: str = ""
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """Functions in a row, from the root down, and what hangs below the last of them."""

    path: tuple[Node, ...]
    children: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of link classes: each GPU with every GPU and NIC; `numa` by row, empty where the driver says none."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numa: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is drawn of a host. Where something is not drawn, the sentence says why."""

    roots: tuple[tuple[str, tuple[Branch, ...]], ...] = ()
    no_tree: str = ""
    matrix: Matrix | None = None
    no_matrix: str = ""
    left_out: int = 0

    @property
    def worst(self) -> State | None:
        """The worst mark of the tree."""
        states = [node.mark.state for _, branches in self.roots for node in _nodes(branches) if node.mark is not None]
        return worst(states) if states else None


def _nodes(branches: Iterable[Branch]) -> Iterable[Node]:
    for branch in branches:
        yield from branch.path
        yield from _nodes(branch.children)


def picture(facts: HostFacts, findings: Iterable[Finding]) -> Picture:
    """Return the picture of a host; `findings` are those that name it."""
    slot, links = getattr(facts, "pci", None), getattr(facts, "topology", None)
    matrix = _matrix(links.value) if isinstance(links, Known) else None
    no_matrix = "" if matrix else _why(links, "more devices than a table can show")
    if not isinstance(slot, Known):
        return Picture(no_tree=_why(slot, "not known"), matrix=matrix, no_matrix=no_matrix)
    marks = _marks(slot.value, findings)
    drawn, left_out = _drawn(slot.value, marks)
    no_tree = "" if drawn else "no GPU, NIC or NVSwitch among its PCI functions"
    return Picture(_roots(slot.value, drawn, marks), no_tree, matrix, no_matrix, left_out)


def _why(slot: object, otherwise: str) -> str:
    return str(getattr(slot, "reason", otherwise))


def _marks(pci: Pci, findings: Iterable[Finding]) -> dict[str, Mark]:
    """Mark what `saw` names; where it names nothing of this host, what the subject names."""
    told: dict[str, dict[str, State]] = {}
    for finding in findings:
        if finding.state not in _AT_FAULT:
            continue
        for address in _named(pci, finding.saw) or _named(pci, finding.subject):
            checks = told.setdefault(address, {})
            checks[finding.check] = worst((checks.get(finding.check, finding.state), finding.state))
    return {address: Mark(worst(checks.values()), tuple(sorted(checks))) for address, checks in told.items()}


def _named(pci: Pci, text: str) -> tuple[str, ...]:
    found = (full_address(address) for address in _ADDRESS.findall(text))
    named = tuple(address for address in found if address in pci.functions)
    gpus = pci.gpus if not named and "GPU" in text else ()
    return named or tuple(gpus[int(index)].address for index in _GPU.findall(text) if int(index) < len(gpus))


def _drawn(pci: Pci, marks: Mapping[str, Mark]) -> tuple[list[Function], int]:
    """Return the devices of the picture: those at fault first, so that a limit never hides them."""
    devices = [f for _, f in sorted(pci.functions.items()) if not f.is_bridge and _kind(f) != "device"]
    named = [pci.functions[a] for a in marks if _kind(pci.functions[a]) in {"bridge", "device"}]
    every = {f.address: f for f in (*(f for f in devices if f.address in marks), *named, *devices)}
    kept = list(every.values())[:MOST_DEVICES]
    return sorted(kept, key=lambda f: f.address), len(every) - len(kept)


def _kind(function: Function) -> str:
    if function.is_gpu:
        return "gpu"
    if function.is_nvswitch:
        return "nvswitch"
    if function.is_rdma_nic or (function.class_code.startswith("02") and "Virtual Function" not in function.name):
        return "nic"
    return "bridge" if function.is_bridge else "device"


def _roots(
    pci: Pci, drawn: Sequence[Function], marks: Mapping[str, Mark]
) -> tuple[tuple[str, tuple[Branch, ...]], ...]:
    forest: dict[str, dict[str, Any]] = {}
    numbers = {gpu.address: f"GPU{index} " for index, gpu in enumerate(pci.gpus)}
    for function in drawn:
        path = (*reversed(function.parents), function.address)
        here = forest.setdefault(path[0].rpartition(":")[0], {})
        for address in path:
            here = here.setdefault(address, {})

    def node(address: str) -> Node:
        function = pci.functions.get(address)
        if function is None:
            return Node(address, "bridge", mark=marks.get(address))
        kind = _kind(function)
        name = "" if kind == "bridge" else numbers.get(address, "") + _short(function)
        return Node(address, kind, name.strip(), marks.get(address))

    def grow(below: dict[str, Any]) -> tuple[Branch, ...]:
        return tuple(branch(address, inside) for address, inside in sorted(below.items()))

    def branch(address: str, below: dict[str, Any]) -> Branch:
        path = [node(address)]
        while len(below) == 1:  # a row of bridges without a fork is one line
            ((address, below),) = below.items()
            path.append(node(address))
        return Branch(tuple(path), grow(below))

    return tuple((bus, grow(below)) for bus, below in sorted(forest.items()))


def _short(function: Function) -> str:
    name = _VENDORS.sub("", function.name)
    if found := _BRACKETS.search(name):
        name = found[1]
    return name[:_LONGEST_NAME] or ":".join(filter(None, (function.vendor, function.device)))


def _matrix(topology: Topology) -> Matrix | None:
    gpus = range(topology.gpus)
    if topology.gpus + len(topology.nics) > MOST_COLUMNS:
        return None
    rows = tuple(
        (
            *("X" if a == b else topology.links.get((min(a, b), max(a, b)), "?") for b in gpus),
            *(topology.nic_links.get((a, nic), "?") for nic in topology.nics),
        )
        for a in gpus
    )
    columns = (*(f"GPU{gpu}" for gpu in gpus), *topology.nics)
    return Matrix(columns, rows, tuple(topology.numa_affinity.get(gpu, "") for gpu in gpus))
