"""The driver, or a GPU, is too old for the CUDA version of the training image.

What it means
    The image brings CUDA along, the host brings the driver. A driver runs CUDA of its own major version and of older
    ones; the image of this run was built with a newer major version, or for newer GPUs.

Why it matters to training
    The first CUDA call fails ("CUDA driver version is insufficient for CUDA runtime version"), or the container is not
    even started ("unsatisfied condition: cuda>=..."), on every rank of the host.

How we tell
    The image's CUDA is what `gpu.driver.cuda.version` says: 13.0 by default, which the cuda variant of our image is built
    with. Each major version runs on any driver from a floor on (minor-version compatibility): 11 from 450, 12 from 525, 13
    from 580; a lower driver fails. A driver above the floor but older than the release that came with this very minor
    version warns: code that is compiled at run time from PTX may be refused, and images with NVIDIA's cuda>= condition do
    not start on GeForce. Releases that we do not know are not guessed. CUDA 13 has no code for GPUs before Turing (compute
    capability 7.5), CUDA 12 none before Maxwell (5.0): such a GPU fails. The "CUDA Version" that nvidia-smi shows is the
    most that the driver can run, not what is installed, and is not used.

What to do
    Install a driver of the needed branch and reboot, or build the image with an older CUDA. On data-centre GPUs (and some
    RTX boards) the package cuda-compat in the image lets an older driver run; on GeForce it ends in error 804.

How to undo
    Install the former driver and reboot.

Sources
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.driver import Driver
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.driver.cuda"
SOURCE = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
CUDA = "gpu.driver.cuda.version"
EXPECTS = {CUDA: Want(str, "the CUDA version of the training image, as MAJOR.MINOR", "13.0")}

_FLOOR = {11: 450, 12: 525, 13: 580}  # the first branch that runs a major version
_OWN = {  # the release that came with a minor version
    "11.8": "520.61.05",
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.1": "590.44.01",
}
_OLDEST = {11: (3, 5), 12: (5, 0), 13: (7, 5)}  # compute capability that a major version still compiles for
_VERSION = re.compile(r"(\d{1,2})\.(\d{1,2})(?:\.\d{1,4})*", re.ASCII)
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)", re.ASCII)
_DRIVER = Remedy(
    "Install a driver of the needed branch and reboot, or build the image with an older CUDA. On data-centre GPUs the "
    "package cuda-compat in the image is a way around; on GeForce it is not.",
    needs_root=True,
    needs_reboot=True,
)
_GPU = Remedy("Use an image with an older CUDA on this host, or leave the host out.")


def skip(pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs."""
    return nvidia.absent(pci)


def judge(driver: Driver, expect: Expect, gpus: tuple[Gpu, ...] = ()) -> Iterator[Finding]:
    """Fail on a driver or a GPU that cannot run the image, warn on one that may not."""
    wanted = expect.text(CUDA) or ""
    asked = _VERSION.fullmatch(wanted)
    if asked is None or int(asked[1]) not in _FLOOR:
        yield Finding(State.UNKNOWN, saw=f"what CUDA {wanted[:20]} needs is not known here")
        return
    if not driver.loaded:
        yield Finding(State.UNKNOWN, saw="no NVIDIA driver is loaded (see gpu.modules)")
        return
    major, minor = int(asked[1]), f"{asked[1]}.{asked[2]}"
    old = tuple(_too_old(gpus, major, expect))
    evidence = (f"{driver.source}: driver {driver.loaded}",)
    version = nvidia.numbers(driver.loaded)
    own = _OWN.get(minor)
    if version[0] < _FLOOR[major]:
        yield Finding(
            State.FAIL,
            saw=f"driver {driver.loaded} runs no CUDA {major} (the image has {minor})",
            wanted=f"driver {_FLOOR[major]} or newer for CUDA {minor} ({expect.origin(CUDA)})",
            remedy=_DRIVER,
            evidence=evidence,
        )
    elif own is not None and version < nvidia.numbers(own):
        yield Finding(
            State.WARN,
            saw=f"driver {driver.loaded} runs CUDA {minor} by minor-version compatibility only: code compiled from PTX at run "
            "time may be refused, and so may images with a cuda>= condition",
            wanted=f"driver {own} or newer for CUDA {minor} ({expect.origin(CUDA)})",
            remedy=_DRIVER,
            evidence=evidence,
        )
    elif not old:
        yield Finding(State.PASS, saw=f"driver {driver.loaded} runs CUDA {minor}")
    yield from old


def _too_old(gpus: tuple[Gpu, ...], major: int, expect: Expect) -> Iterator[Finding]:
    told = {gpu.index: found for gpu in gpus if (found := _CAPABILITY.fullmatch(gpu.compute_cap))}
    short = [gpu for gpu in gpus if gpu.index in told and _capability(told[gpu.index]) < _OLDEST[major]]
    if short:
        oldest = ".".join(map(str, _OLDEST[major]))
        yield Finding(
            State.FAIL,
            saw=f"{len(short)} of {len(gpus)} GPUs are too old for CUDA {major}: {short[0].name} has compute capability "
            f"{short[0].compute_cap}",
            wanted=f"compute capability {oldest} or newer ({expect.origin(CUDA)})",
            subject=short[0].subject if len(short) < len(gpus) else "",
            remedy=_GPU,
            evidence=tuple(f"nvidia-smi-gpus: {gpu.index}, {gpu.name}, {gpu.compute_cap}" for gpu in short[:8]),
        )


def _capability(found: re.Match[str]) -> tuple[int, int]:
    return int(found[1]), int(found[2])
