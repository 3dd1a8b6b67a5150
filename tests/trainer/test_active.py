"""The load tests: what can be held without a GPU. Collectives run for real, on CPU ranks."""

import json
import subprocess
import sys
import time

import pytest

from hostsetup.facts import active as facts
from orchestrate import loads
from trainer.active import figures, gpus, lines, supervise

COLLECTIVE = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--max-restarts=0",
)  # fmt: skip
OVER_LOOPBACK = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def results(text):
    return [json.loads(line) for line in text.splitlines() if lines.is_result(line)]


def test_both_sides_of_the_wall_mean_the_same_lines():
    assert lines.SCHEMA == facts.SCHEMA
    told = lines.Result("copy.peer", "GPU0 -> GPU1", 24.5, verified=True, backend="cuda", size_bytes=1, peer=False)
    (read,) = facts.parse_active(f"[rank0]:{told.line()}\n").results
    assert (read.test, read.subject, read.value, read.verified) == ("copy.peer", "GPU0 -> GPU1", 24.5, True)
    (why,) = facts.parse_active(loads.line("setup", "no image", "setup", next_step="build").decode()).results
    assert (why.error, why.kind, why.next) == ("no image", "setup", "build")


def test_a_line_is_short_enough_for_a_pipe_to_take_in_one_piece():
    assert len(lines.Result("x", error="e" * 100_000, kind="failed", next="n" * 100_000).line()) < 4096


def test_bandwidths_are_those_of_nccl_tests():
    assert figures.bus_factor("all_reduce.host", 8) == pytest.approx(1.75)
    assert figures.bus_factor("all_reduce.pair", 2) == pytest.approx(1.0)
    assert figures.bus_factor("sendrecv.pair", 16) == pytest.approx(1.0)
    assert figures.gigabytes_a_second(2_000_000_000, 0.5) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("free", "wanted"), [(80 << 30, 256 << 20), (1 << 30, 64 << 20), (1 << 20, 1 << 20), (0, 1 << 20)]
)
def test_what_is_moved_is_bounded_by_what_is_free(free, wanted):
    assert figures.size_bytes(free, figures.COPY_BYTES) == wanted


def test_both_directions_of_every_link_are_tested():
    assert figures.ordered_pairs(3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("listed", "seen"),
    [(None, True), ("1", True), ("GPU-ab", True), ("0,GPU-ff", False), ("", False), ("-1", False)],
)
def test_only_visible_gpus_count_as_busy(listed, seen):
    assert gpus.visible(1, "GPU-abcd", listed) is seen


WORKER = """
import sys, time, os
from trainer.active.lines import BEGIN, Result, say, tell
for subject in sys.argv[1:]:
    say(BEGIN + subject)
    if subject == "hangs":
        time.sleep(600)
    if subject == "dies":
        os.kill(os.getpid(), 11)
    tell(Result("copy.peer", subject, 1.0, verified=True))
"""


def supervised(capfd, *subjects, worker=WORKER, limit_s=1.5, within_s=60):
    began = time.monotonic()
    supervise.each(
        subjects,
        lambda left: [sys.executable, "-c", worker, *left],
        test=lambda _: "copy.peer",
        environment={},
        limit_s=limit_s,
        deadline=began + within_s,
    )
    return {one["subject"]: one for one in results(capfd.readouterr().out)}


def test_a_test_that_hangs_or_dies_costs_its_own_result_alone(capfd):
    told = supervised(capfd, "first", "hangs", "second", "dies", "third")
    assert {subject for subject, one in told.items() if one["verified"]} == {"first", "second", "third"}
    assert told["hangs"]["kind"] == "timeout"
    assert told["dies"]["kind"] == "crashed"
    assert "SIGSEGV" in told["dies"]["error"]


def test_a_worker_that_never_begins_is_told_for_every_test_and_not_tried_again(capfd):
    told = supervised(capfd, "first", "second", worker="import no_such_module")
    assert {one["kind"] for one in told.values()} == {"setup"}
    assert set(told) == {"first", "second"}


def test_what_the_time_does_not_suffice_for_is_told(capfd):
    told = supervised(capfd, "hangs", "second", within_s=0.5)
    assert told["hangs"]["kind"] == "timeout"
    assert "not begun" in told["second"]["error"]


@pytest.mark.torch
def test_a_machine_without_gpus_reduces_over_cpu_ranks_and_says_so():
    pytest.importorskip("torch")
    environment = {**OVER_LOOPBACK, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "trainer.active"], capture_output=True, text=True, timeout=120, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (one,) = results(done.stdout)
    assert (one["test"], one["backend"], one["ranks"], one["verified"]) == ("all_reduce.host", "gloo", 2, True)
    assert one["value"] == pytest.approx(one["algorithm"])


@pytest.mark.torch
def test_fewer_gpus_than_were_given_is_told_and_nothing_runs():
    pytest.importorskip("torch")
    argv = [sys.executable, "-m", "trainer.active", "--gpus", "8"]
    environment = {**OVER_LOOPBACK, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=environment)
    (one,) = results(done.stdout)
    assert (one["test"], one["kind"]) == ("setup", "setup")
    assert "8 GPUs" in one["error"]


BROKEN = """
import sys, time, torch, torch.distributed as dist
from trainer.active import ranks
{how}
ranks.main(["all_reduce.host", "--cpu", "--limit-s=4"])
"""
WRONG = "real = dist.all_reduce\ndef off(data, *more):\n    real(data, *more); data[7] += 1\ndist.all_reduce = off"
ONE_HANGS = "import os\nif os.environ['RANK'] == '1':\n    dist.all_reduce = lambda *_: time.sleep(600)"


@pytest.mark.torch
@pytest.mark.parametrize(("how", "verified", "kinds"), [(WRONG, False, {None}), (ONE_HANGS, None, {"timeout"})])
def test_a_wrong_sum_and_a_rank_that_hangs_are_seen(tmp_path, how, verified, kinds):
    pytest.importorskip("torch")
    script = tmp_path / "broken.py"
    script.write_text(BROKEN.format(how=how))
    done = subprocess.run(
        [*COLLECTIVE, "--nproc-per-node=2", str(script)], capture_output=True, text=True, timeout=60, check=False,
        env={**OVER_LOOPBACK, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    told = results(done.stdout)
    assert told, done.stdout + done.stderr
    assert {one["verified"] for one in told} == {verified}
    assert {one.get("kind") for one in told} - {"peer"} == kinds
    if verified is False:
        assert "rank 0: 1, rank 1: 1" in told[0]["error"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("rank 0: RuntimeError: [1.2.3.4]:5 Connection closed by peer", "peer"),
        ("rank 0: DistBackendError: NCCL error: ncclInvalidUsage", "usage"),
        ("rank 0: DistBackendError: NCCL error: ncclSystemError", "failed"),
    ],
)
def test_a_wrong_use_and_a_lost_peer_are_no_verdict_about_this_host(said, kind):
    pytest.importorskip("torch")
    from trainer.active.ranks import kind_of

    assert kind_of(said) == kind
