"""A NUMA node has CPUs and no memory, or much less memory than the other nodes.

What it means
    One node's memory channels are empty or switched off: its CPUs work in other nodes' memory. Or one node has clearly
    less memory than the rest.

Why it matters to training
    Buffers of the ranks near that node are remote, at a part of the bandwidth and with more latency, and when the node is
    full they spill over. One such host sets the pace of a synchronous run, and nothing but the bandwidth shows it. A DIMM
    that failed its training at boot, or was never put in, is the usual cause.

How we tell
    The kernel's own figure of each node's memory (`MemTotal` of the node in sysfs), for nodes with CPUs. Nodes without
    CPUs (CXL, the memory of GPUs) may have any size. The least must be within 20 % of the most: the kernel itself, huge
    pages at boot and the hole for PCI take a little from the first node. The threshold is our judgement.

What to do
    Compare `sudo dmidecode -t memory` with the plan of the board's slots, look at the firmware's event log for DIMMs that
    failed, then reseat or replace them.

How to undo
    Nothing to undo: the memory was missing.

Sources
    https://docs.kernel.org/admin-guide/mm/numaperf.html
    https://docs.kernel.org/admin-guide/abi-stable.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.numa import Numa

ID = "numa.memory"
SOURCE = "https://docs.kernel.org/admin-guide/abi-stable.html"
EXPECTS = {"numa.memory.imbalance_percent": Want(float, "how much less memory than the fullest a node may have", 20.0)}

_REMEDY = Remedy(
    "Compare the DIMMs that the firmware sees with the board's slots; reseat or replace what is missing.",
    commands=("sudo dmidecode -t memory",),
    needs_root=True,
    needs_reboot=True,
)


def judge(numa: Numa, expect: Expect) -> Iterator[Finding]:
    """Warn of nodes with CPUs that have no memory or too little."""
    nodes = {number: node.memory_kib for number, node in numa.with_cpus.items()}
    if not nodes:
        yield Finding(State.SKIP, saw="the kernel shows no NUMA node with CPUs")
        return
    known = {number: kib for number, kib in nodes.items() if kib is not None}
    if len(known) < len(nodes):
        lost = ", ".join(str(number) for number in sorted(nodes.keys() - known.keys()))
        yield Finding(State.UNKNOWN, saw=f"the memory of node {lost} is not known")
        return
    evidence = tuple(f"sysfs-numa: Node {number} MemTotal: {kib} kB" for number, kib in sorted(known.items()))
    empty = [number for number, kib in sorted(known.items()) if kib == 0]
    allowed = expect.number("numa.memory.imbalance_percent") or 0.0
    least, most = min(known.values()), max(known.values())
    told = f"{_gib(least)} to {_gib(most)} GiB a node with CPUs ({len(known)} of them)"
    if empty:
        saw = f"no memory in node {', '.join(map(str, empty))}, which has CPUs"
        yield Finding(State.WARN, saw, "memory in every node that has CPUs", remedy=_REMEDY, evidence=evidence)
    elif (most - least) * 100 > allowed * most:
        wanted = f"all within {allowed:g} % of the fullest ({expect.origin('numa.memory.imbalance_percent')})"
        yield Finding(State.WARN, told, wanted, remedy=_REMEDY, evidence=evidence)
    else:
        yield Finding(State.PASS, told)


def _gib(kib: int) -> str:
    return f"{kib / (1 << 20):.1f}"
