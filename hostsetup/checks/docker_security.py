"""The engine confines containers in a way that gets in the way of training.

What it means
    The engine runs without root, maps root to another user, or SELinux confines what containers may read; or the filter of
    system calls keeps NCCL from placing memory on a NUMA node.

Why it matters to training
    A rootless engine cannot raise limits (memlock), cannot share the host's network as it is, and needs the toolkit set up
    in another way. With mapped users, device files and bind mounts belong to nobody inside. SELinux denies datasets that
    are mounted without a label, which looks like "Permission denied" for root. With the default filter, NCCL's host memory
    by cuMem cannot be placed on a NUMA node; it then takes another way, which is slower.

How we tell
    SecurityOptions in `docker info`, and /sys/fs/selinux/enforce. SELinux counts where it enforces and the engine takes
    part (`selinux` among its options): without that it confines no container. The filter is told as information on
    hosts with NVIDIA GPUs. AppArmor, cgroup namespaces and no-new-privileges do no harm; the launcher itself asks for
    the last and drops all capabilities.

What to do
    Use the engine as root on training hosts, and take "userns-remap" out of daemon.json. SELinux: give shared data a label
    (`chcon -Rt container_file_t DIR`, kept by `semanage fcontext`); do not turn SELinux off. The filter: `docker run
    --cap-add SYS_NICE`, or NCCL_CUMEM_HOST_ENABLE=0 if NCCL warns of it.

How to undo
    Set the option in daemon.json again and restart the engine; `restorecon -R DIR`.

Sources
    https://docs.docker.com/engine/security/rootless/
    https://docs.docker.com/engine/security/userns-remap/
    https://docs.docker.com/engine/security/seccomp/
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.docker import Docker
    from hostsetup.facts.docker_host import DockerHost
    from hostsetup.facts.pci_tree import Pci

ID = "docker.security"
SOURCE = "https://docs.docker.com/engine/security/rootless/"
_ROOTFUL = Remedy("Use an engine that runs as root on this host.", needs_root=True)
_REMAP = Remedy('Take "userns-remap" out of /etc/docker/daemon.json and restart the engine.', needs_root=True)
_LABEL = Remedy(
    "Give the folders that containers read a label, with `chcon -Rt container_file_t` and `semanage fcontext`; leave SELinux "
    "on.",
    needs_root=True,
)


def skip(docker: Docker) -> str:
    """Spare hosts whose engine does not answer."""
    return docker.absent


def judge(docker: Docker, docker_host: DockerHost | None = None, pci: Pci | None = None) -> Iterator[Finding]:
    """Warn of rootless engines, mapped users and SELinux; tell of the filter where there are GPUs."""
    if not docker.security:
        yield Finding(State.UNKNOWN, saw="`docker-info` tells no security options")
        return
    shown = (f"docker-info: SecurityOptions: {', '.join(docker.security)}",)
    found = []
    if docker.rootless:
        saw = "the engine is rootless: limits, devices and the host's network are not all in its power"
        found.append(Finding(State.WARN, saw, "an engine that runs as root", "rootless", _ROOTFUL, shown))
    if "userns" in docker.security:
        saw = "root in containers is mapped to another user (userns-remap)"
        found.append(Finding(State.WARN, saw, "no mapping of users", "userns-remap", _REMAP, shown))
    if "selinux" in docker.security and (docker_host is None or docker_host.enforcing is not False):
        sure = docker_host is not None and docker_host.enforcing
        saw = "SELinux confines containers" + ("" if sure else "; whether it enforces is not known")
        wanted = "labels on what containers mount (container_file_t)"
        found.append(Finding(State.WARN if sure else State.INFO, saw, wanted, "SELinux", _LABEL, shown))
    if _filtered(docker) and pci is not None and not nvidia.absent(pci):
        saw = "the default seccomp profile keeps NCCL from placing host memory on a NUMA node; it takes another way"
        found.append(Finding(State.INFO, saw, "SYS_NICE, where NCCL warns of it", "seccomp", evidence=shown))
    yield from found
    if not found:
        yield Finding(State.PASS, saw=f"security options: {', '.join(docker.security)}")


def _filtered(docker: Docker) -> bool:
    return "seccomp" in docker.security and docker.seccomp in {"default", "builtin", ""}
