"""The GPUs of a host are joined unevenly, or unlike those of its peers.

What it means
    The link matrix that the driver draws is lopsided: one GPU has fewer NVLinks than its like, which is what a link that
    is down looks like. Or the host's matrix differs from that of the other hosts with the same GPUs.

Why it matters to training
    A collective runs at the pace of its slowest link. One missing NVLink slows every all-reduce of every host, and a host
    with another matrix makes NCCL choose other rings than its peers.

How we tell
    We read `nvidia-smi topo -m` whole and by its words, for its columns move between drivers; a matrix that is not
    symmetric, or in which the row of a GPU is missing, is unknown. What is compared is how many NVLinks each GPU has in
    all: pairs with one and pairs with two links side by side are how eight V100 are wired, and bridges that join pairs
    only are by design, but a GPU that has fewer in all than its like has lost some. How many links a model should have
    is asked by gpu.nvlink.
    PHB, NODE and SYS between PCIe cards are by design (a desktop, two sockets, a virtual machine that flattens the tree)
    and are only told, each with the way that NCCL takes there by default: NVLink; a direct copy up to PXB (on AMD hosts
    with at most two GPUs up to SYS); over NVLink through a GPU that is linked to both; else through shared memory. The
    matrix shows where the cards sit: whether the driver permits the copy is asked by gpu.p2p.
    Across hosts with the same number and model of GPUs, the classes of each GPU's links are compared. A host without
    NVIDIA GPUs is skipped.

What to do
    Uneven NVLink counts: see `nvidia-smi nvlink -s` for the inactive links, then the driver's log, then reseat or replace
    the bridge or the board. Another matrix than the peers': compare slots and cabling.

How to undo
    Nothing is changed.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-level
    https://github.com/pytorch/pytorch/pull/142179
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.topology import Topology

ID = "gpu.topology"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

_MEANING = {
    "C2C": "chip to chip",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through the CPU's root complex",
    "NODE": "across root complexes of one NUMA node",
    "SYS": "across sockets",
}
_DIRECT = {"C2C", "PIX", "PXB"}
_SHOWN = 8
_REMEDY = Remedy(
    "Look for inactive links (`nvidia-smi nvlink -s`), then reseat or replace the bridge or the board.",
    ("nvidia-smi nvlink -s", "nvidia-smi topo -m"),
)


def skip(pci: Pci) -> str:
    """Spare hosts where the driver has nothing to draw."""
    return nvidia.absent(pci)


def judge(topology: Topology, cpu: Cpu | None = None) -> Iterator[Finding]:
    """Warn on uneven NVLink; tell the classes otherwise, and the way that NCCL takes."""
    if topology.gpus < 2:
        yield Finding(State.PASS, saw="one GPU")
        return
    if topology.cut:
        yield Finding(State.UNKNOWN, saw=f"the matrix is cut off: no row for {topology.cut}")
        return
    told = _told(Counter(topology.links.values()))
    weak = _weak(topology)
    if weak:
        best = max(_totals(topology).values())
        yield Finding(
            State.WARN,
            saw=f"uneven NVLink: {weak}",
            wanted=f"as many NVLinks at each of these GPUs as at the best of them ({best} over all its pairs)",
            remedy=_REMEDY,
            evidence=(f"nvidia-smi-topo: {told}",),
        )
        return
    small_amd = cpu is not None and cpu.vendor == "AuthenticAMD" and topology.gpus <= 2
    ways = _ways(topology, small_amd=small_amd)
    lines = tuple(f"nvidia-smi-topo: {way}: {_pairs(ways, way)}" for way in dict.fromkeys(ways.values()))
    tally = ", ".join(f"{count} by {way}" for way, count in Counter(ways.values()).items())
    yield Finding(
        State.PASS, saw=f"{told}; NCCL's way between pairs, where the driver permits it: {tally}", evidence=lines
    )


def judge_fleet(
    topology: Mapping[str, Topology], gpus: Mapping[str, tuple[Gpu, ...]] | None = None
) -> Iterator[Finding]:
    """Warn of the hosts whose matrix is not that of most hosts with as many GPUs of the model."""
    whole = {host: matrix for host, matrix in topology.items() if matrix.gpus > 1 and not matrix.cut}
    models = {host: _models((gpus or {}).get(host, ())) for host in whole}
    for kind in sorted({(whole[host].gpus, models[host]) for host in whole}):
        shapes = {host: _shape(whole[host]) for host in whole if (whole[host].gpus, models[host]) == kind}
        counts = Counter(shapes.values())
        if len(counts) < 2:
            continue
        usual, most = counts.most_common(1)[0]
        tie = list(counts.values()).count(most) > 1
        odd = tuple(host for host, shape in shapes.items() if tie or shape != usual)
        first = {shape: next(host for host in shapes if shapes[host] == shape) for shape in counts}
        told = {shape: _told(Counter(whole[host].links.values())) for shape, host in first.items()}
        same = " (the same classes, but between other GPUs)" if len(set(told.values())) == 1 else ""
        yield Finding(
            State.WARN,
            saw="; ".join(f"{counts[shape]} hosts: {told[shape]}" for shape in counts) + same,
            wanted=f"the same links on all hosts with {kind[0]} GPUs{f' {kind[1]}' if kind[1] else ''}",
            remedy=Remedy("Compare slots, bridges and cabling of these hosts with those of their peers."),
            evidence=tuple(f"nvidia-smi-topo: {host}: {told[shapes[host]]}" for host in odd[:_SHOWN]),
            hosts=odd,
            scope="cluster",
        )


def _count(link: str) -> int:
    return int(link[2:]) if link.startswith("NV") else 0


def _totals(topology: Topology) -> dict[int, int]:
    totals: Counter[int] = Counter()
    for (a, b), link in topology.links.items():
        totals.update({a: _count(link), b: _count(link)})
    return dict(totals)


def _weak(topology: Topology) -> str:
    """Return the pairs, or the GPUs, that have fewer NVLinks than their like; empty: none has."""
    totals = _totals(topology)
    peers = Counter(gpu for pair, link in topology.links.items() if _count(link) for gpu in pair)
    meshed = max(peers.values(), default=0) > 1  # bridges join pairs; what joins more is meant to join all
    if meshed and (bare := sorted(gpu for gpu, total in totals.items() if not total)):
        return f"{', '.join(f'GPU{gpu}' for gpu in bare[:_SHOWN])} without any, others with {max(totals.values())}"
    linked = {gpu: total for gpu, total in totals.items() if total}
    if len(set(linked.values())) < 2:
        return ""
    best = max(topology.links.values(), key=_count)
    short = {gpu for gpu, total in linked.items() if total < max(linked.values())}
    weak = [
        f"GPU{a}-GPU{b} {link}"
        for (a, b), link in topology.links.items()
        if 0 < _count(link) < _count(best) and short & {a, b}
    ]
    if weak:
        return f"{', '.join(weak[:_SHOWN])}{', ...' if len(weak) > _SHOWN else ''}, others {best}"
    return (
        f"{', '.join(f'GPU{gpu} with {totals[gpu]}' for gpu in sorted(short)[:_SHOWN])}, others {max(linked.values())}"
    )


def _ways(topology: Topology, *, small_amd: bool) -> dict[tuple[int, int], str]:
    """Return how NCCL moves data between each pair where nothing is set."""
    linked: dict[int, set[int]] = {}
    for (a, b), link in topology.links.items():
        if _count(link):
            linked.setdefault(a, set()).add(b)
            linked.setdefault(b, set()).add(a)
    ways: dict[tuple[int, int], str] = {}
    for (a, b), link in topology.links.items():
        if _count(link):
            ways[a, b] = "NVLink"
        elif link in _DIRECT or small_amd:
            ways[a, b] = "direct copy"
        elif linked.get(a, set()) & linked.get(b, set()):
            ways[a, b] = "NVLink through a third GPU"
        else:
            ways[a, b] = "shared memory unless NCCL_P2P_LEVEL says otherwise"
    return ways


def _pairs(ways: Mapping[tuple[int, int], str], way: str) -> str:
    named = [f"{a}-{b}" for (a, b), one in ways.items() if one == way]
    return " ".join(named[:64]) + (" ..." if len(named) > 64 else "")


def _models(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(sorted({nvidia.model(gpu.name) for gpu in gpus if gpu.name}))


def _shape(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Return what two matrices share when one is the other with its GPUs renumbered."""
    ends: dict[int, list[str]] = {}
    for pair, link in topology.links.items():
        for gpu in pair:
            ends.setdefault(gpu, []).append(link)
    return tuple(sorted(tuple(sorted(links)) for links in ends.values()))


def _told(classes: Counter[str]) -> str:
    ordered = sorted(classes.items(), key=lambda item: (not item[0].startswith("NV"), item[0]))
    return ", ".join(
        f"{count} {'pair' if count == 1 else 'pairs'} {link}" + (f" ({_MEANING[link]})" if link in _MEANING else "")
        for link, count in ordered
    )
