"""What is made for a run is removed with it, and nothing that was there before is touched."""

from __future__ import annotations

import threading

import pytest

from orchestrate.backends import containers as backend
from orchestrate.engine import Container
from orchestrate.errors import Refused, UsageError
from orchestrate.plan import NodePlan, RunPlan

NODES = tuple(NodePlan(k, f"h{k}", 1, k, f"10.0.0.{k}", "e") for k in range(2))
PLAN = RunPlan("r", "ssh", NODES, "10.0.0.0", 20000, image_id="sha256:1")


class Engine:
    """An engine with names that are taken, and with a way to fail or to be slow."""

    def __init__(self, where, *, volumes=(), held=(), broken="", slow=None):
        self.where = where
        self.made = {"container": set(held), "volume": {name: {"muster.node": "0"} for name in volumes}}
        self.broken = broken
        self.slow = slow

    def containers(self, run):
        return tuple(Container(i, i, {"muster.run": run}, "running") for i in sorted(self.made["container"]))

    def volumes(self, run):
        return dict(self.made["volume"])

    def create_volume(self, name, labels):
        self.made["volume"][name] = labels

    def create(self, spec):
        if self.slow:
            self.slow.wait()
        if self.broken == "create":
            raise Refused("the name is taken", where=self.where)
        self.made["container"].add(spec.name)
        return spec.name

    def start(self, container):
        if self.broken == "start":
            raise Refused("no such device", where=self.where)

    def remove(self, container):
        self.made["container"].discard(container)

    def remove_volume(self, name):
        self.made["volume"].pop(name, None)

    def left(self):
        return sorted(self.made["container"]), sorted(self.made["volume"])

    def close(self):
        pass


def placed(*engines):
    made = backend.on_hosts(PLAN, {e.where: e for e in engines}, pytest.fail)
    made.claim()
    made.place()
    return made


def test_a_name_in_use_is_refused_and_clearing_up_takes_nothing_of_the_other_run():
    engines = Engine("h0"), Engine("h1", held=["other"], volumes=["muster-r"])
    made = backend.on_hosts(PLAN, {e.where: e for e in engines}, pytest.fail)
    with pytest.raises(UsageError, match="is on the host already"):
        made.claim()
    assert made.remove() == []
    assert engines[1].left() == (["other"], ["muster-r"])


@pytest.mark.parametrize("broken", ["create", "start"])
def test_what_fails_on_one_host_leaves_nothing_on_any(broken):
    engines = Engine("h0"), Engine("h1", broken=broken)
    with pytest.raises(Refused):
        placed(*engines).start()
    assert [e.left() for e in engines] == [([], []), ([], [])]


@pytest.mark.parametrize("broken", ["create", "start"])
def test_a_volume_with_checkpoints_survives_a_start_that_fails(broken):
    engines = Engine("h0", volumes=["muster-r"]), Engine("h1", broken=broken)
    with pytest.raises(Refused):
        placed(*engines).start()
    assert [e.left() for e in engines] == [([], ["muster-r"]), ([], [])]


def test_an_interrupt_before_anything_was_made_removes_nothing():
    engines = Engine("h0", volumes=["muster-r"]), Engine("h1")
    made = backend.on_hosts(PLAN, {e.where: e for e in engines}, pytest.fail)
    made.claim()
    assert made.remove() == []
    assert engines[0].left() == ([], ["muster-r"])


def test_after_a_run_the_first_volume_stays_and_the_others_go():
    engines = Engine("h0"), Engine("h1")
    made = placed(*engines)
    made.start()
    assert made.remove() == []
    assert [e.left() for e in engines] == [([], ["muster-r"]), ([], [])]


def test_a_container_that_is_created_after_its_host_was_given_up_is_removed(monkeypatch):
    monkeypatch.setattr(backend, "CREATE_S", 0.3)
    go = threading.Event()
    engines = Engine("h0"), Engine("h1", slow=go)
    with pytest.raises(Exception, match=r"no answer within 0\.3 s") as caught:
        placed(*engines)
    assert caught.value.where == "h1"
    go.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(5)
    assert [e.left() for e in engines] == [([], []), ([], [])]
