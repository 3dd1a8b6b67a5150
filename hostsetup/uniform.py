"""Compares what must be the same on every host: names the odd ones out. Takes no host for the measure of another alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.model import Finding, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.model import Remedy

_SHOWN = 5


def uniform(
    values: Mapping[str, str],
    what: str,
    *,
    remedy: Remedy,
    state: State = State.WARN,
    expected: str | None = None,
    probe: str = "",
) -> Iterator[Finding]:
    """Yield one finding for each value that is not the expected one, or else the majority's; a pass when all agree.

    `values`: each host's value, as text for people. `what` names it (`driver version`). Where no value has the majority
    every host is named: nobody can say who is right. `probe`: what showed the values, for the evidence.
    """
    counts = Counter(values.values())
    top, most = counts.most_common(1)[0]
    right = expected if expected is not None else top if most * 2 > len(values) else None
    wanted = f"{what}: {right}" if right is not None else f"the same {what} on every host"
    odd = [value for value in counts if value != right]
    if not odd:
        yield Finding(State.PASS, saw=f"{what}: {right} on {_count(len(values))}", wanted=wanted, scope="cluster")
        return
    if right is None:
        yield Finding(
            state,
            saw=_split(counts, what),
            wanted=wanted,
            subject=what,
            remedy=remedy,
            evidence=_evidence(values, tuple(values), probe),
            scope="cluster",
            hosts=tuple(values),
        )
        return
    for value in odd:
        hosts = tuple(host for host, one in values.items() if one == value)
        others = f"; {right} on {_count(counts[right])}" if right in counts else ""
        yield Finding(
            state,
            saw=f"{what}: {value}{others}",
            wanted=wanted,
            subject=what,
            remedy=remedy,
            evidence=_evidence(values, hosts, probe),
            scope="cluster",
            hosts=hosts,
        )


def _split(counts: Counter[str], what: str) -> str:
    told = [f"{value} on {_count(n)}" for value, n in counts.most_common(_SHOWN)]
    more = f", and {len(counts) - _SHOWN} other values" if len(counts) > _SHOWN else ""
    return f"{what}: {', '.join(told)}{more}"


def _count(hosts: int) -> str:
    return f"{hosts} host{'' if hosts == 1 else 's'}"


def _evidence(values: Mapping[str, str], hosts: tuple[str, ...], probe: str) -> tuple[str, ...]:
    head = f"{probe}: " if probe else ""
    return tuple(f"{head}{host}: {values[host]}" for host in hosts[:_SHOWN])


def lower(
    values: Mapping[str, float], what: str, unit: str, *, remedy: Remedy, state: State = State.FAIL, probe: str = ""
) -> Iterator[Finding]:
    """Yield one finding that names the hosts below the value that most hosts have.

    For what may be better than elsewhere without harm, such as the speed of a link. Where no value has the majority, as
    among two hosts, nobody can say which is right: then a warning names those below the highest.
    """
    counts = Counter(values.values())
    top, most = counts.most_common(1)[0] if values else (0.0, 0)
    clear = most * 2 > len(values)
    right = top if clear or not values else max(values.values())
    below = {host: value for host, value in values.items() if value < right}
    if not below:
        return
    told = {host: f"{value:g} {unit}".strip() for host, value in below.items()}
    usual = f"{right:g} {unit}".strip()
    yield Finding(
        state if clear else State.WARN,
        saw=f"{_split(Counter(told.values()), what)}; {usual} on {_count(counts[right])}",
        wanted=f"{what}: {usual}, as on most hosts" if clear else f"the same {what} on every host",
        subject=what,
        remedy=remedy,
        evidence=_evidence(told, tuple(told), probe),
        scope="cluster",
        hosts=tuple(told),
    )
