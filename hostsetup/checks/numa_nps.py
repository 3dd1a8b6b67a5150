"""An AMD EPYC socket is split into several NUMA nodes, or two sockets into one.

What it means
    The firmware option NPS (nodes per socket) is not 1. With NPS2 or NPS4 each socket's memory channels are shared out
    among two or four nodes; with NPS0 both sockets look like one node and memory is interleaved across them.

Why it matters to training
    A process that feeds a GPU gets the bandwidth of its own node's channels only, and GPUs and NICs hang off few of
    those nodes: unlucky placement halves host-to-device speed, and pinned buffers land in the wrong node. NPS0 hides
    locality altogether. Some vendors ship NPS4 on purpose, so this is a warning; what counts most is that all hosts of
    a run are alike.

How we tell
    NUMA nodes that have CPUs, divided by sockets: memory-only nodes do not count, and two nodes on two sockets are NPS1.
    Only EPYC since its second generation (Zen 2) has the option; the first generation always has four nodes a socket,
    and other processors and virtual machines are not judged. When there are as many nodes as L3 caches, the firmware
    option "ACPI SRAT L3 cache as NUMA domain" may be on, and NPS cannot be told. Hosts that differ from most of their
    peers are named.

What to do
    In the firmware: AMD CBS, DF common options, memory addressing, NUMA nodes per socket: NPS1. Then reboot. In a cloud
    the option belongs to the instance's platform settings. Where NPS4 is wanted, accept the finding:
    `--accept numa.nps=REASON`.

How to undo
    Set the firmware option back and reboot.

Sources
    https://rocm.docs.amd.com/en/latest/how-to/system-optimization/mi100.html
    https://infohub.delltechnologies.com/p/numa-configuration-settings-on-amd-epyc-2nd-generation/
    https://metebalci.com/blog/supermicro-h12ssl-numa/
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.cpu import Cpu

ID = "numa.nps"
SOURCE = "https://infohub.delltechnologies.com/p/numa-configuration-settings-on-amd-epyc-2nd-generation/"

_REMEDY = Remedy(
    "In the firmware: AMD CBS, DF common options, memory addressing, NUMA nodes per socket = NPS1; then reboot.",
    needs_reboot=True,
    needs_firmware=True,
)


def skip(cpu: Cpu) -> str:
    """Spare what has no such option: other processors, first-generation EPYC, virtual machines."""
    if cpu.hypervisor:
        return f"a virtual machine ({cpu.hypervisor}): its nodes are not the machine's"
    if not cpu.is_epyc:
        return f"not an AMD EPYC processor: {cpu.model_name or cpu.vendor or cpu.architecture}"
    if cpu.is_naples:
        return "first-generation EPYC has four nodes a socket by construction"
    if cpu.numa_off:
        return "the kernel does not show NUMA nodes (numa=off)"
    return ""


def judge(cpu: Cpu) -> Iterator[Finding]:
    """Warn unless each socket is one node."""
    ratio = cpu.nodes_per_socket
    if cpu.sockets is None or ratio is None:
        yield Finding(State.UNKNOWN, saw="the number of sockets is not known")
        return
    memory_only = cpu.nodes - cpu.cpu_nodes
    count = f"{_counted(cpu.cpu_nodes, 'NUMA node')} with CPUs on {_counted(cpu.sockets, 'socket')}"
    if memory_only > 0:
        count += f" (and {memory_only} without CPUs)"
    evidence = (f"lscpu: {cpu.model_name}: Socket(s) {cpu.sockets}, NUMA node(s) {cpu.nodes}",)
    wanted = "one node a socket (NPS1)"
    if ratio == 1:
        yield Finding(State.PASS, saw=f"{count}: NPS1", wanted=wanted)
    elif ratio < 1:
        yield Finding(State.WARN, f"{count}: NPS0, memory is interleaved across sockets", wanted, "", _REMEDY, evidence)
    elif cpu.l3_caches == cpu.cpu_nodes or ratio not in {2, 4}:
        saw = f"{count}, {cpu.l3_caches or 'an unknown number of'} L3 caches: each L3 cache may be a node of its own"
        remedy = Remedy(
            "In the firmware: switch 'ACPI SRAT L3 cache as NUMA domain' off, NUMA nodes per socket = NPS1; then reboot.",
            needs_reboot=True,
            needs_firmware=True,
        )
        yield Finding(State.WARN, saw, wanted, "", remedy, evidence)
    else:
        yield Finding(State.WARN, f"{count}: NPS{ratio:.0f}", wanted, "", _REMEDY, evidence)


def judge_fleet(cpu: Mapping[str, Cpu]) -> Iterator[Finding]:
    """Warn of the hosts whose nodes a socket are not those of most hosts."""
    ratios = {host: ratio for host, one in cpu.items() if (ratio := one.nodes_per_socket) is not None}
    counts = Counter(ratios.values())
    if len(counts) < 2:
        return
    usual = max(counts, key=lambda ratio: (counts[ratio], ratio == 1))
    odd = tuple(host for host, ratio in ratios.items() if ratio != usual)
    yield Finding(
        State.WARN,
        saw="; ".join(f"{_counted(count, 'host')} with {ratio:g} nodes a socket" for ratio, count in counts.items()),
        wanted="the same on all hosts of a run",
        remedy=_REMEDY,
        evidence=tuple(f"lscpu: {host}: {ratios[host]:g} nodes a socket" for host in odd[:8]),
        hosts=odd,
        scope="cluster",
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
