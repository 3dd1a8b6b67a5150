"""The GPUs of a host are joined unevenly, or unlike those of its peers.

What it means
    The link matrix that the driver draws is lopsided: some pairs of like GPUs have more NVLinks than others, which is
    what a link that is down looks like. Or the host's matrix differs from that of most hosts with as many GPUs.

Why it matters to training
    A collective runs at the pace of its slowest link. One missing NVLink slows every all-reduce of every host, and a host
    with another matrix makes NCCL choose other rings than its peers.

How we tell
    We read `nvidia-smi topo -m` whole; a matrix that is cut off or not symmetric is unknown. NVLink counts are compared
    among the pairs that have any. PHB, NODE and SYS between PCIe cards are by design and are only told, with what NCCL
    makes of them: it copies directly up to PXB (on AMD hosts with at most two GPUs, up to SYS) and through shared memory
    beyond. NVLink bridges that join pairs only are by design, too. Across hosts the numbers of pairs of each class are
    compared. A host without NVIDIA GPUs is skipped.

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

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.cpu import Cpu
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
_REMEDY = Remedy("Look for inactive links (`nvidia-smi nvlink -s`), then reseat or replace the bridge or the board.")


def skip(pci: Pci) -> str:
    """Spare hosts where the driver has nothing to draw."""
    return "" if any(gpu.vendor == "10de" for gpu in pci.gpus) else "no NVIDIA GPU"


def judge(topology: Topology, cpu: Cpu | None = None) -> Iterator[Finding]:
    """Warn on uneven NVLink; tell the classes otherwise."""
    if topology.gpus < 2:
        yield Finding(State.PASS, saw="one GPU")
        return
    classes = Counter(topology.links.values())
    told = _told(classes)
    nvlink = {link for link in classes if link.startswith("NV")}
    if len(nvlink) > 1:
        best = max(nvlink, key=lambda link: int(link[2:]))
        weak = [f"GPU{a}-GPU{b} {link}" for (a, b), link in topology.links.items() if link in nvlink - {best}]
        yield Finding(
            State.WARN,
            saw=f"uneven NVLink: {', '.join(weak[:8])}{', ...' if len(weak) > 8 else ''}, others {best}",
            wanted=f"{best} between all pairs that have NVLink",
            remedy=_REMEDY,
            evidence=(f"nvidia-smi-topo: {told}",),
        )
        return
    yield Finding(State.PASS, saw=f"{told}; {_path(topology, cpu)}")


def judge_fleet(topology: Mapping[str, Topology]) -> Iterator[Finding]:
    """Warn of the hosts whose matrix is not that of most hosts with as many GPUs."""
    for gpus in sorted({matrix.gpus for matrix in topology.values()}):
        shapes = {host: _told(Counter(m.links.values())) for host, m in topology.items() if m.gpus == gpus and gpus > 1}
        counts = Counter(shapes.values())
        if len(counts) < 2:
            continue
        usual, most = counts.most_common(1)[0]
        tie = list(counts.values()).count(most) > 1
        odd = tuple(host for host, shape in shapes.items() if tie or shape != usual)
        lines = tuple(f"nvidia-smi-topo: {host}: {shapes[host]}" for host in odd[:8])
        yield Finding(
            State.WARN,
            saw="; ".join(f"{counts[shape]} hosts: {shape}" for shape in counts),
            wanted=f"the same links on all hosts with {gpus} GPUs",
            remedy=Remedy("Compare slots, bridges and cabling of these hosts with those of their peers."),
            evidence=lines,
            hosts=odd,
            scope="cluster",
        )


def _told(classes: Counter[str]) -> str:
    ordered = sorted(classes.items(), key=lambda item: (not item[0].startswith("NV"), item[0]))
    return ", ".join(
        f"{count} {'pair' if count == 1 else 'pairs'} {link}" + (f" ({_MEANING[link]})" if link in _MEANING else "")
        for link, count in ordered
    )


def _path(topology: Topology, cpu: Cpu | None) -> str:
    small_amd = cpu is not None and cpu.vendor == "AuthenticAMD" and topology.gpus <= 2
    far = [link for link in topology.links.values() if not link.startswith("NV") and link not in _DIRECT]
    if not far or small_amd:
        return "NCCL copies directly between all pairs where the driver permits it"
    return f"NCCL sends {len(far)} of {len(topology.links)} pairs through shared memory unless NCCL_P2P_LEVEL says otherwise"
