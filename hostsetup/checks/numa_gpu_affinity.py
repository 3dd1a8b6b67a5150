"""GPUs or NICs lie far from what they work with, or nobody knows near which NUMA node.

What it means
    The firmware does not say which NUMA node a GPU is near, or all GPUs hang off one socket and all RDMA NICs off the
    other, or the GPUs of one host are spread over the nodes otherwise than those of its peers.

Why it matters to training
    Launchers and NCCL bind processes and pick NICs by these numbers. Where they are missing, a rank may run on the far
    socket: every copy from host memory crosses the link between the sockets, and so does every byte from GPU to NIC. A
    script that binds rank k to a fixed list of CPUs is right on one host and wrong on another whose GPUs are wired, or
    numbered, otherwise.

How we tell
    `numa_node` of each GPU and RDMA NIC in sysfs; without sysfs, the NUMA column that `nvidia-smi topo -m` prints. A node
    of -1 (or N/A) is usual and harmless where there is only one node with CPUs, and a warning where there are several. A
    range such as 0-1 is what virtual machines show whose host hides the layout: it is told of. Odd or descending node
    numbers are no fault: with four nodes a socket, GPUs sit on some of them in the order of their buses. Only RDMA NICs
    are compared, not those for management. Hosts are compared with hosts of the same GPUs in the same order of buses. A
    matrix without the column says nothing, which is unknown.

What to do
    Update the firmware, and look there for PCIe locality options; in a virtual machine pick an instance type that shows
    the layout. Until then bind each rank by hand (`numactl --cpunodebind`). Where GPUs and NICs are on two sockets, move
    the NICs to slots of the GPUs' socket. Where hosts differ, compare slots, risers and the order of the GPUs.

How to undo
    Nothing was changed by looking; move the cards back.

Sources
    https://docs.kernel.org/admin-guide/abi-testing.html
    https://github.com/Project-HAMi/HAMi/issues/1363
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.affinity import Affinity
    from hostsetup.facts.pci_tree import Pci

ID = "numa.gpu_affinity"
SOURCE = "https://docs.kernel.org/admin-guide/abi-testing.html"

_SHOWN = 8
_FIRMWARE = Remedy(
    "Update the firmware (in a cloud: an instance type that shows its layout); until then bind each rank by hand.",
    needs_reboot=True,
    needs_firmware=True,
)
_MOVE = Remedy("Put RDMA NICs into slots of the GPUs' socket, beside the GPUs that use them.")
_ALIKE = Remedy(
    "Compare slots, risers and NUMA options of the firmware with a host that is right.", needs_firmware=True
)


def skip(pci: Pci) -> str:
    """Spare hosts without GPUs."""
    return "" if pci.gpus else "no GPU on the PCI bus"


def judge(affinity: Affinity) -> Iterator[Finding]:
    """Warn of devices whose node is not known among several, and of NICs that are all on the other socket."""
    if affinity.cut:
        told = f"; before it: {_row(affinity)}" if affinity.gpus else ""
        yield Finding(State.UNKNOWN, saw=f"the matrix ends before {affinity.cut}{told}")
        return
    if not affinity.gpus:
        yield Finding(State.SKIP, saw="no GPU")
        return
    found = tuple(filter(None, (_unplaced(affinity), _ranges(affinity), _apart(affinity))))
    yield from found or (Finding(State.PASS, saw=f"nodes of the GPUs: {_row(affinity)}"),)


def _unplaced(affinity: Affinity) -> Finding | None:
    lost = tuple(name for name, node in {**affinity.gpus, **affinity.nics}.items() if not node)
    if not lost or affinity.cpu_nodes == 1:
        return None
    saw = f"nobody says which node {_names(lost)} {'is' if len(lost) == 1 else 'are'} near"
    if affinity.cpu_nodes is None:
        return Finding(State.UNKNOWN, saw=f"{saw}, and how many nodes there are is not known")
    wanted = "a NUMA node for every GPU and RDMA NIC"
    evidence = tuple(f"{affinity.source}: {name}: no NUMA node" for name in lost[:_SHOWN])
    return Finding(State.WARN, f"{saw}, on a host of several nodes", wanted, remedy=_FIRMWARE, evidence=evidence)


def _ranges(affinity: Affinity) -> Finding | None:
    wide = tuple(name for name, node in affinity.gpus.items() if node and not node.isdigit())
    if not wide:
        return None
    return Finding(
        State.INFO, saw=f"{_names(wide)}: near nodes {affinity.gpus[wide[0]]}, which is all that the host shows"
    )


def _apart(affinity: Affinity) -> Finding | None:
    gpus, nics = (
        {affinity.sockets.get(node) for node in devices.values()} for devices in (affinity.gpus, affinity.nics)
    )
    if not gpus or not nics or None in gpus | nics or gpus & nics:
        return None
    saw = f"GPUs on socket {_sockets(gpus)}, RDMA NICs on socket {_sockets(nics)}: every byte crosses between sockets"
    evidence = tuple(f"{affinity.source}: {name}: node {node}" for name, node in affinity.nics.items())[:_SHOWN]
    return Finding(State.WARN, saw, "an RDMA NIC on each socket that has GPUs", remedy=_MOVE, evidence=evidence)


def _sockets(numbers: set[int | None]) -> str:
    return ", ".join(sorted(map(str, numbers)))


def _row(affinity: Affinity) -> str:
    return " ".join(node or "-" for node in affinity.gpus.values())


def _names(devices: tuple[str, ...]) -> str:
    more = f" and {len(devices) - _SHOWN} more" if len(devices) > _SHOWN else ""
    return ", ".join(devices[:_SHOWN]) + more


def judge_fleet(affinity: Mapping[str, Affinity]) -> Iterator[Finding]:
    """Warn of hosts whose GPUs lie on other nodes than those of hosts with the same GPUs."""
    alike: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for host, one in affinity.items():
        if one.gpus and not one.cut:
            alike[one.models or (str(len(one.gpus)),)][host] = _row(one)
    for rows in alike.values():
        if len(set(rows.values())) > 1:
            yield from uniform(rows, "nodes of the GPUs", remedy=_ALIKE)
