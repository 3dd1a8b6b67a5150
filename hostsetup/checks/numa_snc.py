"""An Intel socket is split into several NUMA nodes, or two sockets into one.

What it means
    Sub-NUMA clustering (SNC; Cluster-on-Die on Haswell and Broadwell) is on in the firmware: each socket shows two, three
    or four NUMA nodes, each with a share of the cores, the cache and the memory channels. The opposite, node
    interleaving, shows two sockets as one node and spreads memory over both.

Why it matters to training
    A process that is not bound to the node of its GPU reads and writes through other nodes' channels, and one that is
    bound gets only a share of the socket's bandwidth for its pinned buffers and its data loaders. Scripts that bind rank
    k to node k break when the number of nodes changes from host to host. Node interleaving hides locality: half of all
    buffers are remote.

How we tell
    NUMA nodes that have CPUs, divided by sockets, on Intel alone; nodes of memory only (HBM in flat mode, CXL) do not
    count. Two nodes on two sockets are as it should be. Quadrant and hemisphere modes change no node and are not seen. A
    virtual machine's nodes are not the machine's and are not judged; nor is a kernel with `numa=off`. When lscpu was cut
    off before its NUMA lines the answer is unknown. Hosts that differ from most of their peers are named.

What to do
    In the firmware: SNC (sub-NUMA clustering) off, node interleaving off (NUMA on); then reboot. Where clustering is
    wanted, say so in the site's file (`numa.snc = [2]`) and bind every rank to its GPU's node.

How to undo
    Set the firmware option back and reboot.

Sources
    https://git.zx2c4.com/linux-dev/diff/?id=2c88d45edbb89029c1190bb3b136d2602f057c98
    https://www.mail-archive.com/linux-kernel%40vger.kernel.org/msg2577965.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpu import Cpu

ID = "numa.snc"
SOURCE = "https://git.zx2c4.com/linux-dev/diff/?id=2c88d45edbb89029c1190bb3b136d2602f057c98"
EXPECTS = {"numa.snc": Want(int, "NUMA nodes with CPUs a socket that are right on Intel", (1,), many=True)}

_INTEL = "GenuineIntel"
_CLUSTER_ON_DIE = {63, 79}  # models of family 6: Haswell and Broadwell servers
_REMEDY = Remedy(
    "In the firmware: SNC (sub-NUMA clustering) as wanted, node interleaving off; then reboot.",
    needs_reboot=True,
    needs_firmware=True,
)


def skip(cpu: Cpu) -> str:
    """Spare other makers' processors, virtual machines, and kernels that show no nodes."""
    if cpu.hypervisor:
        return f"a virtual machine ({cpu.hypervisor}): its nodes are not the machine's"
    if cpu.vendor != _INTEL and not cpu.unnamed:
        return f"not an Intel processor: {cpu.model_name or cpu.vendor or cpu.architecture}"
    if cpu.numa_off:
        return "the kernel does not show NUMA nodes (numa=off)"
    return ""


def judge(cpu: Cpu, expect: Expect) -> Iterator[Finding]:
    """Warn unless each socket is as many nodes as is wanted."""
    ratio = cpu.nodes_per_socket
    if cpu.unnamed:
        yield Finding(State.UNKNOWN, saw="lscpu does not say whose processor this is")
        return
    if cpu.sockets is None or ratio is None:
        what = "sockets" if cpu.sockets is None else "NUMA nodes with CPUs"
        yield Finding(State.UNKNOWN, saw=f"the number of {what} is not known")
        return
    right = expect.several("numa.snc") or (1,)
    saw = f"{_name(cpu, ratio)}: {cpu.cpu_nodes} NUMA nodes with CPUs, {cpu.sockets} sockets"
    wanted = f"{' or '.join(map(str, right))} nodes a socket ({expect.origin('numa.snc')})"
    if ratio in right:
        yield Finding(State.PASS, saw, wanted)
    else:
        evidence = (f"lscpu: {cpu.model_name}: Socket(s) {cpu.sockets}, NUMA node(s) {cpu.nodes}",)
        yield Finding(State.WARN, saw, wanted, "", _REMEDY, evidence)


def _name(cpu: Cpu, ratio: float) -> str:
    if ratio == 1:
        return "no sub-NUMA clustering"
    if ratio < 1:
        return "node interleaving: sockets share a node"
    if cpu.family == 6 and cpu.model in _CLUSTER_ON_DIE:
        return "Cluster-on-Die"
    return f"sub-NUMA clustering, SNC{ratio:g}"


def judge_fleet(cpu: Mapping[str, Cpu]) -> Iterator[Finding]:
    """Warn of the hosts whose nodes a socket are not those of most hosts."""
    ratios = {host: f"{ratio:g}" for host, one in cpu.items() if (ratio := one.nodes_per_socket) is not None}
    if len(set(ratios.values())) > 1:
        yield from uniform(ratios, "NUMA nodes with CPUs a socket", remedy=_REMEDY, probe="lscpu")


def baseline(cpu: Cpu) -> Mapping[str, Value]:
    """Return the nodes a socket, where they can be clusters."""
    ratio = cpu.nodes_per_socket
    return {"numa.snc": (int(ratio),)} if cpu.vendor == _INTEL and not skip(cpu) and ratio and ratio >= 1 else {}
