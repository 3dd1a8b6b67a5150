"""Knows which TCP ports a host listens on and from which range it hands out ports. Names no process: that needs root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe(
        "tcp-ports",
        """grep -hsE 'local_address| 0A ' /proc/net/tcp /proc/net/tcp6 | head -c 1000000
grep -sH '' /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/ip_local_reserved_ports
exit 0""",
    ),
)

_LISTENER = re.compile(
    r" *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A \S+ \S+ \S+ +(\d{1,10}) .*",
    re.ASCII,
)
_RANGE = re.compile(r"\S*ip_local_port_range:(\d{1,5})\s+(\d{1,5})\s*", re.ASCII)
_RESERVED = re.compile(r"\S*ip_local_reserved_ports:([\d,-]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ports:
    """`listening`: ports that something listens on, to the user ids that do. `ephemeral`: first and last port handed out.

    `reserved`: ranges that are never handed out. None: not said.
    """

    listening: Mapping[int, tuple[int, ...]]
    ephemeral: tuple[int, int] | None = None
    reserved: tuple[tuple[int, int], ...] = ()

    def may_be_taken(self, port: int) -> bool:
        """Whether the kernel may give the port to any outgoing connection."""
        if self.ephemeral is None or any(first <= port <= last for first, last in self.reserved):
            return False
        return self.ephemeral[0] <= port <= self.ephemeral[1]


def parse_ports(text: str) -> Ports:
    """Read /proc/net/tcp and tcp6 (listeners are state 0A), and the kernel's range of local ports."""
    listening: dict[int, set[int]] = {}
    ephemeral: tuple[int, int] | None = None
    reserved: list[tuple[int, int]] = []
    for line in text.splitlines():
        if found := _LISTENER.fullmatch(line):
            listening.setdefault(int(found[2], 16), set()).add(int(found[3]))
        elif found := _RANGE.fullmatch(line):
            ephemeral = int(found[1]), int(found[2])
        elif found := _RESERVED.fullmatch(line):
            reserved = [_range(part) for part in found[1].split(",") if part]
    if "local_address" not in text:
        raise ValueError("not the kernel's table of TCP sockets")
    return Ports({port: tuple(sorted(users)) for port, users in sorted(listening.items())}, ephemeral, tuple(reserved))


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    if found is None:
        raise ValueError("a range of reserved ports is not readable")
    return int(found[1]), int(found[2] or found[1])


def read(evidence: Evidence) -> Known[Ports] | Unknown:
    """Return the ports."""
    reply = evidence.answer("tcp-ports")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_ports(reply.text))
    except ValueError as error:
        return Unknown(f"`tcp-ports`: {error}")


def tell(ports: Ports) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"listening": list(ports.listening)[:1000], "ephemeral": list(ports.ephemeral or ())}
