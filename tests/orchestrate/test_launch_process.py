"""Real launches of plain processes: real torchrun, tiny programs, and nothing left when they are over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]

TELL = "import os, signal, sys, time; r = int(os.environ['RANK']); open(f'pid{r}', 'w').write(str(os.getpid()))\n"


def command(*arguments):
    return [sys.executable, "-m", "orchestrate", "launch", "--on", "process", "--nodes", "2", "--name", "r", *arguments]


@pytest.fixture
def program(tmp_path):
    """Write a program that first tells its process id; it runs in an empty folder."""

    def write(text, name="program.py"):
        (tmp_path / name).write_text(TELL + text)
        return tmp_path / name

    yield write
    gone_soon(tmp_path, 0)


def living(folder):
    """Return the processes of the run that are alive: its ranks, and whatever carries its folder in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environ, stat = (entry / "environ").read_bytes(), (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if f"MUSTER_OUT={folder}/".encode() in environ and stat[0] != "Z":
            found.append(int(entry.name))
    return found


def gone_soon(folder, within_s):
    deadline = time.monotonic() + within_s
    while (left := living(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def launch(folder, *arguments, **more):
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, timeout=60, check=False, **{"text": True, **more}
    )


def begin(folder, *arguments):
    return subprocess.Popen(
        command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def await_ranks(folder, count, within_s=30):
    deadline = time.monotonic() + within_s
    while not all((folder / f"pid{r}").is_file() and (folder / f"pid{r}").read_text() for r in range(count)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int((folder / f"pid{r}").read_text()) for r in range(count)]


def outcome(folder):
    return json.loads((folder / "runs/r/outcome.json").read_text())


def test_a_run_whose_ranks_all_end_well_is_finished(program, tmp_path):
    program("print('step 3/4  loss 2.5000  lr 1.000e-03  12.5 samples/s\\n\\x1b[31m\\x07red')\nprint('x' * 3_000_000)")
    done = launch(tmp_path, "--json", "--nproc-per-node", "2", "program.py")
    assert (done.returncode, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "plan"
    assert events[-1]["event"] == "outcome"
    assert events[-1]["outcome"] == outcome(tmp_path)
    assert (outcome(tmp_path)["state"], outcome(tmp_path)["first"]) == ("finished", None)
    assert [e["loss"] for e in events if e["event"] == "progress"] == [2.5]
    for rank in range(4):
        kept = (tmp_path / f"runs/r/logs/node{rank // 2}/rank{rank}.log").read_bytes()
        assert b"\x1b[31m\x07red\n" in kept
        assert kept.count(b"x") == 3_000_000
    assert (tmp_path / "runs/r/report.html").is_file()
    assert {json.loads(line)["event"] for line in (tmp_path / "runs/r/events.jsonl").read_text().splitlines()} >= {
        "planned",
        "over",
    }
    gone_soon(tmp_path, 0)


def test_arguments_reach_the_program_as_they_were_given(program, tmp_path):
    program("import json; json.dump(sys.argv[1:], open(f'argv{r}', 'w'))", "my 'odd' \"program\".py")
    given = ["a\nb", "$(touch evil)", "`id`", "", "--nodes=7", "-m", "ü", "*", "\x1b[31m", "{}", "%s", "~"]
    done = launch(tmp_path, "--nodes", "1", "--", "my 'odd' \"program\".py", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads((tmp_path / f"argv{r}").read_text()) for r in range(1)] == [given]
    assert "\x1b" not in done.stdout
    assert not (tmp_path / "evil").exists()
    again = launch(tmp_path, "--", "program.py")
    assert again.returncode == 2
    assert "a run named r is already recorded" in again.stderr
    assert "next:" in again.stderr


def test_variables_and_a_file_of_the_name_of_our_own_do_no_harm(program, tmp_path):
    program("print('ours is', __file__, os.environ['A'], os.environ['MUSTER_NODE'])", "trainer.py")
    script = [
        Path(sys.executable).with_name("orchestrate"),
        *command("--nodes", "1", "--env", "A=$(x) 'y'", "trainer.py")[3:],
    ]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "trainer.py $(x) 'y' 0" in done.stdout


def test_a_rank_that_exits_with_a_code_is_named(program, tmp_path):
    program("if r == 1: time.sleep(0.5); sys.exit(3)\ntime.sleep(60)")
    start = time.monotonic()
    done = launch(tmp_path, "--nodes", "1", "--nproc-per-node", "2", "program.py")
    assert time.monotonic() - start < 15
    assert done.returncode == 1
    first = outcome(tmp_path)["first"]
    assert (first["node"], first["rank"], first["exit_code"], first["signal"]) == ("node0", 1, 3, None)
    assert "rank 1 (local rank 1) on node0: exit code 3" in done.stdout
    gone_soon(tmp_path, 0)


def test_a_rank_that_is_killed_is_named_though_its_peer_ignores_the_end(program, tmp_path):
    program(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif r == 3: time.sleep(1); os.kill(os.getpid(), 9)\ntime.sleep(90)"
    )
    start = time.monotonic()
    done = launch(tmp_path, "--nproc-per-node", "2", "program.py")
    assert time.monotonic() - start < 20
    assert done.returncode == 1
    first = outcome(tmp_path)["first"]
    assert (first["node"], first["rank"], first["local_rank"], first["signal"], first["finding"]) == (
        "node1", 3, 1, "SIGKILL", "run.rank.killed",
    )  # fmt: skip
    assert outcome(tmp_path)["attempts"][0]["detected_after_s"] < 3
    gone_soon(tmp_path, 0)


def test_an_agent_that_is_killed_leaves_no_rank_behind(program, tmp_path):
    program("time.sleep(90)")
    process = begin(tmp_path, "program.py")
    ranks = await_ranks(tmp_path, 2)
    os.kill(int(Path(f"/proc/{ranks[1]}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 1, out
    first = outcome(tmp_path)["first"]
    assert (first["node"], first["rank"], first["signal"]) == ("node1", None, "SIGKILL")
    gone_soon(tmp_path, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_with_130_and_nothing_left_however_often_it_comes(number, program, tmp_path):
    program("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(90)")
    process = begin(tmp_path, "--nodes", "1", "--nproc-per-node", "2", "program.py")
    await_ranks(tmp_path, 2)
    process.send_signal(number)
    time.sleep(0.5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert outcome(tmp_path)["state"] == "stopped"
    gone_soon(tmp_path, 0)


def test_a_launcher_that_is_killed_takes_its_processes_along(program, tmp_path):
    program("time.sleep(90)")
    process = begin(tmp_path, "--nodes", "1", "--nproc-per-node", "2", "program.py")
    await_ranks(tmp_path, 2)
    process.kill()
    process.communicate()
    gone_soon(tmp_path, 10)


def test_a_reader_that_leaves_does_not_end_the_run_nor_its_record(program, tmp_path):
    program("time.sleep(0.3)\nfor n in range(2000): print('line', n)")
    for more in ((), ("--json",)):
        process = begin(tmp_path, "--nodes", "1", "--name", f"r{len(more)}", *more, "program.py")
        process.stdout.readline()
        await_ranks(tmp_path, 1)
        process.stdout.close()
        process.wait(30)
        folder = tmp_path / f"runs/r{len(more)}"
        assert json.loads((folder / "outcome.json").read_text())["state"] == "finished"
        assert (folder / "logs/node0/rank0.log").read_text().endswith("line 1999\n")
        (tmp_path / "pid0").unlink()


def test_a_disk_without_room_for_the_logs_does_not_end_the_run(program, tmp_path):
    program("print('x' * 100_000)\nopen(f'end{r}', 'w').close()")
    (tmp_path / "runs").mkdir()
    # the program's own output goes through torchrun's files and stays below the limit, the record's share does not
    script = (
        "import sys\nfrom orchestrate import cli, runs\n"
        "def full(self, rank): raise OSError(28, 'No space left on device')\nruns.NodeLog._file = full\n"
        "sys.exit(cli.run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command("--nodes", "1", "program.py")[3:]], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "lines of output could not be kept" in done.stdout
    assert outcome(tmp_path)["state"] == "finished"


def test_a_plan_is_printed_and_nothing_is_started_or_written(tmp_path):
    done = launch(tmp_path, "--plan", "--nproc-per-node", "2", "train.py", "a b")
    assert done.returncode == 0
    assert "4 ranks on 2 nodes (process)" in done.stdout
    assert "train.py 'a b'" in done.stdout
    assert list(tmp_path.iterdir()) == []
    (event,) = launch(tmp_path, "--plan", "--json", "train.py").stdout.splitlines()
    assert json.loads(event)["plan"]["world_size"] == 2
    assert list(tmp_path.iterdir()) == []


def test_an_occupied_port_is_refused_before_anything_starts(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        done = launch(tmp_path, "--master-port", str(sock.getsockname()[1]), "train.py")
    assert done.returncode == 1
    assert "is in use" in done.stderr
    assert "next:" in done.stderr
    assert list(tmp_path.iterdir()) == []
