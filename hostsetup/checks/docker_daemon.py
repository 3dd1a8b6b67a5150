"""No Docker Engine of this host answers the SSH user.

What it means
    The docker command is missing, the engine does not run, the user may not speak to its socket, the command is really
    podman, or the engine answers with an error. Or an engine answers which is not the host's own: one in the virtual
    machine of Docker Desktop, or one on another machine that a context or DOCKER_HOST leads to.

Why it matters to training
    Every node of a run is a container that the launcher creates through this engine, as this very user. Without it the
    host takes no part. With an engine elsewhere the ranks would start elsewhere, away from the host's GPUs and network.

How we tell
    `docker info`, as the SSH user, or by `sudo -n` where the user alone may not: the launcher goes the same way. Its JSON
    may hold errors of the server although the command says that all is well; these count. The name that the engine's
    machine gives itself is compared with the host's, where a context or DOCKER_HOST is set; without either a difference
    is only a warning. An engine out of a snap is a warning: it cannot use the libraries of the host, and so neither the
    NVIDIA toolkit. An engine that gives no answer in time is unknown, for the host may merely be busy: see
    `systemctl status docker containerd` there.

What to do
    Not installed: install Docker Engine from your distribution or from Docker. Permission denied: add the user to the
    group docker and log in anew; membership is as good as root on that host. Not running: `systemctl enable --now
    docker`, and `journalctl -u docker` if it does not stay up. Podman: install Docker Engine beside or instead of it.
    Another machine's engine: `docker context use default`, and take DOCKER_HOST out of the shell's files. A snap:
    remove it and install the packages.

How to undo
    `gpasswd -d USER docker`; `systemctl disable --now docker docker.socket`; `docker context use NAME`.

Sources
    https://docs.docker.com/engine/install/
    https://docs.docker.com/engine/install/linux-postinstall/
    https://docs.docker.com/reference/cli/docker/system/info/
    https://docs.docker.com/engine/manage-resources/contexts/
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.facts.docker import Engine
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.docker import Docker
    from hostsetup.facts.names import Names
    from hostsetup.facts.privilege import Privilege

ID = "docker.daemon"
SOURCE = "https://docs.docker.com/engine/install/linux-postinstall/"

_SAW = {
    Engine.MISSING: "the docker command is not installed",
    Engine.DENIED: "the user may not speak to the engine's socket",
    Engine.DOWN: "the engine does not run",
    Engine.PODMAN: "the docker command is podman",
    Engine.ERROR: "the engine answers with an error",
}
_OWN = "the engine of the host itself"
_LOCAL = ("", "default", "rootless")


def judge(docker: Docker, privilege: Privilege | None = None, names: Names | None = None) -> Iterator[Finding]:
    """Fail with the class of the trouble, or where the engine is not this host's; warn of a snap."""
    if docker.engine is not Engine.OK:
        yield Finding(
            State.FAIL,
            saw=_SAW[docker.engine] + (f": {docker.said[:200]}" if docker.said else ""),
            wanted="`docker info` answers the SSH user, or `sudo -n docker info` does",
            remedy=_remedy(docker.engine, shlex.quote(privilege.user) if privilege and privilege.user else '"$USER"'),
            evidence=(f"docker-info: {docker.said[:200]}",) if docker.said else (),
        )
        return
    odd = _elsewhere(docker, names.hostname if names else "") or _snap(docker)
    if odd is not None:
        yield odd
        return
    beside = (", rootless" if docker.rootless else "") + (", by sudo -n" if docker.by_sudo else "")
    yield Finding(
        State.PASS,
        saw=f"Docker Engine {docker.version or 'of unknown version'}{beside}, {docker.storage_driver or 'no driver named'}",
    )


def _elsewhere(docker: Docker, hostname: str) -> Finding | None:
    if docker.system.startswith("Docker Desktop"):
        text = "Install Docker Engine on the host, then: docker context use default"
        return Finding(
            State.FAIL,
            saw="the engine is Docker Desktop's, in a virtual machine that has neither the host's network nor its GPUs",
            wanted=_OWN,
            remedy=Remedy(text),
            evidence=(f"docker-info: Operating System: {docker.system}",),
        )
    if not docker.name or not hostname or _short(docker.name) == _short(hostname):
        return None
    context = "" if docker.context in _LOCAL else f"the context {docker.context}"
    way = (f"DOCKER_HOST={docker.variable}" if docker.variable else context) if not docker.by_sudo else ""
    return Finding(
        State.FAIL if way else State.WARN,
        saw=f"the engine's machine is called {docker.name}, the host {hostname}"
        + (f"; {way} leads there" if way else ""),
        wanted=_OWN,
        remedy=Remedy("Use the host's own engine: docker context use default; and set no DOCKER_HOST.")
        if way
        else Remedy("See whose socket /var/run/docker.sock is: in a container it may be the outer machine's."),
        evidence=(f"docker-info: Name: {docker.name}", f"hostname: {hostname}"),
    )


def _short(name: str) -> str:
    return name.partition(".")[0].casefold()


def _snap(docker: Docker) -> Finding | None:
    if not docker.path.startswith("/snap/") and not docker.root_dir.startswith("/var/snap/"):
        return None
    return Finding(
        State.WARN,
        saw=f"Docker Engine {docker.version} is a snap: it cannot use the libraries and tools of the host",
        wanted="Docker Engine from packages of the distribution or of Docker",
        remedy=Remedy(
            "Save what you need of its images and volumes, remove the snap, and install the packages.", needs_root=True
        ),
        evidence=(f"docker-info: {docker.path or docker.root_dir}",),
    )


def _remedy(engine: Engine, user: str) -> Remedy:
    match engine:
        case Engine.MISSING:
            return Remedy("Install Docker Engine from your distribution or from Docker.", needs_root=True)
        case Engine.DENIED:
            text = "Add the user to the group docker, then log in anew; the group is as good as root."
            return Remedy(text, (f"sudo usermod -aG docker {user}",), needs_root=True)
        case Engine.DOWN:
            text = "Start the engine; `journalctl -u docker` says why it does not stay up."
            return Remedy(text, ("sudo systemctl enable --now docker",), needs_root=True)
        case Engine.PODMAN:
            return Remedy("Install Docker Engine; podman's imitation of it is not supported.", needs_root=True)
        case _:
            return Remedy("Read the engine's log: journalctl -u docker", needs_root=True)
