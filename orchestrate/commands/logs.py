"""`orchestrate logs`: what a run prints, from its hosts while it is there, else from the record."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from orchestrate.errors import OperatorError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrate.find import Found

_AGO = re.compile(r"(\d+)([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command(
    epilog="""\b
Examples:
  orchestrate logs RUN -f
  orchestrate logs RUN --node 1 --rank 5 --since 10m
""",
)
@click.argument("run")
@click.option("--hosts", "target", metavar="TARGET", help="where it is  [default: ./hosts.txt, else this machine]")
@click.option("-f", "--follow", is_flag=True, help="go on until the run ends")
@click.option("--node", type=click.IntRange(0), metavar="N", help="one node only")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="one rank only")
@click.option("--since", metavar="T", help="a time (2026-03-14T10:15:00) or an age (30s, 10m, 2h, 1d)")
def logs(run: str, target: str | None, follow: bool, node: int | None, rank: int | None, since: str | None) -> None:
    """Show what RUN prints, each line with its host and rank."""
    from orchestrate.find import only, runs_on
    from orchestrate.report.status import line
    from orchestrate.runs import RunFolder, checked_name

    checked_name(run, "RUN")  # it names a folder here
    after = _after(since) if since else ""
    folder = RunFolder(run)
    lock = threading.Lock()

    def tell(host: str, raw: bytes) -> None:
        from hostsetup.runlog import split_rank

        number, text = split_rank(raw.decode("utf-8", "replace"))
        if rank is None or number == rank:
            with lock:
                line(host, number, text)

    with runs_on(target, run) as found:
        try:
            holding = only(found, run)
        except OperatorError:
            if not (folder.path / "logs").is_dir():
                raise
            if since:
                raise UsageError(
                    "the record here has no times", where="--since", next_step="leave --since out, or read the files"
                ) from None
            for who, number, text in _recorded(folder.path / "logs", node):
                if rank is None or number == rank:
                    line(who, number, text)
            return
        _stream(holding, node, after, tell, follow=follow)


def _stream(
    found: list[Found], node: int | None, after: str, tell: Callable[[str, bytes], None], *, follow: bool
) -> None:
    from orchestrate.backends.containers import lines
    from orchestrate.together import all_of

    def one(chosen: tuple[Found, str]) -> None:
        place, container_id = chosen
        if place.engine is not None:
            for _, raw in lines(place.engine, container_id, after=after, follow=follow):
                tell(place.host.name, raw)

    chosen = [
        (f, c.id) for f in found for c in f.containers if node is None or c.labels.get("muster.node") == str(node)
    ]
    for together in [chosen] if follow else [[pair] for pair in chosen]:
        all_of(together, one)


def _recorded(folder: object, node: int | None) -> Iterator[tuple[str, int | None, str]]:
    from pathlib import Path

    pattern = "node*" if node is None else f"node{node}"
    for path in sorted(Path(str(folder)).glob(f"{pattern}/*.log")):
        if path.name == "output.log":
            continue
        found = re.fullmatch(r"rank(\d+)\.log", path.name)
        for text in path.read_text("utf-8", "replace").splitlines():
            yield path.parent.name, int(found[1]) if found else None, text


def _after(text: str) -> str:
    """Return a time as the engine writes it, of a time or an age."""
    try:
        if found := _AGO.fullmatch(text):
            moment = datetime.fromtimestamp(time.time() - int(found[1]) * _UNIT_S[found[2]], UTC)
        else:
            moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{text!r} is neither a time nor an age",
            where="--since",
            next_step="write 2026-03-14T10:15:00, 30s, 10m, 2h or 1d",
        ) from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
