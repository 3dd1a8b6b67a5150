"""A run is ended and cleared from its labels alone, whatever they say."""

from __future__ import annotations

import json

import pytest

from orchestrate.clear import clear
from orchestrate.conclude import conclude
from orchestrate.engine import Container
from orchestrate.errors import CannotTell, UsageError
from orchestrate.find import Found, only
from orchestrate.inventory import Host

BEGAN = "2026-12-01T07:00:00Z"


class Engine:
    """One engine with what a run left on it."""

    def __init__(self, *containers, printed=b"", volume_of="0"):
        self.held = list(containers)
        self.printed = printed
        self.volume_of = volume_of
        self.left = {"volumes": ["muster-r"], "networks": ["muster-r"]}
        self.stopped = []

    def containers(self, run):
        return tuple(c for c in self.held if c.labels["muster.run"] == run)

    def stop(self, container, grace_s):
        self.stopped.append((container, grace_s))

    def logs(self, *_, **__):
        return iter([self.printed])

    def copy_out(self, container, path, to):
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(f"{container} {path}")

    def remove(self, container):
        self.held = [c for c in self.held if c.id != container]

    def networks(self, run):
        return tuple(self.left["networks"])

    def volumes(self, run):
        return {name: {"muster.run": run, "muster.node": self.volume_of} for name in self.left["volumes"]}

    def remove_network(self, name):
        self.left["networks"].remove(name)

    def remove_volume(self, name):
        self.left["volumes"].remove(name)


def container(node, status="running", exit_code=None, run="r", ranks="0-0", started=BEGAN):
    labels = {"muster.run": run, "muster.node": node, "muster.ranks": ranks}
    return Container(f"c{node}", f"muster-{run}-n{node}", labels, status, exit_code, started_at=started)


def found(name, engine, run="r"):
    return Found(Host(name, name), engine, engine.containers(run))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def end(*engines):
    warnings = []
    outcome = conclude("r", [found(f"h{n}", e) for n, e in enumerate(engines)], grace_s=7, warn=warnings.append)
    assert warnings == []
    return outcome


def test_a_run_that_goes_on_is_stopped_its_logs_kept_and_its_traces_removed(tmp_path):
    first = Engine(container("0"), printed=b"2026-12-01T07:00:01.000000000Z [rank0]:hello\n")
    second = Engine(
        container("1", ranks="1-2"), container("0", run="other"), printed=b"x [rank2]:no time\n", volume_of="1"
    )
    outcome = end(first, second)
    assert (outcome.state, outcome.exit_code) == ("stopped", 130)
    assert (first.stopped, second.stopped) == ([("c0", 7)], [("c1", 7)])
    assert [c.labels["muster.run"] for c in first.held + second.held] == ["other"]
    assert (first.left["volumes"], second.left["volumes"]) == (["muster-r"], [])  # checkpoints stay where they are
    assert (tmp_path / "runs/r/logs/node0/rank0.log").read_text() == "hello\n"
    assert (tmp_path / "runs/r/metrics.jsonl").read_text() == "c0 /run/muster/metrics.jsonl"
    assert json.loads((tmp_path / "runs/r/outcome.json").read_text())["state"] == "stopped"


def test_a_run_that_has_ended_is_finished():
    outcome = end(Engine(container("0", "exited", 0)), Engine(container("1", "exited", 0)))
    assert (outcome.state, outcome.exit_code) == ("finished", 0)


def test_a_failure_is_not_hidden_by_stopping_the_nodes_that_waited_for_it():
    outcome = end(Engine(container("0")), Engine(container("1", "exited", 137, ranks="1-1")))
    assert (outcome.state, outcome.first.node, outcome.first.signal) == ("failed", "h1", "SIGKILL")


@pytest.mark.parametrize("node", ["", "x", "²", "-1", "9" * 5000, "../.."])
@pytest.mark.parametrize("ranks", ["", "-", "²-³", "5-1", "9" * 5000, "0-" + "9" * 5000])
def test_labels_that_say_nothing_are_no_bug(node, ranks, tmp_path):
    end(Engine(container(node, ranks=ranks), printed=b"[rank1]:x\n"))
    assert [path.name for path in (tmp_path / "runs/r").iterdir() if path.is_dir()] == ["logs"]


@pytest.mark.parametrize(("node", "stays"), [("0", True), ("", True), ("1", False), ("17", False)])
def test_a_volume_that_may_hold_checkpoints_stays_whatever_containers_are_there(node, stays):
    engine = Engine(volume_of=node)
    clear(engine, "r")
    assert engine.left == {"volumes": ["muster-r"] if stays else [], "networks": []}


def test_a_run_that_no_host_holds_is_a_mistake_unless_a_host_did_not_answer():
    empty = found("a", Engine())
    with pytest.raises(UsageError, match="no host holds"):
        only([empty], "r")
    away = Found(Host("b", "b"), error=CannotTell("connection refused", where="b"))
    with pytest.raises(CannotTell, match="1 of 2 did not answer: connection refused"):
        only([empty, away], "r")
    holding = found("c", Engine(container("0")))
    assert only([empty, away, holding], "r") == [holding]
