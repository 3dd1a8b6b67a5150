"""Earlier runs have left containers or shared memory behind.

What it means
    Containers of runs that this tool started have ended and are still there, or segments that NCCL and PyTorch made lie
    in /dev/shm although nobody of that name runs.

Why it matters to training
    Segments take memory that the next run needs, up to `Bus error` or `No space left on device` in the middle of it.
    Containers hold their names, their logs and their disk.

How we tell
    By the label `muster.run` that every container of ours has, asked of the engine as the launcher does (as the user, or
    by `sudo -n`). Containers that run belong to a run that goes on: they are told, and while one runs /dev/shm is taken
    to be its. Segments count when they are older than ten minutes: NCCL removes its own as soon as all ranks have opened
    them. PyTorch puts a process number into the name; while that process lives, the segment is in use. In a container
    that number may mean another process. Nothing is removed here.

What to do
    `orchestrate stop RUN` ends a run and clears what it left; `docker rm ID` removes one container. Look at `fuser -v` of
    a segment before you remove it.

How to undo
    What was removed is gone; logs that were fetched stay in runs/.

Sources
    https://docs.docker.com/reference/cli/docker/container/ls/
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    https://docs.pytorch.org/docs/stable/multiprocessing.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.leftovers import Container, Leftovers, Segment

ID = "os.leftovers"
SOURCE = "https://docs.docker.com/reference/cli/docker/container/ls/"

_SHOWN = 5
_MB = 10**6


def judge(leftovers: Leftovers) -> Iterator[Finding]:
    """Warn of what nobody uses any more."""
    live = [one for one in leftovers.containers if one.live]
    dead = [one for one in leftovers.containers if not one.live]
    stale = [one for one in leftovers.segments if not one.alive and not live]
    if live:
        runs = sorted({one.run for one in live})
        saw = f"{len(live)} containers of a run that goes on: {', '.join(runs[:_SHOWN])}"
        yield Finding(State.INFO, saw=saw, subject="running", evidence=tuple(map(_line, live[:_SHOWN])))
    if dead:
        yield _containers(dead)
    if stale:
        yield _segments(stale)
    if not leftovers.engine:
        yield Finding(State.UNKNOWN, saw="the engine did not say which containers there are", subject="containers")
    elif not (live or dead or stale):
        yield Finding(State.PASS, saw="nothing is left of earlier runs")


def _containers(dead: list[Container]) -> Finding:
    runs = sorted({one.run for one in dead})
    return Finding(
        State.WARN,
        saw=f"{len(dead)} containers of ended runs: {', '.join(runs[:_SHOWN])}",
        wanted="no containers of runs that have ended",
        subject="containers",
        remedy=Remedy(
            "Fetch their logs if you still need them, then remove them.",
            (f"docker rm {shlex.join(one.id[:12] for one in dead[:50])}",),
        ),
        evidence=tuple(map(_line, dead[:_SHOWN])),
    )


def _segments(stale: list[Segment]) -> Finding:
    size = sum(one.size for one in stale)
    users = ", ".join(str(uid) for uid in sorted({one.uid for one in stale})[:_SHOWN])
    paths = shlex.join(one.path for one in stale[:20])
    return Finding(
        State.WARN,
        saw=f"{len(stale)} old segments in /dev/shm, {size / _MB:.0f} MB, of uid {users}",
        wanted="no segments of processes that are gone",
        subject="/dev/shm",  # noqa: S108 - a place to look at
        remedy=Remedy(
            "See whether anybody has them open; remove those that nobody has.",
            (f"sudo fuser -v {paths}",),
            needs_root=True,
        ),
        evidence=tuple(f"leftovers: {one.path} {one.size} bytes, uid {one.uid}" for one in stale[:_SHOWN]),
    )


def _line(container: Container) -> str:
    return f"leftovers: {container.id[:12]} {container.state} {container.run} {container.name}"
