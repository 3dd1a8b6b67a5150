"""The NUMA nodes follow the L3 caches, or no layout that a firmware option explains.

What it means
    The firmware option "ACPI SRAT L3 cache as NUMA domain" (LLC as NUMA) makes every L3 cache a node: a socket of EPYC
    then shows eight, twelve or sixteen. Other counts that no option gives (one and a half nodes a socket, three on AMD)
    come from memory or cores that are missing.

Why it matters to training
    Software that counts nodes takes such a host for something that it is not: it binds a rank to a few cores and believes
    that all other memory is remote, although within a socket it is equally near. What NPS is set to cannot be told
    either.

How we tell
    NUMA nodes with CPUs a socket, against the number of distinct L3 caches. More than four nodes a socket on EPYC are L3
    caches, since NPS ends at four; two or four that equal the number of caches may be either, and are only told of.
    Nodes of memory without CPUs are told of and nothing more: they are CXL memory, or on GH200 the memory of the GPUs
    (one node with CPUs, eight without); their numbers may have gaps. First-generation EPYC has four nodes a socket by
    construction. Virtual machines are not judged.

What to do
    In the firmware: "ACPI SRAT L3 cache as NUMA domain" (or "LLC as NUMA") disabled, NUMA nodes per socket NPS1; then
    reboot. Where the count fits no option, look for memory or cores that the firmware has switched off.

How to undo
    Set the firmware option back and reboot.

Sources
    https://metebalci.com/blog/supermicro-h12ssl-numa/
    https://github.com/NVIDIA/mlperf-common/pull/24
    https://github.com/bytedance/xpu-perf/issues/129
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.cpu import Cpu

ID = "numa.l3"
SOURCE = "https://metebalci.com/blog/supermicro-h12ssl-numa/"

_MOST_PER_SOCKET = 4  # NPS and SNC end there
_EXPLAINED = {"GenuineIntel": {0.5, 1, 2, 3, 4}, "AuthenticAMD": {0.5, 1, 2, 4}}
_CACHES = Remedy(
    "In the firmware: 'ACPI SRAT L3 cache as NUMA domain' disabled, NUMA nodes per socket = NPS1; then reboot.",
    needs_reboot=True,
    needs_firmware=True,
)
_ODD = Remedy(
    "Look in the firmware's event log and memory map for DIMMs or cores that are switched off; compare with a host that is right.",
    needs_reboot=True,
    needs_firmware=True,
)


def skip(cpu: Cpu) -> str:
    """Spare virtual machines, and kernels that show no nodes."""
    if cpu.hypervisor:
        return f"a virtual machine ({cpu.hypervisor}): its nodes are not the machine's"
    return "the kernel does not show NUMA nodes (numa=off)" if cpu.numa_off else ""


def judge(cpu: Cpu) -> Iterator[Finding]:
    """Warn of nodes that are L3 caches and of counts that nothing explains; tell of nodes without CPUs."""
    if cpu.cpu_nodes is None:
        yield Finding(State.UNKNOWN, saw="the number of NUMA nodes with CPUs is not known")
        return
    if cpu.memory_only > 0:
        saw = f"{cpu.memory_only} of {cpu.nodes} NUMA nodes have memory and no CPUs (CXL, or the memory of GPUs)"
        yield Finding(State.INFO, saw=saw, wanted="counted apart from the nodes with CPUs")
    yield _layout(cpu)


def _layout(cpu: Cpu) -> Finding:
    ratio, caches = cpu.nodes_per_socket, cpu.l3_caches
    saw = f"NUMA nodes with CPUs: {cpu.cpu_nodes}; sockets: {cpu.sockets or 'not known'}; L3 caches: {caches or 'not known'}"
    wanted = "no more nodes a socket than NPS or SNC make of it"
    evidence = (f"lscpu: {cpu.model_name}: Socket(s) {cpu.sockets}, NUMA node(s) {cpu.nodes}, L3 caches {caches}",)
    epyc = cpu.is_epyc and not cpu.is_naples
    if epyc and ratio is not None and ratio > _MOST_PER_SOCKET:
        return Finding(State.WARN, f"{saw}: each L3 cache is a node", wanted, "", _CACHES, evidence)
    if ratio is not None and ratio not in _EXPLAINED.get(cpu.vendor, {ratio}):
        return Finding(State.WARN, f"{saw}: no firmware option makes such a layout", wanted, "", _ODD, evidence)
    if epyc and ratio is not None and ratio > 1 and caches == cpu.cpu_nodes:
        return Finding(State.INFO, f"{saw}: each L3 cache may be a node, or it is NPS{ratio:g}", wanted)
    return Finding(State.PASS, saw, wanted)
