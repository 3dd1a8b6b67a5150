"""The findings of an audit as one HTML file that needs no network and no JavaScript. Judges nothing, trusts no byte of a host.

Every value is made harmless and escaped; the style and the script stand inline, and the page's own policy lets no other run.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias

from hostsetup import checks
from hostsetup.model import Finding, State
from orchestrate.report import fold
from orchestrate.report.drawing import Picture, picture
from orchestrate.report.findings import Audit, meaning
from orchestrate.report.screen import harmless
from orchestrate.report.text import needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostsetup.checks import Check
    from hostsetup.model import Remedy
    from orchestrate.report.fold import Card, Entry

SHOWN_ENTRIES = 3  # of a card; the others are one click away
MOST_ENTRIES = 100  # of a card; JSON has them all
MOST_QUIET_ENTRIES = 20
SHOWN_ROWS = 40  # of the fleet's table
MOST_PICTURES = 60
_LONGEST_NAMES = 160
_Cells: TypeAlias = tuple[State | None, ...]
GLYPHS = {
    State.FAIL: "\u2715",
    State.UNKNOWN: "?",
    State.WARN: "!",
    State.INFO: "i",
    State.SKIP: "\u2013",
    State.PASS: "\u2713",
}


@dataclass(frozen=True, slots=True)
class Names:
    """Hosts as the page names them; `key` leads the script to each single name."""

    key: int
    text: str
    short: str
    count: int


class _Hosts:
    """Gives each set of hosts its names, once."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, ...], Names] = {}

    def __call__(self, hosts: Iterable[str]) -> Names:
        every = tuple(hosts)
        if every not in self.known:
            text = fold.names(every)
            self.known[every] = Names(len(self.known), text, fold.shortened(text, _LONGEST_NAMES), len(every))
        return self.known[every]

    def table(self) -> list[str]:
        """Return for each key its names, for the search: harmless as the page shows them, in lower case."""
        return [harmless("\n".join(hosts)).lower() for hosts in self.known]


def as_html(audit: Audit) -> str:
    """Return the page."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    style, script = _asset("audit.css"), _asset("audit.js")
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    page = environment.get_template("audit.html.j2").render(
        **_view(audit),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        glyphs=GLYPHS,
        needs=needs,
        link_class=link_class,
    )
    # references instead of letters beyond ASCII: the bytes are right whatever the locale of standard output
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _view(audit: Audit) -> dict[str, Any]:
    hosts = _Hosts()
    catalogue = {check.id: check for check in checks.catalogue()}
    folded = fold.cards(audit.findings)
    loud = [card for card in folded if card.state not in fold.QUIET]
    states = Counter(finding.state for finding in audit.findings)
    visits = Counter(visit.state for visit in audit.visits)
    return {
        "verdict": audit.verdict,
        "meaning": meaning(audit),
        "strict": audit.strict,
        "total": len(audit.visits),
        "visits": [(state, visits[state]) for state in ("audited", "partial", "unreachable") if visits[state]],
        "partial": [(hosts(names), error) for error, names in _partial(audit).items()],
        "states": [(state, states[state]) for state in fold.WORST_FIRST if states[state]],
        "grid": _grid(audit, loud, hosts),
        "cards": [_card(card, at, catalogue, hosts) for at, card in enumerate(loud)],
        "quiet": [
            (state, rows)
            for state in (State.SKIP, State.PASS)
            if (rows := [row for card in folded if card.state is state for row in _quiet(card, hosts)])
        ],
        "pictures": _pictures(audit, hosts),
        "host_names": hosts.table(),
    }


def _partial(audit: Audit) -> dict[str, list[str]]:
    alike: dict[str, list[str]] = {}
    for visit in audit.visits:
        if visit.state != "audited":
            alike.setdefault(f"{visit.state}: {visit.error or 'some answers are missing'}", []).append(visit.name)
    return alike


def _grid(audit: Audit, loud: Sequence[Card], hosts: _Hosts) -> dict[str, Any]:
    """Return the fleet at a glance: a row for each set of equal hosts, a column for each subsystem."""
    by_check = fold.by_check(audit.findings)
    by_host = {visit.name: fold.by_subsystem(by_check.get(visit.name, {})) for visit in audit.visits}
    columns = tuple(sorted({name for states in by_host.values() for name in states}))
    alike: dict[tuple[str, _Cells], list[str]] = {}
    for visit in audit.visits:
        cells = tuple(by_host[visit.name].get(column) for column in columns)
        alike.setdefault((visit.state, cells), []).append(visit.name)
    anchors: dict[tuple[str, State | None], int] = {}
    for at, card in enumerate(loud):
        for check in card.checks:
            anchors.setdefault((fold.subsystem(check), card.state), at)

    def badness(item: tuple[tuple[str, _Cells], list[str]]) -> tuple[int, ...]:
        (visit_state, cells), _ = item
        return (*(-cells.count(state) for state in fold.WORST_FIRST[:3]), visit_state == "audited")

    rows = [
        {
            "hosts": hosts(names),
            "visit": visit_state,
            "cells": [
                (column, state, anchors.get((column, state))) for column, state in zip(columns, cells, strict=True)
            ],
        }
        for (visit_state, cells), names in sorted(alike.items(), key=badness)
    ]
    return {"columns": columns, "rows": rows[:SHOWN_ROWS], "more": rows[SHOWN_ROWS:]}


def _card(card: Card, at: int, catalogue: Mapping[str, Check], hosts: _Hosts) -> dict[str, Any]:
    check = catalogue.get(card.checks[0]) if len(card.checks) == 1 else None
    first = card.entries[0].finding
    source = first.source if len(card.checks) == 1 else ""
    wanted = {entry.finding.wanted for entry in card.entries}
    remedies = {entry.finding.remedy for entry in card.entries}
    several = len(card.entries) > 1
    shared_wanted, shared_remedy = several and len(wanted) == 1, several and len(remedies) == 1
    left = card.entries[MOST_ENTRIES:]
    entries = [
        _entry(entry, hosts, own_wanted=not shared_wanted, own_remedy=not shared_remedy)
        for entry in card.entries[:MOST_ENTRIES]
    ]
    return {
        "at": at,
        "state": card.state,
        "checks": card.checks,
        "title": check.title if check and card.state in {State.FAIL, State.WARN} else "",
        "about": check.page if check else "",
        "source": source,
        "linked": source.startswith(("https://", "http://")),
        "wanted": first.wanted if shared_wanted else "",
        "remedy": _remedy(first.remedy) if shared_remedy else None,
        "shown": entries[:SHOWN_ENTRIES],
        "more": entries[SHOWN_ENTRIES:],
        "left": (len(left), hosts(dict.fromkeys(host for entry in left for host in entry.hosts))) if left else None,
    }


def _entry(entry: Entry, hosts: _Hosts, *, own_wanted: bool, own_remedy: bool) -> dict[str, Any]:
    finding = entry.finding
    return {
        "hosts": hosts(entry.hosts),
        "subjects": entry.subjects,
        "saw": finding.saw,
        "wanted": finding.wanted if own_wanted else "",
        "remedy": _remedy(finding.remedy) if own_remedy else None,
        "evidence": finding.evidence,
        "from": finding.hosts[0] if finding.evidence and len(entry.hosts) > 1 else "",
    }


def _remedy(remedy: Remedy | None) -> dict[str, Any] | None:
    if remedy is None:
        return None
    return {"text": remedy.text + needs(remedy), "commands": "\n".join(remedy.commands)}


def _quiet(card: Card, hosts: _Hosts) -> Iterable[dict[str, Any]]:
    for entry in card.entries[:MOST_QUIET_ENTRIES]:
        yield {
            "check": card.checks[0],
            "hosts": hosts(entry.hosts),
            "subjects": entry.subjects,
            "saw": entry.finding.saw,
        }
    if left := card.entries[MOST_QUIET_ENTRIES:]:
        others = hosts(dict.fromkeys(host for entry in left for host in entry.hosts))
        yield {"check": card.checks[0], "hosts": others, "subjects": (), "saw": f"{len(left)} more like these"}


def _pictures(audit: Audit, hosts: _Hosts) -> dict[str, Any]:
    """Return each distinct picture once, with the hosts that share it: those with a fault first."""
    named: dict[str, list[Finding]] = {}
    for finding in audit.findings:
        if finding.state not in fold.QUIET:
            for host in finding.hosts:
                named.setdefault(host, []).append(finding)
    alike: dict[Picture, list[str]] = {}
    for visit in audit.visits:
        if (facts := audit.fleet.get(visit.name)) is not None:
            alike.setdefault(picture(facts, named.get(visit.name, ())), []).append(visit.name)
    every = sorted(alike.items(), key=_at_fault)
    drawn = [{"hosts": hosts(names), "picture": one, "worst": one.worst} for one, names in every[:MOST_PICTURES]]
    left = [name for _, names in every[MOST_PICTURES:] for name in names]
    return {"drawn": drawn, "left": hosts(left) if left else None}


def _at_fault(item: tuple[Picture, list[str]]) -> tuple[int, bool]:
    worst = item[0].worst
    empty = not item[0].roots and item[0].matrix is None
    return (len(fold.WORST_FIRST) if worst is None else fold.WORST_FIRST.index(worst), empty)


def link_class(link: str) -> str:
    """Return the style of a link class: NV18 and NV4 look alike."""
    if link.startswith("NV") or link == "C2C":
        return "nvlink"
    return {"PIX": "pix", "PXB": "pxb", "PHB": "phb", "NODE": "node", "SYS": "sys"}.get(link, "self")
