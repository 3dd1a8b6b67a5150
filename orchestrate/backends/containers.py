"""Nodes as containers: on hosts behind SSH, or several on this machine. Finds everything again by its labels."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING

from orchestrate import plan as planning
from orchestrate.cut import cut
from orchestrate.errors import CannotTell, OperatorError, UsageError
from orchestrate.outcome import Sighting
from orchestrate.together import all_of, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from orchestrate.engine import Engine
    from orchestrate.plan import NodePlan, RunPlan

CREATE_S = 60.0
REMOVE_S = 15.0
SETTLE_S = 10.0  # an interrupt waits for what is being created, so that it is found and removed

_STATES = {"created": "created", "running": "running", "paused": "running", "restarting": "running"}
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]+Z?\S{0,6}) ")
_PART_BYTES = 16384


class Containers:
    """The containers of one plan. `open_engine(host)` connects anew to a host's engine (and is also used at first)."""

    def __init__(self, plan: RunPlan, open_engine: Callable[[str], Engine]) -> None:
        self.plan = plan
        self._open = open_engine
        self._engines: dict[str, Engine] = {}
        self._ids: dict[int, str] = {}  # of the containers that this object created
        self._volumes: set[str] = set()  # hosts where it made the run's volume
        self._networks: set[str] = set()
        self._started = False
        self._given_up = False
        self._lock = threading.Lock()

    def engine(self, host: str) -> Engine:
        """Return the engine of a host, connecting when there is no connection."""
        with self._lock:
            known = self._engines.get(host)
        if known is None:
            known = self._open(host)
            with self._lock:
                known = self._engines.setdefault(host, known)
        return known

    def _hosts(self) -> list[str]:
        """Return one host for each engine: nodes of one machine share theirs."""
        shared = {node.host for node in self.plan.nodes if self.plan.subnet and node.node}
        return [host for host in dict.fromkeys(node.host for node in self.plan.nodes) if host not in shared]

    def _forget(self, host: str) -> None:
        with self._lock:
            lost = self._engines.pop(host, None)
        if lost is not None:
            with contextlib.suppress(OperatorError, OSError):
                lost.close()

    def claim(self) -> None:
        """Refuse a name that is in use on any of the hosts; nothing is made yet."""
        all_of(self._hosts(), self._refuse_another, deadline_s=CREATE_S)

    def _refuse_another(self, host: str) -> None:
        if self.engine(host).containers(self.plan.run):
            raise UsageError(
                f"a run named {self.plan.run} is on the host already",
                where=host,
                next_step=f"choose another --name, or `orchestrate stop {self.plan.run}`",
            )

    def place(self) -> None:
        """Create networks, volumes and containers on every host, or leave nothing anywhere."""
        try:
            all_of(self._hosts(), self._ground, deadline_s=CREATE_S, settle_s=SETTLE_S)
            all_of(self.plan.nodes, self._create, deadline_s=CREATE_S, settle_s=SETTLE_S)
        except BaseException:
            self.remove()
            raise

    def _ground(self, host: str) -> None:
        engine = self.engine(host)
        name = planning.volume_name(self.plan)
        if name not in engine.volumes(self.plan.run):  # one that is there holds checkpoints to go on from
            first = next(node for node in self.plan.nodes if node.host == host)
            engine.create_volume(name, planning.labels(self.plan, first))
            self._volumes.add(host)
        if self.plan.subnet:
            engine.create_network(f"muster-{self.plan.run}", self.plan.subnet, planning.labels(self.plan))
            self._networks.add(host)

    def _create(self, node: NodePlan) -> None:
        engine = self.engine(node.host)
        made = engine.create(planning.container_spec(self.plan, node))
        with self._lock:
            late = self._given_up
            if not late:
                self._ids[node.node] = made
        if late:  # everything else has been removed while this engine was thinking
            engine.remove(made)

    def start(self) -> None:
        """Start every container; when one does not start, remove them all."""
        try:
            all_of(self.plan.nodes, lambda n: self.engine(n.host).start(self._ids[n.node]), deadline_s=CREATE_S)
        except BaseException:
            self.remove()
            raise
        self._started = True

    def look(self, node: NodePlan) -> Sighting:
        """Return how a node's container stands."""
        try:
            seen = self.engine(node.host).look(self._ids[node.node])
        except OperatorError as error:
            self._forget(node.host)
            return Sighting(node.node, node.host, "unreachable", detail=error.what)
        if seen is None or seen.status == "removing":
            return Sighting(node.node, node.host, "gone", detail="the container was removed by somebody else")
        state = _STATES.get(seen.status, "exited")
        return Sighting(node.node, node.host, state, seen.exit_code, seen.oom_killed)

    def follow(self, node: NodePlan, after: str) -> Iterator[tuple[str, bytes]]:
        """Yield the lines of a node's container with the engine's times."""
        yield from lines(self.engine(node.host), self._ids[node.node], after=after, follow=True)

    def take(self, path: str, folder: Path) -> bool:
        """Bring a file of the first node's out folder here."""
        first = self.plan.nodes[0]
        return self.engine(first.host).copy_out(self._ids[first.node], f"{planning.OUT_DIR}/{path}", folder / path)

    def out_place(self) -> str:
        """Return where the first node's out folder is; empty when the run has not begun."""
        if not self._started:
            return ""
        return f"volume {planning.volume_name(self.plan)} on {self.plan.nodes[0].host}"

    def force(self, node: NodePlan, pids: Sequence[int]) -> None:
        """Send SIGKILL inside the node's container, where the process ids come from."""
        with contextlib.suppress(OperatorError):  # then the whole container is stopped, and says less
            self.engine(node.host).kill_inside(self._ids[node.node], pids)

    def stop(self, grace_s: int) -> None:
        """Stop every container, all at once."""
        attempt(
            self.plan.nodes,
            lambda n: self.engine(n.host).stop(self._ids[n.node], grace_s),
            deadline_s=grace_s + REMOVE_S,
        )

    def remove(self) -> list[str]:
        """Remove what this object made, and nothing else that carries the run's name.

        The first host's volume stays once the run has started: it holds the checkpoints.
        """
        with self._lock:
            self._given_up = True
        hosts = [host for host in self._hosts() if self._made_on(host)]
        answers = attempt(hosts, self._remove_on, deadline_s=REMOVE_S)
        return [
            f"{host}: {getattr(answer, 'what', '') or repr(answer)}; `orchestrate stop {self.plan.run}` when it answers"
            for host, answer in zip(hosts, answers, strict=True)
            if isinstance(answer, Exception)
        ]

    def _nodes_on(self, host: str) -> list[NodePlan]:
        return [node for node in self.plan.nodes if self.plan.subnet or node.host == host]

    def _made_on(self, host: str) -> bool:
        return host in self._volumes | self._networks or any(n.node in self._ids for n in self._nodes_on(host))

    def _remove_on(self, host: str) -> None:
        engine = self.engine(host)
        for node in self._nodes_on(host):
            if node.node in self._ids:
                engine.remove(self._ids[node.node])
        if host in self._networks:
            engine.remove_network(f"muster-{self.plan.run}")
        if host in self._volumes and not (self._started and host == self.plan.nodes[0].host):
            engine.remove_volume(planning.volume_name(self.plan))

    def close(self) -> None:
        """Close every connection."""
        for host in list(self._engines):
            self._forget(host)


def on_hosts(plan: RunPlan, engines: Mapping[str, Engine], reopen: Callable[[str], Engine]) -> Containers:
    """Return the backend for a plan whose engines are already open."""
    backend = Containers(plan, reopen)
    backend._engines.update(engines)  # noqa: SLF001 - the same file
    return backend


def lines(engine: Engine, container: str, *, after: str = "", follow: bool) -> Iterator[tuple[str, bytes]]:
    """Yield (time, line) of what a container printed after a time, with no gap and no repeat."""
    for line, _ in cut(engine.logs(container, follow=follow, since=_seconds(after))):
        time, text = _timed(line)
        if time > after or not time:
            yield time, text


def _timed(line: bytes) -> tuple[str, bytes]:
    """Return (time, line); the engine keeps a long line in parts and puts its time before every one of them."""
    found = _TIME.match(line)
    if found is None:
        return "", line
    parts, at = [], found.end()
    while len(line) > at + _PART_BYTES and (again := _TIME.match(line, at + _PART_BYTES)):
        parts.append(line[at : at + _PART_BYTES])
        at = again.end()
    return found[1].decode("ascii", "replace"), b"".join([*parts, line[at:]])


def _seconds(time: str) -> float | None:
    """Return the engine's RFC 3339 time as seconds, rounded down so that no line is lost."""
    if not time:
        return None
    from datetime import UTC, datetime

    try:
        whole = datetime.strptime(time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise CannotTell(f"the engine's log has no time where one was expected: {time[:40]!r}") from None
    return whole.timestamp()
