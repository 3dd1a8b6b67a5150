"""Containers on this host get limits that are too low for training.

What it means
    A container that sets no limits itself may open too few files, or lock too little memory for RDMA.

Why it matters to training
    Every data loader worker, every connection of the store and every shard of a dataset takes files: too few end in "Too
    many open files" hours later. RDMA registers memory and the kernel counts that as locked: below the limit verbs
    calls fail with "Cannot allocate memory", and NCCL gives up or goes on over TCP.

How we tell
    A container's limits are not those of the SSH session: they come from "default-ulimits" of the engine, or else from the
    unit that starts containers, containerd or docker, or else from the engine's process. Where systemd tells a soft limit
    that counts, for programs do not raise it themselves; of a unit that tells none, and of a process, the hard
    one is what we know. Fewer than 65536 files is a warning (our judgement). `orchestrate launch` sets no limit of files,
    so its containers have this one, too. Locked memory is judged on hosts with RDMA NICs, below 16 GiB, and told as
    information: the launcher gives its containers unlimited memlock there, and others must pass `--ulimit memlock=-1`.
    A rootless engine cannot raise a limit above its own: there it is a warning.

What to do
    "default-ulimits": {"nofile": {"Name": "nofile", "Soft": 1048576, "Hard": 1048576}} in /etc/docker/daemon.json, and
    the same with memlock -1; restart the engine. Rootless: LimitMEMLOCK=infinity for user@.service.

How to undo
    Take the lines out again and restart the engine.

Sources
    https://docs.docker.com/reference/cli/dockerd/
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    https://github.com/containerd/containerd/issues/3201
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.docker_host import DockerHost
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.services import Services

ID = "docker.ulimits"
SOURCE = "https://docs.docker.com/reference/cli/dockerd/"
FILES, MEMLOCK = f"{ID}.nofile", f"{ID}.memlock_gib"
EXPECTS = {
    FILES: Want(int, "how many files a process of a container may have open", 65536),
    MEMLOCK: Want(float, "GiB that a container may lock without asking, on hosts with RDMA NICs", 16.0),
}
_GIB = 1 << 30
_REMEDY = Remedy('Set "default-ulimits" in /etc/docker/daemon.json and restart the engine.', needs_root=True)


def skip(docker: Docker) -> str:
    """Spare hosts whose engine does not answer."""
    return docker.absent


def judge(
    docker: Docker,
    expect: Expect,
    docker_host: DockerHost | None = None,
    services: Services | None = None,
    pci: Pci | None = None,
) -> Iterator[Finding]:
    """Warn of few files; tell of little locked memory where there are RDMA NICs."""
    files, memory = (_limit(name, docker_host, services) for name in ("nofile", "memlock"))
    if files is None:
        yield Finding(State.UNKNOWN, saw="neither the engine's files nor its units tell the limits of containers")
        return
    found = [one for one in (_files(files, expect), _memory(memory, expect, docker, pci)) if one]
    yield from found
    if not found:
        told = f", {_told(memory[0])} bytes of locked memory" if memory and pci and pci.rdma_nics else ""
        yield Finding(State.PASS, saw=f"containers may open {_told(files[0])} files{told} ({files[1]})")


def _limit(name: str, host: DockerHost | None, services: Services | None) -> tuple[float, str] | None:
    """Return a limit of containers and who sets it: the engine, the unit that starts containers, or the engine's process."""
    if host is not None and name in host.ulimits:
        return host.ulimits[name].soft, "default-ulimits of the engine"
    key = f"Limit{name.upper()}"
    for unit in services.loaded("containerd", "docker") if services else ():
        limits = services.units[unit].limits if services else {}
        value = limits.get(f"{key}Soft") or limits.get(key, "")
        if services and services.units[unit].active and (value == "infinity" or (value.isascii() and value.isdigit())):
            return (math.inf if value == "infinity" else float(value)), f"unit {unit}.service"
    if host is not None and name in host.limits:
        return host.limits[name].hard, "the engine's process"
    return None


def _files(limit: tuple[float, str], expect: Expect) -> Finding | None:
    wanted = expect.whole(FILES) or 0
    if limit[0] >= wanted:
        return None
    return Finding(
        State.WARN,
        saw=f"a container may open {_told(limit[0])} files ({limit[1]})",
        wanted=f"{wanted} or more ({expect.origin(FILES)})",
        subject="nofile",
        remedy=_REMEDY,
        evidence=(f"{_probe(limit[1])}: nofile {_told(limit[0])}",),
    )


def _memory(limit: tuple[float, str] | None, expect: Expect, docker: Docker, pci: Pci | None) -> Finding | None:
    wanted = expect.number(MEMLOCK) or 0.0
    if pci is None or not pci.rdma_nics or (limit is not None and limit[0] >= wanted * _GIB):
        return None
    if limit is None:
        return Finding(State.UNKNOWN, saw="how much memory a container may lock is not known, and there are RDMA NICs")
    own = "" if docker.rootless else "; the launcher asks for more itself where it gives RDMA devices"
    return Finding(
        State.WARN if docker.rootless else State.INFO,
        saw=f"a container may lock {_told(limit[0])} bytes ({limit[1]})"
        + (", and a rootless engine cannot raise that" if docker.rootless else own),
        wanted=f"unlimited, or {wanted:g} GiB or more ({expect.origin(MEMLOCK)})",
        subject="memlock",
        remedy=_REMEDY,
        evidence=(f"{_probe(limit[1])}: memlock {_told(limit[0])}",),
    )


def _probe(source: str) -> str:
    return "services" if source.startswith("unit ") else "docker-host"


def _told(value: float) -> str:
    return "unlimited" if math.isinf(value) else f"{value:.0f}"
