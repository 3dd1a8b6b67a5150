"""A connection that was dropped before the login is tried once more; whatever else a host says is its answer."""

import contextlib
import json
import socket
import threading
import time

import pytest

from orchestrate import collect
from orchestrate.inventory import Host


@pytest.fixture
def dropping():
    """Give a function that opens a port which hangs up on the first callers and leads the others to a real one."""
    opened = []

    def start(port, drops):
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)
        calls = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = listener.accept()
                    calls.append(time.monotonic())
                    if len(calls) <= drops:
                        caller.close()
                        continue
                    there = socket.create_connection(("127.0.0.1", port))
                    opened.extend((caller, there))
                    for a, b in ((caller, there), (there, caller)):
                        threading.Thread(target=pump, args=(a, b), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1], calls

    yield start
    for one in opened:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in accept()
        one.close()


def pump(source, sink):
    with contextlib.suppress(OSError):
        while block := source.recv(1 << 16):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)


def asked(sshd, dropping, monkeypatch, drops):
    server = sshd()
    port, calls = dropping(server.port, drops)
    path = server.config(more="  HostKeyAlias there\n", known=f"there {server.host_key}\n")
    path.write_text(path.read_text().replace(f"Port {server.port}", f"Port {port}"))
    monkeypatch.setenv("MUSTER_SSH_CONFIG", str(path))
    evidence = collect.ask(Host("there", "there"), timeout_s=30)
    return json.loads(evidence.replies["ssh"].stdout), calls


def test_a_login_that_was_dropped_is_tried_again_and_the_first_error_is_kept(sshd, dropping, monkeypatch):
    said, calls = asked(sshd, dropping, monkeypatch, drops=1)
    assert said["outcome"] == "ok"
    assert said["detail"].startswith("at the second attempt; the first: ")
    assert len(calls) == 2
    assert calls[1] - calls[0] >= collect._PAUSE_S[0]


def test_two_drops_are_an_answer(sshd, dropping, monkeypatch):
    said, calls = asked(sshd, dropping, monkeypatch, drops=9)
    assert said["outcome"] == "closed"
    assert "(twice)" in said["detail"] or "(at first: " in said["detail"]  # it may be told in two ways
    assert len(calls) == 2


def test_a_refused_port_is_not_tried_again(sshd, monkeypatch):
    server = sshd()
    path = server.config()
    server.stop()
    monkeypatch.setenv("MUSTER_SSH_CONFIG", str(path))
    said = json.loads(collect.ask(Host("there", "there"), timeout_s=30).replies["ssh"].stdout)
    assert said["outcome"] == "refused"
    assert "twice" not in said["detail"]
    assert "at first" not in said["detail"]
