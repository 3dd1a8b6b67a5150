"""The same work on several things at once, with the answer or the error of each; nothing is lost to the first failure."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from orchestrate.errors import CannotTell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

S = TypeVar("S")
T = TypeVar("T")

WAIT_S = 0.2  # a Ctrl-C that comes just before a longer wait would go unnoticed until its end


def attempt(
    things: Sequence[S], work: Callable[[S], T], *, deadline_s: float | None = None, settle_s: float = 0.0
) -> list[T | Exception]:
    """Run `work` on every thing at once; return results or exceptions in order.

    A thing that has not answered after `deadline_s` seconds counts as CannotTell; its thread is left behind, not waited for.
    An interrupt is passed on once all work that has begun has ended, or after `settle_s` seconds.
    """
    answers: list[T | Exception] = [_late(thing, deadline_s) for thing in things]

    def one(index: int) -> None:
        try:
            answers[index] = work(things[index])
        except Exception as error:  # noqa: BLE001 - it is the answer, and the caller looks at it
            answers[index] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(things))]
    deadline = time.monotonic() + deadline_s if deadline_s else float("inf")
    try:
        for thread in threads:
            thread.start()
        _join(threads, deadline)
    except KeyboardInterrupt:
        _join(threads, time.monotonic() + settle_s)
        raise
    return list(answers)


def _late(thing: object, deadline_s: float | None) -> CannotTell:
    words = (getattr(thing, name, None) for name in ("where", "host", "name"))
    named = [word if isinstance(word, str) else getattr(word, "name", "") for word in (thing, *words)]
    return CannotTell(
        f"no answer within {deadline_s:g} s" if deadline_s else "no answer",
        where=next((word for word in named if word), ""),
        next_step="see whether the host hangs (a dead disk or driver) or is very busy, then try again",
    )


def _join(threads: Sequence[threading.Thread], deadline: float) -> None:
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(WAIT_S)


def all_of(
    things: Sequence[S], work: Callable[[S], T], *, deadline_s: float | None = None, settle_s: float = 0.0
) -> list[T]:
    """Run `work` on every thing at once; when all have ended, return the results or raise the first error."""
    answers = attempt(things, work, deadline_s=deadline_s, settle_s=settle_s)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [a for a in answers if not isinstance(a, Exception)]
