"""This machine's shell: the same limits as a host's."""

import time

import pytest

from orchestrate.inventory import Host
from orchestrate.shell import Local


@pytest.fixture
def shell():
    return Local(Host("local", "local", local=True))


def test_a_command_runs_and_its_exit_code_is_data(shell):
    done = shell.run("cat; echo err >&2; exit 7", stdin=b"in")
    assert (done.exit_code, done.stdout, done.stderr, done.truncated) == (7, b"in", b"err\n", False)


def test_large_input_and_large_output_at_once_do_not_lock_each_other(shell):
    assert shell.run("cat", stdin=b"x" * 3_000_000).stdout == b"x" * 3_000_000
    assert shell.run("true", stdin=b"x" * 3_000_000).exit_code == 0


def test_a_death_by_signal_is_told(shell):
    assert shell.run("kill -9 $$").signal == "SIGKILL"


def test_endless_output_is_cut(shell):
    done = shell.run("yes", max_bytes=100_000)
    assert (done.exit_code, len(done.stdout), done.truncated) == (None, 100_000, True)


def test_a_command_is_killed_with_its_children_at_the_deadline(shell, tmp_path):
    start = time.monotonic()
    done = shell.run(f"echo begun; (sleep 1.5; touch {tmp_path}/late) & sleep 60", timeout_s=0.4)
    assert time.monotonic() - start < 3
    assert (done.exit_code, done.stdout) == (None, b"begun\n")
    time.sleep(1.6)
    assert not (tmp_path / "late").exists()


def test_a_background_process_that_holds_the_output_open_does_not_hold_the_answer(shell):
    start = time.monotonic()
    done = shell.run("sleep 20 & echo said", timeout_s=15)
    assert (done.exit_code, done.stdout) == (0, b"said\n")
    assert time.monotonic() - start < 5
