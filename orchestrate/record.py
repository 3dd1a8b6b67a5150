"""Writes down how a run ended: outcome.json for programs, report.html for people, the last event.

A disk that is full costs the record, never the run: what could not be written is told and nothing is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrate.files import replace_file
from orchestrate.report.run_page import page
from trainer.contract import METRICS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrate.outcome import Outcome
    from orchestrate.plan import RunPlan
    from orchestrate.runs import RunFolder


def record(folder: RunFolder, plan: RunPlan, outcome: Outcome, warn: Callable[[str], None]) -> None:
    """Write the end of a run into its folder."""
    try:
        folder.write("outcome.json", outcome.as_json())
        curve = folder.path / METRICS_FILE
        metrics = curve.read_bytes() if curve.is_file() else b""
        replace_file(folder.path / "report.html", page(plan, outcome, metrics).encode("utf-8", "backslashreplace"))
    except OSError as error:
        warn(f"the record is not complete: {error}")
    folder.event("over", state=outcome.state)
