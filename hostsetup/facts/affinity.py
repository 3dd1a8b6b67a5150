"""Knows which NUMA node each GPU and RDMA NIC is near, from sysfs or as `nvidia-smi topo -m` says it. Binds nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.numa import Numa
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.topology import Topology


@dataclass(frozen=True, slots=True)
class Affinity:
    """The nodes by device: a number, a range as the driver prints it (`0-1`), or empty where nothing says.

    `gpus` are in bus order; `models`: vendor and device ids in the same order, empty where not known. `sockets`: the
    socket of each node that is known. `cpu_nodes`: how many nodes have CPUs. `source`: the probe that told. `cut`: the
    first GPU that the matrix leaves out because its text ends early; GPUs from there on are not in `gpus`.
    """

    gpus: Mapping[str, str]
    nics: Mapping[str, str]
    sockets: Mapping[str, int]
    cpu_nodes: int | None
    source: str
    models: tuple[str, ...] = ()
    cut: str = ""


def read(
    numa: Numa | None = None, pci: Pci | None = None, topology: Topology | None = None, cpu: Cpu | None = None
) -> Known[Affinity] | Unknown:
    """Return the nodes of the devices: sysfs if it answered, or else the driver's matrix."""
    if numa is not None and pci is not None:
        return Known(_of_sysfs(numa, pci))
    if topology is not None:
        return Known(_of_matrix(topology, cpu))
    return Unknown("neither sysfs nor the driver's matrix says which node a GPU is near")


def _of_sysfs(numa: Numa, pci: Pci) -> Affinity:
    def nodes(devices: tuple[str, ...]) -> dict[str, str]:
        said = {address: numa.devices.get(address) for address in devices}
        return {address: "" if node is None else str(node) for address, node in said.items()}

    return Affinity(
        gpus=nodes(tuple(gpu.address for gpu in pci.gpus)),
        nics=nodes(tuple(nic.address for nic in pci.rdma_nics)),
        sockets={str(number): node.package for number, node in numa.nodes.items() if node.package is not None},
        cpu_nodes=len(numa.with_cpus) or 1,
        source="sysfs-numa",
        models=tuple(f"{gpu.vendor}:{gpu.device}" for gpu in pci.gpus),
    )


def _of_matrix(topology: Topology, cpu: Cpu | None) -> Affinity:
    rows = int(topology.cut.removeprefix("GPU")) if topology.cut else topology.gpus
    gpus = {f"GPU{index}": topology.numa_affinity.get(index, "") for index in range(rows)}
    count = cpu.cpu_nodes if cpu else None
    if count is None and any(number != "0" for node in gpus.values() for number in re.findall(r"\d+", node)):
        count = 2  # at least: a node that is not node 0 has at least one beside it
    return Affinity(gpus, {}, {}, count, source="nvidia-smi-topo", cut=topology.cut)
