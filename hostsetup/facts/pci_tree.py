"""Knows what a PCI tree is: functions, bridges, parents, and the two ports where the paths of two devices split.

Reads no text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE | re.ASCII)

NVIDIA, AMD, MELLANOX = "10de", "1002", "15b3"
VIRTUAL = {"1b36", "15ad", "5853", "1414"}  # QEMU, VMware, Xen, Hyper-V: devices that only guests see
RDMA_DRIVERS = {"mlx5_core", "mlx4_core", "efa", "hfi1"}
GRACE_PORTS = {"22b1", "22b2", "22b8"}  # the root ports of an NVIDIA Grace processor
DATA_DIRECT = "2100"  # the function by which a ConnectX-8 reaches GPUs past the processor
MAX_FUNCTIONS = 20_000
MAX_DEVICES = 256  # GPUs and RDMA NICs of one host
MAX_DEPTH = 32  # bridges above a function


def full_address(text: str) -> str:
    """Return an address as `dddd:bb:dd.f` in lower case (five digits and more for VMD domains); raise ValueError."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"not a PCI address: {text[:40]!r}")
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()


@dataclass(frozen=True, slots=True)
class Function:
    """One PCI function. `vendor`, `device`: four hex digits; `class_code`: four. Empty: the source does not say.

    `parents`: the bridges above, nearest first. `acs`: the ACS control word; None: none was read. `acs_able`: the ACS
    capability word, what can be switched on. `acs_absent`: it is certain that the function has no ACS capability.
    `dead`: its registers read as all ones. `virtual`: a function that SR-IOV made.
    """

    address: str
    name: str = ""
    vendor: str = ""
    device: str = ""
    class_code: str = ""
    driver: str = ""
    parents: tuple[str, ...] = ()
    rdma: bool = False
    acs: int | None = None
    acs_able: int | None = None
    acs_absent: bool = False
    dead: bool = False
    virtual: bool = False
    source: str = ""

    @property
    def is_bridge(self) -> bool:
        """Whether other devices can hang below it."""
        return self.class_code == "0604"

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU that trains: NVIDIA's display and 3D controllers, AMD's accelerators."""
        if self.vendor == NVIDIA:
            return self.class_code in {"0300", "0302"}
        return self.vendor == AMD and self.class_code in {"0380", "1200"}

    @property
    def is_nvswitch(self) -> bool:
        """Whether it is an NVSwitch, which carries NVLink and no PCIe traffic between GPUs."""
        return self.vendor == NVIDIA and self.class_code == "0680"

    def is_one_of(self, devices: set[str]) -> bool:
        """Whether it has one of these device numbers, which a listing without numbers shows where it knows no name."""
        return self.device in devices or any(self.name.endswith(f"Device {device}") for device in devices)

    @property
    def is_rdma_nic(self) -> bool:
        """Whether it is a NIC that can write to GPUs: known to the RDMA core, or run by a driver that registers there."""
        if self.virtual or "Virtual Function" in self.name:
            return False
        nic = self.class_code in {"0200", "0207", "0280"}
        return self.rdma or (nic and (self.driver in RDMA_DRIVERS or (self.vendor == MELLANOX and not self.driver)))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two devices, and the ports where their paths split: below one bridge (`shared`), or at the root complex (None)."""

    a: Function
    b: Function
    shared: str | None
    ports: tuple[str, ...]

    @property
    def subject(self) -> str:
        """How reports name it."""
        return f"{self.a.address} <-> {self.b.address}"


@dataclass(frozen=True)
class Pci:
    """All functions of a host, by full address.

    `loose`: ACS control words of lines that stand below no address, as in the output of a grep; `loose_source`: of what.
    """

    functions: Mapping[str, Function]
    loose: tuple[int, ...] = ()
    loose_source: str = "lspci-vvv"

    @cached_property
    def gpus(self) -> tuple[Function, ...]:
        """The GPUs in bus order, which is also the driver's order."""
        return self._sorted("is_gpu")

    @cached_property
    def rdma_nics(self) -> tuple[Function, ...]:
        """The RDMA NICs in bus order."""
        return self._sorted("is_rdma_nic")

    @cached_property
    def virtual(self) -> bool:
        """Whether there are devices that only a virtual machine has."""
        return any(function.vendor in VIRTUAL for function in self.functions.values())

    @property
    def own_acs(self) -> str:
        """Why this platform prescribes ACS words of its own; empty: it does not."""
        functions = self.functions.values()
        if any(f.vendor == NVIDIA and f.is_bridge and f.is_one_of(GRACE_PORTS) for f in functions):
            return "a Grace platform"
        if any(f.vendor == MELLANOX and f.is_one_of({DATA_DIRECT}) for f in functions):
            return "a platform with DirectNIC"
        return ""

    @property
    def excerpt(self) -> bool:
        """Whether this is an unprivileged listing of some devices, without any bridge: it shows nothing of the host."""
        functions = self.functions.values()
        bridges = any(function.is_bridge for function in functions)
        return bool(functions) and not bridges and all(f.source == "lspci-vvv" and not f.acs_absent for f in functions)

    def below(self, bridge: str) -> tuple[Function, ...]:
        """Return the functions behind a bridge that are no bridges themselves."""
        return tuple(f for f in self.functions.values() if bridge in f.parents and not f.is_bridge)

    def _sorted(self, which: str) -> tuple[Function, ...]:
        return tuple(f for _, f in sorted(self.functions.items(), key=_order) if getattr(f, which))

    def pairs(self) -> Iterator[Pair]:
        """Yield GPU with GPU, then GPU with RDMA NIC; raise ValueError on more devices than any machine has."""
        if len(self.gpus) + len(self.rdma_nics) > MAX_DEVICES:
            raise ValueError("more GPUs and RDMA NICs than any machine has")
        for a, b in (*combinations(self.gpus, 2), *product(self.gpus, self.rdma_nics)):
            yield self._pair(a, b)

    def _pair(self, a: Function, b: Function) -> Pair:
        # root first, each path ends with the device itself
        left, right = ((*reversed(f.parents), f.address) for f in (a, b))
        depth = 0
        while depth < min(len(left), len(right)) and left[depth] == right[depth]:
            depth += 1
        shared = left[depth - 1] if depth else None
        ports = tuple(path[depth] for path in (left, right) if depth < len(path) - 1)
        if a.address.rpartition(".")[0] == b.address.rpartition(".")[0]:
            ports = (a.address, b.address)  # two functions of one device: its own words decide
        return Pair(a, b, shared, ports)


def _order(item: tuple[str, Function]) -> tuple[int, str]:
    return int(item[0].partition(":")[0], 16), item[0]
