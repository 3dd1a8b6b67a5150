"""Knows what the load tests of `--active` measured on a host, and which could not be made. Runs none of them.

The launcher itself writes the reply `active`: what the containers of the tests printed, with its own lines between.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES: tuple[Probe, ...] = ()  # no probe: a load is put on a host only when somebody asks for it

SCHEMA = "muster.active/1"
KINDS = frozenset({"", "timeout", "crashed", "failed", "peer", "usage", "setup", "busy"})
MOST_RESULTS = 20_000  # ordered pairs of 128 GPUs, and some
_MOST_CHARACTERS = 700


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement, or why there is none. `value` in `unit`; `verified` None: it came to no comparison of the data.

    `kind` sorts errors. `hosts`: of a test between two hosts; empty for one within a host. `next`: what to do about it.
    """

    test: str
    subject: str = ""
    value: float | None = None
    unit: str = ""
    verified: bool | None = None
    error: str = ""
    kind: str = ""
    next: str = ""
    hosts: tuple[str, ...] = ()
    backend: str = ""
    ranks: int = 0
    algorithm: float | None = None


@dataclass(frozen=True, slots=True)
class Active:
    """All results of a host. `asked`: somebody asked for the tests; `unread`: lines of results that are not readable."""

    asked: bool = False
    results: tuple[Result, ...] = ()
    unread: int = 0


def parse_active(text: str) -> Active:
    """Read the results out of what the containers printed; every other line is talk.

    Raises ValueError when there is no result at all, or more than any honest host has.
    """
    results: list[Result] = []
    unread = 0
    for line in text.splitlines():
        at = line.find('{"schema": "' + SCHEMA)
        if at < 0:
            continue
        if len(results) >= MOST_RESULTS:
            raise ValueError(f"more than {MOST_RESULTS} results")
        try:
            results.append(_result(json.loads(line[at:])))
        except (ValueError, RecursionError):
            unread += 1
    if not results:
        raise ValueError("no result of a load test" + (f", and {unread} that are not readable" if unread else ""))
    return Active(asked=True, results=tuple(results), unread=unread)


def _result(raw: Any) -> Result:
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise ValueError("another schema")
    verified, kind, hosts = raw.get("verified"), _text(raw, "kind"), raw.get("hosts", [])
    if (verified is not None and not isinstance(verified, bool)) or kind not in KINDS:
        raise ValueError("not a result")
    if not isinstance(hosts, list) or len(hosts) > 2 or not all(isinstance(host, str) for host in hosts):
        raise ValueError("not a result: hosts")
    error = _text(raw, "error")
    test = _text(raw, "test")
    if not test or (verified is None and not error) or (verified is False and not error):
        raise ValueError("not a result: neither measured nor failed")
    return Result(
        test=test,
        subject=_text(raw, "subject"),
        value=_number(raw, "value"),
        unit=_text(raw, "unit"),
        verified=verified,
        error=error,
        kind=kind if verified is None else "",
        next=_text(raw, "next"),
        hosts=tuple(host[:_MOST_CHARACTERS] for host in hosts),
        backend=_text(raw, "backend"),
        ranks=int(_number(raw, "ranks") or 0),
        algorithm=_number(raw, "algorithm"),
    )


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")  # noqa: TRY004 - hostile data has the wrong type; that is its value
    return value[:_MOST_CHARACTERS]


def _number(raw: Mapping[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{key} is no number, or out of range")
    return float(value)


def read(evidence: Evidence) -> Known[Active] | Unknown:
    """Return the results; without the reply nobody asked for the tests, which is known as well.

    What a host tells of a test in which it took no part is not readable.
    """
    if "active" not in evidence.replies:
        return Known(Active())
    reply = evidence.answer("active")
    if isinstance(reply, Unknown):
        return reply
    try:
        told = parse_active(reply.text)
    except ValueError as error:
        return Unknown(f"`active`: {error}")
    own = tuple(one for one in told.results if not one.hosts or evidence.host in one.hosts)
    return Known(replace(told, results=own, unread=told.unread + len(told.results) - len(own)))


def tell(active: Active) -> dict[str, Any]:
    """Return the results for JSON; nothing when nobody asked."""
    if not active.asked:
        return {}
    return {
        "results": [
            {
                "test": one.test,
                "subject": one.subject,
                "value": one.value,
                "unit": one.unit,
                "verified": one.verified,
                "error": one.error,
                "backend": one.backend,
                "ranks": one.ranks,
                "hosts": list(one.hosts),
            }
            for one in active.results
        ]
    }
