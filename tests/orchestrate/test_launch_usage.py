"""What launch refuses before anything is asked of a host: what is wrong, where, and what to do."""

from __future__ import annotations

import pytest

from orchestrate import cli
from orchestrate.commands.launch import _environment, _mount, _request
from orchestrate.errors import Refused, UsageError
from orchestrate.plan import DEFAULT_PROGRAM, Mount


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("SET", "v=w")


@pytest.mark.parametrize(
    ("arguments", "what", "where"),
    [
        (["--nodes", "0"], "--nodes", "launch"),
        (["--nodes", "x"], "--nodes", "launch"),
        (["--nodes", "9" * 5000], "--nodes", "launch"),
        (["--on", "moon"], "--on", "launch"),
        (["--master-port", "0"], "--master-port", "launch"),
        (["--master-port", "65536"], "--master-port", "launch"),
        (["--frobnicate"], "--frobnicate", "launch"),
        (["train.py", "--lr", "3"], "--lr", "launch"),
        (["--nproc-per-node", "0"], "neither `auto` nor a number", "--nproc-per-node"),
        (["--nproc-per-node", "-1"], "neither `auto` nor a number", "--nproc-per-node"),
        (["--nproc-per-node", "²"], "neither `auto` nor a number", "--nproc-per-node"),
        (["--nproc-per-node", "9" * 5000], "neither `auto` nor a number", "--nproc-per-node"),
        (["--name", "A B"], "cannot name a run", "--name"),
        (["--name", "../x"], "cannot name a run", "--name"),
        (["--env", "1X=2"], "cannot name a variable", "--env"),
        (["--env", "=2"], "cannot name a variable", "--env"),
        (["--env", "NOT_SET"], "NOT_SET is not set", "--env"),
        (["--env", "HF_TOKEN=x"], "looks like a secret", "--env"),
        (["--mount", "a:/b"], "not SRC:DST[:ro]", "--mount"),
        (["--mount", "/a"], "not SRC:DST[:ro]", "--mount"),
        (["--mount", "/a:/b:rx"], "not SRC:DST[:ro]", "--mount"),
        (["--mount", "/a:/"], "not free", "--mount"),
        (["--mount", "/a:/run/muster/"], "not free", "--mount"),
        (["--mount", "/a:/b"], "nothing can be mounted", "--mount"),
        (["--preset", "nope"], "no preset 'nope'", "--preset"),
        (["--preset", "../default"], "no preset", "--preset"),
        (["--hosts", "gpu01"], "--on process runs on this machine", "--hosts"),
        (["--detach"], "cannot be detached", "--detach"),
        (["--", "--nnodes=3", "x.py"], "would be an option of torchrun", "PROGRAM"),
        (["--", "--standalone", "x.py"], "would be an option of torchrun", "PROGRAM"),
        (["--", "-m"], "names no program", "PROGRAM"),
    ],
)
def test_a_mistake_ends_with_2_and_says_what_and_where(arguments, what, where, capsys, tmp_path):
    assert cli.run(["launch", "--on", "process", *arguments]) == 2
    said = capsys.readouterr()
    assert what in said.err
    assert where in said.err.split("where:")[1].splitlines()[0]
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--on", "ssh"], "no hosts were named"),
        (["--on", "ssh", "--hosts", "local"], "`local` is this machine"),
        (["--on", "local", "--hosts", "gpu01"], "--on local runs on this machine"),
        (["--hosts", "gpu01,gpu01"], "named twice"),
        (["--hosts", "-oProxyCommand=x"], "looks like an option"),
        (["--hosts", "gpu[01-02]", "--nodes", "3"], "3 nodes are asked for, and the inventory has 2 hosts"),
        (["--hosts", "nowhere.txt"], "cannot read the hosts file"),
    ],
)
def test_a_mistake_in_the_hosts_is_told_before_any_is_asked(arguments, what, capsys):
    assert cli.run(["launch", *arguments]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "next:" in said


def asked(**given):
    return _request(
        **{"target": None, "nodes": 1, "nproc_per_node": "auto", "on": "auto", "image": None, "preset": "default", "env": (), "mounts": (),
           "master_port": None, "detach": False, "name": None, "program": ()} | given,
    )  # fmt: skip


def test_a_hosts_file_here_is_the_default_and_its_faults_name_their_line(tmp_path, capsys):
    (tmp_path / "hosts.txt").write_text("gpu01\ngpu[02-03] slots=4\n")
    request = asked(nodes=2)
    assert (request.on, [h.name for h in request.hosts]) == ("ssh", ["gpu01", "gpu02", "gpu03"])
    assert asked(on="process").hosts == ()
    (tmp_path / "hosts.txt").write_text("gpu01\ngpu02 slots=x\n")
    assert cli.run(["launch"]) == 2
    assert "hosts.txt:2" in capsys.readouterr().err


def test_what_is_left_out_has_a_default():
    request = asked(on="process", nproc_per_node="2", program=("--no-python", "true"))
    assert (request.program, request.nproc, request.image) == (("--no-python", "true"), 2, "")
    assert asked(on="process").program == DEFAULT_PROGRAM


def test_variables_are_set_or_passed_on_with_every_character():
    assert _environment(("A=", "B=x=y\n'z'", "SET")) == {"A": "", "B": "x=y\n'z'", "SET": "v=w"}


@pytest.mark.parametrize(
    "key", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "aws_session_token", "DB_PASSWORD", "GH_CREDENTIALS"]
)
def test_a_secret_never_gets_into_the_plan(key):
    with pytest.raises(UsageError, match="looks like a secret") as caught:
        _environment((f"{key}=hunter2",))
    assert "hunter2" not in f"{caught.value.what} {caught.value.next_step}"


@pytest.mark.parametrize("key", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "NCCL_DEBUG", "SECRETARY", "KEY"])
def test_a_variable_that_only_resembles_a_secret_is_let_through(key):
    assert _environment((f"{key}=1",)) == {key: "1"}


def test_mounts_are_read_and_written_unless_said_otherwise():
    assert _mount("/a b:/c") == _mount("/a b:/c:rw") == Mount("bind", "/a b", "/c")
    assert _mount("/a:/c:ro").read_only


def test_bytes_that_an_engine_would_change_are_refused_and_a_process_gets_them():
    with pytest.raises(UsageError, match="not UTF-8"):
        asked(on="local", program=("train.py", "a\udcff"))
    assert asked(on="process", program=("train.py", "a\udcff")).program == ("train.py", "a\udcff")


@pytest.mark.parametrize("verb", ["logs", "stop"])
def test_a_run_that_is_no_name_leads_to_no_folder(verb, capsys):
    assert cli.run([verb, "../../etc", "--hosts", "local"]) == 2
    assert "cannot name a run" in capsys.readouterr().err


@pytest.mark.parametrize("since", ["yesterday", "99999999999d", "-5m", "5", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_is_none_is_refused(since, capsys):
    assert cli.run(["logs", "r", "--since", since, "--hosts", "local"]) == 2
    assert "neither a time nor an age" in capsys.readouterr().err


def test_more_nodes_than_gpus_of_this_machine_are_refused(monkeypatch):
    from orchestrate import launch, survey

    monkeypatch.setattr(survey, "gpus", lambda _shell: ("GPU-0",))
    with pytest.raises((UsageError, Refused), match="2 nodes are asked for and this machine has 1 GPUs"), launch.Prepared(asked(on="process", nodes=2)):  # fmt: skip
        pass
