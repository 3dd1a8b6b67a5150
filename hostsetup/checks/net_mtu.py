"""Packets as large as an interface allows do not get through, or hosts disagree how large that is.

What it means
    The path between two hosts carries less than the MTU of the interface that leads there; or the training interfaces of
    the hosts have different MTUs.

Why it matters to training
    Small messages pass, so rendezvous works; the first large tensor then stalls for ever where the network drops large
    packets in silence, or crawls where they are cut up. On InfiniBand and RoCE different MTUs break connections outright.

How we tell
    Over the route to each peer a ping of exactly the interface's MTU is sent that may not be cut into pieces. `Message too
    long` or `Frag needed` names the limit that was met. Silence while small packets come back is a black hole. Where ping is
    filtered, missing or cannot forbid fragments (busybox), nobody can tell. The figure alone says little: 1500 everywhere
    is right, 9000 everywhere is faster; what counts is that all agree and that the path carries it.

What to do
    Set one MTU on the training interfaces of all hosts and on every switch port between them: `ip link set dev IFACE mtu 9000`
    now, and in the network configuration of the distribution for good.

How to undo
    Set the former MTU the same way.

Sources
    https://github.com/NVIDIA/nccl/issues/1524
    https://man7.org/linux/man-pages/man8/ping.8.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.peers import Peer, Peers

ID = "net.mtu"
SOURCE = "https://github.com/NVIDIA/nccl/issues/1524"

_WANTED = "packets of the interface's MTU reach every peer in one piece"
_MOST = 20
USUAL = 1500


def skip(peers: Peers) -> str:
    """Spare hosts that were not sent to their peers."""
    return "" if peers.asked else "hosts were not sent to their peers (--no-pairs, one host, or no address for peers)"


def judge_fleet(peers: Mapping[str, Peers], pci: Mapping[str, Pci] | None = None) -> Iterator[Finding]:
    """Name the pairs whose path is too narrow, and the hosts whose MTU differs."""
    tried = [(host, peer) for host, found in peers.items() for peer in found.peers if peer.whole is not None]
    narrow = [(host, peer) for host, peer in tried if not _carries(peer)]
    told = [_finding(host, peer) for host, peer in narrow]
    yield from (finding for finding in told[:_MOST] if finding is not None)
    mtus = {host: str(mtu) for host, found in peers.items() if (mtu := _own(found)) is not None}
    if len(mtus) > 1:
        rdma = any(one.rdma_nics for one in (pci or {}).values())
        remedy = Remedy("Set one MTU on the training interface of every host, and on the switch.", needs_root=True)
        yield from uniform(
            mtus,
            "MTU of the training interface",
            remedy=remedy,
            state=State.FAIL if rdma else State.WARN,
            probe="peers",
        )
    if not tried:
        yield Finding(State.UNKNOWN, "no host could send a ping that may not be cut into pieces", _WANTED)
    elif not any(told):
        state = State.INFO if mtus and all(int(mtu) <= USUAL for mtu in mtus.values()) else State.PASS
        more = f"; {USUAL} or less everywhere is right, 9000 would need fewer packets" if state is State.INFO else ""
        yield Finding(state, f"whole packets come through on {len(tried)} ordered pairs{more}", _WANTED)


def _own(found: Peers) -> int | None:
    known = [peer.mtu for peer in found.peers if peer.mtu is not None]
    return min(known) if known else None


def _carries(peer: Peer) -> bool:
    return peer.whole is not None and peer.whole.came


def _finding(host: str, peer: Peer) -> Finding | None:
    whole = peer.whole
    if whole is None or (whole.limit is None and (peer.ping is None or peer.ping.loss == 1)):
        return Finding(
            State.UNKNOWN,
            saw=f"{host} got no echo from {peer.name}, small or large: ping is filtered, or the peer is out of reach",
            wanted=_WANTED,
            subject=f"{host} -> {peer.name}",
            scope="pair",
            hosts=(host, peer.name),
        )
    said = (
        f"the path carries {whole.limit}" if whole.limit else "they vanish without a word, while small ones come back"
    )
    return Finding(
        State.FAIL,
        saw=f"packets of {whole.size} bytes from {host} ({peer.iface}) do not reach {peer.name}: {said}",
        wanted=_WANTED,
        subject=f"{host} -> {peer.name}",
        remedy=Remedy(
            "Give the interfaces of both hosts and every switch port between them one MTU; until then the smaller one.",
            (f"sudo ip link set dev {shlex.quote(peer.iface)} mtu {whole.limit or 1500}",) if peer.iface else (),
            needs_root=True,
        ),
        evidence=tuple(f"peers: {line}" for line in peer.lines if line.startswith(("whole", "route"))),
        scope="pair",
        hosts=(host, peer.name),
    )
