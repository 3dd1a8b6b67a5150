"""Connections against a real sshd on loopback: what is let through, what is refused, and how each failure is told."""

import getpass
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from orchestrate.errors import Exit, RemoteError, UsageError
from orchestrate.inventory import Host
from orchestrate.remote import connect, fan_out

THERE = Host("there", "there")


@pytest.fixture
def shell(sshd):
    opened = connect(THERE, ssh_config=sshd().config())
    yield opened
    opened.close()


def refusal(host, path, timeout_s=5.0):
    with pytest.raises(RemoteError) as caught:
        connect(host, ssh_config=path, timeout_s=timeout_s)
    assert caught.value.exit_code == Exit.CANNOT_TELL
    assert caught.value.where
    assert caught.value.next_step
    return caught.value


def wait_for(claim, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_hung_up(server):
    login, _, after = (server.folder / "log").read_text().partition("Accepted publickey")
    return login and any(words in after for words in ("Closing connection", "Connection reset"))


def public_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def test_a_command_runs_and_its_exit_code_is_data(shell):
    done = shell.run("echo out; echo err >&2; exit 7")
    assert (done.exit_code, done.stdout, done.stderr, done.truncated) == (7, b"out\n", b"err\n", False)


def test_a_command_that_is_cut_off_while_it_talks_costs_no_connection(shell):
    for _ in range(40):
        assert shell.run("yes & yes >&2", max_bytes=1000).truncated
    assert shell.run("echo still here").stdout == b"still here\n"


def test_standard_input_of_several_megabytes_arrives_whole(shell):
    done = shell.run("cat | wc -c", stdin=b"x" * 5_000_000)
    assert done.stdout.strip() == b"5000000"


def test_large_input_and_large_output_at_once_do_not_lock_each_other(shell):
    done = shell.run("cat", stdin=b"y" * 4_000_000, timeout_s=30)
    assert done.stdout == b"y" * 4_000_000


def test_a_command_that_reads_no_input_ends_all_the_same(shell):
    assert shell.run("true", stdin=b"z" * 6_000_000, timeout_s=20).exit_code == 0


def test_a_death_by_signal_is_told(shell):
    assert shell.run("kill -9 $$").signal == "SIGKILL"
    assert shell.run("exit 3").signal is None


def test_endless_output_is_cut_and_the_connection_lives_on(shell):
    done = shell.run("yes", max_bytes=100_000, timeout_s=20)
    assert done.truncated
    assert done.exit_code is None
    assert len(done.stdout) == 100_000
    assert shell.run("echo still").stdout == b"still\n"


def test_a_command_that_does_not_end_is_left_behind_at_its_deadline(shell):
    start = time.monotonic()
    done = shell.run("echo begun; sleep 60", timeout_s=0.7)
    assert time.monotonic() - start < 3
    assert (done.exit_code, done.stdout, done.truncated) == (None, b"begun\n", False)


def test_a_background_process_that_holds_the_output_open_does_not_hold_the_answer(shell):
    start = time.monotonic()
    done = shell.run("sleep 30 & echo said", timeout_s=20)
    assert (done.exit_code, done.stdout) == (0, b"said\n")
    assert time.monotonic() - start < 5


def test_bytes_that_are_no_text_come_back_as_they_are(shell):
    assert shell.run(r"printf '\377\000\033[31m'").stdout == b"\xff\x00\x1b[31m"


def test_quotes_and_newlines_of_a_command_reach_the_host_as_they_are(shell):
    assert shell.run("printf '%s' \"it's\n'two' lines\" # end").stdout == b"it's\n'two' lines"


def test_a_banner_is_no_part_of_the_output(sshd, tmp_path):
    banner = tmp_path / "banner"
    banner.write_text("AUTHORIZED USE ONLY\n" * 50)
    opened = connect(THERE, ssh_config=sshd(Banner=banner, PrintMotd="yes").config())
    assert opened.run("echo x").stdout == b"x\n"
    opened.close()


def test_an_unknown_key_is_refused_with_the_commands_that_show_and_accept_it(sshd):
    server = sshd()
    error = refusal(THERE, server.config(known=""))
    assert error.outcome == "host_key_unknown"
    assert "SHA256:" in error.what
    assert f"ssh-keyscan -p {server.port} 127.0.0.1" in error.next_step
    accept = error.next_step.split("accept it: ")[1]
    # The command that was printed does accept the key: with the question answered, the next connection works.
    accept = accept.replace("StrictHostKeyChecking=ask", "StrictHostKeyChecking=accept-new")
    subprocess.run(["sh", "-c", accept], check=True, timeout=20)
    connect(THERE, ssh_config=server.folder / "config").close()


def test_a_changed_key_is_refused_even_where_the_configuration_would_take_any(sshd, tmp_path):
    server = sshd()
    other = public_key(tmp_path / "other")
    known = f"[127.0.0.1]:{server.port} {other}\n"
    for strict in ("ask", "accept-new", "no"):
        error = refusal(THERE, server.config(known=known, more=f"  StrictHostKeyChecking {strict}"))
        assert error.outcome == "host_key_changed"
        assert "known_hosts:1" in error.where


def test_a_revoked_key_is_refused_though_it_is_known(sshd):
    server = sshd()
    error = refusal(THERE, server.config(known=server.known_line + "@revoked * " + server.host_key + "\n"))
    assert error.outcome == "host_key_changed"


def test_accept_new_takes_an_unknown_key_and_remembers_it(sshd):
    server = sshd()
    path = server.config(known="", more="  StrictHostKeyChecking accept-new")
    connect(THERE, ssh_config=path).close()
    assert (server.folder / "known_hosts").read_text() == server.known_line


def test_hashed_known_hosts_and_host_key_aliases_are_understood(sshd):
    server = sshd()
    path = server.config()
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", server.folder / "known_hosts"], check=True, capture_output=True)
    assert "127.0.0.1" not in (server.folder / "known_hosts").read_text()
    connect(THERE, ssh_config=path).close()
    path = server.config(known=f"the-rack {server.host_key}\n", more="  HostKeyAlias the-rack")
    connect(THERE, ssh_config=path).close()


def test_a_host_with_several_kinds_of_keys_is_known_by_any_of_them(sshd):
    server = sshd()
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", server.folder / "rsa"], check=True)
    second = sshd(HostKey=f"{server.folder / 'rsa'}\nHostKey {server.folder / 'host_key'}")
    rsa = " ".join((server.folder / "rsa.pub").read_text().split()[:2])
    connect(THERE, ssh_config=second.config(known=f"[127.0.0.1]:{second.port} {rsa}\n")).close()


def test_a_key_that_is_not_accepted_is_told_with_what_the_host_would_take(sshd, tmp_path):
    server = sshd(PasswordAuthentication="yes")
    public_key(tmp_path / "stranger")
    server.identity = tmp_path / "stranger"
    error = refusal(THERE, server.config())
    assert error.outcome == "auth"
    assert f"{tmp_path / 'stranger'}: not accepted" in error.what
    assert "password" in error.what
    assert "ssh -v" in error.next_step


def test_a_host_that_takes_only_passwords_is_told_and_nothing_is_asked(sshd):
    error = refusal(THERE, sshd(PubkeyAuthentication="no", PasswordAuthentication="yes").config())
    assert error.outcome == "auth"
    assert "password" in error.what


def test_a_key_with_a_passphrase_is_told_and_not_asked_for(sshd):
    server = sshd()
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", server.identity], check=True)
    error = refusal(THERE, server.config())
    assert error.outcome == "auth"
    assert "passphrase" in error.what


def test_a_missing_key_file_is_told(sshd, tmp_path):
    server = sshd()
    server.identity = tmp_path / "nowhere"
    assert "no key was found" in refusal(THERE, server.config()).what


def test_a_port_that_refuses_is_told(sshd):
    server = sshd()
    server.stop()
    assert refusal(THERE, server.config()).outcome == "refused"


def test_a_name_that_does_not_resolve_is_told(sshd):
    assert refusal(Host("x", "no-such-host.invalid"), sshd().config()).outcome == "dns"


def test_a_host_that_accepts_and_never_answers_ends_at_the_deadline(sshd, silent_port):
    path = sshd().config()
    start = time.monotonic()
    error = refusal(Host("mute", "127.0.0.1", port=silent_port), path, timeout_s=1.0)
    assert error.outcome == "timeout"
    assert time.monotonic() - start < 3


def test_a_connection_through_a_jump_host_works_and_closes_both(sshd):
    inner, jump = sshd(), sshd()
    jump.config(known=jump.known_line + inner.known_line)
    more = f"  IdentityFile {inner.identity}\n  ProxyJump {getpass.getuser()}@127.0.0.1:{jump.port}"
    path = jump.folder / "config"
    path.write_text(
        f"Host there\n  HostName 127.0.0.1\n  Port {inner.port}\n{more}\n" + path.read_text().partition("\n\n")[2]
    )
    opened = connect(THERE, ssh_config=path)
    assert opened.run("echo through").stdout == b"through\n"
    opened.close()
    for server in (inner, jump):
        wait_for(lambda server=server: has_hung_up(server))
        assert (server.folder / "log").read_text().count("Accepted publickey") == 1


def test_many_hosts_behind_one_jump_host_share_its_login_and_the_last_closes_it(sshd):
    inner = sshd(ListenAddress="0.0.0.0", MaxStartups="100")
    jump = sshd(MaxStartups="2:100:2")  # a third login at once is turned away
    path = jump.config(alias="jump", known=f"{jump.known_line}[127.0.0.*]:{inner.port} {inner.host_key}\n")
    more = f"  Port {inner.port}\n  IdentityFile {inner.identity}\n  ProxyJump jump\n\n"
    path.write_text(f"Host 127.0.0.*,!127.0.0.1\n{more}".replace(",", " ") + path.read_text())
    barrier = threading.Barrier(8)

    def work(host):
        opened = connect(host, ssh_config=path)
        barrier.wait(20)  # all are connected at once
        said = opened.run("echo $SSH_CONNECTION").stdout.split()[2].decode()
        opened.close()
        return said

    hosts = [Host(f"127.0.0.{n}", f"127.0.0.{n}") for n in range(2, 10)]
    assert fan_out(hosts, work, deadline_s=30) == {host.name: host.name for host in hosts}
    wait_for(lambda: has_hung_up(jump))
    assert (jump.folder / "log").read_text().count("Accepted publickey") == 1


def test_a_dead_jump_host_is_told_for_every_host_behind_it_in_the_time_of_one(sshd, silent_port):
    path = sshd().config(alias="jump")
    path.write_text(f"Host h*\n  ProxyJump 127.0.0.1:{silent_port}\n\n" + path.read_text())
    hosts = [Host(f"h{n}", f"h{n}") for n in range(8)]
    start = time.monotonic()
    results = fan_out(hosts, lambda host: connect(host, ssh_config=path, timeout_s=1), deadline_s=20)
    assert {result.outcome for result in results.values()} == {"proxy"}
    assert time.monotonic() - start < 5


def test_a_jump_host_that_refuses_is_the_one_that_is_named(sshd):
    server, dead = sshd(), sshd()
    dead.stop()
    error = refusal(THERE, server.config(more=f"  ProxyJump 127.0.0.1:{dead.port}"))
    assert error.outcome == "proxy"
    assert f"127.0.0.1:{dead.port}" in error.where


def test_a_host_that_the_jump_host_cannot_reach_is_told(sshd):
    jump, dead = sshd(), sshd()
    dead.stop()
    path = jump.config(alias="jump")
    path.write_text(f"Host dead\n  HostName 127.0.0.1\n  Port {dead.port}\n  ProxyJump jump\n\n" + path.read_text())
    error = refusal(Host("dead", "dead"), path)
    assert error.outcome == "proxy"
    assert "jump host cannot reach" in error.what


def test_a_proxy_command_is_used_and_a_broken_one_ends_at_once(sshd):
    server = sshd()
    path = server.config(more=f"  ProxyCommand ssh -F {server.folder / 'config'} -W %h:%p direct")
    path.write_text(f"Host direct\n  HostName 127.0.0.1\n  Port {server.port}\n\n" + path.read_text())
    opened = connect(THERE, ssh_config=path)
    assert opened.run("echo by command").stdout == b"by command\n"
    opened.close()
    start = time.monotonic()
    error = refusal(THERE, server.config(more="  ProxyCommand false"))
    assert error.outcome == "proxy"
    assert time.monotonic() - start < 3


def test_included_files_of_the_configuration_are_read(sshd, tmp_path):
    path = sshd().config()
    outer = tmp_path / "outer"
    outer.write_text(f"Include {path}\nHost unrelated\n  User nobody\n")
    connect(THERE, ssh_config=outer).close()


def test_a_missing_or_broken_configuration_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such ssh configuration"):
        connect(THERE, ssh_config=tmp_path / "none")
    (tmp_path / "bad").write_text("Host 'x\n  Match maybe\n")
    with pytest.raises(UsageError, match="cannot read"):
        connect(THERE, ssh_config=tmp_path / "bad")


def test_a_connection_that_is_lost_keeps_what_had_come(sshd):
    opened = connect(THERE, ssh_config=sshd().config())
    with pytest.raises(RemoteError) as caught:
        # $PPID is the shell around the command; its parent is the sshd that serves this one connection.
        opened.run("echo begun; sleep 0.3; kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 5", timeout_s=10)
    opened.close()
    assert caught.value.outcome == "closed"
    assert caught.value.partial == b"begun\n"


def test_a_dead_host_does_not_hide_the_live_ones(sshd, silent_port):
    server = sshd()
    path = server.config()
    hosts = [
        Host("live", "there"),
        Host("mute", "127.0.0.1", port=silent_port),
        Host("nowhere", "no-such-host.invalid"),
        Host("here", "local", local=True),
    ]

    def work(host):
        opened = connect(host, ssh_config=path, timeout_s=1)
        try:
            return opened.run("echo yes").stdout
        finally:
            opened.close()

    results = fan_out(hosts, work, deadline_s=10)
    assert list(results) == ["live", "mute", "nowhere", "here"]
    assert results["live"] == results["here"] == b"yes\n"
    assert (results["mute"].outcome, results["nowhere"].outcome) == ("timeout", "dns")


def test_a_host_that_stops_answering_costs_no_more_than_the_deadline(sshd):
    opened = connect(THERE, ssh_config=sshd().config())
    session = int(opened.run("cut -d' ' -f4 /proc/$PPID/stat").stdout)
    start = time.monotonic()
    try:
        done = opened.run(f"echo begun; sleep 0.3; kill -STOP {session}; sleep 5; echo late", timeout_s=1)
        assert (done.exit_code, done.stdout) == (None, b"begun\n")
        with pytest.raises(RemoteError) as caught:
            opened.run("true", timeout_s=1)
        assert caught.value.outcome == "timeout"
        assert time.monotonic() - start < 6
    finally:
        os.kill(session, signal.SIGKILL)
        opened.close()
