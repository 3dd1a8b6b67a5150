"""Knows what an RDMA device is: ports, GIDs, counters, and which ports a training run would use. Reads no text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Mapping, Sequence

    from hostsetup.facts.net import Net

MAX_PORTS = 1000
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"


@dataclass(frozen=True, slots=True)
class Gid:
    """One row of a port's table. `kind`: `RoCE v1`, `RoCE v2` or empty."""

    index: int
    address: ipaddress.IPv6Address
    kind: str = ""
    netdev: str = ""

    @property
    def routable(self) -> bool:
        """Whether RoCE v2 can reach another host by it: a global address, or an IPv4 one that is not link-local."""
        ip = self.address.ipv4_mapped or self.address
        return self.kind == "RoCE v2" and not (ip.is_link_local or ip.is_unspecified)

    @property
    def told(self) -> str:
        """How reports write its address."""
        return str(self.address.ipv4_mapped or self.address)


@dataclass(frozen=True, slots=True)
class Port:
    """One port. `state`: DOWN, INIT, ARMED, ACTIVE; `phys`: LINKUP, POLLING, DISABLED and so on, without underscores.

    Empty or None: not said. `gids`, `counters`: of active ports only, and only where they could be read. `source`: the
    probe that told of it.
    """

    device: str
    number: int
    state: str = ""
    phys: str = ""
    rate_gbps: float | None = None
    rate: str = ""
    layer: str = ""
    netdev: str = ""
    active_mtu: int | None = None
    lid: int | None = None
    gids: tuple[Gid, ...] | None = None
    counters: Mapping[str, int] | None = None
    source: str = "sysfs-rdma"

    @property
    def name(self) -> str:
        """How reports name it: the device, and the port where it is not the first."""
        return self.device if self.number == 1 else f"{self.device}:{self.number}"

    @property
    def active(self) -> bool:
        """Whether it carries data."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `board`: the maker's id of the board. `managed`: it manages NVSwitches and carries no data of ours."""

    name: str
    firmware: str = ""
    board: str = ""
    pci: str = ""
    numa: int | None = None
    guid: str = ""
    virtual_function: bool = False
    managed: bool = False


@dataclass(frozen=True, slots=True)
class Rdma:
    """A host's RDMA devices and ports; none at all is an answer, too.

    `verbs`: the device of each uverbs; `nodes`: what lies in /dev/infiniband, to what the SSH user may do with it (`rw`,
    `r`, `-`). None: not known. `netns`: shared or exclusive. `tool_found`: the devices that ibv_devinfo opened.
    """

    devices: Mapping[str, Device] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    verbs: Mapping[str, str] | None = None
    nodes: Mapping[str, str] | None = None
    netns: str = ""
    uptime_s: float | None = None
    tool_found: frozenset[str] | None = None

    def of(self, port: Port) -> Device:
        """Return the device of a port."""
        return self.devices.get(port.device) or Device(port.device)


def training_ports(rdma: Rdma, net: Net | None = None, wanted: Sequence[object] = ()) -> tuple[Port, ...]:
    """Return the ports that a run would use: those of the wanted devices, else the active ones.

    Ports that manage NVSwitches are left out, and so is the Ethernet port of the default route where it is slower than
    another, or where InfiniBand is there as well.
    """
    if wanted:
        return tuple(port for port in rdma.ports if port.device in wanted)
    active = [port for port in rdma.ports if port.active and not rdma.of(port).managed]
    fastest = max((port.rate_gbps or 0 for port in active), default=0)
    infiniband = any(port.layer == INFINIBAND for port in active)
    return tuple(
        port
        for port in active
        if not (
            port.layer == ETHERNET and _is_default(port, net) and (infiniband or 0 < (port.rate_gbps or 0) < fastest)
        )
    )


def _is_default(port: Port, net: Net | None) -> bool:
    if net is None or not net.default or not port.netdev:
        return False
    interface = net.find(port.netdev)
    return net.default in {port.netdev, interface.master if interface else port.netdev} or net.default.startswith(
        f"{port.netdev}."
    )
