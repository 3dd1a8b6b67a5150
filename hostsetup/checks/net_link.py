"""A network link is slower than it should be, half duplex, flapping, or lossy.

What it means
    A physical interface runs below the speed that the site expects or that the same interface has on most hosts, runs in
    half duplex, has lost its link several times since the host booted, or sees errors; or a slave of a bond is down.

Why it matters to training
    A collective runs at the pace of its slowest link: one host whose cable came up at 1 Gb/s instead of 25 slows all of
    them, and nothing fails. A link that flaps ends runs minutes later with errors that name another host. A bond with a
    slave down has half its bandwidth and no spare.

How we tell
    sysfs of each running physical interface and bond: speed, duplex, carrier_changes, errors and packets, the bond's
    slaves with their MII status. Virtual NICs and links that are down read no speed, or -1: that is no speed at all, not a
    slow one. The same interface is compared with that of the other hosts: the slower of two is a warning, for nobody can say
    which is right. Counters count from the boot on, so they are judged mildly: bringing a link up takes one or two changes,
    and errors count from a share of 1 in 10 000 packets. An interface without addresses that is in no bond is not used and
    not judged. Wireless interfaces, bridges and virtual pairs are not judged either.

What to do
    Compare both ends of the cable: `ethtool NAME` shows what the partner offers. Reseat or replace cable and transceiver;
    set the switch's port to what the NIC can. Where the loss of a link is known and over, accept the finding:
    `--accept net.link=REASON`.

How to undo
    Nothing is changed.

Sources
    https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net
    https://docs.kernel.org/networking/bonding.html
    https://docs.kernel.org/networking/statistics.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import lower

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.net import Endpoint, Interface, Net

ID = "net.link"
SOURCE = "https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net"

EXPECTS = {
    "net.link.speed_mbps": Want(int, "least speed of the interface that carries training, in Mb/s"),
    "net.link.carrier_changes": Want(int, "most changes of a link's state since boot", 5),
}

_LOSSY = 1e-4
_FEW_ERRORS = 100
_MOST_NAMES = 32


def skip(net: Net) -> str:
    """Spare hosts without a NIC of their own, such as containers."""
    return "" if _judged(net) or not net.measured else "no physical interface is in use"


def baseline(endpoint: Endpoint) -> Mapping[str, Value]:
    """Return the speed of the interface that carries training."""
    speed = endpoint.interface.speed_mbps
    return {"net.link.speed_mbps": speed} if speed else {}


def judge(net: Net, expect: Expect, endpoint: Endpoint | None = None) -> Iterator[Finding]:
    """Fail on half duplex and on less than the expected speed; warn of bonds, flaps and errors."""
    if not net.measured:
        yield Finding(
            State.UNKNOWN, saw="sysfs of the network interfaces was not read: speeds and errors are not known"
        )
        return
    used = _judged(net)
    found = [finding for one in used for finding in _faults(one, expect)]
    found += [finding for one in net.interfaces if one.slaves for finding in _slaves(net, one)]
    least = expect.whole("net.link.speed_mbps")
    trained = net.find(expect.text("net.iface.name") or "") or (endpoint.interface if endpoint else None)
    if least and trained:
        found += _slow(trained, least, expect.origin("net.link.speed_mbps"))
    elif least:
        origin = expect.origin("net.link.speed_mbps")
        found.append(
            Finding(State.UNKNOWN, f"which interface carries training is not known; wanted {least} Mb/s ({origin})")
        )
    yield from found
    if not found:
        told = ", ".join(f"{one.name} {_speed(one)}" for one in used[:_MOST_NAMES])
        yield Finding(State.PASS, saw=told or "no link in use")


def judge_fleet(net: Mapping[str, Net], endpoint: Mapping[str, Endpoint] | None = None) -> Iterator[Finding]:
    """Fail the hosts whose link is slower than the same one of most hosts."""
    speeds: dict[str, dict[str, float]] = {}
    for host, one in net.items():
        for interface in _judged(one):
            if interface.speed_mbps:
                speeds.setdefault(interface.name, {})[host] = interface.speed_mbps
    names = {found.interface.name for found in (endpoint or {}).values()}
    if len(names) > 1:  # where names differ, the role is compared
        role = {host: float(found.interface.speed_mbps or 0) for host, found in (endpoint or {}).items()}
        speeds = {**speeds, "the training interface": {host: speed for host, speed in role.items() if speed}}
    for name, values in list(speeds.items())[:_MOST_NAMES]:
        if len(values) > 1:
            yield from lower(
                values,
                f"speed of {name}",
                "Mb/s",
                remedy=Remedy("Compare cable, transceiver and switch port with those of the peers."),
                probe="sysfs-net",
            )


def _judged(net: Net) -> list[Interface]:
    bonds = {one.name for one in net.interfaces if one.slaves}
    return [
        one
        for one in net.interfaces
        if one.running and one.kind in {"physical", "bond"} and (one.routable or one.master in bonds)
    ]


def _faults(one: Interface, expect: Expect) -> Iterator[Finding]:
    quoted = shlex.quote(one.name)
    look = Remedy("Compare both ends of the cable, reseat or replace it.", (f"ethtool {quoted}",))
    if one.duplex == "half":
        yield Finding(
            State.FAIL,
            f"{one.name} runs in half duplex",
            "full duplex",
            one.name,
            look,
            (f"sysfs-net: {one.name}/duplex:half",),
        )
    most = expect.whole("net.link.carrier_changes")
    if one.kind == "physical" and most is not None and (one.carrier_changes or 0) > most:
        yield Finding(
            State.WARN,
            f"the link of {one.name} has changed its state {one.carrier_changes} times since boot",
            f"at most {most} times",
            one.name,
            look,
            (f"sysfs-net: {one.name}/carrier_changes:{one.carrier_changes}",),
        )
    errors, packets = one.errors or 0, one.packets or 0
    if one.kind == "physical" and errors > _FEW_ERRORS and errors > _LOSSY * packets:
        yield Finding(
            State.WARN,
            f"{one.name} counts {errors} errors in {packets} packets since boot",
            "errors in fewer than 1 of 10 000 packets",
            one.name,
            Remedy("Look which errors they are; reseat or replace the cable.", (f"ethtool -S {quoted} | grep -i err",)),
            (f"sysfs-net: {one.name}: errors {errors}, packets {packets}",),
        )


def _slaves(net: Net, bond: Interface) -> Iterator[Finding]:
    every = {name: net.find(name) for name in bond.slaves}
    down = [name for name, one in every.items() if one is None or not one.running or one.mii_status == "down"]
    if down:
        yield Finding(
            State.WARN,
            f"{bond.name} has lost {', '.join(down)} ({len(down)} of {len(every)} slaves)",
            "every slave of the bond up",
            bond.name,
            Remedy("Look at cable and switch port of the slave.", (f"cat /proc/net/bonding/{shlex.quote(bond.name)}",)),
            tuple(
                f"sysfs-net: {name}/bonding_slave/mii_status:{one.mii_status}" for name in down if (one := every[name])
            ),
        )


def _slow(one: Interface, least: int, origin: str) -> Iterator[Finding]:
    if one.speed_mbps is None:
        yield Finding(State.UNKNOWN, f"{one.name} tells no speed; wanted {least} Mb/s ({origin})", subject=one.name)
    elif one.speed_mbps < least:
        yield Finding(
            State.FAIL,
            f"{one.name} runs at {one.speed_mbps} Mb/s",
            f"{least} Mb/s ({origin})",
            one.name,
            Remedy("Compare cable, transceiver and switch port.", (f"ethtool {shlex.quote(one.name)}",)),
            (f"sysfs-net: {one.name}/speed:{one.speed_mbps}",),
        )


def _speed(one: Interface) -> str:
    return f"{one.speed_mbps} Mb/s" if one.speed_mbps else "(tells no speed)"
