"""Knows a host's processors: vendor, family, sockets, NUMA nodes with CPUs, L3 caches, CPUs online. Names no setting."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.cmdline import Cmdline

PROBES = (
    Probe("lscpu", "lscpu"),
    Probe(
        "sysfs-cpu",
        """cd /sys/devices/system || exit
for n in node/node[0-9]*; do [ -r "$n/cpulist" ] && { printf '%s cpus ' "${n#node/}"; cat "$n/cpulist"; }; done
cat cpu/cpu[0-9]*/topology/physical_package_id 2>/dev/null | sort -n | uniq -c | sed 's/^ */package /'
cat cpu/cpu[0-9]*/cache/index3/shared_cpu_list 2>/dev/null | sort -u | sed 's/^/l3 /'
for f in online present smt/control; do [ -r "cpu/$f" ] && { v=; read -r v <"cpu/$f"; echo "cpus $f $v"; }; done
exit 0""",
    ),
)


_NAPLES = re.compile(r"EPYC 7\d\d1P?\b", re.ASCII)
# what people grep for, and nothing but lscpu prints
_TELLING = re.compile(
    r"Socket\(s\)|NUMA node\(s\)|NUMA node\d{1,6} CPU\(s\)|Thread\(s\) per core|Core\(s\) per socket", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors. `nodes`: all NUMA nodes; `cpu_nodes`: those with CPUs. None: not said.

    `hypervisor`: whose virtual machine this is, None on bare metal. `numa_off`: the kernel shows no NUMA nodes, which
    counts as one. `online`, `present`: how many CPUs run, and how many there are. `smt`: the kernel's word for it (`on`,
    `off`, `forceoff`, `notsupported`, `notimplemented`). `excerpt`: the lines that would name a hypervisor are not there.
    """

    architecture: str
    vendor: str
    model_name: str
    family: int | None
    model: int | None
    sockets: int | None
    nodes: int | None
    cpu_nodes: int | None
    l3_caches: int | None = None
    hypervisor: str | None = None
    node_cpus: Mapping[int, str] | None = None
    numa_off: bool = False
    online: int | None = None
    present: int | None = None
    threads_per_core: int | None = None
    smt: str | None = None
    excerpt: bool = False

    @property
    def nodes_per_socket(self) -> float | None:
        """NUMA nodes with CPUs for each socket: 0.5 when two sockets share one."""
        return self.cpu_nodes / self.sockets if self.sockets and self.cpu_nodes else None

    @property
    def memory_only(self) -> int:
        """How many nodes have memory and no CPUs: CXL, or the memory of GPUs."""
        return (self.nodes or 0) - (self.cpu_nodes or 0) if self.cpu_nodes else 0

    @property
    def is_threadripper(self) -> bool:
        """Whether this is a workstation processor of AMD's Zen line."""
        return self.vendor == "AuthenticAMD" and "Threadripper" in self.model_name

    @property
    def unnamed(self) -> bool:
        """Whether the text does not say whose processor it is; x86 has more than one maker."""
        return not self.vendor and not self.model_name and self.architecture in {"x86_64", "i686"}

    @property
    def is_epyc(self) -> bool:
        """Whether this is a server processor of AMD's (or Hygon's) Zen line."""
        return self.vendor in {"AuthenticAMD", "HygonGenuine"} and (
            "EPYC" in self.model_name or "Hygon" in self.model_name
        )

    @property
    def is_naples(self) -> bool:
        """Whether this is first-generation EPYC, or Hygon's: four nodes a socket are four dies (model below 30h)."""
        if self.family is None or self.model is None:
            return self.is_epyc and _NAPLES.search(self.model_name) is not None
        return self.is_epyc and self.family in {0x17, 0x18} and self.model < 0x30


def parse_lscpu(text: str) -> Cpu:
    """Read lscpu: the flat text, the indented text since util-linux 2.37, `lscpu -J`, or lines of it. Only the C locale."""
    fields: dict[str, str] = {}
    is_json = text.lstrip().startswith("{")
    for name, value in _json_fields(text) if is_json else _text_fields(text):
        fields.setdefault(name, value)
    whole_text = "Architecture" in fields and bool({"CPU(s)", "Vendor ID"} & fields.keys())
    if not whole_text and not any(map(_TELLING.fullmatch, fields)):
        raise ValueError("not lscpu in the C locale: no Architecture and CPU(s)")
    nodes = {
        int(found[1]): cpus
        for name, cpus in fields.items()
        if (found := re.fullmatch(r"NUMA node(\d{1,6}) CPU\(s\)", name, re.ASCII))
    }
    said = _number(fields.get("NUMA node(s)"))
    instances = re.search(r"\((\d{1,6}) instances?\)", fields.get("L3 cache") or fields.get("L3") or "", re.ASCII)
    with_cpus = sum(1 for cpus in nodes.values() if cpus.strip(" -"))
    numa_off = whole_text and said is None and not nodes and (is_json or _past_numa(list(fields)))
    # a list of nodes that is shorter than their number was cut off: how many have CPUs is not known then
    whole = said is None or len(nodes) >= said
    flags = fields.get("Flags", "").split()
    return Cpu(
        architecture=fields.get("Architecture", ""),
        vendor=fields.get("Vendor ID", "") or _vendor(fields.get("Model name", "")),
        model_name=fields.get("Model name", ""),
        family=_number(fields.get("CPU family")),
        model=_number(fields.get("Model")),
        sockets=_number(fields.get("Socket(s)")) or None,
        nodes=1 if numa_off else said or len(nodes) or None,
        cpu_nodes=1 if numa_off else (with_cpus or None) if nodes and whole else None if nodes else said,
        l3_caches=int(instances[1]) if instances else None,
        hypervisor=fields.get("Hypervisor vendor") or ("unnamed" if "hypervisor" in flags else None),
        node_cpus=nodes,
        numa_off=numa_off,
        online=cpu_count(fields.get("On-line CPU(s) list")),
        present=_number(fields.get("CPU(s)")),
        threads_per_core=_number(fields.get("Thread(s) per core")),
        excerpt=not whole_text or (not flags and not {"Hypervisor vendor", "Virtualization"} & fields.keys()),
    )


def _vendor(model_name: str) -> str:
    return "AuthenticAMD" if model_name.startswith("AMD ") else "GenuineIntel" if "Intel(R)" in model_name else ""


def _past_numa(names: list[str]) -> bool:
    """Whether the text goes on after the place where lscpu tells of NUMA nodes: it was not merely cut off before."""
    if any(name.startswith("Vulnerabilit") for name in names):
        return True
    # before util-linux 2.37 the number of nodes stood between the sockets and the vendor
    return {"Socket(s)", "Vendor ID"} <= set(names) and names.index("Socket(s)") < names.index("Vendor ID")


def cpu_count(text: str | None) -> int | None:
    """Return how many CPUs a list like `0-3,8` names; None when it is no such list."""
    if not text or not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text.strip(), re.ASCII):
        return None
    spans = [part.partition("-") for part in text.strip().split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)


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
    """What sysfs counts: CPUs of each node, sockets with a CPU online, distinct L3 caches, CPUs. None: not said."""

    node_cpus: Mapping[int, str]
    sockets: int | None
    l3_caches: int | None
    online: int | None = None
    present: int | None = None
    smt: str | None = None


def parse_sysfs(text: str) -> Counts:
    """Read the lines `nodeN cpus LIST`, `package COUNT ID`, `l3 LIST` and `cpus FILE VALUE`."""
    nodes: dict[int, str] = {}
    said: dict[str, str] = {}
    packages, caches = set[str](), set[str]()
    for line in text.splitlines():
        if found := re.fullmatch(r"node(\d{1,6}) cpus ?([\d,-]*)", line.strip(), re.ASCII):
            nodes[int(found[1])] = found[2]
        elif found := re.fullmatch(r"package \d+ (-?\d+)", line.strip(), re.ASCII):
            packages.add(found[1])
        elif found := re.fullmatch(r"l3 ([\d,-]+)", line.strip(), re.ASCII):
            caches.add(found[1])
        elif found := re.fullmatch(r"cpus (online|present|smt/control) ?([\w,-]*)", line.strip(), re.ASCII):
            said[found[1]] = found[2]
        elif line.strip():
            raise ValueError("a line that is no node, package or L3 cache")
    if not nodes and not packages:
        raise ValueError("no node and no package")
    return Counts(
        nodes,
        len(packages - {"-1"}) or None,
        len(caches) or None,
        cpu_count(said.get("online")),
        cpu_count(said.get("present")),
        said.get("smt/control") or None,
    )


def read(evidence: Evidence, cmdline: Cmdline | None = None) -> Known[Cpu] | Unknown:
    """Return the processors: lscpu says what they are, sysfs (where it answered) counts them better.

    With `numa=off` on its boot line a kernel shows one node, whatever the machine has.
    """
    reply = evidence.answer("lscpu")
    if isinstance(reply, Unknown):
        return reply
    try:
        cpu = parse_lscpu(reply.text)
    except ValueError as error:
        return Unknown(f"`lscpu`: {error}")
    if cmdline is not None and {"numa=off", "numa=noacpi"} & set(cmdline.running or ()):
        cpu = replace(cpu, numa_off=True)
    counted = evidence.answer("sysfs-cpu")
    if isinstance(counted, Unknown):
        return Known(cpu)
    try:
        return Known(_with_counts(cpu, parse_sysfs(counted.text)))
    except ValueError:
        return Known(cpu)


def _with_counts(cpu: Cpu, counts: Counts) -> Cpu:
    nodes = counts.node_cpus
    hidden = not nodes and cpu.nodes is None  # sysfs answered, and has no node: the kernel was built without NUMA
    return replace(
        cpu,
        sockets=counts.sockets or cpu.sockets,
        nodes=1 if hidden else len(nodes) or cpu.nodes,
        cpu_nodes=1 if hidden else sum(map(bool, nodes.values())) or cpu.cpu_nodes,
        numa_off=cpu.numa_off or hidden,
        l3_caches=counts.l3_caches or cpu.l3_caches,
        node_cpus=nodes or cpu.node_cpus,
        online=counts.online or cpu.online,
        present=counts.present or cpu.present,
        smt=counts.smt,
    )


def tell(cpu: Cpu) -> dict[str, Any]:
    """Return the facts for JSON."""
    ratio = cpu.nodes_per_socket
    return {
        "vendor": cpu.vendor or None,
        "model": cpu.model_name or None,
        "sockets": cpu.sockets,
        "numa_nodes": cpu.nodes,
        "nodes_per_socket": int(ratio) if ratio is not None and ratio.is_integer() else ratio,
    }
