"""The verb `preflight`, live against a sshd on loopback and on evidence, through the command line itself."""

import json
import os
import time

import pytest

from hostsetup.host import PROBES
from hostsetup.model import Evidence, Reply
from orchestrate import evidence as store
from orchestrate.cli import run


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def saved(tmp_path):
    """Evidence of two hosts: one whose sudo wants a password, and one that could not be reached."""
    folder = tmp_path / "evidence"
    ok = json.dumps({"outcome": "ok", "detail": "", "next": "", "local": False, "elapsed_s": 1.0, "error": ""})
    dead = json.dumps({"outcome": "refused", "detail": "port 22 refuses connections", "next": "start sshd"})
    store.save(
        Evidence(
            "gpu01",
            {"ssh": Reply(ok.encode()), "proc-cmdline": Reply(b"root=/dev/sda1 pcie_acs_override=downstream\n")},
        ),
        folder,
    )
    store.save(Evidence("gpu02", {"ssh": Reply(dead.encode())}), folder)
    return folder


def states(out, check):
    return {host: f["state"] for f in json.loads(out)["findings"] if f["check"] == check for host in f["hosts"]}


def test_a_live_audit_and_its_saved_evidence_give_the_same_report(sshd, call, tmp_path, silent_port):
    server = sshd()
    (tmp_path / "hosts.txt").write_text(f"there\n127.0.0.1:{silent_port}\nno-such-host.invalid\nlocal\n")
    keep = tmp_path / "keep"
    config = ("--ssh-config", server.config(more="Match host 127.0.0.1 !originalhost there\n  ConnectTimeout 1\n"))
    code, live, _ = call(*config, "preflight", tmp_path / "hosts.txt", "--save", keep, "--json", "--timeout", 30)
    again, judged, _ = call("preflight", "--evidence", keep, "--json")
    assert live == judged
    assert code == again
    report = json.loads(live)
    assert report["schema"] == "muster.preflight/1"
    assert {host["name"]: host["state"] for host in report["hosts"]} == {
        "there": "audited",
        "local": "audited",
        "127.0.0.1": "unreachable",
        "no-such-host.invalid": "unreachable",
    }
    assert set(report["facts"]) == {host["name"] for host in report["hosts"]}
    assert states(live, "ssh.reachable") == {
        "there": "pass",
        "local": "pass",
        "127.0.0.1": "fail",
        "no-such-host.invalid": "fail",
    }
    assert set(report["findings"][0]) == {
        "check", "state", "scope", "hosts", "subject", "saw", "wanted", "remedy", "evidence", "source",
    }  # fmt: skip
    assert {path.stem for path in (keep / "there").glob("*.txt")} == {
        *("ssh", "clock", "inventory"),
        *(p.name for p in PROBES),
    }


def test_an_unreachable_host_alone_leaves_the_answer_open(call, tmp_path):
    code, out, _ = call("preflight", "no-such-host.invalid", "--only", "ssh.reachable", "--json")
    assert code == 3
    assert json.loads(out)["verdict"] == "incomplete"


def test_a_target_that_can_be_read_once_is_enough(call):
    read, write = os.pipe()
    os.write(write, b"no-such-host.invalid\n")
    os.close(write)
    code, out, _ = call("preflight", f"/dev/fd/{read}", "--json")
    os.close(read)
    assert code == 3
    assert states(out, "ssh.reachable") == {"no-such-host.invalid": "fail"}


def test_a_failed_check_outranks_a_host_out_of_reach(call, saved):
    code, out, _ = call("preflight", "--evidence", saved, "--json")
    assert states(out, "cmdline.acs_override")["gpu01"] in {"fail", "warn"}
    code, out, _ = call("preflight", "--evidence", saved, "--json", "--strict")
    assert (code, json.loads(out)["verdict"]) == (1, "fail")


def test_text_tells_the_worst_first_and_ends_with_the_verdict(call, saved):
    _, out, _ = call("preflight", "--evidence", saved)
    lines = out.splitlines()
    order = [line.split()[0] for line in lines if line and not line.startswith((" ", "verdict", "2 hosts", "partial"))]
    rank = ["fail", "unknown", "warn", "info", "skip", "pass"]
    assert order == sorted(order, key=rank.index)
    assert lines[-1].startswith("verdict: ")
    assert lines[-2].startswith("2 hosts: 1 partial, 1 unreachable; findings: ")
    assert "next    start sshd" in out


def test_only_skip_and_accept_choose_what_is_judged(call, saved):
    _, out, _ = call("preflight", "--evidence", saved, "--json", "--only", "ssh.*,cmdline.acs_override")
    assert {finding["check"] for finding in json.loads(out)["findings"]} == {
        "ssh.reachable",
        "ssh.peer_trust",
        "cmdline.acs_override",
    }
    _, out, _ = call("preflight", "--evidence", saved, "--json", "--skip", "ssh.*", "--skip", "numa.nps")
    assert not {"ssh.reachable", "numa.nps"} & {finding["check"] for finding in json.loads(out)["findings"]}
    accepted = ("--accept", "cmdline.acs_override=we know", "--only", "cmdline.acs_override", "--strict")
    code, out, _ = call("preflight", "gpu01", "--evidence", saved, "--json", *accepted)
    assert states(out, "cmdline.acs_override") == {"gpu01": "info"}
    assert "we know" in out
    assert code == 3  # the evidence is partial, and that nobody can accept away


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "pcie.acs.redirct"], ["pcie.acs.redirct", "did you mean pcie.acs.redirect"]),
        (["--skip", "zzz.*"], ["zzz.*", "orchestrate explain"]),
        (["--accept", "ssh.reachable"], ["ID=REASON"]),
        (["--accept", "ssh.reachabl=why"], ["did you mean ssh.reachable"]),
        (["--format", "xml"], ["xml"]),
        (["--timeout", "0"], ["0"]),
        (["--nonsense"], ["--nonsense"]),
        (["--save", "elsewhere"], ["leave one of them out"]),
        (["--json", "--format", "html"], ["leave one of them out"]),
        (["--save-baseline", __file__], ["exists already"]),
        (["nobody"], ["holds none of nobody", "gpu[01-02]"]),
        (["--skip", "*"], ["no check is left"]),
        (["--only", "numa.nps", "--skip", "numa.*"], ["no check is left"]),
        (["--timeout", "nan"], ["nan"]),
        (["--evidence", ""], ["empty"]),
        (["--save", "", "--scrub"], ["empty"]),
        (["-o", "."], ["is a directory"]),
        (["-o", "/dev/null/report"], ["cannot write the report", "no folder"]),
        (["--save-baseline", "no/such/folder/site.toml"], ["cannot write the baseline", "no folder"]),
        (["--scrub", "--save", "/dev/null/copy"], ["cannot write the evidence"]),
    ],
)
def test_a_wrong_command_line_is_told_in_three_lines_and_ends_with_2(call, saved, arguments, words):
    code, out, err = call("preflight", "--evidence", saved, *arguments)
    assert (code, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "where", "next"]
    for word in words:
        assert word in err


def test_what_cannot_be_written_is_refused_before_a_host_is_asked(call, tmp_path, monkeypatch):
    monkeypatch.setattr("orchestrate.collect.collect", lambda *_, **__: pytest.fail("a host was asked"))
    for option in ("-o", "--save-baseline", "--save"):
        code, _, err = call("preflight", "gpu01", option, "/dev/null/x")
        assert code == 2
        assert "cannot write" in err


def test_what_is_scrubbed_lies_beside_nothing_that_is_not(call, saved, tmp_path):
    code, _, err = call("preflight", "--evidence", saved, "--scrub", "--save", saved)
    assert code == 2
    assert "passed on" in err
    assert {path.name for path in saved.iterdir()} == {"gpu01", "gpu02"}
    (tmp_path / "empty").mkdir()
    call("preflight", "--evidence", saved, "--scrub", "--save", tmp_path / "empty")
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {"host-1", "host-2"}


def test_evidence_that_is_not_there_is_told(call, tmp_path):
    code, _, err = call("preflight", "--evidence", tmp_path / "none")
    assert code == 2
    assert "none" in err


def test_a_report_goes_to_a_file_whole(call, saved, tmp_path):
    code, out, _ = call("preflight", "--evidence", saved, "--json", "-o", tmp_path / "report.json")
    assert out == ""
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "muster.preflight/1"
    assert [path.name for path in tmp_path.glob(".report*")] == []
    code, _, err = call("preflight", "--evidence", saved, "-o", tmp_path / "no" / "report.json")
    assert code == 2
    assert "cannot write the report" in err


def test_a_hosts_escape_codes_do_not_reach_the_terminal(call, tmp_path):
    said = json.dumps({"outcome": "error", "detail": "\x1b]0;owned\x07\x1b[2J\u202eevil\r", "next": "\x1b[31mred"})
    store.save(Evidence("h", {"ssh": Reply(said.encode())}), tmp_path)
    _, out, _ = call("preflight", "--evidence", tmp_path)
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(out)
    assert r"\x1b[2J" in out
    _, out, _ = call("preflight", "--evidence", tmp_path, "--json")
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_a_host_that_cuts_the_exchange_short_is_partial_and_keeps_what_it_sent(sshd, call, tmp_path):
    # The login shell of this sshd lets 1500 bytes of every command through, as a host that dies on the way would.
    server = sshd(ForceCommand='sh -c "$SSH_ORIGINAL_COMMAND" | head -c 1500')
    start = time.monotonic()
    code, out, _ = call("--ssh-config", server.config(), "preflight", "there", "--save", tmp_path, "--json")
    assert time.monotonic() - start < 30
    (host,) = json.loads(out)["hosts"]
    assert (code, host["state"]) in {(3, "partial"), (1, "partial")}
    assert host["error"]
    assert (tmp_path / "there" / "ssh.txt").exists()


def test_noise_of_the_login_shell_forges_no_answer(sshd, call):
    noisy = (
        "echo 'Welcome to gpu01'; printf 'x y.txt 0 base64\\n'; echo trouble >&2; exec sh -c \"$SSH_ORIGINAL_COMMAND\""
    )
    server = sshd(ForceCommand=noisy)
    _, out, _ = call("--ssh-config", server.config(), "preflight", "there", "--json")
    assert json.loads(out)["hosts"][0]["state"] == "audited"
    assert "clock" in json.loads(out)["facts"]["there"]


def test_a_broken_ssh_configuration_is_a_usage_error(call, tmp_path):
    (tmp_path / "config").write_text("Match perhaps\n")
    code, _, err = call("--ssh-config", tmp_path / "config", "preflight", "gpu01")
    assert code == 2
    assert "ssh configuration" in err
