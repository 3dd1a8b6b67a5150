"""The formats of an audit's report, by name. Loads only what the one asked for needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrate.report import findings, screen

if TYPE_CHECKING:
    from orchestrate.report.findings import Audit

FORMATS = ("text", "json", "html", "junit")


def render(audit: Audit, form: str, *, verbose: bool = False, to_file: bool = False) -> str:
    """Return the report in one of FORMATS; text is coloured and wrapped for a terminal alone."""
    if form == "json":
        return findings.as_json(audit)
    if form == "junit":
        from orchestrate.report.junit import as_junit

        return as_junit(audit)
    if form == "html":
        from orchestrate.report.audit_page import as_html

        return as_html(audit)
    from orchestrate.report.text import as_text

    coloured = not to_file and screen.colours()
    return as_text(audit, coloured=coloured, width=None if to_file else screen.width(), verbose=verbose)
