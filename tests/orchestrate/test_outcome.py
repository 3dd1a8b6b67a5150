"""From how every node stood and what it printed to what became of the run, and who was first."""

from __future__ import annotations

import json

import pytest

from hostsetup.model import State
from hostsetup.runlog import RunLog, parse
from orchestrate.outcome import Outcome, Sighting, derive
from orchestrate.plan import NodePlan, RunPlan

PLAN = RunPlan(
    "r", "ssh", tuple(NodePlan(k, f"gpu0{k}", 2, 2 * k, f"10.0.0.{k}", "eth0") for k in range(3)), "10.0.0.0", 29500
)
RESET = "RuntimeError: [gloo/pair.cc:537] Read error [10.0.0.1]:7058: Connection reset by peer"


def log(*failures, words=(), agent=()):
    """Return a node's log: failures are (local rank, rank, exit code, time), its agent ends the ranks of `closed`."""
    lines = [*agent, *(f"[rank{rank}]:{text}" for rank, text in words)]
    for n, (local, rank, code, time, *closed) in enumerate(failures):
        if closed:
            lines.append(f"W Sending process {100 + rank} closing signal SIGTERM")
        if n == 0:
            lines.append(f"E failed (exitcode: {code}) local_rank: {local} (pid: {100 + rank}) of binary: python")
        lines += [f"  time      : {time}", f"  rank      : {rank} (local_rank: {local})"]
        lines += [f"  exitcode  : {code} (pid: {100 + rank})"]
    return parse(lines)


def seen(*states):
    """Return sightings of the nodes: an exit code, or a state."""
    return [
        Sighting(k, f"gpu0{k}", "exited", s) if isinstance(s, int) else Sighting(k, f"gpu0{k}", s)
        for k, s in enumerate(states)
    ]


T1, T2, T3 = "2026-12-01_07:05:01", "2026-12-01_07:05:02", "2026-12-01_07:05:03"
LOST_PEERS = log((0, 0, 1, T1), (1, 1, 1, T1), words=[(0, RESET), (1, RESET)])

TABLE = {
    "a rank that SIGKILL ended comes before peers that lost it, though their clock is ahead": (
        seen(1, 1, 1),
        {0: LOST_PEERS, 1: log((1, 3, -9, T3), (0, 2, -15, T3, "closed")), 2: RunLog()},
        ("gpu01", 3, 1, "SIGKILL", None, "run.rank.killed"),
    ),
    "an exception of a rank's own comes before peers that lost it": (
        seen(1, 1, 1),
        {0: LOST_PEERS, 2: log((0, 4, 1, T3), words=[(4, "ValueError: the loss is not finite")])},
        ("gpu02", 4, 0, None, 1, "run.rank.exception"),
    ),
    "an exit code comes before peers, whatever they died of after their agent ended them": (
        seen(1, "running", "running"),
        {0: log((1, 1, 3, T2), (0, 0, -9, T1, "closed"))},
        ("gpu00", 1, 1, None, 3, "run.rank.exception"),
    ),
    "a rank that NCCL's watchdog aborts since it lost a peer is no cause": (
        seen(1, 1, 0),
        {
            0: log((0, 0, -6, T1), words=[(0, "ncclRemoteError: remote process exited")]),
            1: log((0, 2, 1, T3), words=[(2, "KeyError: 'x'")]),
        },
        ("gpu01", 2, 0, None, 1, "run.rank.exception"),
    ),
    "of two ranks that signals ended the earlier is first": (
        seen(1, 1, 0),
        {0: log((0, 0, -11, T2)), 1: log((0, 2, -7, T1))},
        ("gpu01", 2, 0, "SIGBUS", None, "run.rank.bus_error"),
    ),
    "a SIGTERM that no agent sent is a cause": (
        seen(1, 0, 0),
        {0: log((1, 1, -15, T1), (0, 0, -15, T1, "closed"))},
        ("gpu00", 1, 1, "SIGTERM", None, "run.rank.terminated"),
    ),
    "a container that was killed as a whole comes before the peers that lost it": (
        seen(1, 137, 1),
        {0: LOST_PEERS, 1: log(agent=["starting"])},
        ("gpu01", None, None, "SIGKILL", None, "run.rank.killed"),
    ),
    "a container that somebody removed comes before the peers that lost it": (
        seen(1, "gone", 1),
        {0: LOST_PEERS},
        ("gpu01", None, None, None, None, "run.rank.killed"),
    ),
    "a host that nobody can see explains the peers that lost it": (
        seen(1, 1, "unreachable"),
        {0: LOST_PEERS},
        ("gpu02", None, None, None, None, "ssh.reachable"),
    ),
    "a host that nobody can see does not hide a rank that failed by itself": (
        seen(1, 1, "unreachable"),
        {0: log((0, 0, -9, T1))},
        ("gpu00", 0, 0, "SIGKILL", None, "run.rank.killed"),
    ),
    "one agent that was sent SIGTERM was terminated, and no rank is blamed": (
        seen(1, "running", "running"),
        {0: log(agent=["W Received 15 death signal, shutting down workers"])},
        ("gpu00", None, None, "SIGTERM", None, "run.rank.terminated"),
    ),
    "an occupied port of the master": (
        seen(1, "running", "running"),
        {0: log(agent=["torch.distributed.DistNetworkError: ... code: -98, name: EADDRINUSE"])},
        ("gpu00", None, None, None, 1, "net.ports"),
    ),
    "a port that a rank itself wanted": (
        seen(1, 0, 0),
        {0: log((0, 0, 1, T1), words=[(0, "OSError: [Errno 98] Address already in use")])},
        ("gpu00", 0, 0, None, 1, "net.ports"),
    ),
    "a port in use that another rank spoke of is no cause": (
        seen(1, 0, 0),
        {0: log((0, 0, 1, T1), words=[(1, "tensorboard: Address already in use"), (0, "KeyError: 1")])},
        ("gpu00", 0, 0, None, 1, "run.rank.exception"),
    ),
    "an agent that found no master": (
        seen("running", 1, "running"),
        {1: log(agent=["torch.distributed.DistNetworkError: The client socket has timed out after 600000ms"])},
        ("gpu01", None, None, None, 1, "run.rendezvous.timeout"),
    ),
    "CUDA out of memory": (
        seen(1, 1, 1),
        {1: log((0, 2, 1, T1), words=[(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")])},
        ("gpu01", 2, 0, None, 1, "run.rank.oom"),
    ),
    "peers that lost one whose end nobody saw": (
        seen(1, 0, 0),
        {0: LOST_PEERS},
        ("gpu00", 0, 0, None, 1, "run.peer_closed"),
    ),
    "an agent that ends with a code and says nothing": (
        seen(0, 2, 0),
        {},
        ("gpu01", None, None, None, 2, "run.rank.exception"),
    ),
}


@pytest.mark.parametrize("claim", TABLE)
def test_the_first_failure_is(claim):
    sightings, logs, (node, rank, local, signal, code, finding) = TABLE[claim]
    outcome = derive(PLAN, sightings, logs, detected_after_s=0.7)
    first = outcome.first
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert (first.node, first.rank, first.local_rank, first.signal, first.exit_code, first.finding) == (
        node, rank, local, signal, code, finding,
    )  # fmt: skip
    (told,) = outcome.findings
    assert (told.check, told.state, told.hosts) == (finding, State.FAIL, (node,))
    assert told.remedy.text
    assert outcome.attempts == (
        {"n": 1, "hosts": ["gpu00", "gpu01", "gpu02"], "state": "failed", "detected_after_s": 0.7},
    )


def test_the_out_of_memory_killer_is_named_after_the_ranks_last_words():
    sightings = [Sighting(0, "gpu00", "exited", 1, oom_killed=True), *seen(0, 0, 0)[1:]]
    first = derive(PLAN, sightings, {0: log((1, 1, -9, T1), words=[(1, "epoch 1")])}).first
    assert (first.rank, first.signal) == (1, "SIGKILL")
    assert first.last_words[0] == "epoch 1"
    assert "out-of-memory" in first.last_words[1]


@pytest.mark.parametrize(
    ("sightings", "stopped", "state", "code"),
    [
        (seen(0, 0, 0), False, "finished", 0),
        (seen(0, 1, 0), False, "failed", 1),
        (seen(0, "gone", 0), False, "failed", 1),
        (seen(143, 137, "running"), True, "stopped", 130),
        (seen(0, 0, "unreachable"), False, "lost", 3),
        (seen("unreachable", "unreachable", "unreachable"), False, "lost", 3),
        (seen("unreachable", 0, 0), True, "stopped", 130),
    ],
)
def test_the_state_and_the_exit_code_follow_from_the_sightings(sightings, stopped, state, code):
    outcome = derive(PLAN, sightings, {}, stopped=stopped)
    assert (outcome.state, outcome.exit_code) == (state, code)


def test_a_lost_run_names_the_host_that_is_out_of_reach_and_is_never_failed():
    sightings = [*seen(0, 0)[:2], Sighting(2, "gpu02", "unreachable", detail="no answer for 16 s")]
    first = derive(PLAN, sightings, {}).first
    assert (first.node, first.finding, first.last_words) == ("gpu02", "ssh.reachable", ("no answer for 16 s",))


def test_an_outcome_is_the_json_of_the_contract():
    told = json.loads(json.dumps(derive(PLAN, *TABLE["CUDA out of memory"][:2]).as_json()))
    assert set(told) == {
        "schema", "run", "state", "exit_code", "first", "findings", "attempts", "resumed_from_step", "error"
    }  # fmt: skip
    assert set(told["first"]) == {"node", "rank", "local_rank", "signal", "exit_code", "finding", "last_words"}
    assert told["schema"] == "muster.outcome/1"
    assert told["findings"][0]["state"] == "fail"
    assert Outcome("r", "finished", 0).as_json()["first"] is None


def test_a_run_whose_agents_were_all_asked_to_end_was_stopped_by_somebody():
    asked = dict.fromkeys(range(3), log(agent=["W Received 15 death signal, shutting down workers"]))
    outcome = derive(PLAN, seen(1, 1, 1), asked)
    assert (outcome.state, outcome.exit_code, outcome.first) == ("stopped", 130, None)


def test_a_failure_before_the_others_were_asked_to_end_is_no_stop():
    asked = {
        0: log((0, 0, 1, T1)),
        **dict.fromkeys((1, 2), log(agent=["W Received 15 death signal, shutting down workers"])),
    }
    assert derive(PLAN, seen(1, 1, 1), asked).state == "failed"
