"""The same work on several things at once."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from orchestrate.errors import CannotTell
from orchestrate.together import all_of, attempt


def test_answers_come_in_order_with_errors_among_them():
    def work(n):
        time.sleep(0.05 * (3 - n))
        return 10 // n

    answers = attempt([0, 1, 2], work)
    assert isinstance(answers[0], ZeroDivisionError)
    assert answers[1:] == [10, 5]
    assert attempt([], work) == []


def test_the_first_error_is_raised_once_all_have_ended():
    ended = []

    def work(n):
        if n == 0:
            raise ValueError(n)
        time.sleep(0.1)
        ended.append(n)

    with pytest.raises(ValueError, match="0"):
        all_of([0, 1], work)
    assert ended == [1]


def test_what_is_late_cannot_be_told_and_delays_nobody():
    gate = threading.Event()
    begin = time.monotonic()
    late, soon = attempt([gate, threading.Event()], lambda event: event is gate and gate.wait(9), deadline_s=0.3)
    assert time.monotonic() - begin < 2
    assert isinstance(late, CannotTell)
    assert "0.3 s" in late.what
    assert soon is False
    gate.set()


@pytest.mark.parametrize(("settle_s", "made"), [(5.0, ["x"]), (0.0, [])])
def test_an_interrupt_waits_for_what_has_begun_where_that_was_asked_for(settle_s, made):
    done = []
    gate = threading.Event()

    def work(thing):
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait(0.6)
        done.append(thing)

    with pytest.raises(KeyboardInterrupt):
        attempt(["x"], work, settle_s=settle_s)
    assert done == made
    gate.set()
