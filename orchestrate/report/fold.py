"""Findings as people read them: worst first, equal hosts and equal subjects folded. Drops none, and judges nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hostsetup.model import State
from orchestrate.inventory import format_hosts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostsetup.model import Finding

WORST_FIRST = (State.FAIL, State.UNKNOWN, State.WARN, State.INFO, State.SKIP, State.PASS)
QUIET = frozenset({State.SKIP, State.PASS})
_RANK = {state: rank for rank, state in enumerate(WORST_FIRST)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One distinct finding, the hosts that share it, and the subjects on each of them."""

    finding: Finding
    hosts: tuple[str, ...]
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """What one check says in one state; several checks where one gap in the evidence silences them all."""

    state: State
    checks: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host of its entries, once."""
        return tuple(dict.fromkeys(host for entry in self.entries for host in entry.hosts))


def cards(findings: Iterable[Finding]) -> tuple[Card, ...]:
    """Return every finding, folded: worst state first, then by check; the entry with the most hosts leads."""
    gaps: dict[tuple[tuple[str, ...], str], list[Entry]] = {}
    told: dict[tuple[State, str], list[Entry]] = {}
    for entry in _entries(findings):
        finding = entry.finding
        if finding.state is State.UNKNOWN and finding.remedy is None and not any(entry.subjects):
            gaps.setdefault((entry.hosts, finding.saw), []).append(entry)
        else:
            told.setdefault((finding.state, finding.check), []).append(entry)
    silenced = []
    for entries in gaps.values():
        names = tuple(entry.finding.check for entry in entries)
        if len(set(names)) > 1:
            silenced.append(Card(State.UNKNOWN, tuple(sorted(set(names))), (entries[0],)))
        else:
            told.setdefault((State.UNKNOWN, names[0]), []).extend(entries)
    alone = (Card(state, (name,), tuple(sorted(own, key=_widest))) for (state, name), own in told.items())
    return tuple(sorted((*alone, *silenced), key=lambda card: (_RANK[card.state], card.checks[0])))


def _widest(entry: Entry) -> int:
    return -len(entry.hosts)


def _entries(findings: Iterable[Finding]) -> Iterator[Entry]:
    by_host: dict[tuple[object, ...], tuple[Finding, dict[str, None]]] = {}
    for f in findings:
        apart = f.hosts if spans_hosts(f) else ()
        key = (f.state, f.check, f.subject, f.saw, f.wanted, f.remedy, apart)
        by_host.setdefault(key, (f, {}))[1].update(dict.fromkeys(f.hosts))
    by_subject: dict[tuple[object, ...], tuple[Finding, tuple[str, ...], list[str]]] = {}
    for f, names in by_host.values():
        hosts = tuple(names)
        alike = (f.state, f.check, hosts, f.saw, f.wanted, f.remedy)
        by_subject.setdefault(alike, (f, hosts, []))[2].append(f.subject)
    for f, hosts, subjects in by_subject.values():
        yield Entry(f, hosts, tuple(filter(None, subjects)))


def spans_hosts(finding: Finding) -> bool:
    """Whether it is said of several hosts together, not of each."""
    return finding.scope in {"pair", "cluster"} and len(finding.hosts) > 1


def worst(states: Iterable[State]) -> State:
    """Return the worst of the states."""
    return min(states, key=_RANK.__getitem__)


def subsystem(check: str) -> str:
    """Return the first part of a check's id."""
    return check.partition(".")[0]


def by_check(findings: Iterable[Finding]) -> dict[str, dict[str, State]]:
    """Return the worst state of each check, by host."""
    found: dict[str, dict[str, State]] = {}
    for finding in findings:
        for host in finding.hosts:
            states = found.setdefault(host, {})
            before = states.get(finding.check, finding.state)
            states[finding.check] = worst((before, finding.state))
    return found


def by_subsystem(states: Mapping[str, State]) -> dict[str, State]:
    """Return the worst state of each subsystem, of one host's states by check."""
    found: dict[str, State] = {}
    for check, state in states.items():
        name = subsystem(check)
        found[name] = worst((found.get(name, state), state))
    return found


@lru_cache(maxsize=2048)
def names(hosts: Sequence[str]) -> str:
    """Fold the names of hosts: gpu[01-08]."""
    return hosts[0] if len(hosts) == 1 else format_hosts(hosts)


def shortened(text: str, most: int) -> str:
    """Cut a list of names at a comma, so that it is no longer than `most` characters."""
    return (
        text
        if len(text) <= most
        else text[:most].rpartition(",")[0] + ",..."
        if "," in text[:most]
        else text[:most] + "..."
    )
