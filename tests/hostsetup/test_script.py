"""The probe program is run for real, by every shell of this machine."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hostsetup import host, script
from hostsetup.model import Probe, Reply

MARK = "0123456789abcdef"
SHELLS = [
    pytest.param(words, id=words[0])
    for words in (["dash"], ["bash"], ["busybox", "sh"])
    if shutil.which(words[0]) is not None
]


def run(probes, shell=("sh",), *, stdin=False, **more):
    program = script.build(probes, MARK)
    words = [*shell, "-s"] if stdin else [*shell, "-c", program]
    done = subprocess.run(words, input=program.encode() if stdin else b"", capture_output=True, check=False, **more)
    return done, script.parse(done.stdout, MARK)


def tools_without(folder, *missing):
    """Return an environment whose PATH holds the tools of this machine but those."""
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            if tool.name not in missing and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return {"PATH": str(folder)}


@pytest.mark.parametrize("stdin", [False, True])
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_returns_output_error_and_exit_code_byte_for_byte(shell, stdin):
    done, replies = run(
        [
            Probe("first", "printf 'no newline'; echo oops >&2; exit 3"),
            Probe("bytes", r"printf '\000\377\n\n'"),
            Probe("quotes", """printf '%s\\n' 'it'"'"'s' "$((1 + 1))" '\\n'"""),
            Probe("gone", "no-such-command-anywhere"),
            Probe("input", "cat; echo $LC_ALL $COLUMNS $TERM"),
        ],
        shell,
        stdin=stdin,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert replies["first"] == Reply(b"no newline", b"oops\n", 3)
    assert replies["bytes"].stdout == b"\0\xff\n\n"
    assert replies["quotes"].stdout == b"it's\n2\n\\n\n"
    assert replies["gone"].exit_code == 127
    assert replies["input"].stdout == b"C 200 dumb\n"
    assert list(replies) == ["first", "bytes", "quotes", "gone", "input"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_probe_that_hangs_is_killed_with_its_children_and_the_next_one_still_runs(shell, tmp_path):
    start = time.monotonic()
    hang = f"echo started; (sleep 300; echo late >{tmp_path}/late) & echo $! >{tmp_path}/child; wait"
    _, replies = run([Probe("hang", hang, timeout_s=1), Probe("next", "echo here")], shell)
    assert time.monotonic() - start < 10
    assert replies["hang"] == Reply(b"started\n", b"", 124)
    assert replies["next"].stdout == b"here\n"
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_probe_that_cannot_be_killed_is_left_behind():
    # it leaves the process group and holds its files open, as a process in uninterruptible sleep would
    start = time.monotonic()
    _, replies = run([Probe("stuck", "setsid sleep 4; echo never", timeout_s=1), Probe("next", "echo here")])
    assert time.monotonic() - start < 3.5
    assert replies["stuck"].exit_code == 124
    assert replies["next"].stdout == b"here\n"


def test_endless_output_is_cut_and_does_not_fill_the_disk():
    _, replies = run([Probe("endless", "yes", timeout_s=20), Probe("next", "echo here")])
    assert len(replies["endless"].stdout) == script.MAX_BYTES
    assert replies["next"].stdout == b"here\n"


def test_nothing_is_left_on_the_host(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    run([Probe("a", "echo a"), Probe("b", "sleep 60", timeout_s=1)], env={**os.environ, "TMPDIR": str(work)})
    assert list(work.iterdir()) == []


def test_nothing_is_left_when_the_program_is_terminated(tmp_path):
    program = script.build([Probe("long", f"echo $$ >{tmp_path}/pid; sleep 300", timeout_s=200)], MARK)
    work = tmp_path / "work"
    work.mkdir()
    with subprocess.Popen(
        ["sh", "-c", program], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(work)}
    ) as run:
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        run.terminate()
        run.wait(10)
    assert list(work.iterdir()) == []
    time.sleep(0.1)
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("missing", [("base64",), ("setsid",), ("timeout", "sudo")])
def test_it_works_without(missing, tmp_path):
    done, replies = run(
        [Probe("a", r"printf '\001\376x'"), Probe("root", "echo as=$(id -u)", root=True)],
        env=tools_without(tmp_path, *missing),
    )
    assert done.returncode == 0
    assert replies["a"].stdout == b"\x01\xfex"
    assert replies["root"].stdout.startswith(b"as=")
    assert (b" hex\n" in done.stdout) == ("base64" in missing)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_launcher_that_goes_away_leaves_nothing_behind(shell, tmp_path):
    program = script.build([Probe("quick", "echo x"), Probe("hangs", "sleep 4712", timeout_s=1)], MARK)
    argv = [*shell, "-c", program]
    with subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE) as process:
        while b"quick" not in process.stdout.readline():
            pass
        process.stdout.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_hung_root_probe_is_ended_by_a_shells_own_kill(tmp_path):
    # /bin/kill of some distributions takes the number of a group for -1: as root that would end the host
    fake = tmp_path / "bin"
    fake.mkdir()
    for folder in (fake, *list(fake.parents)[:4]):
        folder.chmod(0o755)
    for name, text in (
        ("sudo", '[ "$1" = -n ] || exit 9; shift; exec "$@"'),
        ("kill", f"echo called >{tmp_path}/kill"),
    ):
        (fake / name).write_text(f"#!/bin/sh\n{text}\n")
        (fake / name).chmod(0o755)
    tmp_path.chmod(0o777)
    probe = Probe("hangs", "trap '' TERM; sleep 4711.25 & sleep 4711.25", root=True, timeout_s=1)
    env = {"PATH": f"{fake}:{os.environ['PATH']}"}
    assert run([probe], env=env, user="nobody", cwd="/")[1]["hangs"].exit_code == 124
    assert not (tmp_path / "kill").exists()
    assert subprocess.run(["pgrep", "-f", r"^sleep 4711\.25"], check=False).returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_root_probes_go_through_sudo_and_fall_back_to_the_user(tmp_path):
    fake = tmp_path / "bin"
    fake.mkdir()
    tmp_path.chmod(0o755)
    for folder in (fake, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    sudo = fake / "sudo"
    probes = [Probe("shell", "echo root=$MADE_ROOT; exit 4", root=True), Probe("plain", "echo plain words", root=True)]
    env = {"PATH": f"{fake}:{os.environ['PATH']}"}

    def as_nobody(text):
        sudo.write_text(f"#!/bin/sh\n{text}\n")
        sudo.chmod(0o755)
        return run(probes, env=env, user="nobody", cwd="/")[1]

    allowed = as_nobody('[ "$1" = -n ] || exit 9; shift; MADE_ROOT=yes exec "$@"')
    assert allowed["shell"] == Reply(b"root=yes\n", b"", 4)
    refused = as_nobody("echo 'sudo: a password is required' >&2; exit 1")
    assert refused["shell"] == Reply(b"root=\n", b"", 4)
    assert refused["plain"] == Reply(b"plain words\n", b"", 0)
    some = as_nobody('[ "$2" = echo ] || exit 1; shift; shift; echo "as root: $*"')
    assert some["plain"].stdout == b"as root: plain words\n"
    assert some["shell"].stdout == b"root=\n"


def test_a_banner_forges_nothing_and_a_cut_stream_loses_only_what_was_not_yet_sent():
    done, whole = run([Probe("a", "echo one"), Probe("b", "echo two; echo err >&2")])
    forged = b"Welcome!\nffffffffffffffff c 0 base64\nWA==\nffffffffffffffff.err\nffffffffffffffff.end\nno newline"
    assert script.parse(forged + done.stdout, MARK) == whole
    counts = set()
    for cut in range(len(done.stdout) + 1):
        some = script.parse(done.stdout[:cut], MARK)
        assert some.items() <= whole.items()
        counts.add(len(some))
    assert counts == {0, 1, 2}


def test_half_a_frame_does_not_swallow_the_next_one():
    done, whole = run([Probe("a", "echo one"), Probe("b", "echo two")])
    second = done.stdout.index(f"{MARK} b".encode())
    broken = done.stdout[: done.stdout.index(b".err")] + b"\n" + done.stdout[second:]
    assert script.parse(broken, MARK) == {"b": whole["b"]}


def test_carriage_returns_of_a_terminal_do_no_harm():
    done, whole = run([Probe("a", "echo one")])
    assert script.parse(done.stdout.replace(b"\n", b"\r\n"), MARK) == whole


@pytest.mark.parametrize("mark", ["", "short", "with space inside", "x" * 65, "$(reboot)aaaa", "aaaaaaaa\n"])
def test_a_mark_that_is_no_plain_word_is_refused(mark):
    with pytest.raises(ValueError, match="mark"):
        script.build([], mark)


@pytest.mark.parametrize("name", ["", "../x", "a b", "A", "$(x)", "-a"])
def test_a_probe_name_that_is_no_plain_word_is_refused(name):
    with pytest.raises(ValueError, match="probe name"):
        script.build([Probe(name, "true")], MARK)
    with pytest.raises(ValueError, match="probe name"):
        script.build([Probe("a", "true"), Probe("a", "true")], MARK)


@pytest.mark.parametrize("shell", SHELLS)
def test_all_probes_are_valid_in_every_shell_and_answer_on_this_machine(shell):
    done, replies = run(host.PROBES, shell)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(replies) == [probe.name for probe in host.PROBES]
    for name, reply in replies.items():
        assert b"yntax" not in reply.stderr, name


def test_a_tool_that_hangs_is_asked_once(tmp_path):
    stuck = f"echo x >>{tmp_path / 'asked'}; trap '' TERM; sleep 30"
    probes = [
        Probe("a", stuck, timeout_s=1, tool="smi"),
        Probe("b", stuck, tool="smi"),
        Probe("c", "echo c", tool="ok"),
    ]
    began = time.monotonic()
    done, replies = run(probes)
    assert time.monotonic() - began < 10
    assert done.returncode == 0
    assert (tmp_path / "asked").read_text() == "x\n"
    assert [replies[name].exit_code for name in "abc"] == [124, 124, 0]
    assert b"not asked" in replies["b"].stderr
