"""What standard error says while hosts answer."""

import io
import os
import pty
import signal
import subprocess
import sys

import pytest

from orchestrate.report import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(params=[io.StringIO, Terminal])
def listen(request, monkeypatch):
    def listen():  # within the test: pytest sets standard error anew once fixtures are done
        stream = request.param()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        return stream

    return listen


def test_a_host_that_is_not_reached_is_told_at_once_and_once(listen, capsys):
    err = listen()
    with progress.awaiting(["gpu01", "gpu02"]) as done:
        done("gpu01")
        assert "gpu01: " not in err.getvalue()
        done("gpu02", "unreachable: port 22 refuses \x1b[2Jconnections\nand more")
        assert r"gpu02: unreachable: port 22 refuses \x1b[2Jconnections and more" in err.getvalue()
    assert capsys.readouterr().out == ""


def test_many_hosts_that_are_not_reached_do_not_flood(listen):
    err = listen()
    names = [f"gpu{n:04}" for n in range(1000)]
    with progress.awaiting(names) as done:
        for name in names:
            done(name, "unreachable: timed out")
    assert err.getvalue().count("timed out") == progress.MOST_LINES
    assert err.getvalue().count("the report names them all") == 1


def test_without_a_terminal_nobody_is_awaited_aloud(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.awaiting(["gpu01"]) as done:
        done("gpu01")
    assert stream.getvalue() == ""


def test_what_is_said_beside_the_report_cannot_act_on_the_terminal(capsys):
    progress.say("site.toml: what gpu\x1b[2J\n01 has")
    assert capsys.readouterr().err == "site.toml: what gpu\\x1b[2J 01 has\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_with_its_cursor(number):
    ours, theirs = pty.openpty()
    program = (
        "import os, time\nfrom orchestrate.report import progress\n"
        "with progress.awaiting(['gpu01']):\n    os.write(1, b'awaits\\n')\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    with process:
        assert process.stdout.readline() == b"awaits\n"
        process.send_signal(number)
        shown = b""
        while True:
            try:
                shown += (block := os.read(ours, 4096))
            except OSError:
                break
            if not block:
                break
    os.close(ours)
    assert process.returncode == -number
    assert b"\x1b[?25l" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
