"""Knows a host's NUMA nodes: their socket, CPUs and memory, the devices near them, automatic balancing. Moves nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import MAX_FUNCTIONS, full_address
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe(
        "sysfs-numa",
        """[ -d /sys/devices/system ] || exit 1
echo numa
for n in /sys/devices/system/node/node[0-9]*; do
  [ -d "$n" ] || continue
  p=- c=$(cat "$n/cpulist" 2>/dev/null)  # dash reads byte by byte, and this file gives no byte that way
  for t in "$n"/cpu[0-9]*/topology/physical_package_id; do [ -r "$t" ] && read -r p <"$t"; break; done
  echo "node ${n##*/node} package $p cpus $c"
  grep -s 'MemTotal:' "$n/meminfo"
done
b=/proc/sys/kernel/numa_balancing
[ -r "$b" ] && echo "balancing $(cat "$b")"
for d in /sys/bus/pci/devices/*; do
  [ -r "$d/class" ] || continue
  read -r c <"$d/class"
  case $c in 0x02*|0x03*|0x12*) v=-; [ -r "$d/numa_node" ] && read -r v <"$d/numa_node"; echo "dev ${d##*/} $v";; esac
done
exit 0""",
    ),
)

_NODE = re.compile(r"node (\d{1,6}) package (-|-?\d{1,6}) cpus ?([\d,-]*)", re.ASCII)
_MEMORY = re.compile(r"Node (\d{1,6}) MemTotal:\s*(\d{1,15}) kB", re.ASCII)
_DEVICE = re.compile(r"dev (\S{1,30}) (-|-?\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `package`: its socket; `memory_kib`: what the kernel manages of it. None: not said."""

    cpus: str
    package: int | None = None
    memory_kib: int | None = None


@dataclass(frozen=True, slots=True)
class Numa:
    """The nodes by number, and the node of each GPU and NIC by PCI address; None: the firmware does not say.

    `nodes` is empty where the kernel shows none. `balancing`: 0 off, 1 on, 2 and more tiering; None: not built in.
    """

    nodes: Mapping[int, Node]
    devices: Mapping[str, int | None]
    balancing: int | None = None

    @property
    def with_cpus(self) -> Mapping[int, Node]:
        """The nodes that have CPUs."""
        return {number: node for number, node in self.nodes.items() if node.cpus}


def parse_numa(text: str) -> Numa:
    """Read the word `numa`, then lines `node`, `Node N MemTotal:`, `balancing` and `dev`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != "numa":
        raise ValueError("not the NUMA nodes of sysfs")
    nodes: dict[int, Node] = {}
    devices: dict[str, int | None] = {}
    balancing = None
    for line in lines[1:]:
        if found := _NODE.fullmatch(line):
            package = None if found[2].startswith("-") else int(found[2])
            nodes[int(found[1])] = Node(found[3], package)
        elif (found := _MEMORY.fullmatch(line)) and int(found[1]) in nodes:
            nodes[int(found[1])] = replace(nodes[int(found[1])], memory_kib=int(found[2]))
        elif found := re.fullmatch(r"balancing (\d{1,3})", line, re.ASCII):
            balancing = int(found[1])
        elif (found := _DEVICE.fullmatch(line)) and len(devices) < MAX_FUNCTIONS:
            devices[full_address(found[1])] = None if found[2].startswith("-") else int(found[2])
        else:
            raise ValueError("a line that is no node, no memory, no device, or too many of them")
    return Numa(nodes, devices, balancing)


def read(evidence: Evidence) -> Known[Numa] | Unknown:
    """Return the nodes as sysfs shows them."""
    reply = evidence.answer("sysfs-numa")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_numa(reply.text))
    except ValueError as error:
        return Unknown(f"`sysfs-numa`: {error}")
