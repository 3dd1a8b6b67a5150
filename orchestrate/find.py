"""Finds runs where they are: by the labels of containers on the hosts. Any machine that reaches the hosts sees the same.

A host that does not answer is unreachable, never failed; it hides nothing of the others.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate.errors import CannotTell, OperatorError, UsageError
from orchestrate.inventory import Host, read_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrate.engine import Container, Engine

ANSWER_S = 45.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one host holds of runs, or why it could not be asked."""

    host: Host
    engine: Engine | None = None
    containers: tuple[Container, ...] = ()
    traces: tuple[str, ...] = ()  # volumes and networks of the run that was asked for
    error: OperatorError | None = None


@contextmanager
def runs_on(target: str | None, run: str | None = None) -> Iterator[list[Found]]:
    """Yield what every host of a target holds of one run, or of all; the connections end with the context.

    Without a target: ./hosts.txt where there is one, else this machine's engine.
    """
    from orchestrate import engine
    from orchestrate.remote import connect, fan_out

    here = target in {None, "local"} and (target == "local" or not Path("hosts.txt").is_file())
    hosts = (Host("this machine", "localhost", local=True),) if here else read_target(target)
    held: list[Engine] = []
    shells = []

    def ask(host: Host) -> Found:
        shell = connect(host)
        shells.append(shell)
        one = engine.behind(shell)
        held.append(one)
        traces = (*one.volumes(run), *one.networks(run)) if run is not None else ()
        return Found(host, one, one.containers(run), traces)

    answers = fan_out(hosts, ask, deadline_s=ANSWER_S)
    try:
        yield [
            answer if isinstance(answer, Found) else Found(host, error=answer)
            for host, answer in zip(hosts, answers.values(), strict=True)
        ]
    finally:
        for one in held:
            one.close()
        for shell in shells:
            shell.close()


def only(found: list[Found], run: str) -> list[Found]:
    """Return the hosts that hold something of a run; raise when none does, and say whether that is certain."""
    holding = [f for f in found if f.containers]
    if holding:
        return holding
    away = [f for f in found if f.error is not None]
    if away and away[0].error is not None:
        raise CannotTell(
            f"no host that answers holds a container of {run}, and {len(away)} of {len(found)} did not answer: "
            f"{away[0].error.what}",
            where=away[0].host.name,
            next_step="try again when it answers; --hosts names other hosts",
        )
    raise UsageError(
        f"no host holds a container of the run {run}",
        where=", ".join(f.host.name for f in found[:5]) + (" ..." if len(found) > 5 else ""),
        next_step="`orchestrate status` lists the runs that are there; --hosts names other hosts",
    )
