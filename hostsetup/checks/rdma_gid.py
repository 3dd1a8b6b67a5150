"""A RoCE port has no address by which another host can be reached.

What it means
    An active Ethernet port has no GID of type RoCE v2 with a global address, or the fixed index in NCCL_IB_GID_INDEX
    names a row that is no such GID.

Why it matters to training
    RoCE v2 wraps RDMA in UDP over IP: the GID is the port's IP address. With a link-local GID (fe80::...) or a row of
    RoCE v1, packets do not pass a router and mostly not the switch either; NCCL then fails in ibv_modify_qp with a
    time-out, or with status 12 in its first collective.

How we tell
    The port's GID table in sysfs (or of `ibv_devinfo -v`): rows that are all zero are empty, and reading the type of an
    empty row fails, which is normal. A row counts when its type is RoCE v2 and its address is neither link-local nor
    empty; an IPv4 address stands there as ::ffff:a.b.c.d. Several such rows (IPv4 and IPv6, VLANs) are no fault. The
    index of a row differs from host to host and changes with the addresses: NCCL finds it by itself since 2.21, so a
    fixed index in NCCL_IB_GID_INDEX, as old recipes have it, is only judged for whether it fits. InfiniBand ports have
    no such question. Management ports are left out as in rdma.port.

What to do
    Give the port's network interface an IP address. Remove NCCL_IB_GID_INDEX from the files and scripts that set it.

How to undo
    Take the address away; set the variable again.

Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
    https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-infiniband
    https://github.com/NVIDIA/nccl/issues/769
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts.rdma_port import ETHERNET, training_ports
from hostsetup.facts.rdma_tools import UNNAMED
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.nccl_conf import NcclConf
    from hostsetup.facts.net import Net
    from hostsetup.facts.rdma_port import Gid, Port, Rdma

ID = "rdma.gid"
SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index"

_WANTED = "a GID of type RoCE v2 with a global address"
_SHOWN = 6


def skip(rdma: Rdma) -> str:
    """Spare hosts without a RoCE port in use."""
    if any(port.layer == ETHERNET and (port.active or port.gids) for port in rdma.ports):
        return ""
    return "no RoCE port is active"


def judge(rdma: Rdma, expect: Expect, net: Net | None = None, nccl_conf: NcclConf | None = None) -> Iterator[Finding]:
    """Fail on ports without a routable address, and on a fixed index that is none."""
    chosen = training_ports(rdma, net, expect.several("rdma.port.devices"))
    ports = [port for port in chosen or rdma.ports if port.layer == ETHERNET and (port.active or port.gids)]
    fixed = nccl_conf.value("NCCL_IB_GID_INDEX") if nccl_conf else ""
    good: list[str] = []
    for port in ports:
        if not port.gids or not any(gid.kind for gid in port.gids):
            yield Finding(
                State.UNKNOWN, f"the GIDs of {port.name}, or their types, could not be read", subject=port.name
            )
            continue
        able = [gid for gid in port.gids if gid.routable]
        if not able and port.device == UNNAMED:
            yield Finding(State.UNKNOWN, "no routable RoCE v2 address in the part of a GID table that was read")
        elif not able:
            yield _unroutable(port, port.gids)
        elif re.fullmatch(r"\d{1,4}", fixed) and int(fixed) not in {gid.index for gid in able}:
            yield _misfit(port, able, fixed)
        else:
            good.append(f"{port.name} {_told(able)}")
    near = _near(ports) if net is None else ""
    if near:
        yield Finding(
            State.INFO,
            saw=f"{near}: NICs that share a subnet need routes of their own, or packets leave by another than the GID's",
            wanted="one subnet for each NIC, or routing rules for each source address",
            evidence=tuple(_row(port, gid) for port in ports for gid in port.gids or () if gid.routable)[:_SHOWN],
        )
    if good:
        yield Finding(State.PASS, saw=f"RoCE v2 addresses: {'; '.join(good)}")
    elif not ports:
        yield Finding(State.PASS, saw="no RoCE port is among those that training uses")


def _near(ports: Iterable[Port]) -> str:
    """Return the NICs whose IPv4 addresses begin alike, where prefix lengths are not known."""
    homes: dict[str, dict[str, str]] = {}
    for port in ports:
        for gid in port.gids or ():
            if gid.routable and gid.address.ipv4_mapped:
                homes.setdefault(gid.told.rpartition(".")[0], {})[port.name] = gid.told
    alike = next((home for home in homes.values() if len(home) > 1), {})
    return ", ".join(f"{name} {address}" for name, address in list(alike.items())[:_SHOWN])


def _unroutable(port: Port, gids: tuple[Gid, ...]) -> Finding:
    return Finding(
        State.FAIL,
        saw=f"{port.name} has no routable RoCE v2 address, only {_told(gids)}",
        wanted=_WANTED,
        subject=port.name,
        remedy=Remedy(f"Give {port.netdev or 'its network interface'} an IP address."),
        evidence=tuple(_row(port, gid) for gid in gids[:_SHOWN]),
        scope="nic",
    )


def _misfit(port: Port, able: list[Gid], fixed: str) -> Finding:
    return Finding(
        State.FAIL,
        saw=f"NCCL_IB_GID_INDEX={fixed} is no routable RoCE v2 address of {port.name}; {_told(able)} is",
        wanted="NCCL_IB_GID_INDEX not set: NCCL finds the row by itself",
        subject=port.name,
        remedy=Remedy(f"Remove NCCL_IB_GID_INDEX where it is set (with an old NCCL: {able[-1].index} on this host)."),
        evidence=tuple(_row(port, gid) for gid in (port.gids or ())[:_SHOWN]),
        scope="nic",
    )


def _told(gids: tuple[Gid, ...] | list[Gid]) -> str:
    told = [f"{gid.index} ({gid.told}{'' if gid.routable else f', {gid.kind}'})" for gid in gids[:_SHOWN]]
    return ", ".join(told) + (", ..." if len(gids) > _SHOWN else "")


def _row(port: Port, gid: Gid) -> str:
    return f"{port.source}: {port.name} gid {gid.index} {gid.told} {gid.kind}".rstrip()
