"""`docker compose up` on one machine."""

from __future__ import annotations

import json
import os
import subprocess

import lab as labs
import pytest

pytestmark = pytest.mark.lab


@pytest.fixture
def compose(trainer_image):
    run = f"compose-{os.getpid()}"  # not the name of the lab, which may be up
    environment = os.environ | {
        "MUSTER_IMAGE": trainer_image,
        "MUSTER_RUN": run,
        "MUSTER_SUBNET": f"10.199.{os.getpid() % 256}",
    }

    def call(*argv, **more):
        return subprocess.run(
            ["docker", "compose", *argv], cwd=labs.ROOT, env=environment | more, capture_output=True, text=True, timeout=180, check=False
        )  # fmt: skip

    yield call
    call("down", "--volumes", "--timeout=1")
    assert f"muster-{run}" not in labs.docker("ps", "--all", "--format", "{{.Names}}")
    assert f"muster-{run}" not in labs.docker("volume", "ls", "--quiet")


@pytest.mark.slow
def test_two_nodes_train_to_the_last_step_and_it_ends_zero(compose):
    done = compose("up", "--no-build", "--abort-on-container-exit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[rank0]:rank 0/2" in done.stdout
    assert "[rank1]:rank 1/2" in done.stdout
    assert "step 40/40" in done.stdout


def test_a_node_that_fails_makes_it_fail(compose):
    done = compose("up", "--no-build", "--abort-on-container-exit", MUSTER_PRESET="nonsense")
    assert done.returncode == 2, done.stdout + done.stderr


def test_with_gpus_each_node_gets_its_own_and_may_pin_memory(compose):
    files = ("--file=docker-compose.yml", "--file=docker-compose.gpu.yml")
    text = compose(*files, "config", "--format=json", MUSTER_GPUS_0="0,1", MUSTER_GPUS_1="2,3", MUSTER_NPROC="2").stdout
    services = json.loads(text)["services"]
    devices = [services[node]["deploy"]["resources"]["reservations"]["devices"] for node in ("node0", "node1")]
    assert [device[0]["device_ids"] for device in devices] == [["0,1"], ["2,3"]]
    assert all(service["ulimits"]["memlock"] == -1 for service in services.values())
    assert all("--nproc-per-node=2" in service["command"] for service in services.values())
