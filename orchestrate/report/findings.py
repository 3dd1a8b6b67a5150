"""The audit that every report tells, and its JSON for programs. Judges nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hostsetup.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostsetup.expect import Value
    from hostsetup.host import HostFacts
    from hostsetup.model import Finding
    from orchestrate.evidence import Visit

SCHEMA = "muster.preflight/1"
_ORDER = ("check", "state", "scope", "hosts", "subject", "saw", "wanted", "remedy", "evidence", "source")

MEANING = {
    "pass": "nothing was found that is wrong",
    "fail": "something must be put right first",
    "incomplete": "cannot tell: a host is out of reach, or a needed fact is not known",
}


@dataclass(frozen=True, slots=True)
class Audit:
    """All that a report tells: how each host's visit went, what is known, what was found, and the verdict.

    `facts` is what programs read of each host, `fleet` what drawings need. `strict`: warnings count as failures.
    `baselines`: what each host has, where that was asked for.
    """

    verdict: str
    visits: Sequence[Visit]
    facts: Mapping[str, Mapping[str, Any]]
    findings: Sequence[Finding]
    fleet: Mapping[str, HostFacts] = field(default_factory=dict)
    strict: bool = False
    baselines: Sequence[Mapping[str, Value]] = ()


def meaning(audit: Audit) -> str:
    """Return what the verdict says, in words; a pass with warnings says so."""
    warned = sum(finding.state is State.WARN for finding in audit.findings)
    if audit.verdict == "pass" and warned:
        return f"nothing failed; {warned} warning{'' if warned == 1 else 's'}"
    return MEANING[audit.verdict]


def as_json(audit: Audit) -> str:
    """Return the report for programs (schema muster.preflight/1), a line for each host and each finding."""
    hosts = _lines(json.dumps(asdict(visit)) for visit in audit.visits)
    facts = _lines(f"{json.dumps(name)}: {json.dumps(told)}" for name, told in audit.facts.items())
    findings = _lines(json.dumps(_finding(finding)) for finding in audit.findings)
    head = f'"schema": {json.dumps(SCHEMA)},\n  "verdict": {json.dumps(audit.verdict)}'
    return f'{{\n  {head},\n  "hosts": [{hosts}],\n  "facts": {{{facts}}},\n  "findings": [{findings}]\n}}'


def _lines(items: Iterable[str]) -> str:
    """Return items a line each; Python's own indenting costs more than judging what it indents."""
    told = ",\n    ".join(items)
    return f"\n    {told}\n  " if told else ""


def _finding(finding: Finding) -> dict[str, Any]:
    told: dict[str, Any] = {key: getattr(finding, key) for key in _ORDER}
    told["remedy"] = asdict(finding.remedy) if finding.remedy is not None else None
    return told
