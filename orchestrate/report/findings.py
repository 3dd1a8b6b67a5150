"""The audit that every report tells, and its JSON for programs. Judges nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostsetup.host import HostFacts
    from hostsetup.model import Finding
    from orchestrate.evidence import Visit

SCHEMA = "muster.preflight/1"

MEANING = {
    "pass": "nothing was found that is wrong",
    "fail": "something must be put right first",
    "incomplete": "cannot tell: a host is out of reach, or a needed fact is not known",
}


@dataclass(frozen=True, slots=True)
class Audit:
    """All that a report tells: how each host's visit went, what is known, what was found, and the verdict.

    `facts` is what programs read of each host, `fleet` what drawings need. `strict`: warnings count as failures.
    """

    verdict: str
    visits: Sequence[Visit]
    facts: Mapping[str, Mapping[str, Any]]
    findings: Sequence[Finding]
    fleet: Mapping[str, HostFacts] = field(default_factory=dict)
    strict: bool = False


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


def _finding(finding: Finding) -> dict[str, Any]:
    told = asdict(finding)
    order = ("check", "state", "scope", "hosts", "subject", "saw", "wanted", "remedy", "evidence", "source")
    return {key: told[key] for key in order}
