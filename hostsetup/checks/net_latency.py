"""Packets between two hosts are lost, or take much longer than elsewhere.

What it means
    Of ten pings from one host to another some did not come back, or they took longer than a single site should need, or
    far longer than between the other hosts.

Why it matters to training
    A collective waits for its slowest pair. TCP slows down with every packet that is lost, and a detour through another
    site or a busy firewall is felt by every rank at every step.

How we tell
    Each host sends its peers ten pings, 0.2 s apart, over the route that training takes. Loss is a warning, more than 5 % a
    failure. An average of more than 1 ms is a warning, and so is one of more than five times the median of all pairs (and
    above 0.2 ms, for below that the measure is noise). Hosts that are busy answer late; measure an idle fleet. Where nothing
    comes back at all, ping may be filtered: then nobody can tell, and net.reach says whether the peer is there. How much
    a link carries is not measured here; `--active` does that.

What to do
    Look at the error counters of both interfaces and of the switch ports between them (`ip -s link`), at the cable, and at
    the route: `ip route get ADDRESS`, `tracepath ADDRESS`.

How to undo
    Nothing is changed by this check.

Sources
    https://man7.org/linux/man-pages/man8/ping.8.html
    https://man7.org/linux/man-pages/man8/ip-link.8.html
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.peers import Peer, Peers

ID = "net.latency"
SOURCE = "https://man7.org/linux/man-pages/man8/ping.8.html"
EXPECTS = {
    "net.latency.average_ms": Want(float, "round trip between two hosts, in milliseconds, that is still fine", 1.0),
    "net.latency.loss": Want(float, "share of lost packets (0 to 1) that is a failure", 0.05),
}

_WANTED = "no packet is lost, and every pair is about as near as the others"
_OUTLIER, _NOISE_MS = 5, 0.2
_MOST = 20
_REMEDY = Remedy(
    "Look at the error counters of both interfaces, the cables and the route between the hosts.", ("ip -s link",)
)


def skip(peers: Peers) -> str:
    """Spare hosts that were not sent to their peers."""
    return "" if peers.asked else "hosts were not sent to their peers (--no-pairs, one host, or no address for peers)"


def judge_fleet(peers: Mapping[str, Peers], expect: Expect) -> Iterator[Finding]:
    """Name the pairs that lose packets or are slow."""
    pairs = [(host, peer) for host, found in peers.items() for peer in found.peers]
    pings = [
        (host, peer, peer.ping) for host, peer in pairs if peer.ping is not None and peer.ping.average_ms is not None
    ]
    if not pings:
        yield Finding(State.UNKNOWN, "no ping came back between any two hosts: it is missing or filtered", _WANTED)
        return
    middle = median(ping.average_ms or 0.0 for _, _, ping in pings)
    bad = [
        finding
        for host, peer, ping in pings
        if (finding := _judge(host, peer, ping.loss, ping.average_ms or 0.0, middle, expect)) is not None
    ]
    yield from sorted(bad, key=lambda finding: finding.state is not State.FAIL)[:_MOST]
    if len(bad) > _MOST:
        yield Finding(State.WARN, f"{len(bad) - _MOST} more pairs lose packets or are slow", _WANTED, remedy=_REMEDY)
    lost = len(pairs) - len(pings)
    if not bad:
        slowest = max(ping.average_ms or 0.0 for _, _, ping in pings)
        yield Finding(
            State.PASS,
            f"{len(pings)} ordered pairs: median {middle:.2f} ms, slowest {slowest:.2f} ms, no loss"
            + (f"; {lost} more gave no echo" if lost else ""),
            _WANTED,
        )


def _judge(host: str, peer: Peer, loss: float, average_ms: float, middle: float, expect: Expect) -> Finding | None:
    limit_ms, worst = expect.number("net.latency.average_ms") or 1.0, expect.number("net.latency.loss") or 0.05
    told = []
    if loss > 0:
        told.append(f"{loss:.0%} of the packets lost")
    if average_ms > limit_ms:
        told.append(f"{average_ms:.2f} ms on average")
    elif average_ms > max(_OUTLIER * middle, _NOISE_MS):
        told.append(f"{average_ms:.2f} ms on average, the median of all pairs is {middle:.2f} ms")
    if not told:
        return None
    return Finding(
        State.FAIL if loss > worst else State.WARN,
        saw=f"{host} to {peer.name}: {', '.join(told)}",
        wanted=_WANTED,
        subject=f"{host} -> {peer.name}",
        remedy=_REMEDY,
        evidence=tuple(f"peers: {line}" for line in peer.lines if line.startswith(("ping", "route"))),
        scope="pair",
        hosts=(host, peer.name),
    )
