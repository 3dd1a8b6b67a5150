"""Runs on real hosts: they finish, they fail with the right name on it, and they leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LONG = ("-m", "trainer", "--task", "lm", "--steps", "100000")


class Launcher:
    """The program in a folder of its own, pointed at the lab."""

    def __init__(self, lab, folder, image):
        self.lab, self.folder, self.image = lab, folder, image
        self.environment = os.environ | {"MUSTER_SSH_CONFIG": str(lab.ssh_config)}

    def argv(self, *words):
        return [sys.executable, "-m", "orchestrate", *words]

    def __call__(self, *words, cwd=None, timeout=240):
        return subprocess.run(
            self.argv(*words), cwd=cwd or self.folder, env=self.environment, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    def launch(self, *words, hosts=None, **more):
        return self("launch", *self.options(hosts), *words, **more)

    def options(self, hosts=None):
        return ("--hosts", hosts or str(self.lab.hosts_file), "--image", self.image)

    def begin(self, *words, until):
        """Start a launch and return it once a line of its output holds `until`."""
        argv = self.argv("launch", *self.options(), *words)
        process = subprocess.Popen(
            argv, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        seen = []
        for line in process.stdout:
            seen.append(line)
            if until in line:
                return process
        raise AssertionError("".join(seen[-40:]))

    def outcome(self, run):
        return json.loads((self.folder / "runs" / run / "outcome.json").read_text())

    def left(self, what="container"):
        """Return what of any run is on any host."""
        listing = {"container": ("docker", "ps", "--all"), "volume": ("docker", "volume", "ls")}[what]
        argv = (*listing, "--quiet", "--filter", "label=muster.run")
        return [line for host in self.lab.hosts for line in self.lab.run_on(host, argv).split()]


@pytest.fixture
def launcher(lab, trainer_image, tmp_path):
    made = Launcher(lab, tmp_path, trainer_image)
    yield made
    for host in lab.hosts:
        for listing, removal in ((("ps", "--all"), ("rm", "--force")), (("volume", "ls"), ("volume", "rm"))):
            found = lab.run_on(host, ("docker", *listing, "--quiet", "--filter", "label=muster.run")).split()
            if found:
                lab.run_on(host, ("docker", *removal, *found))


def pid_of_rank(lab, host, rank):
    script = f"""for p in $(pgrep -f '[t]rainer --task'); do
        tr '\\0' '\\n' </proc/$p/environ | grep -qx RANK={rank} && echo $p; done; true"""
    return int(lab.run_on(host, ("sh", "-c", script)).split()[0])


def test_four_ranks_on_two_hosts_finish_and_leave_nothing(launcher):
    done = launcher.launch(
        "--nodes", "2", "--nproc-per-node", "2", "--name", "four", "--", "-m", "trainer", "--task", "lm", "--steps", "40"
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert launcher.outcome("four")["state"] == "finished"
    for rank in range(4):
        assert f"rank {rank}/4" in done.stdout
        log = launcher.folder / "runs/four/logs" / f"node{rank // 2}" / f"rank{rank}.log"
        assert f"rank {rank}/4" in log.read_text()
    losses = [
        json.loads(row)["loss"]
        for row in (launcher.folder / "runs/four/metrics.jsonl").read_text().splitlines()
        if '"loss"' in row
    ]
    assert losses[-1] < 0.8 * losses[0]
    assert (launcher.folder / "runs/four/final/weights.safetensors").stat().st_size > 100_000
    assert "<svg" in (launcher.folder / "runs/four/report.html").read_text()
    assert launcher.left() == []


def test_a_killed_rank_is_named_with_its_node_and_signal_within_fifteen_seconds(launcher):
    process = launcher.begin("--nodes", "2", "--nproc-per-node", "2", "--name", "killed", "--", *LONG, until="step 1/")
    second = launcher.lab.hosts[1]
    launcher.lab.run_on(second, ("kill", "-9", str(pid_of_rank(launcher.lab, second, 3))))
    began = time.monotonic()
    rest, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == 1
    assert f"rank 3 (local rank 1) on {second}: SIGKILL" in rest
    first = launcher.outcome("killed")["first"]
    assert (first["node"], first["rank"], first["local_rank"], first["signal"]) == (second, 3, 1, "SIGKILL")
    assert first["finding"] == "run.rank.killed"
    assert launcher.left() == []


def test_a_killed_container_is_named_as_the_node_as_a_whole(launcher):
    process = launcher.begin("--nodes", "2", "--name", "whole", "--", *LONG, until="step 1/")
    launcher.lab.run_on(launcher.lab.hosts[0], ("docker", "kill", "muster-whole-n0"))
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 1, rest
    first = launcher.outcome("whole")["first"]
    assert (first["node"], first["rank"], first["signal"]) == (launcher.lab.hosts[0], None, "SIGKILL")
    assert launcher.left() == []


@pytest.mark.parametrize(
    ("number", "until"), [(signal.SIGINT, "step 1/"), (signal.SIGTERM, "step 1/"), (signal.SIGINT, "start ")]
)
def test_an_interrupt_stops_every_node_and_leaves_nothing(launcher, number, until):
    process = launcher.begin("--nodes", "2", "--name", "ended", "--", *LONG, until=until)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert launcher.outcome("ended")["state"] == "stopped"
    assert launcher.left() == []


def test_a_detached_run_is_found_followed_and_stopped_from_another_folder(launcher, tmp_path_factory):
    done = launcher.launch("--nodes", "2", "--name", "away", "--detach", "--", *LONG)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    hosts = ("--hosts", str(launcher.lab.hosts_file))
    shown = json.loads(launcher("status", *hosts, "--json", cwd=elsewhere).stdout)
    assert [(row["run"], row["node"], row["state"]) for row in shown["nodes"]] == [
        ("away", "0", "running"),
        ("away", "1", "running"),
    ]
    deadline = time.monotonic() + 60
    while (
        "step 1/" not in (said := launcher("logs", "away", *hosts, cwd=elsewhere).stdout)
        and time.monotonic() < deadline
    ):
        time.sleep(1)
    assert f"[{launcher.lab.hosts[0]}/0] step 1/" in said
    assert f"[{launcher.lab.hosts[1]}/1] rank 1/2" in said
    only_one = launcher("logs", "away", *hosts, "--node", "1", cwd=elsewhere).stdout
    assert f"[{launcher.lab.hosts[0]}/" not in only_one
    stopped = launcher("stop", "away", *hosts, "--grace", "1", cwd=elsewhere)
    assert stopped.returncode == 0, stopped.stderr
    assert "rank 1/2" in Path(elsewhere / "runs/away/logs/node1/rank1.log").read_text()
    assert launcher.left() == []
    again = launcher("stop", "away", *hosts, cwd=elsewhere)
    assert again.returncode == 0
    assert "away has no container" in again.stdout
    assert "kept there: volume muster-away" in again.stdout
    never = launcher("stop", "never", *hosts, cwd=elsewhere)
    assert never.returncode == 2
    assert "no host holds a container of the run never" in never.stderr


def test_the_plan_is_shown_and_nothing_starts(launcher):
    done = launcher.launch("--nodes", "2", "--plan", "--json", "--", "x.py")
    plan = json.loads(done.stdout)["plan"]
    assert [node["host"] for node in plan["nodes"]] == list(launcher.lab.hosts)
    assert plan["master"]["address"] == plan["nodes"][0]["address"] != "127.0.0.1"
    assert launcher.left() + launcher.left("volume") == []
    assert not (launcher.folder / "runs").exists()


def test_a_missing_image_says_what_where_and_next_and_starts_nothing(launcher):
    done = launcher("launch", "--hosts", str(launcher.lab.hosts_file), "--nodes", "2", "--image", "nobody/has:this")
    assert done.returncode == 1
    assert "no image is named nobody/has:this" in done.stderr
    assert "orchestrate build" in done.stderr
    assert launcher.left() + launcher.left("volume") == []


def test_an_occupied_port_names_its_holder(launcher):
    first = launcher.lab.hosts[0]
    listen = "import socket,time; s=socket.create_server(('0.0.0.0', 23456)); time.sleep(60)"
    launcher.lab.run_on(first, ("sh", "-c", f'python3 -c "{listen}" >/dev/null 2>&1 & echo $! >/tmp/holder; sleep 1'))
    try:
        done = launcher.launch("--nodes", "2", "--master-port", "23456", "--", *LONG)
    finally:
        launcher.lab.run_on(first, ("sh", "-c", "kill $(cat /tmp/holder)"))
    assert done.returncode == 1
    assert "port 23456 is in use by python3" in done.stderr
    assert f"where: {first}" in done.stderr
    assert launcher.left() == []


def test_what_cannot_be_created_on_one_host_is_created_on_none(launcher):
    second = launcher.lab.hosts[1]
    warm = launcher.launch("--nodes", "2", "--name", "warm", "--", "--no-python", "true")
    assert warm.returncode == 0, warm.stdout + warm.stderr
    launcher.lab.run_on(second, ("docker", "create", "--name", "muster-clash-n1", launcher.image, "true"))
    try:
        done = launcher.launch("--nodes", "2", "--name", "clash", "--", *LONG)
    finally:
        launcher.lab.run_on(second, ("docker", "rm", "muster-clash-n1"))
    assert done.returncode == 1
    assert f"where: {second}" in done.stderr
    assert launcher.outcome("clash")["state"] == "refused"
    assert launcher.outcome("clash")["error"]["where"] == second
    assert launcher.left() == []
    assert "muster-clash" not in launcher.left("volume")


def test_a_name_in_use_is_refused_and_the_run_that_has_it_goes_on(launcher, tmp_path_factory):
    assert launcher.launch("--nodes", "2", "--name", "night", "--detach", "--", *LONG).returncode == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = launcher.launch("--nodes", "2", "--name", "night", "--", *LONG, cwd=elsewhere)
    assert done.returncode == 2
    assert "a run named night is on the host already" in done.stderr
    assert len(launcher.left()) == 2
    hosts = ("--hosts", str(launcher.lab.hosts_file))
    shown = json.loads(launcher("status", "night", *hosts, "--json", cwd=elsewhere).stdout)
    assert {row["state"] for row in shown["nodes"]} == {"running"}
    assert launcher("stop", "night", *hosts, cwd=elsewhere).returncode == 0
    assert launcher.left() == []
    assert "muster-night" in launcher.left("volume")  # its checkpoints
    again = launcher.launch(
        "--nodes", "2", "--name", "night", "--", "-m", "trainer", "--steps", "1", cwd=elsewhere / "runs"
    )
    assert again.returncode in {0, 1}, again.stderr
    assert "muster-night" in launcher.left("volume")


def test_a_user_with_sudo_but_no_docker_group_launches(launcher):
    hosts = ",".join(f"{host}-ops" for host in launcher.lab.hosts)
    done = launcher.launch("--nodes", "2", "--name", "ops", "--", "--no-python", "id", hosts=hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "uid=1000(muster)" in done.stdout
    assert launcher.left() == []


def test_a_user_who_may_not_use_the_engine_is_told_so(launcher):
    done = launcher.launch("--nodes", "1", "--", *LONG, hosts=f"{launcher.lab.hosts[0]}-guest")
    assert done.returncode == 3
    assert "may not use the Docker Engine" in done.stderr
    assert "usermod -aG docker" in done.stderr


def test_a_host_that_hangs_ends_in_cannot_tell_with_its_name(launcher):
    second = launcher.lab.hosts[1]
    launcher.lab.pause(second)
    try:
        began = time.monotonic()
        done = launcher.launch("--nodes", "2", "--", *LONG)
    finally:
        launcher.lab.unpause(second)
    assert done.returncode == 3
    assert f"where: {second}" in done.stderr
    assert time.monotonic() - began < 45
    assert launcher.left() == []


def test_an_audit_of_the_lab_is_the_same_again_from_what_it_saved(launcher):
    live = launcher("preflight", str(launcher.lab.hosts_file), "--json", "--save", "evidence")
    again = launcher("preflight", "--evidence", "evidence", "--json")
    assert live.returncode == again.returncode in {0, 1, 3}
    assert json.loads(live.stdout)["findings"] == json.loads(again.stdout)["findings"]
    assert {host["state"] for host in json.loads(live.stdout)["hosts"]} == {"audited"}
