"""An RDMA port that training needs is not active, or is slower than the others.

What it means
    A port is up but was never configured (state INIT), a port that the site names or that most hosts use is not ACTIVE,
    an active port runs below the rate of its peers, or the ports that a run would use mix InfiniBand and Ethernet.

Why it matters to training
    NCCL uses the active ports that it finds and says nothing of the others: a host with seven of eight rails makes all
    hosts wait for it. In state INIT no data flows although the cable is in and the MTU reads full: no subnet manager has
    given the port its address. A port at one lane instead of four drags every collective. Mixed link layers make NCCL
    pair ports that cannot reach each other.

How we tell
    State, physical state, rate and link layer of each port from sysfs, or else from ibv_devinfo and `rdma link`. Ports
    that are DOWN are normal: second ports without a cable, cards with twelve ports of which few are used. So a DOWN
    port fails only where the site expects it (rdma.port.devices, rdma.port.count) or where most hosts have more active
    ports; of two hosts, the one with fewer gets a warning. Left out are ports that manage NVSwitches (told by the card's product data, SW_MNG) and an Ethernet port that
    carries the default route beside a faster or an InfiniBand one: a management NIC knows RDMA, too. EFA says ACTIVE
    whatever its link does. Exact lists in NCCL_IB_HCA break where device names differ between hosts: that is a warning.

What to do
    INIT on InfiniBand: see that a subnet manager runs (`sminfo`), and for a virtual function that it has a GUID. DOWN where
    it should not be: cable, transceiver, switch port, and whether the port is set to the right link type. Low rate: reseat
    the cable; `mlxlink -d DEVICE` shows lanes and errors. Mixed layers: name the devices, NCCL_IB_HCA==mlx5_0,mlx5_1.

How to undo
    Unset NCCL_IB_HCA.

Sources
    https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    https://github.com/Mellanox/network-operator/issues/1646
    https://github.com/openshift/sriov-network-operator/issues/635
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.rdma_port import training_ports
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import lower, uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.net import Net
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.rdma_port import Port, Rdma

ID = "rdma.port"
SOURCE = "https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband"

EXPECTS = {
    "rdma.port.devices": Want(str, "RDMA devices that training uses; all must be active", many=True),
    "rdma.port.count": Want(int, "least number of active RDMA ports for training"),
    "rdma.port.rate_gbps": Want(float, "least rate of an RDMA port for training, in Gb/s"),
}

_UNCONFIGURED = {"INIT", "ARMED"}
_NO_LID = {0, 0xFFFF}
_SHOWN = 12
_CABLE = Remedy("Look at cable, transceiver and switch port, and at the port's link type.", ("ibstat", "rdma link"))


def skip(rdma: Rdma, pci: Pci | None = None) -> str:
    """Spare hosts without RDMA."""
    return "" if rdma.ports or (pci is not None and pci.rdma_nics) else "no RDMA device"


def baseline(rdma: Rdma, net: Net | None = None) -> Mapping[str, Value]:
    """Return the active ports of a good host and their least rate."""
    ports = training_ports(rdma, net)
    rates = [port.rate_gbps for port in ports if port.rate_gbps]
    if not ports:
        return {}
    told: dict[str, Value] = {"rdma.port.devices": tuple(port.device for port in ports), "rdma.port.count": len(ports)}
    return {**told, "rdma.port.rate_gbps": min(rates)} if rates else told


def judge(rdma: Rdma, expect: Expect, net: Net | None = None, pci: Pci | None = None) -> Iterator[Finding]:
    """Fail on ports that are not set up, missing or slow; tell the unused ones."""
    wanted = expect.several("rdma.port.devices")
    ports = training_ports(rdma, net, wanted)
    found = [
        *_unconfigured(rdma),
        *_missing(rdma, ports, [str(name) for name in wanted], expect),
        *_rates(ports, expect),
        *_layers(ports),
    ]
    if not any(port.active for port in ports) and not found:
        found.append(_unsaid(rdma.ports) or _none(rdma, pci))
    yield from found
    if not found:
        yield Finding(State.PASS, saw=_told(rdma, ports))


def judge_fleet(rdma: Mapping[str, Rdma], net: Mapping[str, Net] | None = None) -> Iterator[Finding]:
    """Fail the hosts with fewer or slower ports than most; warn of other names and layers."""
    ports = {host: training_ports(one, (net or {}).get(host)) for host, one in rdma.items()}
    if not any(ports.values()):
        return
    counts = {host: float(len(found)) for host, found in ports.items()}
    rates = {host: min(told) for host, found in ports.items() if (told := [p.rate_gbps for p in found if p.rate_gbps])}
    fewer = list(lower(counts, "active RDMA ports", "", remedy=_CABLE, probe="sysfs-rdma"))
    yield from fewer
    yield from lower(rates, "least rate of the RDMA ports", "Gb/s", remedy=_CABLE, probe="sysfs-rdma")
    layers = {host: ", ".join(sorted({p.layer or "unnamed" for p in found})) for host, found in ports.items() if found}
    names = {host: _listed([port.name for port in found]) for host, found in ports.items() if found}
    pins = Remedy("Name the devices on each host (NCCL_IB_HCA), or give them persistent names by udev.")
    if len(set(layers.values())) > 1:
        yield from uniform(layers, "link layer of the RDMA ports", remedy=pins, state=State.FAIL)
    elif not fewer and len(names) > 1:
        yield from uniform(names, "names of the RDMA devices in use", remedy=pins)


def _unconfigured(rdma: Rdma) -> Iterator[Finding]:
    for port in rdma.ports:
        if port.state not in _UNCONFIGURED or rdma.of(port).managed:
            continue
        device = rdma.of(port)
        guid = device.guid.replace(":", "").strip("0") == "" if device.guid else False
        why = "; its node GUID is zero, as of a virtual function that was given none" if guid else ""
        lid = ", it has no LID" if port.lid in _NO_LID else ""
        yield Finding(
            State.FAIL,
            saw=f"{port.name} is in state {port.state}: no subnet manager has set it up{lid}{why}",
            wanted="state ACTIVE",
            subject=port.name,
            remedy=Remedy(
                "See that a subnet manager runs for this fabric, and that a virtual function has a GUID.",
                ("sudo sminfo",),
                needs_root=True,
            ),
            evidence=(f"{port.source}: {port.name} state {port.state} {port.phys}".rstrip(),),
            scope="nic",
        )


def _missing(rdma: Rdma, ports: Sequence[Port], wanted: Sequence[str], expect: Expect) -> Iterator[Finding]:
    states = {name: [port.state or "unknown" for port in ports if port.device == name] for name in wanted}
    for name, told in states.items():
        if "unknown" not in told and "ACTIVE" not in told and not _UNCONFIGURED & set(told):
            yield _port_failed(
                f"{name} is {' and '.join(told) if told else 'not there'}",
                f"{name} ACTIVE ({expect.origin('rdma.port.devices')})",
                name,
            )
    least = expect.whole("rdma.port.count")
    active = sum(port.active for port in ports)
    if least is not None and active < least:
        down = [port.name for port in rdma.ports if not port.active]
        more = f"; not active: {_listed(down)}" if down else ""
        yield _port_failed(f"{active} active ports{more}", f"{least} ({expect.origin('rdma.port.count')})", "")


def _port_failed(saw: str, wanted: str, subject: str) -> Finding:
    return Finding(
        State.FAIL, saw, wanted, subject, _CABLE, (f"sysfs-rdma: {saw}",), scope="nic" if subject else "host"
    )


def _rates(ports: Sequence[Port], expect: Expect) -> Iterator[Finding]:
    least = expect.number("rdma.port.rate_gbps")
    rated = [(port, port.rate_gbps) for port in ports if port.active and port.rate_gbps]
    usual = Counter((port.layer, rate) for port, rate in rated)
    for port, rate in rated:
        rivals = [other for (layer, other), count in usual.items() if layer == port.layer and count * 2 > len(rated)]
        if least is not None and rate < least:
            wanted, state = f"{least:g} Gb/s ({expect.origin('rdma.port.rate_gbps')})", State.FAIL
        elif rivals and rate < rivals[0]:
            wanted, state = f"{rivals[0]:g} Gb/s, as most ports of this host", State.WARN
        else:
            continue
        yield Finding(
            state,
            saw=f"{port.name} runs at {port.rate or f'{rate:g} Gb/s'}",
            wanted=wanted,
            subject=port.name,
            remedy=Remedy(
                "Reseat or replace the cable; look at its lanes and errors.",
                (f"sudo mlxlink -d {shlex.quote(port.device)}",),
                needs_root=True,
            ),
            evidence=(f"{port.source}: {port.name} rate {port.rate}",),
            scope="nic",
        )


def _layers(ports: Sequence[Port]) -> Iterator[Finding]:
    layers = {
        layer: [p.name for p in ports if p.layer == layer] for layer in sorted({p.layer for p in ports if p.layer})
    }
    if len(layers) > 1:
        told = "; ".join(f"{layer}: {_listed(names)}" for layer, names in layers.items())
        yield Finding(
            State.WARN,
            saw=f"the active ports mix link layers: {told}",
            wanted="one link layer among the ports that training uses",
            remedy=Remedy("Name the devices that training uses, by the exact form: NCCL_IB_HCA==DEVICE,DEVICE."),
            evidence=tuple(f"{ports[0].source}: {layer}: {_listed(names)}" for layer, names in layers.items()),
        )


def _unsaid(ports: Sequence[Port]) -> Finding | None:
    if any(port.state for port in ports) or not ports:
        return None
    return Finding(
        State.UNKNOWN, saw=f"what was read does not tell the state of {_listed([port.name for port in ports])}"
    )


def _none(rdma: Rdma, pci: Pci | None) -> Finding:
    trains = pci is None or bool(pci.gpus)
    more = ": the data of training goes over TCP" if trains else ""
    if rdma.ports:
        saw = f"none of {len(rdma.ports)} RDMA ports is active{more}"
        remedy = _CABLE
    else:
        saw = f"{len(pci.rdma_nics) if pci else 0} NICs that know RDMA, and no RDMA device{more}"
        remedy = Remedy("Load the NIC's RDMA driver.", ("sudo modprobe mlx5_ib",), needs_root=True)
    evidence = tuple(f"{port.source}: {port.name} {port.state} {port.phys}".rstrip() for port in rdma.ports[:_SHOWN])
    return Finding(
        State.WARN if trains else State.INFO, saw, "an active port", "", remedy, evidence or ("sysfs-rdma: no device",)
    )


def _told(rdma: Rdma, ports: Sequence[Port]) -> str:
    kinds = Counter(f"{port.rate_gbps:g} Gb/s {port.layer}" if port.rate_gbps else port.layer for port in ports)
    told = ", ".join(f"{count} active {kind}".rstrip() for kind, count in kinds.items())
    used = {port.name for port in ports}
    spare = [port.name for port in rdma.ports if port.active and port.name not in used]
    down = [port.name for port in rdma.ports if not port.active]
    more = f"; not for training: {_listed(spare)}" if spare else ""
    return f"{told}{more}{f'; down and unused: {_listed(down)}' if down else ''}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
