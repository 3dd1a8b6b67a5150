"""Load tests on real hosts: measured, verified, kept as evidence, and gone without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]


class Audit:
    """The program in a folder of its own, pointed at the lab."""

    def __init__(self, lab, folder, image):
        self.lab, self.folder, self.image = lab, folder, image
        self.environment = os.environ | {"MUSTER_SSH_CONFIG": str(lab.ssh_config)}

    def argv(self, *words):
        return [sys.executable, "-m", "orchestrate", *words]

    def __call__(self, *words, timeout=240):
        return subprocess.run(
            self.argv(*words), cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    def active(self, *words):
        return (
            "preflight",
            str(self.lab.hosts_file),
            "--active",
            "--image",
            self.image,
            "--only",
            "gpu.active",
            *words,
        )

    def begin(self):
        """Start load tests and return once a container of theirs runs."""
        process = subprocess.Popen(
            self.argv(*self.active()), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self.left("--filter", "status=running"):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return process

    def left(self, *filters):
        """Return the runs whose containers are on any host."""
        argv = ("docker", "ps", "--all", *filters, "--filter", "label=muster.run")
        argv = (*argv, "--format", '{{.Label "muster.run"}}')
        return sorted({line for host in self.lab.hosts for line in self.lab.run_on(host, argv).split()})


@pytest.fixture
def audit(lab, trainer_image, tmp_path):
    made = Audit(lab, tmp_path, trainer_image)
    held = [lab.run_on(host, ("docker", "images", "--quiet", trainer_image)) for host in lab.hosts]
    if not all(held):
        name = f"bring-{os.getpid()}"
        hosts = ("--hosts", str(lab.hosts_file), "--nodes", "2", "--image", trainer_image)
        done = made("launch", *hosts, "--name", name, "--", "--no-python", "true")
        assert done.returncode == 0, done.stdout + done.stderr
    yield made
    for host in lab.hosts:
        for listing, removal in ((("ps", "--all"), ("rm", "--force")), (("volume", "ls"), ("volume", "rm"))):
            found = lab.run_on(host, ("docker", *listing, "--quiet", "--filter", "label=muster.run")).split()
            if found:
                lab.run_on(host, ("docker", *removal, *found))


def findings(done):
    return json.loads(done.stdout)["findings"]


def test_both_hosts_and_their_pair_are_verified_and_the_evidence_says_so_again(audit):
    first, second = audit.lab.hosts
    live = audit(*audit.active("--json", "--save", "evidence"))
    told = findings(live)
    assert {finding["check"] for finding in told} == {"gpu.active"}
    assert {(f["state"], f["scope"], tuple(f["hosts"])) for f in told} == {
        ("info", "host", (first,)),
        ("info", "host", (second,)),
        ("pass", "pair", (first, second)),
    }, live.stdout
    assert all("verified" in finding["saw"] for finding in told)
    assert all("no GPU was tested" in finding["saw"] for finding in told if finding["scope"] == "host")
    (pair,) = [finding for finding in told if finding["scope"] == "pair"]
    assert "all-reduce of two hosts" in pair["saw"]
    assert "exchange between two hosts" in pair["saw"]
    results = json.loads(live.stdout)["facts"][first]["active"]["results"]
    assert {one["test"]: one["verified"] for one in results} == {
        "all_reduce.host": True,
        "all_reduce.pair": True,
        "sendrecv.pair": True,
    }
    again = audit("preflight", "--evidence", "evidence", "--json", "--only", "gpu.active")
    assert findings(again) == told
    assert again.returncode == live.returncode
    assert audit.left() == []


def test_without_the_option_nothing_runs_and_nothing_is_claimed(audit):
    told = findings(audit("preflight", str(audit.lab.hosts_file), "--json", "--only", "gpu.active"))
    assert {(finding["state"], finding["saw"]) for finding in told} == {("skip", "not asked: --active runs load tests")}


def test_a_host_without_the_image_is_unknown_with_what_to_do_and_the_other_is_tested(audit):
    first, second = audit.lab.hosts
    audit.lab.run_on(second, ("docker", "rmi", "--force", audit.image))
    done = audit(*audit.active("--json"))
    by_host = {finding["hosts"][0]: finding for finding in findings(done)}
    assert by_host[first]["state"] == "info"
    assert by_host[second]["state"] == "unknown"
    assert f"the image {audit.image} is not on the host" in by_host[second]["saw"]
    assert "orchestrate build" in by_host[second]["remedy"]["text"]
    assert done.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_middle_leaves_nothing(audit, number):
    process = audit.begin()
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert audit.left() == []


def test_what_a_killed_launcher_leaves_ends_by_itself_and_is_removed_by_its_label(audit):
    process = audit.begin()
    process.kill()
    process.communicate(timeout=30)
    (run,) = audit.left()
    assert run.startswith("preflight-")
    done = audit("stop", run, "--hosts", str(audit.lab.hosts_file), "--grace", "1")
    assert "Traceback" not in done.stderr
    assert audit.left() == []
    assert all(audit.lab.ssh(host, "true").returncode == 0 for host in audit.lab.hosts)
