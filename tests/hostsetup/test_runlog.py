"""What torchrun printed, recorded from real runs of torch 2.13, read into who failed and how."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostsetup import runlog

RECORDED = Path(__file__).with_name("runlogs")


def read(name):
    return runlog.parse((RECORDED / f"{name}.txt").read_text("utf-8").splitlines())


@pytest.mark.parametrize(
    ("name", "rank", "code", "signal"),
    [
        ("killed", 1, None, "SIGKILL"),
        ("segfault", 1, None, "SIGSEGV"),
        ("exception", 1, 1, None),
        ("recorded_exception", 1, 1, None),
        ("exit_code", 1, 3, None),
        ("terminated", 1, None, "SIGTERM"),
        ("lost_peer", 1, None, "SIGKILL"),
        ("stubborn_peer", 1, None, "SIGKILL"),
    ],
)
def test_the_rank_that_failed_by_itself_is_told_from_the_one_that_its_agent_ended(name, rank, code, signal):
    by_itself = [f for f in read(name).failures if not f.closed]
    assert [(f.rank, f.local_rank, f.exit_code, f.signal) for f in by_itself] == [(rank, rank, code, signal)]
    assert re.fullmatch(r"2026-12-01_07:\d\d:\d\d", by_itself[0].time)
    assert by_itself[0].order == 0
    ended = [f for f in read(name).failures if f.closed]
    assert [(f.rank, f.signal) for f in ended] == [(0, "SIGKILL" if name == "stubborn_peer" else "SIGTERM")]


@pytest.mark.parametrize("name", ["exception", "recorded_exception"])
def test_the_last_words_of_a_rank_end_in_its_exception(name):
    log = read(name)
    assert log.last_words[1][-1] == "ValueError: the loss is not finite" == log.exceptions[1].strip()
    assert not log.peer_closed(1)
    assert log.last_words[0] == ("rank 0 here",)


def test_a_rank_that_only_lost_its_peer_is_known_by_its_last_words():
    log = read("lost_peer")
    assert log.peer_closed(0)
    assert not log.peer_closed(1)
    assert "Connection reset by peer" in log.exceptions[0]


def test_an_occupied_port_is_seen_in_the_agents_words_and_no_rank_is_blamed():
    log = read("port_in_use")
    assert "EADDRINUSE" in log.port_in_use
    assert log.failures == ()


def test_an_agent_that_finds_no_master_has_timed_out():
    log = read("no_master")
    assert "timed out" in log.timed_out
    assert log.port_in_use == ""


def test_an_agent_that_was_told_to_stop_says_by_which_signal():
    log = read("agent_told_to_stop")
    assert log.agent_signal == "SIGTERM"
    assert log.failures == ()


@pytest.mark.parametrize("name", [path.stem for path in sorted(RECORDED.glob("*.txt"))])
def test_an_agents_failure_is_told_by_a_line_of_its_own_before_its_summary(name):
    lines = (RECORDED / f"{name}.txt").read_text("utf-8").splitlines()
    told = [n for n, line in enumerate(lines) if runlog.split_rank(line)[0] is None and runlog.tells_failure(line)]
    if name in {"port_in_use", "no_master"}:
        assert told == []
    else:
        first_traceback = next(n for n, line in enumerate(lines) if line.startswith("Traceback"))
        assert told[0] < first_traceback


def test_the_process_that_an_agent_is_ending_is_named():
    lines = (RECORDED / "stubborn_peer.txt").read_text("utf-8").splitlines()
    pids = [pid for line in lines if (pid := runlog.closing_pid(line))]
    forced = next(line for line in lines if "forcefully exiting" in line)
    assert pids
    assert f"process {pids[0]} " in forced


def test_a_line_of_a_rank_is_never_taken_for_the_agents():
    log = runlog.parse(["[rank0]:E failed (exitcode: -9) local_rank: 1 (pid: 5) of binary: x", "[rank0]:EADDRINUSE"])
    assert log.failures == ()
    assert log.port_in_use == ""
    assert log.port_taken(0)


def test_the_frames_of_a_native_stack_do_not_push_the_message_out():
    frames = [f"[rank0]:[rank0]: frame #{n}: c10d::f + 0x1 (0x2 in libtorch.so)" for n in range(40)]
    log = runlog.parse(["[rank0]:[rank0]: torch.distributed.DistBackendError: Connection closed by peer", *frames])
    assert log.peer_closed(0)


def test_of_a_progress_bar_the_last_state_is_kept():
    assert runlog.parse(["[rank0]:\r 10%|# \r 20%|##\r\n"]).last_words == {0: (" 20%|##",)}


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (137, "SIGKILL"), (143, "SIGTERM"), (0, None), (1, None)])
def test_an_exit_code_names_its_signal(code, name):
    assert runlog.signal_name(code) == name


@given(st.lists(st.one_of(st.text(), st.from_regex(runlog._FAILED), st.from_regex(runlog._SUMMARY_CODE), st.from_regex(runlog._RANK_LINE), st.sampled_from(["  time      : x", "  rank      : 7 (local_rank: 7)", "Sending process 5 closing signal SIGTERM", "Received 999 death signal", "[rank" + "9" * 5000 + "]:x", f"failed (exitcode: {'9' * 5000}) local_rank: 0 (pid: 1)"]))))  # fmt: skip
def test_any_text_is_read_without_an_error(lines):
    log = runlog.parse(lines)
    assert all(len(words) <= runlog.WORDS_KEPT for words in log.last_words.values())


@pytest.mark.parametrize(
    "piece", ["peer ", "rank      : ", "step 1/1 loss ", "a.", "[rank1]:", "Error", " ", "Sending process 1 "]
)
def test_a_line_of_a_megabyte_costs_little(piece):
    begin = time.perf_counter()
    runlog.parse([prefix + piece * ((1 << 20) // len(piece)) for prefix in ("", "[rank0]:")])
    assert time.perf_counter() - begin < 1


def test_a_log_that_names_ranks_at_random_costs_bounded_memory():
    tracemalloc.start()
    log = runlog.parse(f"[rank{n}]:{'x' * 3000}" for n in range(50_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log.last_words) == runlog.RANKS_READ
    assert peak < 64 << 20


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_the_torchrun_that_is_installed_still_speaks_as_recorded(tmp_path):
    script = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(30)"
    )
    (tmp_path / "die.py").write_text(script)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--node-rank=0", "--nproc-per-node=2", "--rdzv-backend=static",
         "--master-addr=127.0.0.1", f"--master-port={port}", "--monitor-interval=0.1", f"--log-dir={tmp_path}", "--tee=3", tmp_path / "die.py"],
        env=os.environ | {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]:", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    log = runlog.parse(done.stdout.splitlines())
    assert [(f.rank, f.signal) for f in log.failures if not f.closed] == [(1, "SIGKILL")]
    assert [(f.rank, f.signal) for f in log.failures if f.closed] == [(0, "SIGTERM")]
