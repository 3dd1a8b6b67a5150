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

    while waiting or running:
        while waiting and len(running) < window:
            host = waiting.popleft()
            wait_s = random.uniform(0, jitter_s)  # noqa: S311 - spreads logins, hides no secret
            running[host.name] = time.monotonic() + wait_s + deadline_s
            threading.Thread(target=_own, args=(host, work, wait_s, done), name=host.name, daemon=True).start()
        try:
            host, result = done.get(timeout=min(max(min(running.values()) - time.monotonic(), 0.0), _GLANCE_S))
        except queue.Empty:
            now = time.monotonic()
            for name in [name for name, deadline in running.items() if deadline <= now]:
                settle(by_name[name], _late(by_name[name], deadline_s))
            continue
        if host.name not in running:
            continue  # it was given up before
        if isinstance(result, BaseException) and not isinstance(result, OperatorError):
            bugs.append(result)
            result = OperatorError(f"{type(result).__name__}: {result}", where=host.name)
        settle(host, result)
    if bugs:
        raise bugs[0]
    return {host.name: results[host.name] for host in hosts}


def _own(
    host: Host, work: Callable[[Host], T], wait_s: float, done: queue.SimpleQueue[tuple[Host, T | BaseException]]
) -> None:
    time.sleep(wait_s)
    try:
        done.put((host, work(host)))
    except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, all of it
        done.put((host, error))


def _late(host: Host, deadline_s: float) -> RemoteError:
    return RemoteError(
        "timeout",
        f"not done after {deadline_s:g} s",
        where=host.name,
        next_step="see whether the host hangs (a dead disk or driver); or give it longer with --timeout",
    )
