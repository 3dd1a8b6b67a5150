"""Runs the workers of the load tests as processes of their own, so that one that hangs or dies costs one result.

It passes on every line of a worker, and never waits for one that cannot be killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.active.lines import BEGIN, Result, is_result, say, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

KILL_S = 5.0  # a process that the driver holds does not end; it is left behind


@dataclass(slots=True)
class Worker:
    """One child process. `lines` ends with it, or raises TimeoutError when it is silent for too long."""

    process: subprocess.Popen[bytes]
    came: queue.SimpleQueue[str | None]

    def lines(self, limit_s: float, deadline: float) -> Iterator[str]:
        """Yield lines; each may take `limit_s`, all of them until `deadline` (of time.monotonic)."""
        while True:
            try:
                line = self.came.get(timeout=max(0.0, min(limit_s, deadline - time.monotonic())))
            except queue.Empty:
                raise TimeoutError from None
            if line is None:
                return
            yield line

    def end(self) -> int | None:
        """End what still runs and return the exit code; None when it cannot be ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):  # torchrun passes the first on to its ranks
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(KILL_S)
        return None


def start(argv: Sequence[str], environment: Mapping[str, str]) -> Worker:
    """Start a process with its output in a queue; it leads a group of its own."""
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=dict(environment), start_new_session=True
    )
    worker = Worker(process, queue.SimpleQueue())
    threading.Thread(target=_read, args=(worker,), daemon=True).start()
    return worker


def _read(worker: Worker) -> None:
    assert worker.process.stdout is not None  # noqa: S101 - it was asked for
    with worker.process.stdout as stream:
        for raw in stream:
            worker.came.put(raw.decode("utf-8", "replace").rstrip("\n"))
    worker.came.put(None)


def each(
    subjects: Sequence[str],
    command: Callable[[Sequence[str]], Sequence[str]],
    *,
    test: Callable[[str], str],
    environment: Mapping[str, str],
    limit_s: float,
    deadline: float,
) -> None:
    """Have workers do every subject; after one that hangs or dies in a subject a new worker does those that are left."""
    left = list(subjects)
    while left:
        if time.monotonic() >= deadline:
            for subject in left:
                tell(Result(test(subject), subject, error="not begun: the time for all tests was up", kind="setup"))
            return
        worker = start(command(left), environment)
        began, why = _relay(worker, left, limit_s, deadline)
        code = worker.end()
        if not left:
            return
        if not began and not why:
            for subject in left:
                tell(Result(test(subject), subject, error=f"the worker did not start (exit code {code})", kind="setup"))
            return
        subject = left.pop(0)
        if why:
            tell(Result(test(subject), subject, error=why, kind="timeout"))
        else:
            tell(Result(test(subject), subject, error=f"the process of the test died: {died(code)}", kind="crashed"))


def _relay(worker: Worker, left: list[str], limit_s: float, deadline: float) -> tuple[bool, str]:
    """Pass lines on and strike out what is done; return whether a test had begun, and why the worker was given up."""
    began = False
    try:
        for line in worker.lines(limit_s, deadline):
            say(line)
            if line.startswith(BEGIN):
                began = True
            elif is_result(line):
                left.pop(0)
                began = False
    except TimeoutError:
        return began, f"no end after {limit_s:.0f} s, or when the time for all tests was up"
    return began, ""


def died(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None:
        return "it cannot be killed: the driver holds it"
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def one(
    argv: Sequence[str], result: Result, environment: Mapping[str, str], limit_s: float, deadline: float
) -> list[str]:
    """Run one command to its end and pass its lines on; tell of `result` that it hung or died. Return the lines."""
    worker = start(argv, environment)
    seen: list[str] = []
    why = ""
    try:
        for line in worker.lines(limit_s, deadline):
            say(line)
            seen.append(line)
    except TimeoutError:
        why = f"no end after {limit_s:.0f} s, or when the time for all tests was up"
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.process.wait(KILL_S)  # its output is at its end: the exit code follows
    code = worker.end()
    told = any(is_result(line) for line in seen)
    if why and not told:
        tell(_with(result, why, "timeout"))
    elif code != 0 and not why:
        tell(_with(result, f"the processes of the test died: {died(code)}", "crashed"))
    return seen


def _with(result: Result, error: str, kind: str) -> Result:
    return Result(result.test, result.subject, error=error, kind=kind, hosts=result.hosts)
