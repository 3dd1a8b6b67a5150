"""Runs the load tests of `preflight --active` on hosts: containers of the trainer's image, which this file removes.

Brings no image, touches no container of another run, and ends with none of its own left, whatever happens to it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from hostsetup.model import Evidence, Reply
from orchestrate import descriptors, loads, survey
from orchestrate.backends.containers import lines
from orchestrate.clear import clear
from orchestrate.errors import CannotTell, OperatorError
from orchestrate.evidence import visit
from orchestrate.together import all_of, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrate.engine import Engine
    from orchestrate.inventory import Host
    from orchestrate.loads import Place
    from orchestrate.plan import ContainerSpec
    from orchestrate.remote import Shell

OPEN_S = 90.0
GRACE_S = 60.0  # above what the programs inside allow themselves
SILENCE_S = 2.0 * loads.LIMIT_S
CLEAR_S = 20.0
MOST_TALK, MOST_RESULTS = 64 << 10, 4 << 20  # bytes kept of one container

_USERS = "nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv,noheader"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A host with its open connection, ready to be tested."""

    host: Host
    shell: Shell
    engine: Engine
    place: Place


def measure(
    hosts: Sequence[Host],
    found: Sequence[Evidence],
    *,
    image: str = "",
    busy_gpus: bool = False,
    done: Callable[[str], None] = lambda _: None,
) -> tuple[Evidence, ...]:
    """Return the evidence with the reply `active` added: what the tests printed on each host.

    `found` is the passive audit's; a host that it did not reach is not tried. `image`: another than muster:cuda (with
    GPUs) or muster:cpu. `done` is told each host whose own tests have ended.
    """
    away = {one.host for one in found if visit(one).state == "unreachable"}
    reached = [host for host in hosts if host.name not in away]
    descriptors.room_for(len(reached))  # every host's connection is held until the last test
    with _ended_by_signals(), _Session(f"preflight-{secrets.token_hex(3)}", image, busy_gpus=busy_gpus) as session:
        ready = session.open(reached)
        for name in {host.name for host in hosts} - {one.host.name for one in ready}:
            done(name)
        session.test_hosts(ready, done)
        session.test_pairs(ready)
    return tuple(
        replace(one, replies={**one.replies, "active": Reply(b"".join(session.told.get(one.host, ())))})
        for one in found
    )


class _Session:
    """The tests of one call. `told`: by host, what came. As a context it removes its containers at the end."""

    def __init__(self, run: str, image: str, *, busy_gpus: bool) -> None:
        self.run = run
        self.told: dict[str, list[bytes]] = {}
        self._image = image
        self._busy_gpus = busy_gpus
        self._lock = threading.Lock()
        self._over = False
        self._engines: list[tuple[str, Engine, threading.Lock]] = []
        self._shells: list[Shell] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove by label what is left, then drop the connections."""
        self._over = True
        with self._lock:
            engines = list(self._engines)
        for (host, *_rest), answer in zip(
            engines, attempt(engines, self._clear, deadline_s=CLEAR_S, settle_s=CLEAR_S), strict=True
        ):
            if isinstance(answer, Exception):
                then = f"`orchestrate stop {self.run}` when the host answers"
                self._tell(host, loads.line("setup", f"a container may be left: {answer}", "setup", next_step=then))
        for close in (*(engine.close for _, engine, _ in engines), *(shell.close for shell in self._shells)):
            with contextlib.suppress(OperatorError, OSError):
                close()

    def _clear(self, held: tuple[str, Engine, threading.Lock]) -> None:
        _, engine, lock = held
        with lock:  # what is being created just now is there once the lock is free
            clear(engine, self.run)

    def _tell(self, host: str, *what: bytes) -> None:
        with self._lock:
            self.told.setdefault(host, []).extend(what)

    def open(self, hosts: Sequence[Host]) -> list[_Ready]:
        """Connect to every host and see what it needs; of one that is not ready it is told why."""
        from orchestrate.remote import fan_out

        order = {host.name: at for at, host in enumerate(hosts)}
        answers = fan_out(
            hosts,
            lambda host: self._open(host, order[host.name]),
            deadline_s=OPEN_S,
            window=descriptors.room_for(len(hosts)),
        )
        for name, answer in answers.items():
            if isinstance(answer, OperatorError):
                kind = "busy" if isinstance(answer, _Busy) else "setup"
                self._tell(name, loads.line("setup", answer.what, kind, next_step=answer.next_step))
        return [answer for answer in answers.values() if isinstance(answer, _Ready)]

    def _open(self, host: Host, index: int) -> _Ready:
        from orchestrate import engine as engines
        from orchestrate.remote import connect

        shell = connect(host)
        with self._lock:
            self._shells.append(shell)
        engine = engines.behind(shell, timeout_s=SILENCE_S)
        with self._lock:
            self._engines.append((host.name, engine, threading.Lock()))
        gpus = survey.gpus(shell)
        ref = self._image or ("muster:cuda" if gpus else "muster:cpu")
        held = engine.image_id(ref)
        if held is None:
            raise CannotTell(
                f"the image {ref} is not on the host",
                where=host.name,
                next_step="`orchestrate build` makes it, and any `orchestrate launch` with it brings it to its hosts; "
                "or name another with --image",
            )
        if gpus and not self._busy_gpus:
            _refuse_busy(shell)
        return _Ready(host, shell, engine, loads.Place(host.name, index, ref, held, gpus, survey.rdma_devices(shell)))

    def test_hosts(self, ready: Sequence[_Ready], done: Callable[[str], None]) -> None:
        """Test every host by itself, all at once."""
        from orchestrate.remote import fan_out

        by_name = {one.host.name: one for one in ready}
        fan_out(
            [one.host for one in ready],
            lambda host: self._within(by_name[host.name]),
            deadline_s=loads.WITHIN_S + 2 * GRACE_S,
            window=descriptors.room_for(len(ready)),
            on_result=lambda host, answer: self._settle(host, answer, done),
        )

    def _settle(self, host: Host, answer: object, done: Callable[[str], None]) -> None:
        if isinstance(answer, OperatorError):
            self._tell(host.name, loads.line("setup", answer.what, "setup", next_step=answer.next_step))
        done(host.name)

    def _within(self, one: _Ready) -> None:
        spec = loads.within(self.run, one.place, busy_gpus=self._busy_gpus)
        self._tell(one.host.name, *self._run(one, self._create(one, spec), loads.WITHIN_S + GRACE_S, "setup"))

    def test_pairs(self, ready: Sequence[_Ready]) -> None:
        """Test neighbours in a ring, in waves; what comes of a pair is kept with its first host."""
        by_name = {one.host.name: one for one in ready}
        for wave in loads.waves(list(by_name)):
            pairs = [(by_name[a], by_name[b]) for a, b in wave]
            answers = attempt(pairs, self._between, deadline_s=OPEN_S + loads.BETWEEN_S + 2 * GRACE_S)
            for (first, second), answer in zip(pairs, answers, strict=True):
                if isinstance(answer, OperatorError):
                    names = (first.host.name, second.host.name)
                    self._tell(first.host.name, _pair_line(names, answer.what, "setup", answer.next_step))
                elif isinstance(answer, Exception):
                    raise answer

    def _between(self, pair: tuple[_Ready, _Ready]) -> None:
        first, second = pair
        names = (first.host.name, second.host.name)
        if first.place.image_id != second.place.image_id:
            raise CannotTell(
                f"the two hosts hold different images named {first.place.image}",
                next_step="any `orchestrate launch` with the image brings one and the same to its hosts",
            )
        shells = [one.shell for one in pair]
        routes = survey.routes(shells, lambda them, work: all_of(them, work, deadline_s=OPEN_S))
        port = survey.port_on(first.shell, self.run, None)
        specs = loads.between(self.run, (first.place, second.place), (routes[names[0]], routes[names[1]]), port)
        made = all_of(list(zip(pair, specs, strict=True)), lambda one: self._create(*one), deadline_s=OPEN_S)
        started = list(zip(pair, made, strict=True))
        answers = attempt(started, lambda one: self._run(*one, loads.BETWEEN_S, loads.PAIR_TESTS[0], names))
        for answer in answers:
            if isinstance(answer, OperatorError):
                self._tell(names[0], _line(loads.PAIR_TESTS[0], names, answer.what, "setup"))
            elif isinstance(answer, Exception):
                raise answer
            else:
                self._tell(names[0], *answer)

    def _create(self, one: _Ready, spec: ContainerSpec) -> str:
        """Create a container, unless all is over; the end waits for what is being created."""
        lock = next(lock for _, engine, lock in self._engines if engine is one.engine)
        with lock:
            if self._over:
                raise CannotTell("the tests were interrupted", where=one.host.name)
            return one.engine.create(spec)

    def _run(self, one: _Ready, container: str, limit_s: float, test: str, hosts: tuple[str, ...] = ()) -> list[bytes]:
        """Start a container, return what it prints and remove it; one that takes too long is removed before its end."""
        engine = one.engine
        late = threading.Event()

        def give_up() -> None:
            late.set()
            with contextlib.suppress(OperatorError, OSError):
                engine.remove(container)

        clock = threading.Timer(limit_s, give_up)
        clock.daemon = True
        kept = _Kept()
        try:
            engine.start(container)
            clock.start()
            for _, line in lines(engine, container, follow=True):
                kept.take(line)
        except OperatorError:
            if not late.is_set():
                raise
        finally:
            clock.cancel()
        if late.is_set():
            why = f"{one.host.name}: no end after {limit_s:.0f} s; the container was removed"
            return [*kept.lines, _line(test, hosts, why, "timeout")]
        seen = engine.look(container)
        engine.remove(container)
        if seen is None or seen.exit_code:
            ended = "was removed by somebody else" if seen is None else f"ended with exit code {seen.exit_code}"
            ended += " (out of memory)" if seen is not None and seen.oom_killed else ""
            why = f"{one.host.name}: the container {ended}: {kept.last_words}"
            kind = "crashed" if kept.begun and hosts else "setup"
            return [*kept.lines, _line(test, hosts, why, kind)]
        return kept.lines


class _Kept:
    """What is kept of a container's output: every result, and talk up to a limit."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.begun = False
        self.last_words = ""
        self._talk = self._results = 0

    def take(self, line: bytes) -> None:
        result = b'"schema": "muster.active' in line
        self.begun = self.begun or b"active: begins" in line
        if result:
            self._results += len(line)
        else:
            self._talk += len(line)
            self.last_words = line.decode("utf-8", "replace").strip()[:200] or self.last_words
        if (self._results if result else self._talk) <= (MOST_RESULTS if result else MOST_TALK):
            self.lines.append(line + b"\n")


class _Busy(CannotTell):
    """Something else uses the GPUs."""


def _refuse_busy(shell: Shell) -> None:
    """Raise when the host's driver names processes on its GPUs, or tells nothing: a container would not see them."""
    said = shell.run(_USERS, timeout_s=40)
    if said.exit_code != 0:
        raise CannotTell(
            "nvidia-smi does not say whether the GPUs are in use",
            where=shell.host.name,
            next_step="see what `nvidia-smi` says on that host; if nothing uses them, --busy-gpus tests them all the same",
        )
    rows = [line.split(", ") for line in said.stdout.decode("utf-8", "replace").splitlines()]
    users = [f"{row[-1][:60]} (process {row[0]})" for row in rows if re.fullmatch(r"\d{1,10}", row[0])]
    if users:
        raise _Busy(
            f"the GPUs are in use: {', '.join(users[:3])}" + (f" and {len(users) - 3} more" if len(users) > 3 else ""),
            where=shell.host.name,
            next_step="wait until they are free, or test them all the same with --busy-gpus",
        )


def _line(test: str, hosts: tuple[str, ...], why: str, kind: str) -> bytes:
    return _pair_line(hosts, why, kind) if hosts else loads.line(test, why, kind)


def _pair_line(hosts: tuple[str, ...], why: str, kind: str, next_step: str = "") -> bytes:
    return loads.line(loads.PAIR_TESTS[0], why, kind, next_step=next_step, subject=" <-> ".join(hosts), hosts=hosts)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a wish to end, from whomever, remove what was started; a second wish does not interrupt that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
