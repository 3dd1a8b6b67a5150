"""An AMD EPYC socket is split into several NUMA nodes, or two sockets into one.

What it means
    The firmware option NPS (nodes per socket) is not what is wanted, by default 1. With NPS2 or NPS4 each socket's
    memory channels are shared out among two or four nodes; with NPS0 both sockets look like one node and memory is
    interleaved across them.

Why it matters to training
    A process that feeds a GPU gets the bandwidth of its own node's channels only, and GPUs and NICs hang off few of
    those nodes: unlucky placement halves host-to-device speed, and pinned buffers land in the wrong node. NPS0 hides
    locality altogether. Some vendors ship NPS4 on purpose (DGX A100), so this is a warning; what counts most is that all
    hosts of a run are alike.

How we tell
    NUMA nodes that have CPUs, divided by sockets: memory-only nodes (CXL, the memory of a GH200) do not count, and two
    nodes on two sockets are NPS1. Only EPYC since its second generation (Zen 2) has the option; the first generation,
    and Hygon's, always have four nodes a socket, and other processors and virtual machines are not judged. Threadripper
    calls its option otherwise and is only told of. When there are as many nodes as L3 caches, or more than four a
    socket, the firmware option "ACPI SRAT L3 cache as NUMA domain" may be on, and NPS cannot be told: `numa.l3` says
    more. With `numa=off` the kernel shows one node whatever the firmware says. The "NPS1" that rocm-smi and amd-smi
    print is how a GPU's memory is partitioned, and nothing of the CPU. Where lscpu was cut off or is in another
    language, the answer is unknown. Hosts that differ from most of their peers are named, whatever is wanted.

What to do
    In the firmware: AMD CBS, DF common options, memory addressing, NUMA nodes per socket: NPS1. Then reboot. In a cloud
    the option belongs to the instance's platform settings. Where NPS4 is wanted, say so in the site's file
    (`numa.nps = [4]`), or accept the finding: `--accept numa.nps=REASON`.

How to undo
    Set the firmware option back and reboot.

Sources
    https://rocm.docs.amd.com/en/latest/how-to/system-optimization/mi100.html
    https://infohub.delltechnologies.com/p/numa-configuration-settings-on-amd-epyc-2nd-generation/
    https://gist.github.com/v0dro/0559e1d9b205ca9ac0ad1a29fe10377b
    https://metebalci.com/blog/supermicro-h12ssl-numa/
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpu import Cpu

ID = "numa.nps"
SOURCE = "https://infohub.delltechnologies.com/p/numa-configuration-settings-on-amd-epyc-2nd-generation/"
EXPECTS = {
    "numa.nps": Want(int, "nodes per socket that are right on AMD EPYC; 0 is one node for two sockets", (1,), many=True)
}

_OPTIONS = {0.5: 0, 1.0: 1, 2.0: 2, 4.0: 4}  # nodes with CPUs, by sockets: the option


def _remedy(right: tuple[int, ...] | tuple[str, ...]) -> Remedy:
    return Remedy(
        f"In the firmware: AMD CBS, DF common options, memory addressing, NUMA nodes per socket = NPS{right[0]}; then reboot.",
        needs_reboot=True,
        needs_firmware=True,
    )


def skip(cpu: Cpu) -> str:
    """Spare what has no such option: other processors, first-generation EPYC, virtual machines."""
    if cpu.hypervisor:
        return f"a virtual machine ({cpu.hypervisor}): its nodes are not the machine's"
    if cpu.unnamed or (cpu.is_threadripper and cpu.nodes_per_socket):
        return ""
    if not cpu.is_epyc:
        return f"not an AMD EPYC processor: {cpu.model_name or cpu.vendor or cpu.architecture}"
    if cpu.is_naples:
        return "first-generation EPYC has four nodes a socket by construction"
    if cpu.numa_off:
        return "the kernel does not show NUMA nodes (numa=off)"
    return ""


def judge(cpu: Cpu, expect: Expect) -> Iterator[Finding]:
    """Warn unless each socket is as many nodes as is wanted."""
    ratio = cpu.nodes_per_socket
    if cpu.unnamed:
        yield Finding(State.UNKNOWN, saw="lscpu does not say whose processor this is")
    elif cpu.sockets is None or cpu.cpu_nodes is None or ratio is None:
        what = "sockets" if cpu.sockets is None else "NUMA nodes with CPUs"
        yield Finding(State.UNKNOWN, saw=f"the number of {what} is not known")
    elif cpu.is_threadripper:
        yield Finding(State.INFO, saw=f"{_layout(cpu)} of {cpu.model_name}: the option has another name there, if any")
    else:
        yield _verdict(cpu, ratio, expect.several("numa.nps") or (1,), expect.origin("numa.nps"))


def _verdict(cpu: Cpu, ratio: float, right: tuple[int, ...] | tuple[str, ...], origin: str) -> Finding:
    option, layout = _OPTIONS.get(ratio), _layout(cpu)
    if option is None:
        caches = f"{cpu.l3_caches or 'an unknown number of'} L3 caches"
        return Finding(State.INFO, saw=f"{layout}, {caches}: NPS cannot be told from that; see numa.l3")
    saw = f"{layout}: NPS{option}"
    if option == 0:
        saw += ", memory is interleaved across sockets"
    elif option > 1 and cpu.l3_caches == cpu.cpu_nodes:
        saw += ", or a node for each L3 cache"
    wanted = f"{' or '.join(f'NPS{one}' for one in right)} ({origin})"
    if option in right:
        return Finding(State.PASS, saw, wanted)
    evidence = (f"lscpu: {cpu.model_name}: Socket(s) {cpu.sockets}, NUMA node(s) {cpu.nodes}",)
    return Finding(State.WARN, saw, wanted, "", _remedy(right), evidence)


def _layout(cpu: Cpu) -> str:
    count = f"{_counted(cpu.cpu_nodes or 0, 'NUMA node')} with CPUs on {_counted(cpu.sockets or 0, 'socket')}"
    return f"{count} (and {cpu.memory_only} without CPUs)" if cpu.memory_only > 0 else count


def baseline(cpu: Cpu) -> Mapping[str, Value]:
    """Return the nodes per socket, where there is such an option."""
    option = _OPTIONS.get(cpu.nodes_per_socket or 0)
    return {"numa.nps": (option,)} if option is not None and cpu.is_epyc and not skip(cpu) else {}


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
        remedy=_remedy((min(int(usual), 4) if usual >= 1 else 0,)),
        evidence=tuple(f"lscpu: {host}: {ratios[host]:g} nodes a socket" for host in odd[:8]),
        hosts=odd,
        scope="cluster",
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
