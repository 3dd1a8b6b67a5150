"""No Docker Engine answers the SSH user.

What it means
    The docker command is missing, the engine does not run, the user may not speak to its socket, the command is really
    podman, or the engine answers with an error.

Why it matters to training
    Every node of a run is a container that the launcher creates through this engine, as this very user. Without it the
    host takes no part.

How we tell
    `docker info`, as the SSH user, or by `sudo -n` where the user alone may not: the launcher goes the same way. Its JSON
    may hold errors of the server although the command says that all is well; these count.

What to do
    Not installed: install Docker Engine from your distribution or from Docker. Permission denied: add the user to the
    group docker and log in anew; membership is as good as root on that host. Not running: `systemctl enable --now
    docker`, and `journalctl -u docker` if it does not stay up. Podman: install Docker Engine beside or instead of it.

How to undo
    `gpasswd -d USER docker`; `systemctl disable --now docker docker.socket`.

Sources
    https://docs.docker.com/engine/install/
    https://docs.docker.com/engine/install/linux-postinstall/
    https://docs.docker.com/reference/cli/docker/system/info/
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.facts.docker import Engine
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.docker import Docker
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


def judge(docker: Docker, privilege: Privilege | None = None) -> Iterator[Finding]:
    """Fail with the class of the trouble."""
    if docker.engine is Engine.OK:
        beside = (", rootless" if docker.rootless else "") + (", by sudo -n" if docker.by_sudo else "")
        yield Finding(
            State.PASS, saw=f"Docker Engine {docker.version}{beside}, {docker.storage_driver or 'no driver named'}"
        )
        return
    yield Finding(
        State.FAIL,
        saw=_SAW[docker.engine] + (f": {docker.said[:200]}" if docker.said else ""),
        wanted="`docker info` answers the SSH user, or `sudo -n docker info` does",
        remedy=_remedy(docker.engine, shlex.quote(privilege.user) if privilege and privilege.user else '"$USER"'),
        evidence=(f"docker-info: {docker.said[:200]}",) if docker.said else (),
    )


def _remedy(engine: Engine, user: str) -> Remedy:
    match engine:
        case Engine.MISSING:
            return Remedy("Install Docker Engine from your distribution or from Docker.", needs_root=True)
        case Engine.DENIED:
            text = "Add the user to the group docker, then log in anew; the group is as good as root."
            return Remedy(text, (f"usermod -aG docker {user}",), needs_root=True)
        case Engine.DOWN:
            text = "Start the engine; `journalctl -u docker` says why it does not stay up."
            return Remedy(text, ("systemctl enable --now docker",), needs_root=True)
        case Engine.PODMAN:
            return Remedy("Install Docker Engine; podman's imitation of it is not supported.", needs_root=True)
        case _:
            return Remedy("Read the engine's log: journalctl -u docker", needs_root=True)
