"""The findings of an audit as JUnit XML: a suite a host, a case a check. Judges nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from hostsetup.model import State
from orchestrate.report import fold
from orchestrate.report.fold import spans_hosts, worst
from orchestrate.report.screen import harmless, one_line
from orchestrate.report.text import needs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostsetup.model import Finding
    from orchestrate.evidence import Visit
    from orchestrate.report.findings import Audit

FLEET = "fleet"
_LONGEST_MESSAGE = 500
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0, even as a reference
_OUTCOME = {State.FAIL: "failure", State.UNKNOWN: "error", State.SKIP: "skipped"}


def as_junit(audit: Audit) -> str:
    """Return the report for continuous integration; under `strict` a warning is a failure."""
    root = ET.Element("testsuites", name="orchestrate preflight")
    suites = {visit.name: _suite(root, visit.name, visit) for visit in audit.visits}
    fleet: ET.Element | None = None
    for (where, name), findings in _cases(audit.findings).items():
        if where is None:
            if fleet is None:
                fleet = _suite(root, f"({FLEET})" if FLEET in suites else FLEET, None)
            _case(fleet, name, findings, strict=audit.strict)
        else:
            suite = suites[where] if where in suites else suites.setdefault(where, _suite(root, where, None))
            _case(suite, name, findings, strict=audit.strict)
    for visit in audit.visits:
        if visit.state == "partial":
            gap = ET.SubElement(suites[visit.name], "testcase", classname=_clean(visit.name), name="visit", time="0")
            ET.SubElement(gap, "error", type="partial", message=_message(visit.error or "some answers are missing"))
    for suite in root:
        _count(suite)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    # references instead of letters beyond ASCII: the bytes are right whatever the locale of standard output
    written: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{written.decode("ascii")}'


def _suite(root: ET.Element, name: str, visit: Visit | None) -> ET.Element:
    elapsed_s = visit.elapsed_s if visit is not None and visit.elapsed_s is not None else 0
    return ET.SubElement(root, "testsuite", name=_clean(name), hostname=_clean(name), time=f"{elapsed_s:.3f}")


def _cases(findings: Sequence[Finding]) -> dict[tuple[str | None, str], list[Finding]]:
    """Gather findings by suite (None: the fleet) and case: a check of a host, or of the hosts that it was said of."""
    cases: dict[tuple[str | None, str], list[Finding]] = {}
    for finding in findings:
        if spans_hosts(finding):
            name = f"{finding.check} {fold.names(finding.hosts)}" if finding.scope == "pair" else finding.check
            cases.setdefault((None, name), []).append(finding)
        else:
            for host in finding.hosts:
                cases.setdefault((host, finding.check), []).append(finding)
    return cases


def _case(suite: ET.Element, name: str, findings: Sequence[Finding], *, strict: bool) -> None:
    case = ET.SubElement(suite, "testcase", classname=suite.get("name", ""), name=_clean(name), time="0")
    state = worst(finding.state for finding in findings)
    told = sorted(findings, key=lambda finding: fold.WORST_FIRST.index(finding.state))
    text = "\n\n".join(_clean("\n".join(_lines(finding))) for finding in told if finding.state not in fold.QUIET)
    kind = "failure" if state is State.WARN and strict else _OUTCOME.get(state)
    if kind is not None:
        alike = [finding for finding in told if finding.state is state]
        more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
        outcome = ET.SubElement(case, kind, type=state.value, message=_message(alike[0].saw) + more)
        outcome.text = text or None
    elif text:
        ET.SubElement(case, "system-out").text = text


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.state}: {finding.check}" + (f" {finding.subject}" if finding.subject else "")
    yield f"saw: {finding.saw}"
    if finding.wanted:
        yield f"wanted: {finding.wanted}"
    if finding.remedy is not None:
        yield f"next: {finding.remedy.text}{needs(finding.remedy)}"
        yield from (f"$ {command}" for command in finding.remedy.commands)
    yield from finding.evidence
    yield f"page: orchestrate explain {finding.check}"
    if finding.source:
        yield finding.source


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(1 for case in suite if case.find(kind) is not None)))


def _message(text: str) -> str:
    return _clean(one_line(text))[:_LONGEST_MESSAGE]


def _clean(text: str) -> str:
    return _ILLEGAL.sub("", harmless(text))
