"""The record of a run on this machine, and the lines that are kept in it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.backends.containers import lines
from orchestrate.cut import cut
from orchestrate.errors import UsageError
from orchestrate.plan import NodePlan, RunPlan
from orchestrate.runs import NodeLog, RunFolder, checked_name, new_name

PLAN = RunPlan("r", "process", (NodePlan(0, "a", 2, 0, "127.0.0.1", "lo"),), "127.0.0.1", 20000)


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "A", "a b", "ä", "a" * 64, "a\n", "../x", "a\0"])
def test_a_name_that_cannot_be_a_folder_and_a_container_is_refused(name):
    with pytest.raises(UsageError, match="cannot name a run"):
        checked_name(name)


def test_a_name_that_is_made_can_name_a_run_and_is_not_made_twice():
    names = {new_name() for _ in range(20)}
    assert len(names) == 20
    assert {checked_name(name) for name in names} == names


def test_a_folder_is_made_once_with_the_plan_in_it(tmp_path):
    folder = RunFolder("r", tmp_path)
    folder.create(PLAN)
    assert folder.plan() == PLAN
    with pytest.raises(UsageError, match="already recorded"):
        folder.create(PLAN)


def test_a_folder_that_cannot_be_made_is_the_persons_to_put_right(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        RunFolder("r", tmp_path / "runs").create(PLAN)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"nodes": 3}', "[" * 100_000])
def test_a_plan_that_is_damaged_is_the_persons_to_put_right(text, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/plan.json").write_text(text)
    with pytest.raises(UsageError, match="no plan can be read"):
        RunFolder("r", tmp_path).plan()


BODIES = st.binary().map(lambda raw: raw.replace(b"\n", b""))


@given(st.lists(st.tuples(st.sampled_from([None, 4, 5]), BODIES)))
def test_every_byte_of_a_line_is_kept_in_the_file_of_its_rank(tmp_path_factory, printed):
    folder = RunFolder("r", tmp_path_factory.mktemp("runs"))
    log = NodeLog(folder, 2, range(4, 6))
    wanted = {None: b"", 4: b"", 5: b""}
    for rank, body in printed:
        mark = b"" if rank is None else b"[rank%d]:" % rank
        if rank is None and body.startswith((b"[rank4]:", b"[rank5]:")):
            continue
        assert log.write(mark + body)[0] == rank
        wanted[rank] += body + b"\n"
    log.close()
    for rank, body in wanted.items():
        path = folder.path / "logs/node2" / ("agent.log" if rank is None else f"rank{rank}.log")
        assert (path.read_bytes() if path.exists() else b"") == body
    assert log.lost == 0


def test_marks_of_ranks_that_are_not_the_nodes_open_no_files(tmp_path):
    log = NodeLog(RunFolder("r", tmp_path), 0, range(2))
    for number in (2, 99, 123456):
        assert log.write(b"[rank%d]:x" % number) == (None, f"[rank{number}]:x")
    log.close()
    assert [path.name for path in (tmp_path / "r/logs/node0").iterdir()] == ["agent.log"]


def test_a_log_is_written_on_or_afresh(tmp_path):
    for afresh, wanted in ((False, b"x\n"), (False, b"x\nx\n"), (True, b"x\n")):
        log = NodeLog(RunFolder("r", tmp_path), 0, range(1), afresh=afresh)
        log.write(b"[rank0]:x")
        log.close()
        assert (tmp_path / "r/logs/node0/rank0.log").read_bytes() == wanted


def test_a_folder_that_takes_no_files_loses_lines_and_counts_them(tmp_path):
    (tmp_path / "r").write_text("in the way")
    log = NodeLog(RunFolder("r", tmp_path), 0, range(1))
    assert log.write(b"[rank0]:x") == (0, "x")
    log.write(b"y")
    assert log.lost == 2
    log.close()


def test_a_disk_that_is_full_loses_lines_and_counts_them(tmp_path):
    script = (
        "from pathlib import Path\nfrom orchestrate.runs import NodeLog, RunFolder\n"
        "folder = RunFolder('r', Path('.'))\nlog = NodeLog(folder, 0, range(1))\n"
        "for _ in range(10): log.write(b'[rank0]:' + b'x' * 999)\n"
        "folder.event('over')\nprint(log.lost)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3500, 3500)),
    )  # fmt: skip
    assert done.stdout == "7\n"


@given(st.binary(), st.integers(1, 9))
def test_cutting_loses_and_adds_no_byte_and_counts_them_all(raw, size):
    chunks = [raw[at : at + size] for at in range(0, len(raw), size)]
    pieces = list(cut(chunks))
    assert [line for line, _ in pieces] == raw.split(b"\n")[: len(pieces)]
    assert b"\n".join(raw.split(b"\n")[len(pieces) :]) == b""
    assert sum(taken for _, taken in pieces) == len(raw)


def test_a_line_without_end_is_cut_and_every_piece_bears_the_mark_of_its_rank():
    pieces = list(cut([b"[rank3]:" + b"x" * 92, *[b"x" * 50] * 5, b"\nnext\n"], longest=100))
    assert [line for line, _ in pieces] == [*[b"[rank3]:" + b"x" * n for n in (92, 100, 100, 50)], b"next"]
    assert sum(taken for _, taken in pieces) == 100 + 250 + 6


class Prints:
    """An engine whose container printed this."""

    def __init__(self, *chunks):
        self.chunks = chunks

    def logs(self, *_, since=None, **__):
        self.since = since
        return iter(self.chunks)


TIMES = [b"2026-12-01T07:11:38.42501153%dZ" % n for n in range(4)]


def test_the_engines_times_inside_a_long_line_are_taken_out():
    parts = [b"a" * 16384, b"b" * 16384, b"c" * 100]
    printed = (
        b"".join(time + b" " + part for time, part in zip(TIMES, parts, strict=False)) + b"\n" + TIMES[3] + b" y\n"
    )
    assert list(lines(Prints(printed[:20000], printed[20000:]), "c", follow=False)) == [
        (TIMES[0].decode(), b"".join(parts)),
        (TIMES[3].decode(), b"y"),
    ]


def test_following_anew_repeats_no_line():
    engine = Prints(b"".join(time + b" x%d\n" % n for n, time in enumerate(TIMES)))
    assert [line for _, line in lines(engine, "c", after=TIMES[1].decode(), follow=True)] == [b"x2", b"x3"]
    assert engine.since == 1796109098.0
