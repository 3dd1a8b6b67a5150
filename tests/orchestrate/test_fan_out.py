"""The pool: bounded, on time, and with an answer for every host."""

import threading
import time

import pytest

from orchestrate.errors import CannotTell, RemoteError
from orchestrate.fan_out import fan_out
from orchestrate.inventory import Host

HOSTS = [Host(f"h{n}", f"h{n}") for n in range(6)]


def test_results_come_for_every_host_and_in_order():
    def work(host):
        if host.name == "h2":
            raise CannotTell("no")
        return host.name.upper()

    seen = []
    results = fan_out(HOSTS, work, deadline_s=5, on_result=lambda host, _result: seen.append(host.name))
    assert list(results) == [host.name for host in HOSTS]
    assert isinstance(results["h2"], CannotTell)
    assert results["h5"] == "H5"
    assert sorted(seen) == sorted(results)


def test_no_more_than_the_window_work_at_once():
    lock, now, most = threading.Lock(), 0, 0

    def work(_host):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1

    fan_out(HOSTS, work, deadline_s=5, window=2)
    assert most == 2


def test_a_host_that_hangs_is_given_up_at_its_deadline_and_holds_up_no_other():
    release = threading.Event()

    def work(host):
        if host.name in {"h0", "h1"}:
            release.wait(30)
        return 1

    start = time.monotonic()
    results = fan_out(HOSTS, work, deadline_s=0.4, window=2)
    release.set()
    assert time.monotonic() - start < 3
    assert isinstance(results["h0"], RemoteError)
    assert results["h0"].outcome == "timeout"
    assert [results[name] for name in ("h2", "h3", "h4", "h5")] == [1, 1, 1, 1]


def test_time_spent_waiting_for_a_place_is_not_the_hosts():
    results = fan_out(HOSTS, lambda _host: time.sleep(0.2), deadline_s=0.5, window=1)
    assert set(results.values()) == {None}


def test_a_bug_is_raised_after_the_other_hosts_are_done():
    seen = []

    def work(host):
        if host.name == "h0":
            raise KeyError("bug")
        return 1

    with pytest.raises(KeyError):
        fan_out(HOSTS, work, deadline_s=5, on_result=lambda host, _result: seen.append(host.name))
    assert len(seen) == len(HOSTS)


def test_no_hosts_are_no_work():
    assert fan_out([], lambda _host: 1, deadline_s=1) == {}


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_what_this_machine_has_no_room_for_is_neither_a_bug_nor_the_hosts_fault(error):
    def work(host):
        if host.name == "h0":
            raise error
        return 1

    results = fan_out(HOSTS, work, deadline_s=5)
    assert isinstance(results["h0"], RemoteError)
    assert "this machine, not the host" in results["h0"].what
    assert results["h5"] == 1


@pytest.mark.parametrize("most", [0, 2])
def test_no_more_threads_than_this_machine_bears(monkeypatch, most):
    begun = []

    class Few(threading.Thread):
        def start(self):
            if len([one for one in begun if one.is_alive()]) >= most:
                raise RuntimeError("can't start new thread")
            begun.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Few)
    results = fan_out(HOSTS, lambda _host: 1, deadline_s=5)
    told = [isinstance(result, RemoteError) for result in results.values()]
    assert told == [most == 0] * len(HOSTS)
