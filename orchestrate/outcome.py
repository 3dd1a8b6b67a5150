"""What became of a run, derived from sightings of its nodes and from what they printed. Pure.

An ordered list of rules names the first failure: a host that is gone, then a rank that a signal ended, then one that
raised on its own account, and last those that only lost a peer. Refuses to call an unreachable host failed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Finding, Remedy, State
from hostsetup.runlog import RunLog, signal_name
from orchestrate.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostsetup.runlog import RankFailure
    from orchestrate.plan import NodePlan, RunPlan

SCHEMA = "muster.outcome/1"

_BY_SIGNAL = {
    "SIGKILL": "run.rank.killed",
    "SIGTERM": "run.rank.terminated",
    "SIGHUP": "run.rank.hangup",
    "SIGBUS": "run.rank.bus_error",
}


@dataclass(frozen=True, slots=True)
class Sighting:
    """How one node stood when it was looked at. `state`: created, running, exited, gone or unreachable."""

    node: int
    host: str
    state: str
    exit_code: int | None = None
    oom_killed: bool = False
    detail: str = ""

    @property
    def over(self) -> bool:
        """Whether the node has ended (an unreachable one has not, as far as anyone knows)."""
        return self.state in {"exited", "gone"}


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first thing that went wrong: where, which rank, how, and what it said last."""

    node: str
    rank: int | None
    local_rank: int | None
    signal: str | None
    exit_code: int | None
    finding: str
    last_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run. `state`: finished, failed, stalled, stopped, lost or refused."""

    run: str
    state: str
    exit_code: int
    first: FirstFailure | None = None
    findings: tuple[Finding, ...] = ()
    attempts: tuple[Mapping[str, Any], ...] = ()
    resumed_from_step: int | None = None
    error: Mapping[str, str] | None = None  # what, where and next of a run that was refused

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as outcome.json holds it."""
        raw = asdict(self)
        raw["findings"] = [asdict(f) | {"state": f.state.value} for f in self.findings]
        return {"schema": SCHEMA, **raw}


def derive(
    plan: RunPlan,
    sightings: Sequence[Sighting],
    logs: Mapping[int, RunLog],
    *,
    stopped: bool = False,
    detected_after_s: float | None = None,
    resumed_from_step: int | None = None,
) -> Outcome:
    """Return the outcome of a run from the last sighting and the log of every node.

    `stopped`: a person asked for the end. `detected_after_s`: seconds from the first node's end to its being noticed.
    """
    state, code = _state(sightings, stopped=stopped or _stopped_elsewhere(sightings, logs))
    first = _first(plan, sightings, logs) if state == "failed" else None
    if state == "lost":
        first = _lost(sightings)
    attempt = {
        "n": plan.attempt,
        "hosts": [node.host for node in plan.nodes],
        "state": state,
        "detected_after_s": detected_after_s,
    }
    findings = (_finding(first, plan),) if first else ()
    return Outcome(plan.run, state, int(code), first, findings, (attempt,), resumed_from_step)


def _stopped_elsewhere(sightings: Sequence[Sighting], logs: Mapping[int, RunLog]) -> bool:
    """Tell whether every agent was asked to end, and no rank had failed before: `stop`, or the hosts' shutdown."""
    ended = [logs.get(s.node, RunLog()) for s in sightings if s.state == "exited" and s.exit_code != 0]
    return len(ended) == len(sightings) > 0 and all(
        log.agent_signal == "SIGTERM" and all(failure.closed for failure in log.failures) for log in ended
    )


def _state(sightings: Sequence[Sighting], *, stopped: bool) -> tuple[str, Exit]:
    if any(s.state == "exited" and s.exit_code != 0 for s in sightings) and not stopped:
        return "failed", Exit.NO
    if any(s.state == "gone" for s in sightings) and not stopped:
        return "failed", Exit.NO
    if stopped:
        return "stopped", Exit.INTERRUPTED
    if all(s.state == "exited" for s in sightings):
        return "finished", Exit.YES
    return "lost", Exit.CANNOT_TELL


def _lost(sightings: Sequence[Sighting]) -> FirstFailure:
    away = next((s for s in sightings if s.state == "unreachable"), sightings[0])
    return FirstFailure(away.host, None, None, None, None, "ssh.reachable", (away.detail,) if away.detail else ())


def _first(plan: RunPlan, sightings: Sequence[Sighting], logs: Mapping[int, RunLog]) -> FirstFailure:
    """Return the first failure: the first rule that fits, and within it the node that comes first."""
    by_node = {node.node: node for node in plan.nodes}
    ended = [s for s in sightings if s.over and (s.state == "gone" or s.exit_code != 0)]
    ranked = sorted(
        (
            (_weight(failure, logs[s.node], by_node[s.node]), failure.time, s.node, failure.order, failure)
            for s in ended
            for failure in logs.get(s.node, RunLog()).failures
        ),
        key=lambda row: row[:4],
    )
    # A host that nobody can see any more explains every rank that lost its peer.
    away = [s for s in sightings if s.state == "unreachable"]
    if away and (not ranked or ranked[0][0] >= 2):
        return _lost(away)
    # A node that went away or was ended as a whole explains every rank that lost its peer.
    whole = next((s for s in ended if _killed_whole(s, logs.get(s.node, RunLog()))), None)
    if whole is not None and (not ranked or ranked[0][0] >= 2):
        return _whole_node(whole, logs.get(whole.node, RunLog()))
    if ranked:
        _, _, node, _, failure = ranked[0]
        return _rank(by_node[node], failure, logs[node], oom=_sighting(ended, node).oom_killed)
    return _whole_node(ended[0], logs.get(ended[0].node, RunLog()))


def _weight(failure: RankFailure, log: RunLog, node: NodePlan) -> int:
    """Return how good a first cause a failure is: 0 is best."""
    rank = _global(failure, node)
    if failure.closed:
        return 3  # its agent was ending it: a victim, whatever it died of
    if log.peer_closed(rank):
        return 0 if failure.signal == "SIGKILL" else 2  # NCCL's watchdog aborts a rank that lost its peer
    return 0 if failure.signal is not None else 1


def _global(failure: RankFailure, node: NodePlan) -> int:
    return node.first_rank + failure.local_rank if failure.rank is None else failure.rank


def _sighting(sightings: Sequence[Sighting], node: int) -> Sighting:
    return next(s for s in sightings if s.node == node)


def _killed_whole(sighting: Sighting, log: RunLog) -> bool:
    if sighting.state == "gone" or sighting.oom_killed:
        return True
    if any(not failure.closed for failure in log.failures):
        return False
    return log.agent_signal is not None or (
        sighting.exit_code is not None and signal_name(sighting.exit_code) == "SIGKILL"
    )


def _rank(node: NodePlan, failure: RankFailure, log: RunLog, *, oom: bool) -> FirstFailure:
    rank = _global(failure, node)
    words = log.last_words.get(rank, ())
    if oom:
        words = (*words, "the kernel's out-of-memory killer ended a process of this container")
    return FirstFailure(
        node.host, rank, failure.local_rank, failure.signal, failure.exit_code, _finding_id(failure, rank, log), words
    )


def _finding_id(failure: RankFailure, rank: int, log: RunLog) -> str:
    if failure.signal is not None:
        return _BY_SIGNAL.get(failure.signal, "run.rank.exception")
    if log.out_of_memory(rank):
        return "run.rank.oom"
    if log.port_taken(rank):
        return "net.ports"
    if log.peer_closed(rank):
        return "run.peer_closed"
    return "run.rank.exception"


def _whole_node(sighting: Sighting, log: RunLog) -> FirstFailure:
    """Return the failure of an agent or container as a whole, with no rank to blame."""
    code = sighting.exit_code
    name = log.agent_signal or (signal_name(code) if code is not None else None)
    if sighting.state == "gone":
        finding = "run.rank.killed"
    elif log.port_in_use:
        finding = "net.ports"
    elif log.timed_out:
        finding = "run.rendezvous.timeout"
    else:
        finding = _BY_SIGNAL.get(name or "", "run.rank.exception")
    words = (sighting.detail,) if sighting.detail else ()
    return FirstFailure(sighting.host, None, None, name, None if name else code, finding, log.agent_words or words)


_NEXT = {
    "run.rank.killed": "look for the out-of-memory killer: `dmesg -T | grep -i -E 'killed process|oom'` on that host",
    "run.rank.terminated": "something sent SIGTERM to the rank: look at what else runs on that host",
    "run.rank.hangup": "the terminal or session that held the process closed: launch with --detach",
    "run.rank.bus_error": "shared memory or a memory-mapped file ran out: check `df /dev/shm` and the data's disk",
    "run.rank.exception": "read the rank's log: the traceback ends in the last words above",
    "run.rank.oom": "lower the micro-batch (--set micro_batch=...), or use more ranks",
    "run.peer_closed": "a peer went away first: read the other nodes' logs",
    "run.rendezvous.timeout": "check that every node reaches the master's address and port through the firewalls",
    "net.ports": "launch again: a free port is looked for each time; or name one with --master-port",
    "ssh.reachable": "the run may still be going there: `orchestrate status` when the host answers, then `stop`",
}


def _next(first: FirstFailure) -> str:
    if first.rank is None and first.exit_code in {126, 127}:
        return "the image cannot run torchrun: use one of `orchestrate build`, or one that has torchrun on its PATH"
    if first.rank is None and first.finding == "run.rank.killed":
        return (
            "somebody removed or killed the container, or the kernel did: `docker events` and `dmesg -T` on that host"
        )
    if first.rank is None and first.finding == "run.rank.exception":
        return "read agent.log of that node: no rank began, the last words above are torchrun's"
    return _NEXT.get(first.finding, "read the rank's log")


def _finding(first: FirstFailure, plan: RunPlan) -> Finding:
    who = "the node" if first.rank is None else f"rank {first.rank} (local rank {first.local_rank})"
    how = first.signal or ("out of reach" if first.exit_code is None else f"exit code {first.exit_code}")
    return Finding(
        state=State.FAIL,
        check=first.finding,
        scope="host",
        hosts=(first.node,),
        subject=who,
        saw=f"{who} on {first.node} ended first: {how}",
        wanted=f"all {plan.world_size} ranks end with exit code 0",
        remedy=Remedy(_next(first)),
        evidence=first.last_words,
    )
