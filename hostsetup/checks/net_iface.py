"""The hosts have no network interface in common that NCCL would take by itself.

What it means
    On some host nothing but loopback, a bridge of containers, a tunnel or a management link is there for NCCL to take, or
    what it takes differs in name, address family or network from what its peers take.

Why it matters to training
    NCCL and Gloo pick an interface on each host alone and tell the peers its address. If that is a bridge of Docker's
    (often the same 172.18.0.1 on every host), a VPN or the USB link to the BMC (169.254.x.x), the peers connect to
    themselves or to nobody and the run hangs at its first collective. If names differ, one NCCL_SOCKET_IFNAME cannot
    serve all hosts.

How we tell
    We predict NCCL's choice on each host by the rules of its source: running interfaces with an address; names that begin
    with `ib` first; then all but docker, lo and virbr; then these. IPv4 comes before IPv6, in the kernel's order, and the
    first carries the bootstrap; without RDMA the data goes over all of them. NCCL leaves out neither br-, veth, cni,
    flannel, cali, tailscale, wg, tun nor podman. A setting of NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY in NCCL's files or
    in the environment of the SSH session is applied, by its own grammar (prefixes, `=` exact, `^` all but). Which
    interface reaches the peers is net.reach's question. One host alone is told what it would take; it harms nobody yet.

What to do
    Set the interface, by its exact name: NCCL_SOCKET_IFNAME==eth0 (two equals signs: the second is NCCL's sign for
    "exactly") and GLOO_SOCKET_IFNAME=eth0 (Gloo knows no signs). Where names differ, set them on each host; this launcher
    does, for its own runs, with `iface=NAME` or `addr=ADDRESS` in hosts.txt where it should not choose. Not ^docker0
    alone: that makes loopback eligible.

How to undo
    Unset the variables.

Sources
    https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    https://github.com/ROCm/vllm/issues/390
    https://github.com/pytorch/pytorch/issues/113245
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.nccl_names import picks
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.access import Access
    from hostsetup.facts.nccl_conf import NcclConf
    from hostsetup.facts.nccl_names import Pick
    from hostsetup.facts.net import Endpoint, Net
    from hostsetup.facts.rdma_port import Rdma

ID = "net.iface"
SOURCE = "https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc"

EXPECTS = {"net.iface.name": Want(str, "the interface that carries training on this host")}

_WANTED = "an interface with an address that the peers can reach"
_SHOWN = 8


def baseline(endpoint: Endpoint) -> Mapping[str, Value]:
    """Return the interface that a good host uses."""
    return {"net.iface.name": endpoint.interface.name}


def judge(
    net: Net, expect: Expect, nccl_conf: NcclConf | None = None, access: Access | None = None
) -> Iterator[Finding]:
    """Fail when there is nothing to take, or when the site's interface is not there; else tell the prediction."""
    name = expect.text("net.iface.name")
    if name and name not in {one.name for one in net.usable}:
        found = net.find(name)
        why = "is not there" if found is None else "is not running" if not found.running else "has no address for peers"
        yield _failed(net, f"{name} {why}", f"{name}, running and with an address ({expect.origin('net.iface.name')})")
        return
    spec, family = _settings(nccl_conf)
    taken = picks(net, spec, family)
    if not taken and spec:
        yield _failed(net, f"no running interface matches NCCL_SOCKET_IFNAME={spec}{_family(family)}", _WANTED)
    elif not taken or taken[0].interface.kind == "loopback":
        saw = f"no running interface but loopback has an address{_family(family)}"
        if spec:
            saw = f"NCCL_SOCKET_IFNAME={spec} lets NCCL take loopback"
        if not net.addressed:
            yield Finding(State.UNKNOWN, "the listing shows no addresses")
        elif not net.measured and all(one.kind == "loopback" for one in net.interfaces):
            yield Finding(State.UNKNOWN, "the listing shows loopback alone: it may be cut off, or a container's")
        elif access is not None and access.local:
            yield Finding(State.INFO, f"{saw}: it matters once a second host takes part")
        else:
            yield _failed(net, saw, _WANTED)
    else:
        misled = net.misleading(taken[0].interface)
        more = ", which leads to no peer: it matters once a second host takes part" if misled else ""
        by = f" by NCCL_SOCKET_IFNAME={spec}" if spec else ""
        yield Finding(State.INFO if misled else State.PASS, f"NCCL takes {_told(taken)}{by}{more}")


def judge_fleet(
    net: Mapping[str, Net],
    nccl_conf: Mapping[str, NcclConf] | None = None,
    rdma: Mapping[str, Rdma] | None = None,
) -> Iterator[Finding]:
    """Fail when a host takes what no peer reaches; warn of names that differ."""
    taken = {host: picks(one, *_settings((nccl_conf or {}).get(host))) for host, one in net.items()}
    taken = {host: found for host, found in taken.items() if found and found[0].interface.kind != "loopback"}
    if len(taken) < 2:
        return  # the single hosts say why
    misled = tuple(host for host, found in taken.items() if net[host].misleading(found[0].interface))
    shared = _same_address(taken)
    versions = {found[0].address.version for found in taken.values()}
    if misled:
        yield _cluster(State.FAIL, taken, misled, "NCCL takes an interface that leads to no peer")
    elif shared:
        yield _cluster(State.FAIL, taken, shared, "NCCL takes one and the same address on several hosts")
    elif len(versions) > 1:
        yield _cluster(State.FAIL, taken, tuple(taken), "NCCL takes IPv4 on some hosts and IPv6 on others")
    elif len({found[0].interface.name for found in taken.values()}) > 1:
        yield _cluster(State.WARN, taken, tuple(taken), "NCCL takes interfaces of different names")
    else:
        name = next(iter(taken.values()))[0].interface.name
        yield Finding(State.PASS, saw=f"NCCL takes {name} on {len(taken)} hosts", scope="cluster")
    strays = {host: one for host, found in taken.items() if (one := _strays(net[host], found[1:]))}
    if strays and not misled and not any(port.active for one in (rdma or {}).values() for port in one.ports):
        first = next(iter(strays.values()))
        yield _cluster(
            State.WARN, taken, tuple(strays), f"without RDMA, NCCL sends data over all it finds, {first} as well"
        )


def _settings(conf: NcclConf | None) -> tuple[str, str]:
    return (conf.value("NCCL_SOCKET_IFNAME"), conf.value("NCCL_SOCKET_FAMILY")) if conf else ("", "")


def _family(family: str) -> str:
    return f" of {family}" if family else ""


def _told(taken: tuple[Pick, ...]) -> str:
    first, *others = taken
    names = ", ".join(pick.interface.name for pick in others[:_SHOWN])
    more = f", and for data {names}{', ...' if len(others) > _SHOWN else ''}" if others else ""
    return f"{first.interface.name} ({first.address}){more}"


def _same_address(taken: Mapping[str, tuple[Pick, ...]]) -> tuple[str, ...]:
    addresses = {host: found[0].address.ip for host, found in taken.items()}
    every = list(addresses.values())
    return tuple(host for host, address in addresses.items() if every.count(address) > 1)


def _strays(net: Net, others: tuple[Pick, ...]) -> str:
    return ", ".join(pick.interface.name for pick in others if net.misleading(pick.interface))


def _failed(net: Net, saw: str, wanted: str) -> Finding:
    there = [f"{one.name} {'running' if one.running else 'not running'}" for one in net.interfaces]
    return Finding(
        State.FAIL,
        saw,
        wanted,
        remedy=Remedy("Bring the interface up and give it an address, or name another one.", ("ip -br addr",)),
        evidence=(f"ip-addr: {', '.join(there[:_SHOWN])}",),
    )


def _cluster(state: State, taken: Mapping[str, tuple[Pick, ...]], hosts: tuple[str, ...], saw: str) -> Finding:
    told = [f"{host} {taken[host][0].interface.name} {taken[host][0].address.ip}" for host in hosts[:_SHOWN]]
    return Finding(
        state,
        saw=f"{saw}: {', '.join(told)}{', ...' if len(hosts) > _SHOWN else ''}",
        wanted="one usable interface of the same name on every host, or settings for each host",
        remedy=Remedy(
            "Name the interface: NCCL_SOCKET_IFNAME==NAME and GLOO_SOCKET_IFNAME=NAME, on each host its own where names"
            " differ; in hosts.txt iface=NAME."
        ),
        evidence=tuple(f"ip-addr: {line}" for line in told),
        hosts=hosts,
        scope="cluster",
    )
