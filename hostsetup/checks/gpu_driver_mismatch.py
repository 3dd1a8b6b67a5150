"""The NVIDIA libraries and the loaded kernel module are of different versions, or will be after the next load.

What it means
    The driver's packages were upgraded while the old kernel module stayed in the kernel. What is already running goes on
    with the old library; whatever is started new is refused.

Why it matters to training
    The host looks fine, for running jobs and nvidia-persistenced hold the old version, and then no new rank finds a GPU:
    "Driver/library version mismatch". Containers get the library of the host, so they fail in the same way.

How we tell
    nvidia-smi's own words (exit code 18), or the kernel's "API mismatch" with both versions, are a failure. So is a loaded
    module whose version none of the installed libnvidia-ml libraries has, unless nvidia-smi answered: then we did not look
    where the library lies, or an old one was left behind, which does no harm. A module on disk that is not the loaded one
    is a warning: the next reload or reboot changes the driver. A host without NVIDIA GPUs is skipped.

What to do
    Drain the host and reboot it. Without a reboot: end everything that uses the GPUs, unload nvidia_drm, nvidia_modeset,
    nvidia_uvm and nvidia, and load nvidia again. The cause is almost always an unattended upgrade: hold the driver's
    packages, so that it does not happen in the middle of the next run.

How to undo
    Release the hold (`apt-mark unhold`); a reboot needs no undoing.

Sources
    https://github.com/NVIDIA/nvidia-container-toolkit/issues/394
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.driver import Driver
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.smi_health import SmiHealth

ID = "gpu.driver.mismatch"
SOURCE = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/394"

WANTED = "libraries and kernel module of one version"
_SAID = re.compile(r"Driver/library version mismatch", re.IGNORECASE)
_LIBRARY = re.compile(r"NVML library version: ([\d.]{3,20})", re.ASCII)
_MISMATCH = re.compile(r"NVRM: API mismatch:")
_HAS = re.compile(r"the version (\d{1,5}(?:\.\d{1,5}){1,3})", re.ASCII)
_REBOOT = Remedy(
    "Drain the host and reboot it, then hold the driver's packages: an unattended upgrade is the usual cause.",
    needs_root=True,
    needs_reboot=True,
)


def skip(pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs."""
    return nvidia.absent(pci)


def judge(
    smi_health: SmiHealth | None = None,
    driver: Driver | None = None,
    kernel_log: KernelLog | None = None,
    gpus: tuple[Gpu, ...] | None = None,
) -> Iterator[Finding]:
    """Fail where new processes are refused, warn where the next load changes the driver."""
    loaded = driver.loaded if driver else ""
    libraries = driver.libraries if driver else ()
    told = tuple(line for line in smi_health.said if _SAID.search(line)) if smi_health else ()
    if told:
        named = [found[1] for line in smi_health.said if (found := _LIBRARY.search(line))] if smi_health else []
        versions = f": {_versions(loaded, tuple(dict.fromkeys(named)) or libraries)}" if loaded or named else ""
        yield _fail(f"nvidia-smi: driver/library version mismatch{versions}", told)
        return
    refused = _refused(kernel_log.lines) if kernel_log and gpus is None else None
    if refused and loaded in {"", refused[1]}:
        saw = f"the kernel refused a client of version {refused[0]}, its module has {refused[1]}"
        yield _fail(saw, (f"dmesg: {refused[2][:300]}",))
        return
    if driver is None or not loaded:
        yield Finding(State.UNKNOWN, saw="the version of the loaded kernel module is not known")
        return
    if libraries and loaded not in libraries and not gpus:
        yield _fail(_versions(loaded, libraries), (f"nvidia-driver: {_versions(loaded, libraries)}",))
        return
    if driver.on_disk and driver.on_disk != loaded:
        yield Finding(
            State.WARN,
            saw=f"loaded {loaded}, on disk {driver.on_disk}: the next load or reboot changes the driver",
            wanted=WANTED,
            remedy=_REBOOT,
            evidence=(f"nvidia-driver: version: {driver.on_disk}",),
        )
        return
    if not libraries and not gpus:
        yield Finding(State.UNKNOWN, saw=f"module {loaded}; no library was found to compare it with")
        return
    yield Finding(State.PASS, saw=f"module and libraries {loaded}", wanted=WANTED)


def _fail(saw: str, evidence: tuple[str, ...]) -> Finding:
    return Finding(State.FAIL, saw=saw, wanted=WANTED, remedy=_REBOOT, evidence=evidence)


def _refused(lines: tuple[str, ...]) -> tuple[str, str, str] | None:
    """Return the client's and the module's version of the last refusal, which the kernel writes over several lines."""
    at = next((i for i in range(len(lines) - 1, -1, -1) if _MISMATCH.search(lines[i])), None)
    if at is None:
        return None
    words = re.sub(r"#012|NVRM:|\[[ \d.]{1,20}\]", " ", " ".join(lines[at : at + 4]))
    found = _HAS.findall(" ".join(words.split()))
    return (found[0], found[1], lines[at]) if len(found) > 1 and found[0] != found[1] else None


def _versions(loaded: str, libraries: tuple[str, ...]) -> str:
    return f"module {loaded or 'of unknown version'}, library {', '.join(libraries[:4]) or 'of unknown version'}"
