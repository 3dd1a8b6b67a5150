"""Knows what a PCI tree is: functions, bridges, parents, and the two ports where the paths of two devices split.

Reads no text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE | re.ASCII)

NVIDIA, AMD, MELLANOX = "10de", "1002", "15b3"
VIRTUAL = {"1b36", "15ad", "5853", "1414"}  # QEMU, VMware, Xen, Hyper-V: devices that only guests see
RDMA_DRIVERS = {"mlx5_core", "mlx4_core", "efa", "hfi1"}
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

    `parents`: the bridges above, nearest first. `acs`: the ACS control word; None: none was read. `acs_absent`: it is
    certain that the function has no ACS capability. `dead`: its registers read as all ones.
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
    acs_absent: bool = False
    dead: bool = False
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

    @property
    def is_rdma_nic(self) -> bool:
        """Whether it is a NIC that can write to GPUs: known to the RDMA core, or run by a driver that registers there."""
        if "Virtual Function" in self.name:
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


@dataclass(frozen=True, slots=True)
class Pci:
    """All functions of a host, by full address."""

    functions: Mapping[str, Function]

    @property
    def gpus(self) -> tuple[Function, ...]:
        """The GPUs in bus order, which is also the driver's order."""
        return self._sorted("is_gpu")

    @property
    def rdma_nics(self) -> tuple[Function, ...]:
        """The RDMA NICs in bus order."""
        return self._sorted("is_rdma_nic")

    @property
    def virtual(self) -> bool:
        """Whether there are devices that only a virtual machine has."""
        return any(function.vendor in VIRTUAL for function in self.functions.values())

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
        return Pair(a, b, shared, ports)


def _order(item: tuple[str, Function]) -> tuple[int, str]:
    return int(item[0].partition(":")[0], 16), item[0]
