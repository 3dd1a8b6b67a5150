"""The command line: light to load, honest about mistakes and bugs, and the same exit codes for every verb."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from hostsetup.checks import catalogue
from orchestrate import cli
from orchestrate.errors import CannotTell, Refused

PROGRAM = [sys.executable, "-m", "orchestrate"]

HEAVY = ("torch", "docker", "fabric", "paramiko", "rich")
LIGHT = """
import sys
sys.modules["torch"] = None  # `import torch` fails
from orchestrate.cli import run
code = run(sys.argv[1:])
print(sorted(set({heavy}) & {{name for name, module in sys.modules.items() if module}}), file=sys.stderr)
sys.exit(code)
"""


def light(*arguments):
    command = [sys.executable, "-W", "error", "-c", LIGHT.format(heavy=HEAVY), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def verb(monkeypatch):
    """Put a function into the table as the verb `x`, and run it."""

    def verb(function):
        command = click.command("x")(function)
        monkeypatch.setitem(cli.VERBS, "x", cli.Verb("sys:modules", ""))
        monkeypatch.setattr(cli.Verbs, "get_command", lambda *_: command)
        return cli.run(["x"])

    return verb


def test_the_program_runs_without_torch_and_loads_nothing_heavy(tmp_path):
    (tmp_path / "gpu01").mkdir()
    (tmp_path / "gpu01" / "proc-cmdline.txt").write_text("quiet\n")
    for arguments, code in (
        (["--help"], 0),
        (["--version"], 0),
        (["explain"], 0),
        (["explain", "ssh.reachable"], 0),
        (["preflight", "--evidence", tmp_path, "--json"], 3),
        (["preflight", "--help"], 0),
        (["completion", "bash"], 0),
    ):
        done = light(*arguments)
        assert (done.returncode, done.stderr) == (code, "[]\n"), arguments


def test_a_live_audit_of_this_machine_needs_neither_torch_nor_docker():
    done = light("preflight", "local", "--only", "ssh.reachable")
    assert done.returncode == 0
    assert "torch" not in done.stderr
    assert "docker" not in done.stderr


def test_help_names_every_verb_that_people_use():
    done = subprocess.run([*PROGRAM, "-h"], capture_output=True, text=True, check=True)
    for name, verb in cli.VERBS.items():
        assert (f"  {name}" in done.stdout) is not verb.hidden


def test_a_verb_that_is_misspelt_gets_the_near_one(capsys):
    assert cli.run(["preflght"]) == 2
    assert "did you mean orchestrate preflight?" in capsys.readouterr().err


def test_a_module_that_is_missing_is_a_bug_and_not_hidden(capsys, monkeypatch):
    monkeypatch.setitem(cli.VERBS, "x", cli.Verb("orchestrate.commands.nowhere:x", ""))
    assert cli.run(["x"]) == 70
    assert "ModuleNotFoundError" in capsys.readouterr().err


def test_no_verb_at_all_shows_the_help_and_is_a_usage_error(capsys):
    assert cli.run([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "preflight" in said.err


def test_an_operators_error_is_three_lines_and_its_exit_code(verb, capsys):
    def fail():
        raise CannotTell("what\x1b[31m\nhappened", where="here", next_step="do this")

    assert verb(fail) == 3
    assert capsys.readouterr().err == "error: what\\x1b[31m happened\nwhere: here\nnext:  do this\n"

    def refuse():
        raise Refused("no")

    assert verb(refuse) == 1


def test_a_bug_goes_to_a_file_and_one_line_to_the_screen(verb, capsys, tmp_path):
    def fail():
        raise ZeroDivisionError("oh\nno")

    assert verb(fail) == 70
    (line,) = capsys.readouterr().err.splitlines()
    (file,) = (tmp_path / "state" / "muster").iterdir()
    assert str(file) in line
    assert "ZeroDivisionError: oh" in file.read_text()


def test_what_a_verb_returns_is_the_exit_code(verb):
    assert verb(lambda: 3) == 3
    assert verb(lambda: None) == 0
    assert verb(lambda: click.get_current_context().exit(1)) == 1


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path):
    mute = socket.create_server(("127.0.0.1", 0))
    (tmp_path / "config").write_text(f"Host mute\n  HostName 127.0.0.1\n  Port {mute.getsockname()[1]}\n")
    process = subprocess.Popen(
        [*PROGRAM, "--ssh-config", tmp_path / "config", "preflight", "mute", "--timeout", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with mute, mute.accept()[0]:  # it is connected, and waits for a greeting that never comes
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - start < 5
    assert out == ""
    assert err.split() == ["interrupted"]


def test_a_reader_that_leaves_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PROGRAM, "explain"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(shell, capsys):
    assert cli.run(["completion", shell]) == 0
    assert "_ORCHESTRATE_COMPLETE" in capsys.readouterr().out


def test_completion_offers_the_verbs_that_people_use():
    words = {"_ORCHESTRATE_COMPLETE": "bash_complete", "COMP_WORDS": "orchestrate ", "COMP_CWORD": "1"}
    done = subprocess.run(PROGRAM, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"plain,{name}" for name, verb in cli.VERBS.items() if not verb.hidden]


def test_completion_offers_the_options_of_a_verb():
    words = {"_ORCHESTRATE_COMPLETE": "bash_complete", "COMP_WORDS": "orchestrate preflight --ev", "COMP_CWORD": "2"}
    done = subprocess.run(PROGRAM, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert "plain,--evidence" in done.stdout


@pytest.mark.parametrize(
    ("begun", "at", "offered"),
    [
        ("explain pcie.acs.red", "2", "plain,pcie.acs.redirect"),
        ("preflight --only net.reach,net.fire", "3", "plain,net.reach,net.firewall"),
        ("preflight --accept numa.np", "3", "plain,numa.nps"),
    ],
)
def test_completion_offers_the_ids_of_checks(begun, at, offered):
    words = {"_ORCHESTRATE_COMPLETE": "bash_complete", "COMP_WORDS": f"orchestrate {begun}", "COMP_CWORD": at}
    done = subprocess.run(PROGRAM, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [offered]


@pytest.mark.parametrize("name", ["pcie.acs", "pcie.acs.*"])
def test_explain_lists_a_group_of_checks(name, capsys):
    assert cli.run(["explain", name]) == 0
    listed = capsys.readouterr().out
    assert "pcie.acs.redirect" in listed
    assert "pcie.link" not in listed


def test_explain_lists_every_check_and_shows_its_page(capsys):
    assert cli.run(["explain"]) == 0
    listed = capsys.readouterr().out
    for check in catalogue():
        assert check.id in listed
        assert check.title in listed
        assert cli.run(["explain", check.id]) == 0
        assert check.page.splitlines()[-1].strip() in capsys.readouterr().out


def test_explain_for_programs_is_json(capsys):
    assert cli.run(["explain", "--json"]) == 0
    assert [check["id"] for check in json.loads(capsys.readouterr().out)["checks"]] == [c.id for c in catalogue()]
    assert cli.run(["explain", "ssh.reachable", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "ssh.reachable"


def test_explain_of_an_unknown_id_names_the_near_ones(capsys):
    assert cli.run(["explain", "pcie.acs.redirects"]) == 2
    assert "did you mean pcie.acs.redirect" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["explain"],
        ["preflight", "local", "--json", "--only", "ssh.reachable"],
        ["launch", "--plan", "--on", "process"],
    ],
)
def test_a_full_disk_under_standard_output_is_told_and_is_no_bug(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrate", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode in {0, 2}, done.stderr  # a launch goes on without its reader
    assert "bug in orchestrate" not in done.stderr


@pytest.mark.parametrize(
    "words", ["explain", "preflight local --only ssh.reachable", "launch --json --plan --on process", "nosuch"]
)
def test_streams_that_the_caller_closed_are_no_bug(words, tmp_path):
    command = f"{sys.executable} -m orchestrate {words}"
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == (2 if words == "nosuch" else 0), (words, closed, done.stderr)


@pytest.mark.parametrize("form", ["text", "json", "html", "junit"])
def test_a_terminal_that_cannot_show_a_character_is_no_bug(form, tmp_path):
    (tmp_path / "gpu-日本-é").mkdir()
    (tmp_path / "gpu-日本-é" / "uname.txt").write_text("Linux 🎉\n")
    for settings in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}):
        done = subprocess.run(
            [*PROGRAM, "preflight", "--evidence", tmp_path, "--format", form, "-v"],
            env={**os.environ, **settings},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (3, b"")
        assert done.stdout.isascii()


def test_an_account_that_no_list_names_is_no_bug(monkeypatch, capsys):
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "")  # so that what is set meanwhile is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert cli.run(["preflight", "no-such-host.invalid", "--only", "ssh.reachable"]) == 3
    assert capsys.readouterr().err.startswith("no-such-host.invalid: unreachable")
