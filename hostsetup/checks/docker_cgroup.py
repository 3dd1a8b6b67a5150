"""Containers on this host lose their GPUs when systemd reloads its units.

What it means
    The engine lets systemd manage the cgroups of containers, and GPUs come into containers through the toolkit's hook,
    which opens the devices without systemd's knowledge. When systemd reads its units again it writes the rules for
    devices as it knows them, and the GPUs are closed.

Why it matters to training
    `systemctl daemon-reload` is part of many package updates. In the middle of a run, every process that opens a device
    anew then fails with "Failed to initialize NVML: Unknown Error", while what is already open goes on. The run
    dies at the next restart of a worker, or monitoring goes blind. Only a new container helps.

How we tell
    The cgroup driver and version in `docker info`, and the toolkit: its mode and version, its CDI specifications, and
    whether the nvidia runtime is the default one. `docker run --gpus`, which the launcher uses, goes through the hook in
    engines before 29, whatever CDI specifications lie around; newer ones may use CDI. The driver cgroupfs has no such
    trouble. It happens with cgroup version 1 and 2. Hosts without NVIDIA GPUs have nothing to lose: there only the
    versions are told. Version 1 is told as information: kernels and systemd are leaving it.

What to do
    Let the engine give GPUs as CDI devices: toolkit 1.18 or newer with the nvidia runtime as the default one, or an engine
    that turns --gpus into CDI. Or set the driver to cgroupfs in /etc/docker/daemon.json: "exec-opts":
    ["native.cgroupdriver=cgroupfs"]. Restart the engine; no reboot. Until then, hold updates while runs go on.

How to undo
    Take the line out of daemon.json and restart the engine.

Sources
    https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
    https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.facts.toolkit import by_cdi
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.docker import Docker
    from hostsetup.facts.driver import Driver
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.toolkit import Toolkit

ID = "docker.cgroup"
SOURCE = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48"
_REMEDY = Remedy(
    "Have GPUs given as CDI devices (toolkit 1.18 or newer, its runtime as the default one), or set the engine's cgroup "
    'driver to cgroupfs ("exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json); restart the engine.',
    needs_root=True,
)


def skip(docker: Docker) -> str:
    """Spare hosts whose engine does not answer."""
    return docker.absent


def judge(
    docker: Docker, pci: Pci | None = None, toolkit: Toolkit | None = None, driver: Driver | None = None
) -> Iterator[Finding]:
    """Warn where systemd manages the cgroups and a hook opens the GPUs."""
    way, version = docker.cgroup_driver, docker.cgroup_version
    if not way:
        yield Finding(State.UNKNOWN, saw="`docker-info` names no cgroup driver")
        return
    told = f"cgroup driver {way}" + (f", version {version}" if version else "")
    shown = (f"docker-info: Cgroup Driver: {way}", f"docker-info: Cgroup Version: {version or 'not said'}")
    gpus = nvidia.present(pci, driver, docker.runtimes)
    if way != "systemd" or gpus is False:
        yield _fine(told, version)
    elif gpus is None:
        yield Finding(
            State.INFO,
            saw=f"{told}; whether the host has NVIDIA GPUs is not known: where the toolkit's hook gives them to containers, "
            "a `systemctl daemon-reload` takes them away",
            remedy=_REMEDY,
            evidence=shown,
        )
    elif toolkit is not None and (cdi := by_cdi(toolkit, docker)) is not False:
        if cdi:
            yield _fine(f"{told}; GPUs come as CDI devices, which systemd knows of", version)
        else:
            yield Finding(State.INFO, saw=f"{told}; this engine may give GPUs as CDI devices or by the toolkit's hook")
    else:
        how = "by the toolkit's hook" if toolkit is not None else "by the toolkit's hook unless it is set up for CDI"
        yield Finding(
            State.WARN,
            saw=f"{told}, and GPUs come into containers {how}: a `systemctl daemon-reload` takes them away",
            wanted="GPUs as CDI devices, or the cgroup driver cgroupfs",
            remedy=_REMEDY,
            evidence=shown,
        )


def _fine(told: str, version: str) -> Finding:
    if version == "1":
        return Finding(State.INFO, saw=f"{told}; systemd and new engines are leaving version 1")
    return Finding(State.PASS, saw=told)
