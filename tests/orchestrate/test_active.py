"""The session of load tests against engines that are not there: what is told of each trouble, and what is left."""

import json
import signal
import threading

import pytest

from hostsetup.facts import active as facts
from hostsetup.model import Evidence, Reply
from orchestrate import active, loads, survey
from orchestrate import engine as engines
from orchestrate.engine import Container
from orchestrate.errors import CannotTell
from orchestrate.inventory import Host
from orchestrate.plan import NodeFacts
from orchestrate.shell import Completed

GOOD = b'2026-01-01T00:00:00.0Z {"schema": "muster.active/1", "test": "all_reduce.host", "value": 1.5, "unit": "GB/s", "verified": true, "error": "", "backend": "gloo", "ranks": 2}\n'
PAIR = GOOD.replace(b"all_reduce.host", b"all_reduce.pair")


class Engine:
    """Containers in a dictionary; `prints` and `exit_code` are what each of them does."""

    def __init__(self, image="sha256:1", prints=GOOD, exit_code=0, hangs=False):
        self.image, self.prints, self.exit_code, self.hangs = image, prints, exit_code, hangs
        self.there = {}
        self.made = []
        self.gone = threading.Event()

    def image_id(self, _ref):
        return self.image

    def create(self, spec):
        self.there[spec.name] = spec
        self.made.append(spec)
        return spec.name

    def start(self, _container):
        pass

    def logs(self, container, **_):
        if self.hangs:
            assert self.gone.wait(20)
            return
        pair = any("ranks" in word for word in self.there[container].argv)
        yield PAIR if pair and self.prints is GOOD else self.prints

    def look(self, container):
        return Container(container, container, {}, "exited", self.exit_code) if container in self.there else None

    def containers(self, _run):
        return [Container(name, name, {}, "exited", 0) for name in self.there]

    def networks(self, _run):
        return ()

    def volumes(self, _run):
        return {}

    def remove(self, container):
        self.there.pop(container, None)
        self.gone.set()

    def close(self):
        pass


class Shell:
    def __init__(self, host, users=b""):
        self.host, self.users = host, users

    def run(self, command, **_):
        if self.users is None:
            return Completed(9, b"", b"NVIDIA-SMI has failed")
        return Completed(0, self.users if "compute-apps" in command else b"", b"")

    def close(self):
        pass


@pytest.fixture
def measured(monkeypatch):
    """Run the tests on hosts with these engines (or the error that stands for one)."""

    def measure(fleet, *, gpus=(), users=b"", found=None, **options):
        def behind(shell, **_):
            if isinstance(fleet[shell.host.name], Exception):
                raise fleet[shell.host.name]
            return fleet[shell.host.name]

        monkeypatch.setattr("orchestrate.remote.connect", lambda host: Shell(host, users))
        monkeypatch.setattr(engines, "behind", behind)
        monkeypatch.setattr(survey, "gpus", lambda _shell: gpus)
        monkeypatch.setattr(survey, "rdma_devices", lambda _shell: ())
        monkeypatch.setattr(survey, "port_on", lambda *_: 20000)
        routes = {name: NodeFacts(f"10.0.0.{at}", "eth0") for at, name in enumerate(fleet, 1)}
        monkeypatch.setattr(survey, "routes", lambda *_: routes)
        hosts = [Host(name, name) for name in fleet]
        told = active.measure(hosts, found or [Evidence(name, {}) for name in fleet], **options)
        return {one.host: one.replies["active"].text for one in told}

    return measure


def results(text):
    return facts.parse_active(text).results


def test_every_host_is_tested_alone_and_each_pair_of_neighbours_once_and_all_is_removed(measured):
    fleet = {f"gpu0{at}": Engine() for at in range(3)}
    told = measured(fleet)
    for text in told.values():
        assert [one.test for one in results(text)] == ["all_reduce.host", "all_reduce.pair", "all_reduce.pair"]
    assert len({spec.labels["muster.run"] for engine in fleet.values() for spec in engine.made}) == 1
    assert [engine.there for engine in fleet.values()] == [{}, {}, {}]


def test_a_host_without_an_engine_or_image_is_told_and_the_others_are_tested(measured):
    no_engine = CannotTell("Docker is not installed", where="gpu01", next_step="install Docker Engine on that host")
    told = measured({"gpu01": no_engine, "gpu02": Engine(image=None), "gpu03": Engine()})
    (first,) = results(told["gpu01"])
    assert (first.kind, first.error, first.next) == (
        "setup",
        "Docker is not installed",
        "install Docker Engine on that host",
    )
    (second,) = results(told["gpu02"])
    assert "muster:cpu is not on the host" in second.error
    assert "orchestrate build" in second.next
    assert [one.test for one in results(told["gpu03"])] == ["all_reduce.host"]


def test_gpus_that_something_uses_are_left_alone_unless_told_otherwise(measured):
    users = b"4321, 70000 MiB, python3\nnonsense\n"
    engine = Engine()
    (only,) = results(measured({"gpu01": engine}, gpus=("GPU-a",), users=users)["gpu01"])
    assert (only.kind, engine.made) == ("busy", [])
    assert "python3 (process 4321)" in only.error
    told = measured({"gpu01": engine}, gpus=("GPU-a",), users=users, busy_gpus=True)
    assert results(told["gpu01"])[0].verified
    assert "--busy-gpus" in engine.made[0].argv
    assert engine.made[0].image == "sha256:1"


def test_gpus_of_which_nobody_says_whether_they_are_used_are_left_alone(measured):
    engine = Engine()
    (only,) = results(measured({"gpu01": engine}, gpus=("GPU-a",), users=None)["gpu01"])
    assert (only.kind, engine.made) == ("setup", [])
    assert "does not say" in only.error
    assert results(measured({"gpu01": engine}, gpus=("GPU-a",), users=None, busy_gpus=True)["gpu01"])[0].verified


def test_every_host_is_done_whether_or_not_it_could_be_tested(measured):
    told = []
    measured({"gpu01": Engine(image=None), "gpu02": Engine()}, done=told.append)
    assert sorted(told) == ["gpu01", "gpu02"]


def test_a_hangup_that_was_to_be_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with active._ended_by_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_container_that_does_not_end_is_removed_and_told(measured, monkeypatch):
    monkeypatch.setattr(loads, "WITHIN_S", 0.2)
    monkeypatch.setattr(active, "GRACE_S", 0.1)
    engine = Engine(hangs=True)
    (only,) = results(measured({"gpu01": engine})["gpu01"])
    assert only.kind == "timeout"
    assert engine.there == {}


def test_an_image_without_the_tests_is_no_fault_of_the_host(measured):
    words = b"2026-01-01T00:00:00.0Z /opt/venv/bin/python: No module named trainer.active\n"
    (only,) = results(measured({"gpu01": Engine(prints=words, exit_code=1)})["gpu01"])
    assert only.kind == "setup"
    assert "No module named trainer.active" in only.error


def test_a_rank_that_dies_in_a_test_of_two_hosts_is_a_crash(measured):
    words = b"2026-01-01T00:00:00.0Z [rank0]:active: begins all_reduce.pair\n"
    told = measured({"gpu01": Engine(prints=words, exit_code=1), "gpu02": Engine()})
    crashed = [one for one in results(told["gpu01"]) if one.kind == "crashed"]
    assert [one.hosts for one in crashed] == [("gpu01", "gpu02")]


def test_hosts_with_different_images_are_tested_alone_only(measured):
    told = measured({"gpu01": Engine(), "gpu02": Engine(image="sha256:2")})
    assert [one.test for one in results(told["gpu02"])] == ["all_reduce.host"]
    assert "different images" in results(told["gpu01"])[1].error


def test_a_host_that_the_audit_did_not_reach_is_not_tried(measured):
    away = Reply(json.dumps({"outcome": "timeout", "detail": "no answer"}).encode())
    fleet = {"gpu01": AssertionError("it was tried"), "gpu02": Engine()}
    told = measured(fleet, found=[Evidence("gpu01", {"ssh": away}), Evidence("gpu02", {})])
    assert told["gpu01"] == ""


def test_an_interrupt_removes_what_runs(measured):
    engine = Engine()

    def interrupt(_container):
        raise KeyboardInterrupt

    engine.start = interrupt
    with pytest.raises(KeyboardInterrupt):
        measured({"gpu01": engine})
    assert engine.made
    assert engine.there == {}


def test_talk_without_end_is_cut_and_no_result_is_lost():
    kept = active._Kept()
    for _ in range(50):
        kept.take(b"NCCL INFO " + b"x" * 10_000)
    kept.take(GOOD)
    assert sum(map(len, kept.lines)) < active.MOST_TALK + 1000
    assert kept.lines[-1] == GOOD + b"\n"
