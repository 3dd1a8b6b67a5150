"""The verb `explain`: the page of a check, or the catalogue. Looks at no host."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase

import click

from hostsetup import checks
from orchestrate.errors import UsageError
from orchestrate.report import pages, screen

_EPILOG = """\b
Examples:
  orchestrate explain                       every check, by subsystem
  orchestrate explain pcie                  those of a subsystem; * is allowed
  orchestrate explain pcie.acs.redirect     what it looks at, why, and what to do
"""


def ids(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the ids of checks that complete what was begun; in a list, its last word."""
    head, comma, last = begun.rpartition(",")
    return [f"{head}{comma}{check.id}" for check in checks.catalogue() if check.id.startswith(last)]


@click.command(epilog=_EPILOG)
@click.argument("name", metavar="[ID]", required=False, shell_complete=ids)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def explain(name: str | None, as_json: bool) -> None:
    """Show the page of a check; without ID, the catalogue."""
    every = checks.catalogue()
    if name is None:
        screen.out(pages.catalogue(every, as_json=as_json))
        return
    by_id = {check.id: check for check in every}
    group = [check for check in every if fnmatchcase(check.id, name) or check.id.startswith(f"{name}.")]
    if name not in by_id and group:
        screen.out(pages.catalogue(group, as_json=as_json))
        return
    if name not in by_id:
        close = difflib.get_close_matches(name, by_id, n=3, cutoff=0.5) or [i for i in by_id if name in i][:3]
        hint = f"did you mean {' or '.join(close)}?" if close else "orchestrate explain lists them all"
        raise UsageError(f"there is no check {name!r}", where="orchestrate explain", next_step=hint)
    screen.out(pages.one(by_id[name], as_json=as_json))
