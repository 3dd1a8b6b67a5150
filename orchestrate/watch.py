"""Looks at a run until it is over: follows every node's output, sees every node's state, and notices the first failure.

Each node has two threads of its own, so that a host that hangs delays nobody. Refuses to stop a healthy run because a
host is out of reach: that host is unreachable, and only a run that nobody can see any more is lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostsetup import runlog
from orchestrate.errors import OperatorError
from orchestrate.outcome import Sighting
from orchestrate.runs import NodeLog
from trainer.contract import Progress, parse_progress, parse_resumed

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrate.backends import Backend
    from orchestrate.plan import NodePlan, RunPlan
    from orchestrate.runs import RunFolder

LOOK_S = 0.5
BLIND_S = 15.0  # a node whose state is older than this is unreachable
GRACE_S = 4.0  # after the first failure the others may end by themselves and say why
LINES_KEPT = 5000  # of each node, for the verdict
CHARACTERS_KEPT = 4096  # of each line of these
FORCE_S = 3.0  # for an agent to tell what failed once the ranks that ignored it are gone


@dataclass(slots=True)
class Node:
    """What is known of one node while it runs."""

    plan: NodePlan
    sighting: Sighting
    seen_at: float
    well_at: float  # when it was last seen and not over
    heard_at: float = 0.0  # when its last line came
    failed_at: float | None = None  # when its first failure was noticed
    closing: set[int] = field(default_factory=set)  # processes that the agent has asked to end
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    barrier: runlog.ExitBarrier = field(default_factory=runlog.ExitBarrier)
    drained: threading.Event = field(default_factory=threading.Event)


class Watch:
    """Follows one run. `on_line(node, rank, text)` and `on_progress` are called from the nodes' threads, one at a time."""

    def __init__(
        self,
        backend: Backend,
        plan: RunPlan,
        folder: RunFolder,
        *,
        on_line: Callable[[NodePlan, int | None, str], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._backend = backend
        self._plan = plan
        self._folder = folder
        self._on_line = on_line
        self._on_progress = on_progress
        self._told = threading.Lock()
        self._over = threading.Event()
        self._bugs: list[Exception] = []  # of the nodes' threads, raised where somebody sees them
        self.resumed_from_step: int | None = None
        self.cut_short: list[str] = []  # hosts whose output was not read to its end
        self.lines_lost = 0  # that could not be kept here
        now = time.monotonic()
        self.nodes = [Node(n, Sighting(n.node, n.host, "created"), now, now) for n in plan.nodes]

    def begin(self) -> None:
        """Start to look and to follow."""
        for node in self.nodes:
            for work in (self._look, self._follow):
                threading.Thread(target=self._guarded, args=(work, node), daemon=True).start()

    def _guarded(self, work: Callable[[Node], None], node: Node) -> None:
        try:
            work(node)
        except Exception as error:  # noqa: BLE001 - a run that nobody follows must not end as finished in silence
            self._bugs.append(error)

    def sightings(self) -> list[Sighting]:
        """Return how every node stands; one that was not seen for BLIND_S seconds is unreachable."""
        now = time.monotonic()
        return [
            replace(
                n.sighting, state="unreachable", detail=n.sighting.detail or f"no answer for {now - n.seen_at:.0f} s"
            )
            if now - n.seen_at > BLIND_S and not n.sighting.over
            else n.sighting
            for n in self.nodes
        ]

    def wait(self, lost_after_s: float = 60.0) -> float | None:
        """Wait until the run is over, or its first failure is GRACE_S seconds old, or no host can be seen any more.

        Returns how long the first failure can have gone unnoticed in seconds: from the last look that found its node
        well. None without a failure.
        """
        blind_since: float | None = None
        while True:
            if self._bugs:
                raise self._bugs[0]
            seen = self.sightings()
            if all(s.over for s in seen):
                break
            failed = [n.failed_at for n in self.nodes if n.failed_at is not None]
            if failed and time.monotonic() - min(failed) > GRACE_S:
                break
            if any(s.state == "unreachable" for s in seen) and all(s.over or s.state == "unreachable" for s in seen):
                blind_since = blind_since or time.monotonic()
                if time.monotonic() - blind_since > lost_after_s:
                    break
            else:
                blind_since = None
            time.sleep(0.1)
        noticed = [n.failed_at - n.well_at for n in self.nodes if n.failed_at is not None]
        return round(max(0.0, min(noticed)), 3) if noticed else None

    @property
    def failed(self) -> frozenset[int]:
        """The nodes whose failure was noticed."""
        return frozenset(n.plan.node for n in self.nodes if n.failed_at is not None)

    def force(self) -> None:
        """End ranks that ignore their agent: it would wait 30 s for them before it tells which one failed."""
        waiting = [n for n in self.nodes if n.failed_at is not None and n.closing and not n.sighting.over]
        for node in waiting:
            self._backend.force(node.plan, sorted(node.closing))
        deadline = time.monotonic() + FORCE_S
        while time.monotonic() < deadline and not all(n.sighting.over for n in waiting):
            time.sleep(0.1)

    def drain(self, limit_s: float = 5.0) -> dict[int, runlog.RunLog]:
        """Wait for the rest of every node's output and return what the logs show.

        Goes on as long as lines come; a node that is silent for `limit_s` seconds is given up, and told in `cut_short`.
        """
        began = time.monotonic()
        for node in self.nodes:
            while not node.drained.wait(0.1):
                silent_s = time.monotonic() - max(began, node.heard_at)
                if node.sighting.state == "unreachable" or silent_s > limit_s:
                    self.cut_short.append(node.plan.host)
                    break
        self._over.set()
        return {n.plan.node: runlog.parse(list(n.lines)) for n in self.nodes}

    def _look(self, node: Node) -> None:
        while not self._over.is_set():
            sighting = self._backend.look(node.plan)
            if sighting.state != "unreachable":
                node.seen_at = time.monotonic()
                node.sighting = sighting
            elif not node.sighting.over:
                node.sighting = replace(node.sighting, detail=sighting.detail)
            if sighting.state == "running":
                node.well_at = node.seen_at
            if sighting.over:
                if (sighting.state == "gone" or sighting.exit_code) and node.failed_at is None:
                    node.failed_at = time.monotonic()
                return
            self._over.wait(LOOK_S)

    def _follow(self, node: Node) -> None:
        log = NodeLog(self._folder, node.plan.node, node.plan.ranks)
        after = ""
        try:
            while not self._over.is_set():
                try:
                    for at, line in self._backend.follow(node.plan, after):
                        if self._over.is_set():
                            return
                        after = at or after
                        node.heard_at = time.monotonic()
                        self._line(node, log, line)
                except OperatorError:
                    self._over.wait(1.0)
                    continue
                if node.sighting.over:
                    return
                self._over.wait(LOOK_S)
        finally:
            log.close()
            self.lines_lost += log.lost
            node.drained.set()

    def _line(self, node: Node, log: NodeLog, line: bytes) -> None:
        rank, text = log.write(line)
        decoded = line.decode("utf-8", "replace")
        node.lines.append(decoded[:CHARACTERS_KEPT])
        if rank is None and runlog.tells_failure(text):
            node.failed_at = node.failed_at or time.monotonic()
            pid = runlog.closing_pid(text)
            node.closing |= set() if pid is None else {pid}
        if rank is None and node.barrier.hides(text):
            return
        with self._told:
            progress = parse_progress(text) if rank == 0 else None
            if rank == 0 and (step := parse_resumed(text)) is not None:
                self.resumed_from_step = step
            if progress is not None:
                self._on_progress(progress)
            self._on_line(node.plan, rank, text)
