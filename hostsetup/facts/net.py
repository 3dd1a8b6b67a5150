"""Knows a host's network interfaces: kind, state, speed, addresses, and which one leads to the peers. Sends no packet."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.ifconfig import parse_ifconfig
from hostsetup.facts.ip_addr import Address, Link, parse_ip_addr
from hostsetup.facts.net_sysfs import PROBE as SYSFS
from hostsetup.facts.net_sysfs import NetSysfs, parse_net_sysfs
from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (Probe("ip-addr", "ip -j addr 2>/dev/null || ip addr"), SYSFS)

# Interfaces that lead to containers, virtual machines and overlays of this very host, by the names their makers give.
_OVERLAY = re.compile(
    r"docker|br-[0-9a-f]{12}$|veth|virbr|vnet\d|lxc|lxdbr|incusbr|podman|cni|flannel|cali|cilium|vxlan|kube-|nodelocaldns"
    r"|tailscale|wg\d|zt[a-z0-9]{8}|tun\d|tap\d|utun|ppp|ovs-system|dummy|ifb\d|sit\d|gre|erspan"
)
_CARRIER_KINDS = {"physical", "bond", "vlan"}
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_KINDS = {"bridge": "bridge", "bond": "bond", "vlan": "vlan", "wlan": "wireless", "wwan": "wireless"}
_VIRTUAL = {"wireguard", "vxlan", "geneve", "macvlan", "ipvlan", "gre", "ip6gre", "tun", "tap"}


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface. `kind`: loopback, physical, wireless, bridge, veth, bond, vlan or virtual.

    `up`: switched on; `running`: up and with a link, which is what NCCL asks for. None: not said, or not measurable (the
    speed of a virtual NIC). `pci`: its function's full address, empty for virtual ones. `errors`, `packets`: received and
    sent together, since boot. `slaves`: of a bond. `mii_status`, `link_failures`: as a slave of one.
    """

    name: str
    kind: str
    up: bool
    running: bool
    mtu: int | None = None
    speed_mbps: int | None = None
    duplex: str = ""
    addresses: tuple[Address, ...] = ()
    pci: str = ""
    master: str = ""
    slaves: tuple[str, ...] = ()
    mii_status: str = ""
    link_failures: int | None = None
    carrier_changes: int | None = None
    errors: int | None = None
    packets: int | None = None

    @property
    def routable(self) -> tuple[Address, ...]:
        """Return the addresses that another host could reach: neither loopback nor link-local; IPv4 first."""
        able = (a for a in self.addresses if not (a.ip.is_loopback or a.ip.is_link_local))
        return tuple(sorted(able, key=lambda address: address.version))

    @property
    def overlay(self) -> bool:
        """Whether its name is one that engines, hypervisors, overlays and tunnels give."""
        return _OVERLAY.match(self.name) is not None


@dataclass(frozen=True, slots=True)
class Net:
    """The interfaces in the kernel's order. `default`: the one of the default route, empty: none, or not said.

    `switches`: rp_filter, arp_ignore and arp_announce by interface, and of `all`. `rules`: sources that routing rules name.
    `measured`: whether sysfs answered; otherwise kinds are told from names and flags alone.
    """

    interfaces: tuple[Interface, ...]
    default: str = ""
    switches: Mapping[str, Mapping[str, int]] | None = None
    rules: tuple[str, ...] = ()
    uptime_s: float | None = None
    measured: bool = True

    def find(self, name: str) -> Interface | None:
        """Return an interface by its name."""
        return next((one for one in self.interfaces if one.name == name), None)

    @property
    def addressed(self) -> bool:
        """Whether addresses are shown at all; a table of interfaces shows none."""
        return self.measured or any(one.addresses for one in self.interfaces)

    def misleading(self, interface: Interface) -> bool:
        """Whether no peer can be reached through it: an overlay, or link-local addresses alone (a BMC's USB NIC)."""
        if interface.name == self.default:
            return False
        return interface.overlay or (bool(interface.addresses) and not interface.routable)

    @property
    def usable(self) -> tuple[Interface, ...]:
        """Return the running interfaces with an address that peers may reach, without loopback and overlays."""
        return tuple(i for i in self.interfaces if i.running and i.routable and not self.misleading(i))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address that peers should use for a host, and the interface that carries it."""

    address: str
    interface: Interface


def training_address(net: Net, addr: str | None = None, iface: str | None = None) -> Endpoint | None:
    """Return a host's endpoint: as `addr` says, else the first address of `iface`, else of the default route's interface.

    Without a default route the fastest usable interface is taken. None: there is no such address, or no usable interface.
    """
    if addr is not None:
        try:
            wanted = ipaddress.ip_address(addr)
        except ValueError:
            return None
        held = (i for i in net.interfaces if any(own.ip == wanted for own in i.addresses))
        return next((Endpoint(str(wanted), i) for i in held if iface in {None, i.name}), None)
    chosen = net.find(iface or net.default)
    if iface is None and (chosen is None or not chosen.routable):
        chosen = max(net.usable, key=lambda one: (one.kind in _CARRIER_KINDS, one.speed_mbps or 0), default=None)
    return Endpoint(str(chosen.routable[0].ip), chosen) if chosen is not None and chosen.routable else None


def _interface(link: Link, sysfs: NetSysfs | None) -> Interface:
    said = sysfs.values.get(link.name, {}) if sysfs else {}
    place = sysfs.places.get(link.name, "") if sysfs else ""
    state = said.get("operstate", link.state).lower()
    # an address that was cut out of a listing came from a link of which nothing else is told
    up = "UP" in link.flags or (not link.flags and (state in {"up", "dormant"} or (not state and bool(link.addresses))))
    slaves = said.get("bonding/slaves", "").split()[:64]
    numbers = {name: _number(value) for name, value in said.items()}
    functions = _PCI.findall(place)
    return Interface(
        link.name,
        _kind(link, said, place),
        up=up,
        running=up and state in {"up", "unknown", ""} and "NO-CARRIER" not in link.flags,
        mtu=numbers.get("mtu") or link.mtu,
        speed_mbps=numbers.get("speed") or None,
        duplex=said.get("duplex", ""),
        addresses=link.addresses,
        pci=full_address(functions[-1]) if functions else "",
        master=sysfs.masters.get(link.name, "").rpartition("/")[2] if sysfs else link.master,
        slaves=tuple(slaves),
        mii_status=said.get("bonding_slave/mii_status", ""),
        link_failures=numbers.get("bonding_slave/link_failure_count"),
        carrier_changes=numbers.get("carrier_changes"),
        errors=_sum(numbers.get("statistics/rx_errors"), numbers.get("statistics/tx_errors")),
        packets=_sum(numbers.get("statistics/rx_packets"), numbers.get("statistics/tx_packets")),
    )


def _kind(link: Link, said: Mapping[str, str], place: str) -> str:
    devtype = said.get("devtype", "")
    if "LOOPBACK" in link.flags or link.link_type == "loopback" or said.get("type") == "772":
        return "loopback"
    if devtype in _KINDS:
        return _KINDS[devtype]
    if devtype in _VIRTUAL or "tun_flags" in said:
        return "virtual"
    if place and "/virtual/" not in place:
        return "physical"
    other_end = said.get("iflink", "") != said.get("ifindex", "") or re.fullmatch(r"if\d+", link.parent)
    if place:  # of the kernel's own making: a pair has its other end elsewhere
        return "bond" if "bonding/mode" in said else "veth" if other_end else "virtual"
    return _kind_by_name(link)


def _kind_by_name(link: Link) -> str:
    """Return the likely kind where sysfs is not known: by flags, by what stands after `@`, by customary names."""
    guesses = (
        ("bond", "MASTER" in link.flags or link.name.startswith("bond")),
        ("veth", link.name.startswith("veth") or re.fullmatch(r"if\d+", link.parent) is not None),
        ("vlan", bool(link.parent) and link.parent != "NONE"),
        ("wireless", link.name.startswith("wl")),
        ("bridge", re.match(r"br\d*$|br-|docker|virbr|lxdbr|cni|vmbr", link.name) is not None),
        ("virtual", re.match(_OVERLAY, link.name) is not None or link.link_type in {"none", "sit", "ppp", "void"}),
    )
    return next((kind for kind, fits in guesses if fits), "physical")


def _number(text: str) -> int | None:
    # speeds read -1 where there is none
    return int(text) if re.fullmatch(r"\d{1,20}", text, re.ASCII) and text != "4294967295" else None


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def read(evidence: Evidence) -> Known[Net] | Unknown:
    """Return the interfaces: `ip addr` says which there are, sysfs (where it answered) says what they are."""
    reply = evidence.answer("ip-addr")
    if isinstance(reply, Unknown):
        return reply
    try:
        links = parse_ip_addr(reply.text)
    except ValueError as error:
        try:
            links = parse_ifconfig(reply.text)
        except ValueError:
            return Unknown(f"`ip-addr`: {error}")
    sysfs: NetSysfs | None = None
    measured = evidence.answer("sysfs-net")
    if not isinstance(measured, Unknown):
        try:
            sysfs = parse_net_sysfs(measured.text)
        except ValueError:
            sysfs = None
    interfaces = tuple(_interface(link, sysfs) for link in links)
    if sysfs is None:
        return Known(Net(interfaces, measured=False))
    return Known(Net(interfaces, sysfs.default, sysfs.switches, sysfs.rules, sysfs.uptime_s))


def tell(net: Net) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "default_interface": net.default,
        "interfaces": {
            one.name: {
                "kind": one.kind,
                "running": one.running,
                "mtu": one.mtu,
                "speed_mbps": one.speed_mbps,
                "addresses": [str(address) for address in one.addresses],
            }
            for one in net.interfaces
            if one.kind != "veth" or one.addresses
        },
    }
