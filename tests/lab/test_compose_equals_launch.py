"""`docker compose` and `launch` create the same containers: what runs at hand is what runs on the hosts."""

from __future__ import annotations

import json
import os
import subprocess

import lab as labs
import pytest

from orchestrate import engine
from orchestrate import plan as planning
from orchestrate.backends.containers import Containers
from orchestrate.inventory import Host
from orchestrate.plan import NodeFacts

pytestmark = pytest.mark.lab

RUN = f"equal-{os.getpid()}"
NETWORK = "10.198.77"
PROGRAM = ("-m", "trainer", "--task=lm", "--steps=40")


def plan(image):
    hosts = [Host(f"node{k}", "localhost", local=True) for k in range(2)]
    facts = {f"node{k}": NodeFacts(f"{NETWORK}.{10 + k}", "eth0") for k in range(2)}
    return planning.make(
        run=RUN, backend="local", hosts=hosts, facts=facts, nodes=2, port=29500, program=PROGRAM, image=image, subnet=f"{NETWORK}.0/24"
    )  # fmt: skip


def created():
    """Return what the engine says of the run's two containers, without what names one creation: ids, times, paths."""
    names = [f"muster-{RUN}-n{k}" for k in range(2)]
    return [reduced(raw) for raw in json.loads(labs.docker("inspect", *names))]


def reduced(raw):
    config, host = raw["Config"], raw["HostConfig"]
    networks = {name: (n["IPAMConfig"] or {}).get("IPv4Address") for name, n in raw["NetworkSettings"]["Networks"].items()}  # fmt: skip
    own = {name: value for name, value in config["Labels"].items() if not name.startswith("com.docker.compose")}
    return {
        "name": raw["Name"],
        "image": raw["Image"],
        "networks": networks,
        "mounts": [(m["Type"], m["Name"], m["Destination"], m["RW"]) for m in raw["Mounts"]],
        "environment": sorted(config["Env"]),
        "labels": own,
        "config": {name: config.get(name) for name in ("Cmd", "Entrypoint", "User", "WorkingDir", "Hostname", "Domainname", "Tty", "OpenStdin", "ExposedPorts", "StopSignal", "StopTimeout", "Healthcheck")},
        # the same volume is a mount to one and a bind to the other; the mounts above tell what it comes to
        "host": {name: value or None for name, value in host.items() if name not in {"Binds", "Mounts", "ContainerIDFile", "ConsoleSize"}},
    }  # fmt: skip


def test_compose_creates_what_launch_creates(trainer_image):
    environment = os.environ | {"MUSTER_IMAGE": trainer_image, "MUSTER_RUN": RUN, "MUSTER_SUBNET": NETWORK}

    def compose(*argv):
        done = subprocess.run(["docker", "compose", *argv], cwd=labs.ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr

    try:
        compose("create", "--no-build")
        by_compose = created()
    finally:
        compose("down", "--volumes", "--timeout=1")
    backend = Containers(plan(trainer_image), lambda _host: engine.local())
    try:
        backend.place()
        by_launch = created()
    finally:
        assert backend.remove() == []
        backend.close()
    assert by_compose == by_launch
    assert [c["host"]["ShmSize"] for c in by_launch] == [8 << 30] * 2
    assert [(c["host"]["CapDrop"], c["host"]["Privileged"]) for c in by_launch] == [(["ALL"], None)] * 2
    assert f"muster-{RUN}" not in labs.docker("volume", "ls", "--quiet")
