"""The address where ranks meet belongs to no host, to several, or to another one for some hosts.

What it means
    The endpoint of the rendezvous (by default the first host's training address) is not an address of exactly one of the
    hosts; or a host's name leads its peers to an address that this host does not have.

Why it matters to training
    One process hosts the store through which all ranks find each other. With torchrun's c10d rendezvous every agent asks
    itself whether the endpoint is its own machine: if two believe so there are two stores and two half worlds; if none does,
    all wait for a server that nobody starts, until the timeout.

How we tell
    The endpoint is compared with the addresses of every host's interfaces. A name is looked up on every host, as
    the hosts' own resolvers answer; a loopback address, 127.0.1.1 among them, belongs to every host and so to none. Beside
    that each host looks up the names of the peers that it tries: a name that leads elsewhere than to one of the
    peer's own addresses breaks whatever passes names on. `orchestrate launch` passes numeric addresses.

What to do
    Name an address that one host holds: `addr=` in hosts.txt, or `net.rendezvous.endpoint` in the site's file. Behind an
    address translation say who is the host: `--rdzv-conf is_host=1` on that one, `is_host=0` on the others. Put names
    right in DNS or in /etc/hosts on every host.

How to undo
    Take the lines out of /etc/hosts again.

Sources
    https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py
    https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostsetup.expect import Expect
    from hostsetup.facts.net import Net
    from hostsetup.facts.peers import Peers

ID = "net.rendezvous"
SOURCE = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
EXPECTS = {"net.rendezvous.endpoint": Want(str, "the numeric address where ranks are to meet; else the first host's")}

_WANTED = "exactly one host holds the address where ranks meet, and names lead to their hosts"
_REMEDY = Remedy(
    "Name an address that one host holds: addr= in hosts.txt, or net.rendezvous.endpoint in the site's file."
)
_NAMES = Remedy("Put the name right in DNS, or in /etc/hosts on every host.", needs_root=True)


def skip(peers: Peers) -> str:
    """Spare hosts that were not sent to their peers."""
    return "" if peers.asked else "hosts were not sent to their peers (--no-pairs, one host, or no address for peers)"


def judge_fleet(
    net: Mapping[str, Net], peers: Mapping[str, Peers], expect: Expect, everyone: Sequence[str]
) -> Iterator[Finding]:
    """Say who holds the endpoint, and which names lead astray."""
    own = {
        host: {str(a.ip) for i in one.interfaces for a in i.addresses if not a.ip.is_loopback}
        for host, one in net.items()
    }
    wanted = expect.text("net.rendezvous.endpoint") or next(iter(peers.values())).own
    missing = [host for host in everyone if host not in own]
    wrong = [*_owners(wanted, own, missing), *_names(peers, own)]
    yield from wrong
    if not wrong:
        owner = next(host for host, addresses in own.items() if _plain(wanted) in addresses)
        yield Finding(State.PASS, f"{wanted} belongs to {owner} alone", _WANTED)


def _plain(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


def _owners(wanted: str, own: Mapping[str, set[str]], missing: Sequence[str]) -> Iterator[Finding]:
    owners = [host for host, addresses in own.items() if _plain(wanted) in addresses]
    if not _plain(wanted):
        yield Finding(
            State.FAIL,
            f"the endpoint {wanted[:80]!r} is no numeric address: each host may look it up otherwise",
            _WANTED,
            remedy=_REMEDY,
        )
    elif ipaddress.ip_address(wanted).is_loopback:
        yield Finding(
            State.FAIL,
            f"the endpoint {wanted} is a loopback address: every host takes itself for the one",
            _WANTED,
            remedy=_REMEDY,
        )
    elif not owners and missing:
        yield Finding(
            State.UNKNOWN,
            f"no host that is known holds {wanted}; nothing is known of {', '.join(missing[:5])}",
            _WANTED,
        )
    elif not owners:
        yield Finding(State.FAIL, f"no host holds {wanted}", _WANTED, remedy=_REMEDY, evidence=_shown(own))
    elif len(owners) > 1:
        yield Finding(
            State.FAIL,
            saw=f"{wanted} is an address of {', '.join(owners)}",
            wanted=_WANTED,
            remedy=_REMEDY,
            evidence=_shown({host: own[host] for host in owners}),
            hosts=tuple(owners),
        )


def _shown(own: Mapping[str, set[str]]) -> tuple[str, ...]:
    return tuple(f"ip-addr: {host}: {', '.join(sorted(addresses)[:8])}" for host, addresses in list(own.items())[:5])


def _names(peers: Mapping[str, Peers], own: Mapping[str, set[str]]) -> Iterator[Finding]:
    """Say of each host whose name leads some peer elsewhere, once."""
    astray: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for host, found in peers.items():
        for peer in found.peers:
            if peer.resolved and peer.name in own and not own[peer.name].issuperset(_routable(peer.resolved)):
                astray.setdefault(peer.name, []).append((host, peer.resolved))
    for name, cases in astray.items():
        host, addresses = cases[0]
        yield Finding(
            State.WARN,
            saw=f"on {host} the name of {name} leads to {', '.join(addresses[:4])}, which {name} does not have"
            + (f"; so it does on {len(cases) - 1} more" if len(cases) > 1 else ""),
            wanted=_WANTED,
            subject=name,
            remedy=_NAMES,
            evidence=tuple(f"peers: {one}: name {' '.join(found[:4])}" for one, found in cases[:5]),
            hosts=(name,),
        )


def _routable(addresses: tuple[str, ...]) -> set[str]:
    return {a for a in addresses if not ipaddress.ip_address(a).is_link_local}
