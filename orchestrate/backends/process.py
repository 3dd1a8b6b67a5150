"""Nodes as plain processes of this machine: torchrun agents that need no engine.

They live as long as this program: one that dies takes its agents with it, and an agent takes its ranks. Ends only
processes that it started, by id.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate import plan as planning
from orchestrate.cut import cut
from orchestrate.errors import Refused
from orchestrate.outcome import Sighting
from trainer.contract import ENV_OUT, ENV_RUN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from orchestrate.plan import NodePlan, RunPlan
    from orchestrate.runs import RunFolder

_PR_SET_PDEATHSIG = 1
POLL_S = 0.1


class Processes:
    """The torchrun agents of one plan on this machine."""

    def __init__(self, plan: RunPlan, folder: RunFolder) -> None:
        self.plan = plan
        self._folder = folder.path
        self._agents: dict[int, subprocess.Popen[bytes]] = {}

    def _output(self, node: NodePlan) -> Path:
        return self._folder / "logs" / f"node{node.node}" / "output.log"

    def _environment(self, node: NodePlan) -> dict[str, str]:
        return planning.environment(self.plan, node, out=str(self._folder.resolve()))

    def claim(self) -> None:
        """Nothing to refuse: processes have no name that another run could hold."""

    def place(self) -> None:
        """Check that torchrun can run here, and make the folders."""
        # asking a child keeps torch out of this process
        asked = subprocess.run(
            [sys.executable, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"],
            check=False,
        )
        if asked.returncode != 0:
            raise Refused(
                "torch is not installed here, and plain processes use this Python's",
                where=sys.executable,
                next_step="in the checkout: pip install '.[train]'; or start a Docker Engine and use --on local",
            )
        for node in self.plan.nodes:
            self._output(node).parent.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start every agent from the calling thread (the kernel ties their lives to it)."""
        libc = ctypes.CDLL(None, use_errno=True)

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        for node in self.plan.nodes:
            argv = planning.torchrun_argv(self.plan, node, log_dir=str(self._folder / "torchrun" / f"node{node.node}"))
            with self._output(node).open("wb") as output:
                self._agents[node.node] = subprocess.Popen(
                    # -P: a trainer.py in the current folder is not ours
                    [sys.executable, "-P", "-m", "trainer.entry", sys.executable, "-m", "torch.distributed.run", *argv],
                    env={**os.environ, **self._environment(node)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,  # noqa: PLW1509 - it only calls prctl
                )

    def look(self, node: NodePlan) -> Sighting:
        """Return how an agent stands."""
        agent = self._agents.get(node.node)
        if agent is None:
            return Sighting(node.node, node.host, "created")
        code = agent.poll()
        if code is None:
            return Sighting(node.node, node.host, "running")
        return Sighting(node.node, node.host, "exited", code if code >= 0 else 128 - code)

    def follow(self, node: NodePlan, after: str) -> Iterator[tuple[str, bytes]]:
        """Yield the agent's lines; their time is where they end in its output, as twenty digits."""
        at = int(after or 0)
        for line, taken in cut(self._printed(node, at)):
            at += taken
            yield f"{at:020d}", line

    def _printed(self, node: NodePlan, at: int) -> Iterator[bytes]:
        agent = self._agents[node.node]
        with self._output(node).open("rb") as file:
            file.seek(at)
            while True:
                over = agent.poll() is not None
                chunk = file.read(1 << 16)
                if chunk:
                    yield chunk
                elif over:
                    return
                else:
                    time.sleep(POLL_S)

    def take(self, path: str, folder: Path) -> bool:
        """Tell whether a file is there: the run's out folder is the record itself."""
        return (folder / path).is_file()

    def out_place(self) -> str:
        """Return the run's folder."""
        return str(self._folder)

    def force(self, node: NodePlan, pids: Sequence[int]) -> None:
        """Send SIGKILL to those of the processes that are the agent's own."""
        _kill([child for child in _descendants(self._agents[node.node].pid) if child[0] in pids])

    def stop(self, grace_s: int) -> None:
        """Send SIGTERM to every agent (it ends its ranks), and SIGKILL to what is left of the run."""
        living = [agent for agent in self._agents.values() if agent.poll() is None]
        families = [child for agent in living for child in _descendants(agent.pid)]
        for agent in living:
            agent.terminate()
        deadline = time.monotonic() + grace_s
        for agent in self._agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.0, deadline - time.monotonic()))
        _kill(families)
        for agent in self._agents.values():
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        if self._agents:  # an agent that was killed left its ranks behind
            _kill(_marked(self._environment(self.plan.nodes[0])))

    def remove(self) -> list[str]:
        """End what still runs; files are the record of the run and stay."""
        self.stop(grace_s=2)
        return []

    def close(self) -> None:
        """Nothing is held open."""


def _started(pid: int) -> str | None:
    """Return when a process began, in the kernel's ticks: with the pid it names one process for ever."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def _kill(processes: Iterable[tuple[int, str | None]]) -> None:
    for pid, started in processes:
        if started is not None and _started(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(environment: Mapping[str, str]) -> list[tuple[int, str | None]]:
    """Return (pid, start) of every process that carries the run's name and folder in its environment, but this one."""
    marks = {f"{name}={environment[name]}".encode() for name in (ENV_RUN, ENV_OUT)}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            started = _started(int(entry.name))
            with contextlib.suppress(OSError):
                if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append((int(entry.name), started))
    return found


def _descendants(root: int) -> list[tuple[int, str | None]]:
    """Return (pid, start) of every process below `root`: agents give each rank a session of its own."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return [(pid, _started(pid)) for pid in found]
