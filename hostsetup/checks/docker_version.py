"""The Docker Engine is too old, or hosts run engines of different generations.

What it means
    The engine is older than what the launcher and GPUs in containers need, or it is not the version that was expected, or
    its major version differs between the hosts of the fleet.

Why it matters to training
    Engines before 19.03 cannot give GPUs to containers at all, those before 25 know no CDI devices. Engines of different
    generations differ in how they store images, give devices and limit resources: a run then behaves differently on one
    host, which is hard to find.

How we tell
    The version of the server in `docker info`; a client of another version than its server is common and harmless. Versions
    are compared number by number, not as text. Below the floor is a failure, another version than an expected one a
    warning, and so are different majors among hosts. An engine that knows no CDI is told as information on hosts with
    NVIDIA GPUs. A version that is none, such as that of a build from a branch, is unknown.

What to do
    Install the same packages of docker-ce (or docker.io) and containerd on every host, and hold them:
    `apt-mark hold docker-ce containerd.io`. A restart of the engine ends containers unless live-restore is on.

How to undo
    Install the former version again; engines do not read what a newer one wrote in every case, so save images first.

Sources
    https://docs.docker.com/engine/release-notes/
    https://docs.docker.com/engine/install/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.facts.docker import numbers
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.pci_tree import Pci

ID = "docker.version"
SOURCE = "https://docs.docker.com/engine/release-notes/"
LEAST, VERSION = f"{ID}.least", f"{ID}.version"
EXPECTS = {
    LEAST: Want(str, "the oldest engine that will do", "19.03"),
    VERSION: Want(str, "the engine's version on every host: whole (27.3.1) or its first numbers (27)"),
}
_CDI_SINCE = (25, 0)
_REMEDY = Remedy(
    "Install the same version of Docker Engine and containerd on every host and hold the packages; no run may be going on.",
    needs_root=True,
)


def skip(docker: Docker) -> str:
    """Spare hosts whose engine does not answer."""
    return docker.absent


def judge(docker: Docker, expect: Expect, pci: Pci | None = None) -> Iterator[Finding]:
    """Fail below the floor, warn where another version is expected."""
    shown = (f"docker-info: ServerVersion: {docker.version}",)
    least, wanted = expect.text(LEAST) or "0.1", expect.text(VERSION)
    try:
        have, floor = numbers(docker.version), numbers(least)
    except ValueError as error:
        yield Finding(State.UNKNOWN, saw=f"Docker Engine {docker.version[:80]}: {error}", evidence=shown)
        return
    saw = f"Docker Engine {docker.version}"
    if have < floor:
        wants = f"{least} or newer ({expect.origin(LEAST)})"
        yield Finding(State.FAIL, saw=saw, wanted=wants, remedy=_REMEDY, evidence=shown)
    elif wanted is not None and not _fits(docker.version, wanted):
        wants = f"{wanted} ({expect.origin(VERSION)})"
        yield Finding(State.WARN, saw=saw, wanted=wants, remedy=_REMEDY, evidence=shown)
    elif have < _CDI_SINCE and pci is not None and not nvidia.absent(pci):
        yield Finding(State.INFO, saw=f"{saw}: it gives GPUs by the toolkit's hook alone, CDI devices came with 25")
    else:
        yield Finding(State.PASS, saw=saw)


def _fits(version: str, wanted: str) -> bool:
    plain = version.removeprefix("v").partition("+")[0].partition("-")[0]
    return version == wanted or f"{plain}.".startswith(f"{wanted}.")


def judge_fleet(docker: Mapping[str, Docker]) -> Iterator[Finding]:
    """Warn of different majors."""
    majors = {host: str(_major(one.version)) for host, one in docker.items() if _major(one.version) is not None}
    if len(set(majors.values())) > 1:
        yield from uniform(majors, "major version of Docker Engine", remedy=_REMEDY, probe="docker-info")


def _major(version: str) -> int | None:
    try:
        return numbers(version)[0]
    except ValueError:
        return None


def baseline(docker: Docker) -> Mapping[str, Value]:
    """Return the major version of a good host."""
    major = _major(docker.version)
    return {} if major is None else {VERSION: str(major)}
