"""`orchestrate stop`: ends a run on all its hosts, keeps its logs here, and clears up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrate.errors import Exit

if TYPE_CHECKING:
    from orchestrate.find import Found


@click.command(
    epilog="""\b
Examples:
  orchestrate stop 20260314-101500-4fd1
  orchestrate stop RUN --hosts gpu[01-04] --grace 60     # time to write a checkpoint
""",
)
@click.argument("run")
@click.option("--hosts", "target", metavar="TARGET", help="where it is  [default: ./hosts.txt, else this machine]")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="S",
    help="seconds before force",
)
def stop(run: str, target: str | None, grace_s: int) -> int:
    """Stop RUN on all its hosts, or clear one that has ended; its logs and metrics come to runs/RUN here.

    Exit code 3 when a host could not be asked: the run may still be going there.
    """
    from orchestrate.conclude import conclude
    from orchestrate.find import only, runs_on
    from orchestrate.report.status import said
    from orchestrate.runs import RunFolder, checked_name

    checked_name(run, "RUN")  # it becomes a folder here
    with runs_on(target, run) as found:
        if not any(f.containers for f in found) and any(f.traces for f in found):
            return _sweep([f for f in found if f.traces], run)
        holding = only(found, run)
        outcome = conclude(run, holding, grace_s=grace_s, warn=said)
        away = [f.host.name for f in found if f.error is not None]
    said(f"{outcome.state}: {run} is cleared from {', '.join(f.host.name for f in holding)}")
    logs = RunFolder(run).path / "logs"
    said(f"logs: {logs}" if logs.is_dir() else "it had printed nothing yet")
    for name in away:
        said(f"not asked, out of reach: {name}")
    return Exit.CANNOT_TELL if away else Exit.YES


def _sweep(found: list[Found], run: str) -> int:
    """Clear what a launch left that was itself ended by force; a volume of the first node may hold checkpoints and stays."""
    from orchestrate.clear import clear
    from orchestrate.report.status import said

    for place in found:
        if place.engine is not None:
            clear(place.engine, run)
            kept = tuple(place.engine.volumes(run))
            said(
                f"{run} has no container on {place.host.name}; "
                + (f"kept there: volume {kept[0]}" if kept else "cleared")
            )
    return Exit.YES
