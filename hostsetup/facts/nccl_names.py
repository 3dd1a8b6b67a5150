"""Knows NCCL's grammar for lists of interfaces and HCAs, and which interfaces it takes when nothing is set.

The order is that of NCCL's source: names that begin with `ib`, then all but docker, lo and virbr, then these in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostsetup.facts.ip_addr import Address
    from hostsetup.facts.net import Interface, Net

AUTOMATIC = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
MAX_INTERFACES = 16


@dataclass(frozen=True, slots=True)
class Pick:
    """An interface that NCCL takes, and the first of its addresses, which is the one it uses."""

    interface: Interface
    address: Address


def matches(wanted: str, name: str) -> bool:
    """Return whether a list selects a name: by prefix, with `=` by the whole name, with `^` all but these.

    The operators stand at the head and hold for the whole list. An entry may end in a port (`mlx5_0:1`). An empty list
    selects everything.
    """
    exclude = wanted.startswith("^")
    wanted = wanted.removeprefix("^")
    exact = wanted.startswith("=")
    entries = [entry.partition(":")[0] for entry in wanted.removeprefix("=").split(",") if entry.partition(":")[0]]
    if not entries:
        return not exclude
    hit = name in entries if exact else any(name.startswith(entry) for entry in entries)
    return hit is not exclude


def picks(net: Net, wanted: str = "", family: str = "") -> tuple[Pick, ...]:
    """Return what NCCL takes, in its order; the first carries its bootstrap. `wanted`, `family`: the variables' values."""
    if len(wanted) > 1:  # NCCL ignores a value of one letter
        return _found(net, wanted, family)
    return next(filter(None, (_found(net, each, family) for each in AUTOMATIC)), ())


def _found(net: Net, wanted: str, family: str) -> tuple[Pick, ...]:
    taken: dict[str, Pick] = {}
    for pick in _candidates(net.interfaces):
        version = {"AF_INET": 4, "AF_INET6": 6}.get(family, pick.address.version)
        if pick.address.version == version and matches(wanted, pick.interface.name):
            taken.setdefault(pick.interface.name, pick)
    return tuple(taken.values())[:MAX_INTERFACES]


def _candidates(interfaces: Sequence[Interface]) -> Iterator[Pick]:
    """Yield addresses in the order of getifaddrs: all of IPv4, then IPv6 without ::1; running interfaces alone."""
    for version in (4, 6):
        for interface in interfaces:
            for address in interface.addresses if interface.running else ():
                if address.version == version and not (version == 6 and address.ip.is_loopback):
                    yield Pick(interface, address)
