"""`orchestrate status`: the runs that the hosts hold."""

from __future__ import annotations

import click

from orchestrate.errors import Exit


@click.command(
    epilog="""\b
Examples:
  orchestrate status                     # every run on the hosts of ./hosts.txt, or on this machine
  orchestrate status RUN --hosts gpu[01-04] --json
""",
)
@click.argument("run", required=False)
@click.option("--hosts", "target", metavar="TARGET", help="where to look  [default: ./hosts.txt, else this machine]")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def status(run: str | None, target: str | None, as_json: bool) -> int:
    """Show the runs that the hosts hold, or one of them.

    Exit code 0; 1 when a node of RUN has failed; 3 when a host could not be asked.
    """
    from orchestrate.find import only, runs_on
    from orchestrate.report.status import show

    with runs_on(target, run) as found:
        if run is not None:
            only(found, run)
        rows = [
            {
                "run": c.labels.get("muster.run", ""),
                "node": c.labels.get("muster.node", ""),
                "host": f.host.name,
                "state": c.status,
                "ranks": c.labels.get("muster.ranks", ""),
                "exit": c.exit_code,
                "started": c.started_at[:19],
            }
            for f in found
            for c in f.containers
        ]
        unreachable = {f.host.name: f.error.what for f in found if f.error is not None}
    show(sorted(rows, key=lambda r: (str(r["run"]), str(r["node"]))), unreachable, as_json=as_json)
    if run is not None and any(r["exit"] for r in rows):
        return Exit.NO
    return Exit.CANNOT_TELL if unreachable else Exit.YES
