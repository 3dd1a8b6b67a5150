"""Knows a host's processors: vendor, family, sockets, NUMA nodes with CPUs, L3 caches. Names no setting."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROBES = (
    Probe("lscpu", "lscpu"),
    Probe(
        "sysfs-cpu",
        """cd /sys/devices/system || exit
for n in node/node[0-9]*; do [ -r "$n/cpulist" ] && { printf '%s cpus ' "${n#node/}"; cat "$n/cpulist"; }; done
cat cpu/cpu[0-9]*/topology/physical_package_id 2>/dev/null | sort -n | uniq -c | sed 's/^ */package /'
cat cpu/cpu[0-9]*/cache/index3/shared_cpu_list 2>/dev/null | sort -u | sed 's/^/l3 /'
exit 0""",
    ),
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors. `nodes`: all NUMA nodes; `cpu_nodes`: those with CPUs. None: not said.

    `hypervisor`: whose virtual machine this is, None on bare metal.
    """

    architecture: str
    vendor: str
    model_name: str
    family: int | None
    model: int | None
    sockets: int | None
    nodes: int
    cpu_nodes: int
    l3_caches: int | None = None
    hypervisor: str | None = None
    node_cpus: Mapping[int, str] | None = None
    numa_off: bool = False

    @property
    def nodes_per_socket(self) -> float | None:
        """NUMA nodes with CPUs for each socket: 0.5 when two sockets share one."""
        return self.cpu_nodes / self.sockets if self.sockets else None

    @property
    def is_epyc(self) -> bool:
        """Whether this is a server processor of AMD's (or Hygon's) Zen line."""
        return self.vendor in {"AuthenticAMD", "HygonGenuine"} and (
            "EPYC" in self.model_name or "Hygon" in self.model_name
        )

    @property
    def is_naples(self) -> bool:
        """Whether this is first-generation EPYC, whose four nodes a socket are four dies (family 17h, model below 30h)."""
        return self.is_epyc and self.family in {0x17, 0x18} and self.model is not None and self.model < 0x30


def parse_lscpu(text: str) -> Cpu:
    """Read lscpu: the flat text, the indented text since util-linux 2.37, or `lscpu -J`. Only the C locale."""
    fields: dict[str, str] = {}
    for name, value in _json_fields(text) if text.lstrip().startswith("{") else _text_fields(text):
        fields.setdefault(name, value)
    if "Architecture" not in fields or ("CPU(s)" not in fields and "Vendor ID" not in fields):
        raise ValueError("not lscpu in the C locale: no Architecture and CPU(s)")
    nodes = {
        int(found[1]): cpus
        for name, cpus in fields.items()
        if (found := re.fullmatch(r"NUMA node(\d{1,6}) CPU\(s\)", name, re.ASCII))
    }
    said = _number(fields.get("NUMA node(s)"))
    instances = re.search(r"\((\d{1,6}) instances?\)", fields.get("L3 cache") or fields.get("L3") or "", re.ASCII)
    with_cpus = sum(1 for cpus in nodes.values() if cpus.strip(" -"))
    flags = fields.get("Flags", "").split()
    return Cpu(
        architecture=fields["Architecture"],
        vendor=fields.get("Vendor ID", ""),
        model_name=fields.get("Model name", ""),
        family=_number(fields.get("CPU family")),
        model=_number(fields.get("Model")),
        sockets=_number(fields.get("Socket(s)")) or None,
        nodes=said or len(nodes) or 1,
        cpu_nodes=with_cpus or said or 1,
        l3_caches=int(instances[1]) if instances else None,
        hypervisor=fields.get("Hypervisor vendor") or ("unnamed" if "hypervisor" in flags else None),
        node_cpus=nodes,
        numa_off=said is None and not nodes,
    )


def _text_fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def _json_fields(text: str) -> Iterator[tuple[str, str]]:
    try:
        data: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    todo: list[Any] = [data.get("lscpu")] if isinstance(data, dict) else []
    while todo:
        entry = todo.pop(0)
        if isinstance(entry, list):
            todo = [*entry, *todo]
        elif isinstance(entry, dict):
            yield str(entry.get("field") or "").strip().rstrip(":"), str(entry.get("data") or "").strip()
            todo.insert(0, entry.get("children"))


def _number(text: str | None) -> int | None:
    found = re.fullmatch(r"\d{1,6}", (text or "").strip(), re.ASCII)
    return int(found[0]) if found else None


@dataclass(frozen=True, slots=True)
class Counts:
    """What sysfs counts: CPUs of each node, sockets with a CPU online, distinct L3 caches. None: not said."""

    node_cpus: Mapping[int, str]
    sockets: int | None
    l3_caches: int | None


def parse_sysfs(text: str) -> Counts:
    """Read the lines `nodeN cpus LIST`, `package COUNT ID` and `l3 LIST`."""
    nodes: dict[int, str] = {}
    packages, caches = set[str](), set[str]()
    for line in text.splitlines():
        if found := re.fullmatch(r"node(\d{1,6}) cpus ?([\d,-]*)", line.strip(), re.ASCII):
            nodes[int(found[1])] = found[2]
        elif found := re.fullmatch(r"package \d+ (-?\d+)", line.strip(), re.ASCII):
            packages.add(found[1])
        elif found := re.fullmatch(r"l3 ([\d,-]+)", line.strip(), re.ASCII):
            caches.add(found[1])
        elif line.strip():
            raise ValueError("a line that is no node, package or L3 cache")
    if not nodes and not packages:
        raise ValueError("no node and no package")
    return Counts(nodes, len(packages - {"-1"}) or None, len(caches) or None)


def read(evidence: Evidence) -> Known[Cpu] | Unknown:
    """Return the processors: lscpu says what they are, sysfs (where it answered) counts them better."""
    reply = evidence.answer("lscpu")
    if isinstance(reply, Unknown):
        return reply
    try:
        cpu = parse_lscpu(reply.text)
    except ValueError as error:
        return Unknown(f"`lscpu`: {error}")
    counted = evidence.answer("sysfs-cpu")
    if isinstance(counted, Unknown):
        return Known(cpu)
    try:
        counts = parse_sysfs(counted.text)
    except ValueError:
        return Known(cpu)
    nodes = counts.node_cpus
    return Known(
        replace(
            cpu,
            sockets=counts.sockets or cpu.sockets,
            nodes=len(nodes) or cpu.nodes,
            cpu_nodes=sum(map(bool, nodes.values())) or cpu.cpu_nodes,
            l3_caches=counts.l3_caches or cpu.l3_caches,
            node_cpus=nodes or cpu.node_cpus,
        )
    )


def tell(cpu: Cpu) -> dict[str, Any]:
    """Return the facts for JSON."""
    ratio = cpu.nodes_per_socket
    return {
        "vendor": cpu.vendor,
        "model": cpu.model_name,
        "sockets": cpu.sockets,
        "numa_nodes": cpu.nodes,
        "nodes_per_socket": int(ratio) if ratio is not None and ratio.is_integer() else ratio,
    }
