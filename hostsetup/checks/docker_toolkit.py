"""Containers cannot be given the GPUs of this host: the NVIDIA Container Toolkit is missing, closed or stale.

What it means
    The engine gives GPUs to containers through a hook of the NVIDIA Container Toolkit, or as CDI devices that a
    specification describes. Neither is there, the hook is told to leave devices closed, or a specification names the
    libraries of another driver than the one that is loaded.

Why it matters to training
    Without hook and specification every container with GPUs is refused: "could not select device driver with
    capabilities: [[gpu]]", or "unresolvable CDI devices". After an update of the driver a stale specification mounts
    libraries that are gone. Different toolkits on the hosts of a run behave differently.

How we tell
    The toolkit's programs on the PATH, the versions that nvidia-ctk or nvidia-container-cli tell, two lines of
    /etc/nvidia-container-runtime/config.toml, the specifications in /etc/cdi and /var/run/cdi, and the runtimes in
    `docker info`. `docker run --gpus`, which the launcher uses, and `--runtime=nvidia` are two ways: the first needs the
    hook, the second an entry in daemon.json. So a runtime that is not registered is no failure, and a registered one proves
    nothing about the hook. Where the toolkit's own files were not seen, the runtimes are all there is: without the nvidia
    runtime that is a warning. A stale specification fails where the engine may use it; where GPUs come by the hook it is a
    warning. Specifications that root alone may read are not judged. Only hosts with NVIDIA GPUs are asked.

What to do
    Install nvidia-container-toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart the engine. Stale:
    `nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml`; since 1.18 the service nvidia-cdi-refresh does that.
    Closed devices: set no-cgroups = false, unless the engine is rootless.

How to undo
    Remove the package; `nvidia-ctk runtime configure` keeps the rest of daemon.json: take the runtime out of it again.

Sources
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
    https://github.com/Azure/azurehpc-health-checks/issues/133
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.facts.toolkit import by_cdi
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.docker import Docker
    from hostsetup.facts.driver import Driver
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.toolkit import Toolkit

ID = "docker.toolkit"
SOURCE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
_CONFIGURE = ("sudo nvidia-ctk runtime configure --runtime=docker", "sudo systemctl restart docker")
_INSTALL = Remedy(
    "Install nvidia-container-toolkit, tell the engine of it, and restart the engine.", _CONFIGURE, needs_root=True
)
_SAME = Remedy("Install the same version of nvidia-container-toolkit on every host and hold it.", needs_root=True)


def skip(docker: Docker, pci: Pci | None = None) -> str:
    """Spare hosts without NVIDIA GPUs, and those whose engine does not answer."""
    return (nvidia.absent(pci) if pci is not None else "") or docker.absent


def judge(
    docker: Docker, pci: Pci | None = None, toolkit: Toolkit | None = None, driver: Driver | None = None
) -> Iterator[Finding]:
    """Judge the hook, the specifications and the runtime."""
    if nvidia.present(pci, driver, docker.runtimes) is None:
        yield Finding(State.UNKNOWN, saw="whether the host has NVIDIA GPUs is not known")
    elif toolkit is None:
        yield _by_runtimes(docker)
    else:
        found = (_way(docker, toolkit), _closed(docker, toolkit), *_stale(docker, toolkit, driver))
        yield from [one for one in found if one] or [Finding(State.PASS, saw=_told(docker, toolkit))]


def _by_runtimes(docker: Docker) -> Finding:
    shown = (f"docker-info: Runtimes: {' '.join(docker.runtimes)}",)
    if not docker.runtimes:
        return Finding(State.UNKNOWN, saw="neither the toolkit's files nor the engine's runtimes are known")
    if "nvidia" in docker.runtimes or docker.cdi_devices:
        way = "the runtime nvidia is registered" if "nvidia" in docker.runtimes else "the engine lists CDI devices"
        return Finding(State.INFO, saw=f"{way}; the toolkit's own files were not seen", evidence=shown)
    return Finding(
        State.WARN,
        saw="the runtime nvidia is not registered, and the toolkit's own files were not seen",
        wanted="the NVIDIA Container Toolkit",
        remedy=_INSTALL,
        evidence=shown,
    )


def _way(docker: Docker, toolkit: Toolkit) -> Finding | None:
    if toolkit.hook or toolkit.gpu_specs or docker.cdi_devices:
        return None
    return Finding(
        State.FAIL,
        saw="neither the hook nvidia-container-runtime-hook nor a CDI specification of the GPUs is there",
        wanted="the NVIDIA Container Toolkit",
        remedy=_INSTALL,
        evidence=("nvidia-toolkit: no hook, no specification", f"docker-info: Runtimes: {' '.join(docker.runtimes)}"),
    )


def _closed(docker: Docker, toolkit: Toolkit) -> Finding | None:
    if not toolkit.no_cgroups or docker.rootless or by_cdi(toolkit, docker):
        return None
    return Finding(
        State.FAIL,
        saw="no-cgroups is true: the hook mounts the GPUs and leaves them closed to the container",
        wanted="no-cgroups = false, except for a rootless engine",
        remedy=Remedy(
            "Set it back; programs in containers otherwise end in NVML's Unknown Error.",
            ("sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",),
            needs_root=True,
        ),
        evidence=("nvidia-toolkit: no-cgroups = true",),
    )


def _stale(docker: Docker, toolkit: Toolkit, driver: Driver | None) -> Iterator[Finding]:
    loaded = driver.loaded if driver else ""
    for spec in toolkit.gpu_specs:
        if not loaded or not spec.drivers or loaded in spec.drivers:
            continue
        unused = bool(toolkit.hook) and by_cdi(toolkit, docker) is False
        yield Finding(
            State.WARN if unused else State.FAIL,
            saw=f"it is of driver {', '.join(spec.drivers[:3])}, and {loaded} is loaded"
            + ("; --gpus goes through the hook and does not use it" if unused else ""),
            wanted=f"a specification of driver {loaded}",
            subject=spec.path,
            remedy=Remedy(
                "Make it anew.", ("sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",), needs_root=True
            )
            if spec.path == "/var/run/cdi/nvidia.yaml"
            else Remedy(f"Make it anew with nvidia-ctk cdi generate, or remove {spec.path}.", needs_root=True),
            evidence=(f"nvidia-toolkit: {spec.path}: {', '.join(spec.drivers[:3])}", f"nvidia-driver: {loaded}"),
        )


def _told(docker: Docker, toolkit: Toolkit) -> str:
    ways = [
        "a hook" if toolkit.hook else "",
        f"CDI specifications ({len(toolkit.gpu_specs)})" if toolkit.gpu_specs else "",
        "the default runtime is nvidia: what an image sees of GPUs is up to its NVIDIA_VISIBLE_DEVICES"
        if docker.default_runtime == "nvidia"
        else "the runtime nvidia"
        if "nvidia" in docker.runtimes
        else "--runtime=nvidia is not registered",
    ]
    return f"toolkit {toolkit.version or 'of a version that it does not tell'}: " + ", ".join(filter(None, ways))


def judge_fleet(toolkit: Mapping[str, Toolkit]) -> Iterator[Finding]:
    """Warn of different versions."""
    versions = {host: one.version for host, one in toolkit.items() if one.version}
    if len(set(versions.values())) > 1:
        yield from uniform(versions, "version of the NVIDIA Container Toolkit", remedy=_SAME, probe="nvidia-toolkit")
