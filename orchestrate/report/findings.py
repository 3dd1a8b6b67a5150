"""The findings of an audit as text for people and JSON for programs; equal hosts are folded. Judges nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from hostsetup.model import State
from orchestrate.inventory import format_hosts
from orchestrate.report.screen import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostsetup.model import Finding
    from orchestrate.evidence import Visit

SCHEMA = "muster.preflight/1"

_WORST_FIRST = (State.FAIL, State.UNKNOWN, State.WARN, State.INFO, State.SKIP, State.PASS)
_COLOUR = {State.FAIL: "red", State.UNKNOWN: "magenta", State.WARN: "yellow", State.INFO: "cyan", State.PASS: "green"}
_MEANING = {
    "pass": "nothing was found that is wrong",
    "fail": "something must be put right first",
    "incomplete": "cannot tell: a host is out of reach, or a needed fact is not known",
}


@dataclass(frozen=True, slots=True)
class Audit:
    """All that a report tells: how each host's visit went, what is known, what was found, and the verdict."""

    verdict: str
    visits: Sequence[Visit]
    facts: Mapping[str, Mapping[str, Any]]
    findings: Sequence[Finding]


def as_json(audit: Audit) -> str:
    """Return the report for programs (schema muster.preflight/1)."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "verdict": audit.verdict,
            "hosts": [asdict(visit) for visit in audit.visits],
            "facts": audit.facts,
            "findings": [_finding(finding) for finding in audit.findings],
        },
        indent=2,
    )


def as_text(audit: Audit, *, coloured: bool = False) -> str:
    """Return the report for people: worst first, equal hosts folded, then counts and the verdict."""
    lines: list[str] = []
    gaps: dict[tuple[str, str], list[str]] = {}
    for finding, hosts in _folded(audit.findings):
        if finding.state is State.UNKNOWN and finding.remedy is None and not finding.subject:
            gaps.setdefault((hosts, finding.saw), []).append(finding.check)
    for finding, hosts in _folded(audit.findings):
        alike = gaps.get((hosts, finding.saw), [])
        if len(alike) > 1 and finding.check in alike:  # one reason hides many facts: it is told once
            if finding.check == alike[0]:
                lines += _gap(finding, hosts, alike, coloured=coloured)
        else:
            lines += _block(finding, hosts, coloured=coloured)
    partial = [visit for visit in audit.visits if visit.state == "partial"]
    for error in dict.fromkeys(visit.error for visit in partial):
        names = format_hosts(visit.name for visit in partial if visit.error == error)
        lines += [_head("partial", "yellow", coloured=coloured) + f" {one_line(names)}: {one_line(error or '')}"]
    lines = [
        *"\n".join(lines).strip("\n").split("\n"),
        "",
        _counts(audit),
        f"verdict: {audit.verdict} - {_MEANING[audit.verdict]}",
    ]
    return "\n".join(lines)


def _finding(finding: Finding) -> dict[str, Any]:
    told = asdict(finding)
    order = ("check", "state", "scope", "hosts", "subject", "saw", "wanted", "remedy", "evidence", "source")
    return {key: told[key] for key in order}


def _folded(findings: Iterable[Finding]) -> Iterator[tuple[Finding, str]]:
    """Give each distinct finding once, worst first, with its hosts folded."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        apart = finding.hosts if finding.scope in {"pair", "cluster"} and len(finding.hosts) > 1 else ()
        key = (finding.state, finding.check, finding.subject, finding.saw, finding.wanted, finding.remedy, apart)
        groups.setdefault(key, []).append(finding)
    for group in sorted(groups.values(), key=lambda group: (_WORST_FIRST.index(group[0].state), group[0].check)):
        yield group[0], one_line(format_hosts(host for finding in group for host in finding.hosts))


def _block(finding: Finding, hosts: str, *, coloured: bool) -> Iterator[str]:
    quiet = finding.state in {State.PASS, State.SKIP}
    subject = f"  {one_line(finding.subject)}" if finding.subject else ""
    head = _head(finding.state, _COLOUR.get(finding.state), coloured=coloured)
    if quiet:
        yield f"{head} {finding.check:<24}  {hosts}{subject}  {one_line(finding.saw)}"
        return
    yield f"{head} {_bold(finding.check, coloured=coloured)}  {hosts}{subject}"
    yield from _field("saw", finding.saw)
    if finding.wanted:
        yield from _field("wanted", finding.wanted)
    if finding.remedy is not None:
        needs = {
            "root": finding.remedy.needs_root,
            "a reboot": finding.remedy.needs_reboot,
            "a firmware setting": finding.remedy.needs_firmware,
        }
        asked = ", ".join(name for name, needed in needs.items() if needed)
        yield from _field("next", finding.remedy.text + (f" (needs {asked})" if asked else ""))
        yield from (f"                $ {one_line(command)}" for command in finding.remedy.commands)
    yield from _field("page", f"orchestrate explain {finding.check}")
    yield ""


def _gap(finding: Finding, hosts: str, checks: Sequence[str], *, coloured: bool) -> Iterator[str]:
    head = _head(finding.state, _COLOUR.get(finding.state), coloured=coloured)
    yield f"{head} {_bold(f'{len(checks)} checks', coloured=coloured)}  {hosts}"
    yield from _field("saw", finding.saw)
    yield from _field("checks", ", ".join(checks))
    yield ""


def _field(name: str, text: str) -> Iterator[str]:
    first, *more = harmless(text).splitlines() or [""]
    yield f"        {name:<7} {first}"
    yield from (f"                {line}" for line in more)


def _head(word: str, colour: str | None, *, coloured: bool) -> str:
    padded = f"{word:<7}"
    return click.style(padded, fg=colour, bold=True) if coloured and colour else padded


def _bold(text: str, *, coloured: bool) -> str:
    return click.style(text, bold=True) if coloured else text


def _counts(audit: Audit) -> str:
    visits = Counter(visit.state for visit in audit.visits)
    states = Counter(finding.state for finding in audit.findings)
    hosts = ", ".join(f"{visits[state]} {state}" for state in ("audited", "partial", "unreachable") if visits[state])
    found = ", ".join(f"{states[state]} {state}" for state in _WORST_FIRST if states[state]) or "none"
    return f"{len(audit.visits)} host{'' if len(audit.visits) == 1 else 's'}: {hosts}; findings: {found}"
