"""Shared memory is small: the host's /dev/shm, or what a container gets that does not ask for more.

What it means
    /dev/shm of the host is small or half full, or `docker run` without --shm-size gives containers only the engine's
    default, which is 64 MiB.

Why it matters to training
    Workers of data loaders hand tensors over in shared memory, and NCCL's ranks of one host talk through it. Too little
    ends in "Bus error" of a worker, or in NCCL's "Error while creating shared memory segment". Two containers of one
    host that have each their own /dev/shm also lose NCCL's shared-memory and peer-to-peer transports between them.

How we tell
    df of the host's /dev/shm: less than 8 GiB, or less than half of it free, is a warning (our judgement). It matters to
    what runs outside of containers, or with --ipc=host. "default-shm-size" in the engine's daemon.json or on its command
    line: below 1 GiB is told as information only, for `orchestrate launch` gives every container 8 GiB of its own,
    whatever the engine's default is; it is a limit, no allocation. A host that is itself a container got its /dev/shm
    from another engine: that is told, not warned of. In what somebody saved, a device called shm is a container's.

What to do
    Containers that others start: `docker run --shm-size=8g` or `--ipc=host`, or "default-shm-size": "8g" in
    /etc/docker/daemon.json. The host: `mount -o remount,size=50% /dev/shm`, and a line in /etc/fstab to keep it. Half
    full: see what lies there; files of processes that died (nccl-*, torch_*) can go when nothing runs.

How to undo
    Take the line out of daemon.json or fstab; restart the engine, remount.

Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    https://docs.docker.com/reference/cli/dockerd/
    https://docs.pytorch.org/docs/stable/multiprocessing.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.docker_host import SHM
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.disks import Disk, Disks
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.docker_host import DockerHost
    from hostsetup.facts.virt import Virt

ID = "docker.shm"
SOURCE = "https://docs.docker.com/reference/cli/dockerd/"
HOST, FREE, DEFAULT = f"{ID}.host_gib", f"{ID}.free_percent", f"{ID}.default_mib"
EXPECTS = {
    HOST: Want(float, "GiB that the host's /dev/shm should have", 8.0),
    FREE: Want(float, "percent of it that should be free", 50.0),
    DEFAULT: Want(int, "MiB that containers should get without asking", 1024),
}
_GIB, _MIB = 1 << 30, 1 << 20
_CONTAINERS = "shm"  # what engines call the device of a container's /dev/shm
_ENGINES_OWN = 64 * _MIB
_LAUNCH = "`orchestrate launch` gives its own containers 8 GiB"


def judge(
    expect: Expect,
    docker_host: DockerHost | None = None,
    disks: Disks | None = None,
    docker: Docker | None = None,
    virt: Virt | None = None,
) -> Iterator[Finding]:
    """Warn of the host's own shared memory, tell what a container gets by default."""
    shm, probe = (docker_host.shm, "docker-host") if docker_host is not None else (None, "")
    if shm is None and disks is not None:
        shm, probe = disks.by_path.get(SHM), "df"
    if shm is None:
        yield Finding(State.UNKNOWN, saw="the size of the host's /dev/shm is not known")
    elif flaw := _flaw(shm, expect):
        yield _host(shm, *flaw, probe=probe, inside=bool(virt and virt.container))
    default = _default(docker_host, docker, expect) if docker_host is not None else None
    if default is not None:
        yield default
    elif shm is not None and not _flaw(shm, expect):
        yield Finding(State.PASS, saw=f"{_whose(shm)}: {_told(shm)}")


def _whose(shm: Disk) -> str:
    return f"{SHM} of a container, as its device is called" if shm.device == _CONTAINERS else f"{SHM} of the host"


def _told(shm: Disk) -> str:
    return f"{shm.size / _GIB:.1f} GiB, {shm.free_percent:.0f} % free" + (f" ({shm.use} % in use)" if shm.use else "")


def _flaw(shm: Disk, expect: Expect) -> tuple[str, Remedy] | None:
    size, free = expect.number(HOST) or 0.0, expect.number(FREE) or 0.0
    if shm.size < size * _GIB and shm.device == _CONTAINERS:
        return (
            f"{size:g} GiB or more ({expect.origin(HOST)})",
            Remedy("Start the container with more, docker run --shm-size=8g, or with the host's: --ipc=host."),
        )
    if shm.size < size * _GIB:
        text = "Give it half of the memory, and add the size to its line in /etc/fstab."
        return (
            f"{size:g} GiB or more ({expect.origin(HOST)})",
            Remedy(text, ("sudo mount -o remount,size=50% /dev/shm",), needs_root=True),
        )
    if shm.free_percent < free:
        return (
            f"{free:g} % or more of it free ({expect.origin(FREE)})",
            Remedy("See what lies there; files of processes that died can go when nothing runs.", ("ls -lS /dev/shm",)),
        )
    return None


def _host(shm: Disk, wanted: str, remedy: Remedy, *, probe: str, inside: bool) -> Finding:
    return Finding(
        State.INFO if inside else State.WARN,
        saw=f"{_whose(shm)}: {_told(shm)}" + ("; the host is itself a container" if inside else ""),
        wanted=wanted,
        subject=SHM,
        remedy=remedy,
        evidence=(f"{probe}: {shm.device} {shm.size} {shm.free} {shm.path}",),
    )


def _default(host: DockerHost, docker: Docker | None, expect: Expect) -> Finding | None:
    """Return what a plain `docker run` gives, where that is little or not known; nothing where there is no engine."""
    if docker is None or docker.absent:
        return None
    if host.config is None or docker.rootless:
        why = "a rootless engine has a file of its own" if docker.rootless else f"{host.path}: {host.fault}"
        return Finding(State.INFO, saw=f"the engine's default is not known: {why}; {_LAUNCH}")
    given = _ENGINES_OWN if host.shm_bytes is None else host.shm_bytes
    least = (expect.whole(DEFAULT) or 0) * _MIB
    if given >= least:
        return None
    why = "" if host.shm_bytes is not None else " (the engine's own default)"
    return Finding(
        State.INFO,
        saw=f"a plain `docker run` gives {given // _MIB} MiB of /dev/shm{why}; {_LAUNCH}",
        wanted=f"{least // _MIB} MiB or more, or --shm-size, for containers that others start ({expect.origin(DEFAULT)})",
        subject="default-shm-size",
        evidence=(f"docker-host: default-shm-size: {host.option('default-shm-size') or 'not set'}",),
    )
