"""Knows which networks a host's own table of IPv4 routes leads to. Asks no router.

The table comes with the reply of the probe `sysfs-net`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 5000
_HEAD = re.compile(r"Iface\s+Destination\s+Gateway\s.*")
_ROW = re.compile(
    r"(\S{1,32})\s+([0-9A-F]{8})\s+([0-9A-F]{8})\s+([0-9A-F]{4})\s+\d{1,10}\s+\d{1,10}\s+\d{1,10}\s+([0-9A-F]{8})\s.*",
    re.ASCII,
)
_UP = 0x1  # RTF_UP


@dataclass(frozen=True, slots=True)
class Route:
    """One route that is up, besides the default one. `gateway`: empty where the network is on the wire."""

    interface: str
    network: ipaddress.IPv4Network
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes in the kernel's order."""

    entries: tuple[Route, ...]


def parse_routes(text: str) -> Routes:
    """Read /proc/net/route, wherever it stands in a text."""
    lines = iter(text.splitlines())
    if not any(_HEAD.fullmatch(line.strip()) for line in lines):
        raise ValueError("no table of routes in it")
    return Routes(tuple(_rows(lines)))


def _rows(lines: Iterator[str]) -> Iterator[Route]:
    for count, line in enumerate(lines):
        found = _ROW.fullmatch(f"{line.strip()} ")
        if found is None or count >= MOST:
            return
        if int(found[4], 16) & _UP and found[5] != "00000000":
            network = ipaddress.ip_network(f"{_address(found[2])}/{_address(found[5])}", strict=False)
            if isinstance(network, ipaddress.IPv4Network):
                yield Route(found[1], network, "" if found[3] == "00000000" else _address(found[3]))


def _address(word: str) -> str:
    # the kernel writes the lowest byte first
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(word)))


def read(evidence: Evidence) -> Known[Routes] | Unknown:
    """Return the routes."""
    reply = evidence.answer("sysfs-net")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_routes(reply.text))
    except ValueError as error:
        return Unknown(f"`sysfs-net`: {error}")
