"""A run is followed until it is over, whatever single hosts do meanwhile."""

from __future__ import annotations

import threading
import time

import pytest

from orchestrate import launch, watch
from orchestrate.errors import CannotTell
from orchestrate.outcome import Sighting
from orchestrate.plan import NodePlan, RunPlan
from orchestrate.runs import RunFolder

PLAN = RunPlan("r", "ssh", tuple(NodePlan(k, f"h{k}", 1, k, f"10.0.0.{k}", "e") for k in range(2)), "10.0.0.0", 20000)
STEP = b"[rank0]:step 1/2  loss 3.0000  lr 1.000e-03  5.0 samples/s"


class Backend:
    """Nodes whose states and lines the test sets."""

    def __init__(self):
        self.state = {0: ("running", None), 1: ("running", None)}
        self.lines = {0: [], 1: []}
        self.broken = set()
        self.forced = []

    def look(self, node):
        state, code = self.state[node.node]
        return Sighting(node.node, node.host, state, code)

    def follow(self, node, after):
        at = int(after or 0)
        while self.state[node.node][0] == "running" or at < len(self.lines[node.node]):
            if node.node in self.broken:
                self.broken.discard(node.node)
                raise CannotTell("connection lost")
            if at < len(self.lines[node.node]):
                at += 1
                yield str(at), self.lines[node.node][at - 1]
            else:
                time.sleep(0.01)

    def force(self, node, pids):
        self.forced.append((node.node, list(pids)))
        self.state[node.node] = ("exited", 1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    monkeypatch.setattr(watch, "GRACE_S", 0.3)
    monkeypatch.setattr(watch, "BLIND_S", 0.3)
    monkeypatch.setattr(watch, "FORCE_S", 1.0)


@pytest.fixture
def begun(tmp_path):
    backend, told = Backend(), []
    one = watch.Watch(
        backend, PLAN, RunFolder("r", tmp_path),
        on_line=lambda node, rank, text: told.append((node.node, rank, text)), on_progress=told.append,
    )  # fmt: skip
    one.begin()
    yield backend, one, told
    backend.state = dict.fromkeys(backend.state, ("exited", 0))
    one.drain()


def after(delay_s, work):
    threading.Timer(delay_s, work).start()


def test_a_run_whose_nodes_all_end_is_over_and_all_lines_were_told(begun, tmp_path):
    backend, one, told = begun
    backend.lines = {0: [STEP, b"[rank0]:a\xff"], 1: [b"agent", b"[rank1]:b", b"[rank0]:not mine"]}
    after(0.2, lambda: backend.state.update({0: ("exited", 0), 1: ("exited", 0)}))
    assert one.wait() is None
    logs = one.drain()
    assert one.failed == frozenset()
    assert {(0, 0, "a\ufffd"), (1, None, "agent"), (1, 1, "b"), (1, None, "[rank0]:not mine")} <= set(told[:0] + [t for t in told if isinstance(t, tuple)])  # fmt: skip
    assert [t.loss for t in told if not isinstance(t, tuple)] == [3.0]
    assert logs[1].last_words[1] == ("b",)
    assert (tmp_path / "r/logs/node0/rank0.log").read_bytes().endswith(b"a\xff\n")


def test_a_connection_that_breaks_repeats_no_line_and_loses_none(begun):
    backend, one, told = begun
    backend.lines[0] = [b"[rank0]:1", b"[rank0]:2"]
    time.sleep(0.2)
    backend.broken.add(0)
    backend.lines[0] += [b"[rank0]:3"]
    time.sleep(1.5)
    backend.state = dict.fromkeys(backend.state, ("exited", 0))
    one.wait()
    one.drain()
    assert [text for node, _, text in told if node == 0] == ["1", "2", "3"]


def test_a_failure_ends_the_wait_though_the_other_node_runs_on(begun):
    backend, one, _ = begun
    backend.state[1] = ("exited", 3)
    begin = time.monotonic()
    assert 0 <= one.wait() < 1
    assert time.monotonic() - begin < 2
    assert one.failed == {1}
    assert [s.state for s in one.sightings()] == ["running", "exited"]


def test_an_agent_that_waits_for_a_stubborn_rank_is_helped_and_names_the_process(begun):
    backend, one, _ = begun
    backend.lines[1] = [b"W Sending process 77 closing signal SIGTERM", b"W Sending process 78 closing signal SIGTERM"]
    one.wait()
    one.force()
    assert backend.forced == [(1, [77, 78])]
    assert one.failed == {1}


def test_a_rank_that_prints_what_an_agent_would_makes_no_failure(begun):
    backend, one, _ = begun
    backend.lines[0] = [b"[rank0]:failed (exitcode: 1) local_rank: 0 (pid: 1)", b"[rank0]:Sending process 1 closing signal SIGTERM"]  # fmt: skip
    time.sleep(0.2)
    assert one.failed == frozenset()
    one.force()
    assert backend.forced == []


def test_a_host_out_of_reach_does_not_end_a_run_that_others_see(begun):
    backend, one, _ = begun
    backend.state[1] = ("unreachable", None)
    after(1.0, lambda: backend.state.update({1: ("exited", 0), 0: ("exited", 0)}))
    time.sleep(0.6)
    assert [s.state for s in one.sightings()] == ["running", "unreachable"]
    assert one.wait(lost_after_s=0.1) is None
    assert [s.state for s in one.sightings()] == ["exited", "exited"]


def test_a_run_that_nobody_sees_any_more_is_given_up(begun):
    backend, one, _ = begun
    backend.state = {0: ("exited", 0), 1: ("unreachable", None)}
    begin = time.monotonic()
    assert one.wait(lost_after_s=0.3) is None
    assert time.monotonic() - begin < 3
    assert [s.state for s in one.sightings()] == ["exited", "unreachable"]


def test_a_node_that_was_well_until_we_stopped_it_is_not_blamed():
    backend = Backend()
    backend.state = {0: ("exited", 1), 1: ("exited", 137)}
    before = [Sighting(0, "h0", "running"), Sighting(1, "h1", "running")]
    assert [s.state for s in launch._settled(backend, PLAN, before, {0})] == ["exited", "running"]


def test_a_line_of_megabytes_is_told_whole_and_kept_short(begun):
    backend, one, told = begun
    backend.lines[0] = [b"[rank0]:" + b"x" * 3_000_000]
    time.sleep(0.3)
    assert [len(text) for node, _, text in told if node == 0] == [3_000_000]
    assert sum(map(len, one.nodes[0].lines)) <= watch.CHARACTERS_KEPT


def test_a_bug_in_following_a_node_is_raised_and_not_taken_for_a_quiet_end(begun):
    backend, one, _ = begun

    def broken(*_):
        raise TypeError("a bug")

    one._on_line = broken
    backend.lines[0] = [b"[rank0]:1"]
    with pytest.raises(TypeError, match="a bug"):
        one.wait()


def test_output_that_is_long_in_coming_is_read_to_its_end(begun, monkeypatch):
    backend, one, told = begun
    backend.lines[0] = [b"[rank0]:%d" % n for n in range(400)]
    slow = one._on_line
    one._on_line = lambda *words: (time.sleep(0.005), slow(*words))
    backend.state = dict.fromkeys(backend.state, ("exited", 0))
    one.wait()
    logs = one.drain(limit_s=0.5)  # two seconds of lines, none of which is half a second late
    assert logs[0].last_words[0][-1] == "399"
    assert one.cut_short == []
    assert len(told) == 400
