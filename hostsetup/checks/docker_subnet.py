"""A bridge of the engine claims addresses that belong to the network of the hosts.

What it means
    The subnet of a network of the engine, such as 172.17.0.0/16 of docker0, overlaps the host's own network, or holds the
    address of another host.

Why it matters to training
    The kernel sends to the most specific route: packets to those hosts go into the bridge and never leave. SSH from
    elsewhere works, the rendezvous times out, or NCCL connects to some peers and hangs on others. A bridge does this even
    when no container is on it.

How we tell
    The subnets of all bridge networks that the engine lists, or else the addresses of docker0 and br-... in `ip addr`.
    They are compared with the networks of the interfaces that peers may reach, with the networks in the table of routes
    (a warning, for nobody knows who is behind a gateway), and among several hosts with the address of every other host.
    That a subnet holds the address of a peer is the surest sign. Networks of the kinds macvlan and ipvlan lie in the
    host's network on purpose.

What to do
    Give the engine addresses that your site does not use: "bip" for docker0 and "default-address-pools" for all others in
    /etc/docker/daemon.json, then restart the engine, remove the networks that overlap and let them be made anew.

How to undo
    Take the lines out of daemon.json and restart the engine.

Sources
    https://docs.docker.com/engine/network/#subnet-allocation
    https://docs.docker.com/engine/network/drivers/bridge/
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.docker_objects import Objects, Subnet
    from hostsetup.facts.net import Endpoint, Net
    from hostsetup.facts.routes import Routes

ID = "docker.subnet"
SOURCE = "https://docs.docker.com/engine/network/#subnet-allocation"
_MADE = re.compile(r"docker0|docker_gwbridge|br-[0-9a-f]{12}")
_WANTED = "subnets of the engine that no host uses"
_REMEDY = Remedy(
    'Set "bip" and "default-address-pools" in /etc/docker/daemon.json to addresses that your site does not use, restart the '
    "engine, and make the networks anew.",
    needs_root=True,
)
_SHOWN = 5


def skip(net: Net, docker_objects: Objects | None = None) -> str:
    """Spare hosts without any bridge of an engine."""
    return "" if _bridges(net, docker_objects) else "the engine has no bridge network"


def judge(
    net: Net, docker_objects: Objects | None = None, endpoint: Endpoint | None = None, routes: Routes | None = None
) -> Iterator[Finding]:
    """Fail where a bridge overlaps a network that peers may be on, warn where it overlaps a route."""
    bridges = _bridges(net, docker_objects)
    clean = True
    for (name, interface), subnets in bridges.items():
        found = _first(subnets, _networks(net, endpoint, routes, {one for _, one in bridges}))
        if found is None:
            continue
        clean = False
        subnet, network, whose, state = found
        yield Finding(
            state,
            saw=f"{subnet} of the engine's network {name} overlaps {network} of {whose}",
            wanted=_WANTED,
            subject=name,
            remedy=_REMEDY,
            evidence=(f"docker-objects: {name} {interface} {subnet}", f"ip-addr: {whose} {network}"),
        )
    if clean:
        told = ", ".join(f"{name} {subnets[0]}" for (name, _), subnets in list(bridges.items())[:_SHOWN])
        yield Finding(State.PASS, saw=f"no network of the engine overlaps the host's: {told or 'none'}")


def _bridges(net: Net, objects: Objects | None) -> dict[tuple[str, str], tuple[Subnet, ...]]:
    """Return the subnets of bridges by the network's name and its interface."""
    listed = objects.networks if objects else ()
    found = {(one.name, one.bridge): one.subnets for one in listed if one.driver == "bridge" and one.subnets}
    known = {interface for _, interface in found}
    for one in net.interfaces:
        if _MADE.fullmatch(one.name) and one.name not in known and (own := tuple(a.network for a in one.routable)):
            found[one.name, one.name] = own
    return found


def _networks(
    net: Net, endpoint: Endpoint | None, routes: Routes | None, own: set[str]
) -> Iterator[tuple[Subnet, str, State]]:
    """Yield what bridges must not overlap: whose it is, and how bad that is; the network of the peers first."""
    training = endpoint.interface.name if endpoint else ""
    usable = [one for one in net.usable if one.name not in own and (one.kind != "veth" or one.name == training)]
    for one in sorted(usable, key=lambda interface: interface.name != training):
        for address in one.routable:
            yield address.network, one.name, State.FAIL
    for route in routes.entries if routes else ():
        if route.gateway and route.interface not in own:
            yield route.network, f"a route by {route.gateway}", State.WARN


def _first(
    subnets: tuple[Subnet, ...], others: Iterator[tuple[Subnet, str, State]]
) -> tuple[Subnet, Subnet, str, State] | None:
    for network, whose, state in others:
        for subnet in subnets:
            if subnet.version == network.version and subnet.overlaps(network):
                return subnet, network, whose, state
    return None


def judge_fleet(
    net: Mapping[str, Net], endpoint: Mapping[str, Endpoint], docker_objects: Mapping[str, Objects] | None = None
) -> Iterator[Finding]:
    """Fail where a bridge of one host holds the address of another."""
    addresses = {peer: ipaddress.ip_address(one.address) for peer, one in endpoint.items()}
    inside: dict[tuple[Subnet, ...], dict[str, str]] = {}  # engines share their defaults: each is looked for once
    for host, one in net.items():
        for (name, interface), subnets in _bridges(one, (docker_objects or {}).get(host)).items():
            if subnets not in inside:
                inside[subnets] = {
                    peer: str(address)
                    for peer, address in addresses.items()
                    if any(address in subnet for subnet in subnets)
                }
            lost = {peer: address for peer, address in inside[subnets].items() if peer != host}
            if lost:
                yield _lost(host, name, interface, subnets, lost)


def _lost(host: str, name: str, interface: str, subnets: tuple[Subnet, ...], lost: Mapping[str, str]) -> Finding:
    listed = ", ".join(f"{peer} ({address})" for peer, address in list(lost.items())[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return Finding(
        State.FAIL,
        saw=f"{', '.join(map(str, subnets[:2]))} of the engine's network {name} on {host} holds the addresses of {listed}{more}",
        wanted=_WANTED,
        subject=name,
        remedy=_REMEDY,
        evidence=(f"docker-objects: {name} {interface} {', '.join(map(str, subnets[:2]))}",),
        hosts=(host,),
    )
