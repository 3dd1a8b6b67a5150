"""Standard error while hosts answer: who is still awaited, and at once who was not reached. Keeps no record."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from orchestrate.inventory import format_hosts
from orchestrate.report.screen import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MOST_LINES = 20  # after that the report itself is the better list
_LONGEST_NAMES = 60
_REDRAW_S = 0.2
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Done(Protocol):
    """What is called with each name that is done, and with what went wrong on the way to it."""

    def __call__(self, name: str, problem: str = "") -> None:
        """Take the name off the list."""


@contextmanager
def awaiting(names: Sequence[str], what: str = "hosts done") -> Iterator[Done]:
    """Give a function to call with each name that is done; the line of who is awaited is for terminals alone."""
    if not sys.stderr.isatty():
        yield _Told(say)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    waiting = dict.fromkeys(names)
    with _cursor_comes_back(), console.status(Text(_line(waiting, len(names), what))) as status:
        told = _Told(lambda line: console.print(Text(one_line(line)), soft_wrap=True))

        drawn_at = 0.0

        def done(name: str, problem: str = "") -> None:
            nonlocal drawn_at
            told(name, problem)
            waiting.pop(name, None)
            if time.monotonic() - drawn_at > _REDRAW_S or not waiting:  # folding a thousand names takes its time
                drawn_at = time.monotonic()
                status.update(Text(_line(waiting, len(names), what)))

        yield done


@contextmanager
def _cursor_comes_back() -> Iterator[None]:
    """Show the terminal's cursor again when a signal ends the program; an interrupt and an error do so by themselves."""

    def end(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"\x1b[?25h\n")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    here = threading.current_thread() is threading.main_thread()
    heard = [number for number in _ENDING if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


class _Told:
    """Says what went wrong, a line a host, and after many only that there are more."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.lines = say, 0

    def __call__(self, name: str, problem: str = "") -> None:
        if problem:
            self.lines += 1
            if self.lines <= MOST_LINES:
                self.say(f"{name}: {problem}")
            elif self.lines == MOST_LINES + 1:
                self.say("more hosts were not reached: the report names them all")


def say(line: str) -> None:
    """Tell a person something beside the report, on standard error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(one_line(line) + "\n")
        sys.stderr.flush()


def _line(waiting: dict[str, None], every: int, what: str) -> str:
    names = format_hosts(waiting)
    shown = f"{names[:_LONGEST_NAMES]}{'...' if len(names) > _LONGEST_NAMES else ''}"
    return one_line(f"{every - len(waiting)}/{every} {what}; waiting for {shown}")
