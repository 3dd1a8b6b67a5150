"""The catalogue of checks and their pages, as text and JSON. Knows no check by name."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

from hostsetup.checks import page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostsetup.checks import Check

SCHEMA = "muster.explain/1"


def catalogue(checks: Sequence[Check], *, as_json: bool) -> str:
    """Return every check with its title, by subsystem: the first part of its id."""
    if as_json:
        return json.dumps({"schema": SCHEMA, "checks": [_told(check) for check in checks]}, indent=2)
    lines: list[str] = []
    for subsystem, group in groupby(checks, key=lambda check: check.id.partition(".")[0]):
        lines += [subsystem, *(f"  {check.id:<26} {check.title}" for check in group), ""]
    return "\n".join([*lines, "orchestrate explain ID shows a check's page."])


def one(check: Check, *, as_json: bool) -> str:
    """Return the page of one check."""
    return json.dumps({"schema": SCHEMA, **_told(check), "page": check.page}, indent=2) if as_json else page(check)


def _told(check: Check) -> dict[str, str]:
    return {"id": check.id, "title": check.title, "source": check.source}
