"""The lab's promises: what other tests rely on when they say `lab`."""

from __future__ import annotations

import itertools
import os
import subprocess
import time

import lab as labs
import pytest

pytestmark = pytest.mark.lab


def test_every_host_answers_over_ssh_and_has_an_engine_of_its_own(lab):
    engines = set()
    for host in lab.hosts:
        done = lab.ssh(host, "hostname; docker info --format '{{.ID}}'")
        assert done.returncode == 0, done.stderr
        name, engine = done.stdout.split()
        assert name == host
        engines.add(engine)
    assert len(engines | {labs.docker("info", "--format", "{{.ID}}")}) == len(lab.hosts) + 1
    assert lab.hosts_file.read_text().split() == list(lab.hosts)


def test_hosts_find_each_other_by_name_and_none_finds_itself_on_loopback(lab):
    first, second = lab.hosts
    for host in lab.hosts:
        addresses = [lab.run_on(host, ["getent", "hosts", name]).split()[0] for name in (first, second)]
        assert len(set(addresses)) == 2
        assert not any(address.startswith(("127.", "::1")) for address in addresses)


@pytest.mark.parametrize(
    ("user", "sudo", "engine"),
    [("root", True, True), ("ops", True, False), ("dev", False, True), ("guest", False, False), ("pw", False, False)],
)
def test_an_account_can_do_what_its_name_says_and_no_more(lab, user, sudo, engine):
    alias = lab.hosts[0] if user == "root" else f"{lab.hosts[0]}-{user}"
    assert lab.ssh(alias, "id -un").stdout.strip() == user
    assert (lab.ssh(alias, "sudo -n true").returncode == 0) is sudo
    assert (lab.ssh(alias, "docker ps").returncode == 0) is engine


def test_a_password_opens_one_account_only(lab):
    paramiko = pytest.importorskip("paramiko")
    address = labs.docker("inspect", "--format", f'{{{{index .Config.Labels "{labs.LABEL}.address"}}}}', lab.hosts[0])

    def log_in(user):
        client = paramiko.SSHClient()
        client.load_host_keys(str(lab.folder / "known_hosts"))
        try:
            client.connect(
                address, username=user, password="correct horse", allow_agent=False, look_for_keys=False, timeout=10
            )
        finally:
            client.close()

    log_in("pw")
    with pytest.raises(paramiko.AuthenticationException):
        log_in("guest")


def test_a_host_with_another_key_is_refused(lab, tmp_path):
    first, second = (line.split(" ", 1) for line in (lab.folder / "known_hosts").read_text().splitlines())
    (tmp_path / "known_hosts").write_text(f"{first[0]} {second[1]}\n")
    done = subprocess.run(
        ["ssh", "-F", lab.ssh_config, "-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", lab.hosts[0], "true"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_paused_host_hangs_with_its_containers_and_goes_on_later(lab):
    host = lab.hosts[1]
    image = "muster-lab-tick"
    parts = "bin lib lib64 usr/bin usr/lib64 usr/lib/x86_64-linux-gnu"  # of the host itself: enough for a shell
    lab.run_on(host, ["sh", "-c", f"tar -c -C / {parts} | docker import - {image}"])
    tick = "while :; do date +%s%N; sleep 0.1; done"
    lab.run_on(host, ["docker", "run", "--detach", "--network=none", "--name=tick", image, "sh", "-c", tick])
    try:
        lab.pause(host)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                lab.ssh(host, "true", timeout_s=2)
        finally:
            lab.unpause(host)
        time.sleep(0.5)
        ticks = [int(line) for line in lab.run_on(host, ["docker", "logs", "tick"]).split()]
        assert max(late - early for early, late in itertools.pairwise(ticks)) > 1.5e9
    finally:
        lab.run_on(host, ["docker", "rm", "--force", "tick"])
        lab.run_on(host, ["docker", "rmi", image])


def test_a_killed_host_comes_back_at_the_same_address(lab):
    host = lab.hosts[1]
    lab.kill(host)
    assert lab.ssh(host, "true", timeout_s=15).returncode == 255
    lab.start(host)
    assert lab.ssh(host, "docker info").returncode == 0


def test_an_unplugged_host_is_out_of_reach_until_it_is_plugged_in_again(lab):
    host = lab.hosts[1]
    lab.disconnect(host)
    try:
        assert lab.ssh(host, "true", timeout_s=15).returncode == 255
        assert lab.run_on(host, ["hostname"]) == host
    finally:
        lab.connect(host)
    assert lab.ssh(host, "true").returncode == 0


def test_up_again_keeps_the_hosts(lab):
    before = [labs.docker("inspect", "--format", "{{.Id}}", host) for host in lab.hosts]
    started = time.monotonic()
    labs.up(len(lab.hosts), prefix=lab.prefix, folder=lab.folder)
    assert [labs.docker("inspect", "--format", "{{.Id}}", host) for host in lab.hosts] == before
    assert time.monotonic() - started < 20


def test_down_leaves_nothing_and_touches_nothing_else(lab, tmp_path):
    def all_there_is():
        listed = {
            ("container", name) for name in labs.docker("ps", "--all", "--format", "{{.Names}} {{.Status}}").split("\n")
        }
        return listed | {
            (kind, name) for kind in ("network", "volume") for name in labs.docker(kind, "ls", "--quiet").split()
        }

    prefix, folder = f"{labs.TESTS}-down-{os.getpid()}", tmp_path / "lab"
    mine = lambda things: {thing for thing in things if prefix in thing[1]}  # noqa: E731
    volumes = lambda things: {name for kind, name in things if kind == "volume"}  # noqa: E731
    before = all_there_is()
    labs.up(1, prefix=prefix, folder=folder)
    host = f"{prefix}-1"
    volume = labs.docker("inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", host).split()
    during = all_there_is()
    assert mine(during)
    assert set(volume) <= volumes(during)
    labs.down(prefix=prefix, folder=folder)
    after = all_there_is()
    assert not mine(after)
    assert not set(volume) & volumes(after)
    assert not folder.exists()
    assert volumes(before) <= volumes(after)
    assert lab.ssh(lab.hosts[0], "true").returncode == 0


def test_what_a_killed_session_left_is_swept_away_and_nothing_of_a_living_one(lab):
    with subprocess.Popen(["true"]) as ended:
        pass
    prefix = f"{labs.TESTS}-{ended.pid}"
    labs.network(prefix)
    labs.docker("tag", labs.HOST_IMAGE, f"muster:test-{ended.pid}")
    labs.sweep()
    assert prefix not in labs.docker("network", "ls", "--format", "{{.Name}}").split()
    assert f"muster:test-{ended.pid}" not in labs.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    assert lab.ssh(lab.hosts[0], "true").returncode == 0
