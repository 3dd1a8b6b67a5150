"""Sends hosts to their peers: a second exchange, in which each tries what `pairing` says. Judges nothing.

A host that was not reached in the first exchange takes no part, neither as one who tries nor as one who is tried; one that
was cut off at its deadline is tried, and not asked again.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from hostsetup import host as known_host
from hostsetup import script
from hostsetup.model import Evidence, Known, Reply
from orchestrate import descriptors, pairing, remote
from orchestrate.errors import OperatorError, RemoteError
from orchestrate.evidence import visit
from orchestrate.fan_out import WINDOW
from orchestrate.pairing import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostsetup.host import HostFacts
    from orchestrate.inventory import Host

EXTRA_PORTS = 3  # tried on each peer, out of the range from which NCCL and Gloo take theirs
USUAL = (32768, 60999)  # first and last of that range where a kernel was not told otherwise
_DRAWS = 4 * EXTRA_PORTS  # some may be in use; a list of all that are free costs more than all else, for each host
_CONNECT_S = 15.0
_LATE = 124


def place(name: str, facts: HostFacts) -> Place | None:
    """Return where peers find a host; None: nowhere."""
    if not isinstance(facts.endpoint, Known):
        return None
    named = facts.names.value.hostname if isinstance(facts.names, Known) else ""
    told = ipaddress.ip_address(facts.endpoint.value.address)
    return None if told.is_loopback else Place(name, told, named)


def try_pairs(
    hosts: Iterable[Host],
    found: Sequence[Evidence],
    *,
    timeout_s: float,
    trust: bool = False,
    on_host: Callable[[str], None] = lambda _: None,
) -> tuple[Evidence, ...]:
    """Return the evidence with the reply `peers` of every host that could be sent to others, in the same order.

    `timeout_s`: each host's deadline. `trust`: hosts are to try a login on each other, too. `on_host` is called as soon as
    a host is done. Hosts without an address that peers could use are neither tried nor sent.
    """
    facts = {one.host: known_host.read(one) for one in found}
    there = {host.name: host for host in hosts if not host.local}
    places = {name: where for name in there if name in facts and (where := place(name, facts[name])) is not None}
    if len(places) < 2:
        return tuple(found)
    chosen = pairing.pairs(tuple(places))
    ports = {name: _ports(facts[name]) for name in places}
    hung = [one.host for one in found if one.host in places and (visit(one).elapsed_s or 0) >= timeout_s]
    replies = dict.fromkeys(hung, Reply(stderr=b"not asked: its answers were cut off at the deadline", exit_code=_LATE))
    for one in found:
        if one.host in replies or one.host not in places:
            on_host(one.host)

    def settle(host: Host, result: Reply | OperatorError) -> None:
        replies[host.name] = _lost(result) if isinstance(result, OperatorError) else result
        on_host(host.name)

    def work(host: Host) -> Reply:
        peers = tuple(places[name] for name in chosen[host.name])
        probe = pairing.probe(places[host.name], peers, ports, every=len(places) - 1, trust=trust)
        return _ask(host, script.build((probe,), mark := secrets.token_hex(16)), mark, timeout_s)

    remote.fan_out(
        [there[name] for name in places if name not in replies],
        work,
        deadline_s=timeout_s + 5,
        window=descriptors.room_for(WINDOW),
        on_result=settle,
    )
    return tuple(
        replace(one, replies={**one.replies, "peers": replies[one.host]}) if one.host in replies else one
        for one in found
    )


def _ask(host: Host, program: str, mark: str, timeout_s: float) -> Reply:
    shell = remote.connect(host, timeout_s=min(_CONNECT_S, timeout_s))
    try:
        done = shell.run("sh -s", stdin=program.encode(), timeout_s=timeout_s, max_bytes=4 << 20)
        told = script.parse(done.stdout, mark).get("peers")
    except RemoteError as error:
        told = script.parse(error.partial, mark).get("peers")
        if told is None:
            raise
    finally:
        shell.close()
    return told or Reply(stderr=b"the answer never came", exit_code=_LATE)


def _lost(error: OperatorError) -> Reply:
    return Reply(stderr=error.what.encode(), exit_code=_LATE)


def _ports(facts: HostFacts) -> tuple[int, ...]:
    """Return ports of a peer that nothing listens on, as far as is known, out of those that its kernel gives away."""
    known = facts.ports.value if isinstance(facts.ports, Known) else None
    first, last = (known.ephemeral if known else None) or USUAL
    busy = known.listening if known else {}
    drawn = {first + secrets.randbelow(last - first + 1) for _ in range(_DRAWS)} if first <= last else set[int]()
    return tuple(sorted([port for port in drawn if port not in busy][:EXTRA_PORTS]))
