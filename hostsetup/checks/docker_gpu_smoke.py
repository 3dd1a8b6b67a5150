"""A container does not see all GPUs of its host.

What it means
    A container that asked for all GPUs of the host was refused by the engine, or torch inside it sees fewer than the host
    has.

Why it matters to training
    A run starts one rank for each GPU. Where the container sees fewer, ranks share a GPU and run out of memory, or die with
    "invalid device ordinal"; where it sees none, they fall back to the CPU or do not start at all.

How we tell
    Only when load tests are asked for (`preflight --active`): their container is made exactly as the launcher makes those of
    a run, and torch in it tries every GPU that it sees. These are counted against the NVIDIA GPUs on the PCI bus. The audit
    itself starts no container. Nothing is pulled for the test: where the image is missing it is skipped. GPUs that something
    else uses are not tested, and what happens to the data is another question: gpu.active answers it.

What to do
    "could not select device driver", "unresolvable CDI devices": see docker.toolkit. NVML's "Unknown Error": see
    docker.cgroup. torch sees none although the container has them: the image has a CPU build of torch, or one that
    wants a newer driver (gpu.driver.cuda). Fewer than on the bus: see gpu.inventory and gpu.xid.

How to undo
    Nothing is changed; the container is gone when the audit ends.

Sources
    https://docs.docker.com/engine/containers/gpu/
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.active import Active, Result
    from hostsetup.facts.pci_tree import Pci

ID = "docker.gpu_smoke"
SOURCE = "https://docs.docker.com/engine/containers/gpu/"
_WANTED = "a container in which torch sees every GPU of the host"
_REMEDY = Remedy("See docker.toolkit, docker.cgroup and gpu.inventory; then test again: preflight --active.")
_NO_IMAGE = re.compile(r"the image \S+ is not on the host")
_REFUSED = re.compile(
    r"could not select device driver|unresolvable CDI|nvidia-container-cli|nvidia-container-runtime|libnvidia|NVML"
    r"|unknown or invalid runtime|torch sees \d+",
    re.IGNORECASE,
)


def skip(active: Active, pci: Pci | None = None) -> str:
    """Say that nobody asked, that there is no GPU, or no image to try it with."""
    if not active.asked:
        return "not asked: --active starts a container with the host's GPUs"
    if pci is not None and (why := nvidia.absent(pci)):
        return why
    missing = any(_NO_IMAGE.search(one.error) for one in active.results if one.test == "setup")
    return "the image is not on the host: see docker.image" if missing else ""


def judge(active: Active, pci: Pci) -> Iterator[Finding]:
    """Compare the GPUs that torch tried in the container with those on the bus."""
    there = sum(gpu.vendor == "10de" for gpu in pci.gpus)
    tried = {one.subject for one in active.results if one.test == "copy.host" and one.subject}
    setup = next((one for one in active.results if one.test == "setup"), None)
    if len(tried) >= there:
        yield Finding(State.PASS, saw=f"active: torch in a container sees {len(tried)} of {there} GPUs")
    elif setup is not None:
        yield _not_ready(setup)
    elif tried or any(one.backend == "gloo" and not one.hosts for one in active.results):
        which = ", ".join(sorted(tried)) or "no results of GPUs"
        yield Finding(
            State.FAIL,
            saw=f"active: torch in a container sees {len(tried)} of {there} GPUs",
            wanted=_WANTED,
            remedy=_REMEDY,
            evidence=(f"active: {which[:200]}",),
        )
    else:
        yield Finding(State.UNKNOWN, saw="active: no test of this host's own GPUs gave a result")


def _not_ready(setup: Result) -> Finding:
    shown = (f"active: {' '.join(setup.error.split())[:300]}",)
    if setup.kind == "busy" or not _REFUSED.search(setup.error):
        then = Remedy(setup.next or "Put right what the error names, then test again.")
        return Finding(State.UNKNOWN, saw=f"active: {setup.error}", wanted=_WANTED, remedy=then, evidence=shown)
    return Finding(State.FAIL, saw=f"active: {setup.error}", wanted=_WANTED, remedy=_REMEDY, evidence=shown)
