"""A host cannot reach a peer on the address that training uses.

What it means
    From one host, no TCP port of another answered on that other's training address: no connection, no refusal.

Why it matters to training
    Every rank opens connections to other ranks, in both directions and on ports that nobody chose beforehand. One pair
    that cannot talk stops the whole job: rendezvous waits until its timeout, or NCCL hangs in its first collective, and
    no message names the pair.

How we tell
    Each host is told the training addresses of its peers and tries five TCP ports of each. A port that is closed refuses,
    and that refusal proves the way there and back; an open one proves it as well. That the launcher reaches every host
    proves nothing of this, nor does SSH between two hosts over another network, so ordered pairs are tried: all of them up to
    16 hosts, above that a sample in which each host tries some peers and is tried by as many, and all try the first. The
    report says which it was. A connection that is refused by a firewall with a forged answer looks like an open way.

What to do
    See which way the packets take (`ip route get ADDRESS` on the host that tries), then whether the address is the right
    one for training: `addr=` and `iface=` in hosts.txt choose it. Silence while a ping comes through is a firewall.

How to undo
    Nothing is changed by this check.

Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    https://pytorch.org/docs/stable/elastic/rendezvous.html
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.facts.peers import Answer
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.peers import Peer, Peers

ID = "net.reach"
SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

_WANTED = "every host reaches every other on its training address"
_MOST = 20  # pairs that are told one by one


def skip(peers: Peers) -> str:
    """Spare hosts that were not sent to their peers."""
    return "" if peers.asked else "hosts were not sent to their peers (--no-pairs, one host, or no address for peers)"


def judge_fleet(peers: Mapping[str, Peers]) -> Iterator[Finding]:
    """Name every ordered pair in which no port answered."""
    every_pair = [(host, peer) for host, found in peers.items() for peer in found.peers if peer.ports]
    tried = [(host, peer) for host, peer in every_pair if set(peer.ports.values()) != {Answer.UNTRIED}]
    lost = [(host, peer) for host, peer in tried if not any(answer.came for answer in peer.ports.values())]
    dead = Counter(peer.name for _, peer in lost)
    every = Counter(peer.name for _, peer in tried)
    alone = {name for name, count in dead.items() if count == every[name] and count > 1}
    for name in sorted(alone):
        yield _nobody(name, [(host, peer) for host, peer in lost if peer.name == name])
    rest = [(host, peer) for host, peer in lost if peer.name not in alone]
    for host, peer in rest[:_MOST]:
        yield _finding(host, peer)
    if len(rest) > _MOST:
        yield Finding(
            State.FAIL, f"{len(rest) - _MOST} more pairs do not reach each other", _WANTED, remedy=_remedy(rest[0][1])
        )
    if untried := len(every_pair) - len(tried):
        yield Finding(State.UNKNOWN, f"{untried} pairs could not be tried: see net.firewall", _WANTED)
    if tried and not lost:
        yield Finding(State.PASS, f"{len(tried)} ordered pairs reach each other{_of(peers)}", _WANTED)


def _of(peers: Mapping[str, Peers]) -> str:
    sample = max((found.sample for found in peers.values()), default=0)
    most = max(len(found.peers) for found in peers.values())
    return f" (a sample: up to {most} of {sample} peers of each host)" if sample else ""


def _finding(host: str, peer: Peer) -> Finding:
    return Finding(
        State.FAIL,
        saw=f"{host} got no answer from {peer.name} at {peer.address}: {_answers(peer)}",
        wanted=_WANTED,
        subject=f"{host} -> {peer.name}",
        remedy=_remedy(peer),
        evidence=tuple(f"peers: {line}" for line in peer.lines if line.startswith(("tcp", "route", "ping"))),
        scope="pair",
        hosts=(host, peer.name),
    )


def _nobody(name: str, lost: list[tuple[str, Peer]]) -> Finding:
    _, peer = lost[0]
    return Finding(
        State.FAIL,
        saw=f"none of {len(lost)} peers got an answer from {name} at {peer.address}: {_answers(peer)}",
        wanted=_WANTED,
        subject=f"* -> {name}",
        remedy=_remedy(peer),
        evidence=tuple(
            f"peers: {host}: {line}" for host, one in lost[:3] for line in one.lines if line.startswith("tcp")
        ),
        scope="cluster",
        hosts=(name,),
    )


def _answers(peer: Peer) -> str:
    counts = Counter(answer.value for answer in peer.ports.values())
    return ", ".join(f"{answer} on {count} port{'' if count == 1 else 's'}" for answer, count in counts.most_common())


def _remedy(peer: Peer) -> Remedy:
    return Remedy(
        "Check that this is the address that training should use (addr= or iface= in hosts.txt), then its route and firewall.",
        (f"ip route get {peer.address}",),
    )
