"""Knows what a host found when it tried its peers: TCP ports, round trips, the largest packet, names. Tries nothing itself.

The collector writes the reply `peers`: lines of a key and its value, a block a peer.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES: tuple[Probe, ...] = ()  # the collector asks in a second exchange, when it knows every host's address

MAX_PORTS = 64  # of one peer
MAX_PEERS = 4096
HEADER_BYTES = {4: 28, 6: 48}  # of IP and ICMP, which `ping -s` does not count


class Answer(StrEnum):
    """What a connection to a port met. `OPEN` and `REFUSED` both prove that the way there and back is free."""

    OPEN = "open"
    REFUSED = "refused"
    SILENCE = "no answer"
    PROHIBITED = "no route to host"
    UNREACHABLE = "network is unreachable"
    UNTRIED = "not tried"

    @property
    def came(self) -> bool:
        """Whether the peer itself answered."""
        return self in {Answer.OPEN, Answer.REFUSED}


@dataclass(frozen=True, slots=True)
class Ping:
    """`loss`: share of the packets that did not come back, 0 to 1. Times in milliseconds; None: nothing came back."""

    loss: float
    average_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """Whether a packet as large as the interface allows came through in one piece; `said`: what the host or a router said."""

    size: int
    came: bool
    said: str = ""
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """What was found on the way to one peer; None: not tried, or not readable. `iface`, `source`: as the route says."""

    name: str
    address: str
    iface: str = ""
    source: str = ""
    mtu: int | None = None
    ports: Mapping[int, Answer] = field(default_factory=dict)
    ping: Ping | None = None
    whole: Whole | None = None
    resolved: tuple[str, ...] | None = None
    trust: str | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peers:
    """`asked`: whether the host was sent to its peers at all. `own`: the address peers use. `sample`: of how many peers."""

    asked: bool
    own: str = ""
    peers: tuple[Peer, ...] = ()
    sample: int = 0


_TCP = re.compile(r"(\d{1,5}) (\d{1,3}) ?(.*)")
_REFUSED = re.compile(r"refused", re.IGNORECASE)
_PROHIBITED = re.compile(r"no route to host|prohibited", re.IGNORECASE)
_UNREACHABLE = re.compile(r"network is unreachable|cannot assign requested address", re.IGNORECASE)
_LATE = re.compile(r"timed? ?out", re.IGNORECASE)
_LOSS = re.compile(r"(\d{1,6}) packets transmitted, (\d{1,6}) (?:packets )?received")
_TIMES = re.compile(r"(?:rtt|round-trip) min/avg/max(?:/m?dev)? = [\d.]+/([\d.]{1,12})/")
_TOO_LONG = re.compile(
    r"(?:message too long|frag needed|packet too big|fragmentation needed).*?mtu ?= ?(\d{1,6})", re.IGNORECASE
)
_NO_OPTION = re.compile(r"invalid option|unrecognized option|usage:|operation not permitted|not found", re.IGNORECASE)


def parse_tcp(text: str) -> tuple[int, Answer]:
    """Read `PORT EXIT-CODE WORDS` of one connection that was tried."""
    found = _TCP.fullmatch(text.strip())
    if found is None or not 0 < int(found[1]) < 65536:
        raise ValueError("not a port, an exit code and words")
    port, code, said = int(found[1]), int(found[2]), found[3]
    patterns = ((_REFUSED, Answer.REFUSED), (_PROHIBITED, Answer.PROHIBITED), (_UNREACHABLE, Answer.UNREACHABLE))
    if code == 0:
        return port, Answer.OPEN
    told = next((answer for pattern, answer in patterns if pattern.search(said)), None)
    if told is None and (code in {124, 137, 143} or _LATE.search(said)):
        told = Answer.SILENCE
    return port, told or Answer.UNTRIED


def parse_ping(text: str) -> Ping:
    """Read the last lines of `ping` (iputils or busybox)."""
    counts, times = _LOSS.search(text), _TIMES.search(text)
    if counts is None or int(counts[1]) == 0 or int(counts[2]) > 2 * int(counts[1]):
        raise ValueError("not the end of ping's output")
    try:
        average = float(times[1]) if times else None
    except ValueError:
        raise ValueError("ping's times are no numbers") from None
    return Ping(max(1 - int(counts[2]) / int(counts[1]), 0.0), average)


def parse_whole(text: str) -> Whole:
    """Read `SIZE WORDS`: a ping that may not be cut into pieces; SIZE counts the headers of IP and ICMP, too."""
    size, _, said = text.strip().partition(" ")
    if not re.fullmatch(r"\d{1,6}", size, re.ASCII):
        raise ValueError("no size of a packet")
    counts = _LOSS.search(said)
    if counts is None and _NO_OPTION.search(said):
        raise ValueError("this ping cannot forbid fragments")
    limit = _TOO_LONG.search(said)
    if counts is None and limit is None:
        raise ValueError("not ping's output")
    came = counts is not None and int(counts[2]) > 0
    return Whole(int(size), came, "" if came else said[-200:], None if limit is None else int(limit[1]))


def parse_peers(text: str) -> Peers:
    """Read the reply `peers`: what is not readable of one peer is left out there, the others are told."""
    told = Peers(asked=True)
    peers: list[Peer] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        key, _, value = line.partition(" ")
        if key == "own":
            told = replace(told, own=str(ipaddress.ip_address(value)))
        elif key == "sample" and re.fullmatch(r"\d{1,6}", value, re.ASCII):
            told = replace(told, sample=int(value))
        elif key == "peer" and len(words := value.split()) == 2 and len(peers) < MAX_PEERS:
            peers.append(Peer(words[0][:255], str(ipaddress.ip_address(words[1]))))
        elif peers:
            peers[-1] = _more(peers[-1], key, value)
    if not told.own:
        raise ValueError("not what a host found of its peers")
    return replace(told, peers=tuple(peers))


def _more(peer: Peer, key: str, value: str) -> Peer:
    try:
        match key:
            case "tcp":
                port, answer = parse_tcp(value)
                if len(peer.ports) < MAX_PORTS:
                    peer = replace(peer, ports={**peer.ports, port: answer})
            case "ping":
                peer = replace(peer, ping=parse_ping(value))
            case "whole":
                peer = replace(peer, whole=parse_whole(value))
            case "name":
                peer = replace(peer, resolved=tuple(dict.fromkeys(str(ipaddress.ip_address(w)) for w in value.split())))
            case "trust":
                peer = replace(peer, trust=value[:200])
            case "route":
                peer = _routed(peer, value.split())
    except ValueError:
        return peer
    return replace(peer, lines=(*peer.lines, f"{key} {value}"[:300]) if len(peer.lines) < 40 else peer.lines)


def _routed(peer: Peer, words: list[str]) -> Peer:
    if len(words) != 3:
        raise ValueError("a route is an interface, an address and an MTU")
    iface, source, mtu = words
    number = int(mtu) if re.fullmatch(r"\d{1,6}", mtu, re.ASCII) else None
    return replace(peer, iface=iface[:32], source=str(ipaddress.ip_address(source)), mtu=number)


def read(evidence: Evidence) -> Known[Peers] | Unknown:
    """Return what the host found; a host that was not sent to its peers is known not to have been."""
    if "peers" not in evidence.replies:
        return Known(Peers(asked=False))
    reply = evidence.answer("peers")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_peers(reply.text))
    except ValueError as error:
        return Unknown(f"`peers`: {error}" + (f" ({reply.error_text.strip()[:200]})" if reply.stderr else ""))
