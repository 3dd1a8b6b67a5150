"""Shows the runs that hosts hold, as a table or as JSON. Decides nothing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrate.report.screen import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COLUMNS = ("run", "node", "host", "state", "ranks", "exit", "started")


def show(rows: Sequence[Mapping[str, Any]], unreachable: Mapping[str, str], *, as_json: bool) -> None:
    """Print one row a node, and the hosts that could not be asked."""
    if as_json:
        print(
            json.dumps({"schema": "muster.status/1", "nodes": list(rows), "unreachable": dict(unreachable)}, indent=2)
        )
        return
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in _COLUMNS:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(one_line(str("" if row[c] is None else row[c]))) for c in _COLUMNS))
        console.print(table)
    elif unreachable:
        console.print("no run is on the hosts that answered")
    else:
        console.print("no run is there")
    for host, why in unreachable.items():
        console.print(Text(f"unreachable {host}: {one_line(why)}", style="yellow"))


def line(host: str, rank: int | None, text: str) -> None:
    """Print one line of a run's output."""
    print(f"[{host}/{'agent' if rank is None else rank}] {one_line(text)}", flush=True)


def said(text: str) -> None:
    """Print one sentence."""
    print(one_line(text), flush=True)
