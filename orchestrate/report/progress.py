"""One line on standard error that says who is still awaited; nothing where it is no terminal. Keeps no record."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrate.inventory import format_hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@contextmanager
def awaiting(names: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """Give a function to call with each name that is done."""
    if not sys.stderr.isatty():
        yield lambda _name: None
        return
    from rich.console import Console
    from rich.text import Text

    waiting = dict.fromkeys(names)
    with Console(stderr=True).status(_line(waiting, len(names))) as status:

        def done(name: str) -> None:
            waiting.pop(name, None)
            status.update(Text(_line(waiting, len(names))))

        yield done


def _line(waiting: dict[str, None], every: int) -> str:
    names = format_hosts(waiting)
    return f"{every - len(waiting)}/{every} hosts done; waiting for {names[:60]}{'...' if len(names) > 60 else ''}"
