"""Knows all that the evidence says of one host, one slot a subsystem. Fills no gap by a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts import access, acs, clock, cmdline, cpu, docker, names, pci, privilege, topology
from hostsetup.model import Evidence, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostsetup.facts.access import Access
    from hostsetup.facts.acs import Acs
    from hostsetup.facts.clock import Clock
    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.names import Names
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.privilege import Privilege
    from hostsetup.facts.topology import Topology

# the quick ones first: a stream that is cut loses the slow ones
PROBES = (
    *privilege.PROBES,
    *names.PROBES,
    *cpu.PROBES,
    *docker.PROBES,
    *pci.PROBES,
    *topology.PROBES,
    *cmdline.PROBES,
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of one host; a check names the slots it needs by these names."""

    access: Known[Access] | Unknown
    privilege: Known[Privilege] | Unknown
    pci: Known[Pci] | Unknown
    acs: Known[Acs] | Unknown
    cmdline: Known[Cmdline] | Unknown
    cpu: Known[Cpu] | Unknown
    topology: Known[Topology] | Unknown
    docker: Known[Docker] | Unknown
    names: Known[Names] | Unknown
    clock: Known[Clock] | Unknown


def read(evidence: Evidence) -> HostFacts:
    """Read every subsystem; what the evidence does not show is `Unknown` with the reason."""
    tree = pci.read(evidence)
    return HostFacts(
        access=access.read(evidence),
        privilege=privilege.read(evidence),
        pci=tree,
        acs=tree if isinstance(tree, Unknown) else acs.from_pci(tree.value),
        cmdline=cmdline.read(evidence),
        cpu=cpu.read(evidence),
        topology=topology.read(evidence),
        docker=docker.read(evidence),
        names=names.read(evidence),
        clock=clock.read(evidence),
    )


def flat(facts: HostFacts) -> dict[str, Any]:
    """Return the facts for JSON, by subsystem; a subsystem that is not known is absent."""
    told = {slot: tell(value.value) for slot, tell in _TELL.items() if isinstance(value := getattr(facts, slot), Known)}
    if isinstance(facts.pci, Known) and isinstance(facts.acs, Unknown):
        told["acs"] = {"readable": False}
    if isinstance(facts.cmdline, Known) and facts.cmdline.value.running is not None:
        told["boot"] = {"args": list(facts.cmdline.value.running)}
    return told


def _topology(t: Topology) -> dict[str, Any]:
    return {
        "gpus": t.gpus,
        "nics": len(t.nics),
        "links": {f"{a}-{b}": link for (a, b), link in t.links.items()},
        "numa": {str(gpu): node for gpu, node in t.numa_affinity.items()},
    }


def _cpu(c: Cpu) -> dict[str, Any]:
    ratio = c.nodes_per_socket
    return {
        "vendor": c.vendor,
        "model": c.model_name,
        "sockets": c.sockets,
        "numa_nodes": c.nodes,
        "nodes_per_socket": int(ratio) if ratio is not None and ratio.is_integer() else ratio,
    }


def _acs(a: Acs) -> dict[str, Any]:
    return {
        "ports": len(a.words),
        "redirecting": len(a.redirecting),
        "source_validation_only": len(a.source_validation_only),
        "readable": not a.unreadable,
    }


def _pci(p: Pci) -> dict[str, Any]:
    return {"gpus": [gpu.address for gpu in p.gpus], "rdma_nics": [nic.address for nic in p.rdma_nics]}


def _docker(d: Docker) -> dict[str, Any]:
    return {"state": d.engine.value, "version": d.version, "storage_driver": d.storage_driver}


def _names(n: Names) -> dict[str, Any]:
    return {"hostname": n.hostname, "addresses": list(n.addresses)}


def _privilege(p: Privilege) -> dict[str, Any]:
    return {"user": p.user, "uid": p.uid, "sudo": p.sudo.value}


def _clock(c: Clock) -> dict[str, Any]:
    return {"offset_s": round(c.offset_s, 4), "uncertainty_s": round(c.uncertainty_s, 4)}


_TELL: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "topology": _topology,
    "cpu": _cpu,
    "acs": _acs,
    "pci": _pci,
    "docker": _docker,
    "names": _names,
    "privilege": _privilege,
    "clock": _clock,
}
