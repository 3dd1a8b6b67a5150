"""Does one thing on many hosts at once: bounded, with a deadline and a result for every host. Retries nothing."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from orchestrate.errors import OperatorError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orchestrate.inventory import Host

T = TypeVar("T")
WINDOW = 32
LONGEST_JITTER_S = 0.5
_NO_THREAD = "can't start new thread"
_GLANCE_S = 0.2  # a Ctrl-C that comes just before a wait begins is noticed only after the wait


def fan_out(
    hosts: Iterable[Host],
    work: Callable[[Host], T],
    *,
    deadline_s: float,
    window: int = WINDOW,
    on_result: Callable[[Host, T | OperatorError], None] | None = None,
) -> dict[str, T | OperatorError]:
    """Return what `work` gave for each host, or the OperatorError that it raised, in the order of `hosts`.

    At most `window` hosts are worked on at once, each in a thread of its own. A host whose work is not done `deadline_s`
    after it began gets a RemoteError `timeout`; its thread is left behind, for nothing can end a thread that hangs.
    `on_result` is called in the caller's thread. Any other exception of `work` is a bug: it is raised once all
    hosts are done.
    """
    hosts = list(hosts)
    waiting = deque(hosts)
    running: dict[str, float] = {}
    results: dict[str, T | OperatorError] = {}
    bugs: list[BaseException] = []
    done: queue.SimpleQueue[tuple[Host, T | BaseException]] = queue.SimpleQueue()
    by_name = {host.name: host for host in hosts}
    jitter_s = min(LONGEST_JITTER_S, 0.01 * (len(hosts) - 1))

    def settle(host: Host, result: T | OperatorError) -> None:
        running.pop(host.name, None)
        results[host.name] = result
        if on_result is not None:
            on_result(host, result)

    def begin(host: Host) -> Exception | None:
        wait_s = random.uniform(0, jitter_s)  # noqa: S311 - spreads logins, hides no secret
        error = _begin(host, work, wait_s, done)
        if error is None:
            running[host.name] = time.monotonic() + wait_s + deadline_s
        return error

    while waiting or running:
        _fill(waiting, running, window, begin, settle)
        try:
            host, result = done.get(timeout=_patience(running))
        except queue.Empty:
            for name in _expired(running):
                settle(by_name[name], _late(by_name[name], deadline_s))
            continue
        if host.name not in running:
            continue  # it was given up before
        settle(host, _told(host, result, bugs))
    if bugs:
        raise bugs[0]
    return {host.name: results[host.name] for host in hosts}


def _told(host: Host, result: T | BaseException, bugs: list[BaseException]) -> T | OperatorError:
    """Return what is told of a host, and keep what is a bug."""
    if isinstance(result, BaseException) and not isinstance(result, OperatorError):
        bugs.append(result)
        return OperatorError(f"{type(result).__name__}: {result}", where=host.name)
    return result


def _expired(running: dict[str, float]) -> list[str]:
    now = time.monotonic()
    return [name for name, deadline in running.items() if deadline <= now]


def _patience(running: dict[str, float]) -> float:
    return min(max(min(running.values(), default=0.0) - time.monotonic(), 0.0), _GLANCE_S)


def _fill(
    waiting: deque[Host],
    running: dict[str, float],
    window: int,
    begin: Callable[[Host], Exception | None],
    settle: Callable[[Host, RemoteError], None],
) -> None:
    """Begin as many as may be worked on at once, and as many as this machine bears; without room for one it is told."""
    while waiting and len(running) < window:
        error = begin(waiting[0])
        if error is not None and running:
            return
        host = waiting.popleft()
        if error is not None:
            settle(host, _no_room(host, error))


def _begin(
    host: Host, work: Callable[[Host], T], wait_s: float, done: queue.SimpleQueue[tuple[Host, T | BaseException]]
) -> Exception | None:
    try:
        threading.Thread(target=_own, args=(host, work, wait_s, done), name=host.name, daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        return error
    return None


def _own(
    host: Host, work: Callable[[Host], T], wait_s: float, done: queue.SimpleQueue[tuple[Host, T | BaseException]]
) -> None:
    time.sleep(wait_s)
    try:
        done.put((host, work(host)))
    except (RuntimeError, MemoryError) as error:
        full = isinstance(error, MemoryError) or _NO_THREAD in str(error)
        done.put((host, _no_room(host, error) if full else error))
    except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, all of it
        done.put((host, error))


def _no_room(host: Host, error: Exception) -> RemoteError:
    return RemoteError(
        "error",
        f"this machine, not the host: {error or 'no memory is left'}",
        where=host.name,
        next_step="allow this program more memory and threads (ulimit -v, ulimit -u), or ask fewer hosts at once",
    )


def _late(host: Host, deadline_s: float) -> RemoteError:
    return RemoteError(
        "timeout",
        f"not done after {deadline_s:g} s",
        where=host.name,
        next_step="see whether the host hangs (a dead disk or driver); or give it longer with --timeout",
    )
