"""Something between two hosts drops or rejects connections.

What it means
    A host's attempt to connect to a closed port of a peer was not refused by the peer: there was no answer at all, or an
    immediate `No route to host`, although the peer is up.

Why it matters to training
    Rendezvous uses one port that you can open; NCCL and Gloo then listen on ports that the kernel hands out and connect
    in both directions. With a filter in between, the job gets past rendezvous and hangs in its first collective. Opening
    29500 alone does not help.

How we tell
    Each host tries the ports 29400 and 29500 of its peers and three more out of the range from which the peer's kernel
    hands out ports; nothing listens there. A refusal proves that packets come through in both directions. Silence, tried
    twice, is a filter that drops (or a route that leads nowhere); `No route to host` while a ping comes back is a filter
    that rejects, firewalld's own way, and no fault of routing. A filter that answers with a TCP reset cannot be told from a
    free way, and security groups of a cloud are seen only by what they do. A filter in one direction stops TCP in both: see
    which host's rules name the other.

What to do
    Allow all traffic between the training addresses, on the training interface. firewalld: put the interface into the
    zone trusted. ufw: allow from the peers' subnet. In a cloud: a security group that allows itself.

How to undo
    `firewall-cmd --zone=trusted --remove-interface=IFACE`; `ufw delete allow from SUBNET`.

Sources
    https://github.com/NVIDIA/nccl/issues/388
    https://firewalld.org/documentation/zone/predefined-zones.html
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.facts.peers import Answer
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.peers import Peer, Peers
    from hostsetup.facts.services import Services

ID = "net.firewall"
SOURCE = "https://github.com/NVIDIA/nccl/issues/388"

_WANTED = "closed ports of every peer refuse connections"
_MOST = 20
_FILTERS = ("firewalld", "ufw", "nftables")


def skip(peers: Peers) -> str:
    """Spare hosts that were not sent to their peers."""
    return "" if peers.asked else "hosts were not sent to their peers (--no-pairs, one host, or no address for peers)"


def judge_fleet(peers: Mapping[str, Peers], services: Mapping[str, Services] | None = None) -> Iterator[Finding]:
    """Name every ordered pair in which a port neither answered nor refused."""
    tried = [(host, peer) for host, found in peers.items() for peer in found.peers if peer.ports]
    bad = [(host, peer, ports) for host, peer in tried if (ports := _filtered(peer))]
    for host, peer, ports in bad[:_MOST]:
        yield _finding(host, peer, ports, services or {})
    if len(bad) > _MOST:
        text = f"{len(bad) - _MOST} more pairs have ports that neither answer nor refuse"
        yield Finding(
            State.FAIL,
            text,
            _WANTED,
            remedy=Remedy("Allow all traffic between the training addresses.", needs_root=True),
        )
    untried = [f"{host} -> {peer.name}" for host, peer in tried if not bad and _untried(peer)]
    if untried:
        saw = f"{len(untried)} pairs could not be tried (neither bash, python3 nor nc): {', '.join(untried[:3])}"
        yield Finding(State.UNKNOWN, saw, _WANTED)
    if tried and not bad and not untried:
        yield Finding(State.PASS, f"no port is filtered on {len(tried)} ordered pairs", _WANTED)


def _untried(peer: Peer) -> bool:
    return all(answer is Answer.UNTRIED for answer in peer.ports.values())


def _filtered(peer: Peer) -> dict[int, Answer]:
    echoed = peer.ping is not None and peer.ping.loss < 1
    near = any(answer.came for answer in peer.ports.values()) or echoed
    return {
        port: answer
        for port, answer in peer.ports.items()
        if answer is Answer.SILENCE or (answer is Answer.PROHIBITED and near)
    }


def _finding(host: str, peer: Peer, ports: Mapping[int, Answer], services: Mapping[str, Services]) -> Finding:
    kinds = sorted({answer.value for answer in ports.values()})
    beside = "; a ping comes back" if peer.ping is not None and peer.ping.loss < 1 else ""
    active = [
        f"{name} runs on {one}"
        for one in (peer.name, host)
        if one in services
        for name in services[one].active(*_FILTERS)
    ]
    return Finding(
        State.FAIL,
        saw=f"{host} to {peer.name} ({peer.address}), {_ports(ports)}: {' and '.join(kinds)}{beside}"
        + (f"; {', '.join(active)}" if active else ""),
        wanted=_WANTED,
        subject=f"{host} -> {peer.name}",
        remedy=Remedy(
            "Allow all traffic between the training addresses of the hosts, on both of them, and in the cloud's security group.",
            (
                f"sudo firewall-cmd --permanent --zone=trusted --add-source={shlex.quote(peer.source)}",
                "sudo firewall-cmd --reload",
            )
            if peer.source and any("firewalld" in one for one in active)
            else (),
            needs_root=True,
        ),
        evidence=tuple(f"peers: {line}" for line in peer.lines if line.startswith(("tcp", "ping"))),
        scope="pair",
        hosts=(host, peer.name),
    )


def _ports(ports: Mapping[int, Answer]) -> str:
    told = ", ".join(map(str, sorted(ports)[:5]))
    return f"port{'' if len(ports) == 1 else 's'} {told}"
