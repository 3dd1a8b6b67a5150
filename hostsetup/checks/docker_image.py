"""Hosts hold different images under the name that a run would use.

What it means
    The image of a run has one name on all hosts, and behind it another content on some; or the engines of some hosts
    store images in another way, so that nobody can compare.

Why it matters to training
    A name is no identity: after a build on one machine its tag means something else there. Ranks with other code, or other
    versions of torch and NCCL, hang in their first collective, or train apart without a word.

How we tell
    The images that the engine lists: the id behind the name. The name is the one that `orchestrate launch` uses unless
    told otherwise, muster:cuda on hosts with NVIDIA GPUs and muster:cpu elsewhere; a site may name another. Only ids count:
    an image that was built has no digest of a registry. The containerd image store gives other ids than the older one, to
    the same image: hosts are compared with hosts that store alike, and a mixture is a warning, for the launcher refuses
    it. A missing image is information: the launcher brings the one that its own machine holds to every host.

What to do
    `orchestrate build` on the machine that launches, and then launch from there: it brings one image to all hosts and
    proves that they hold it. An image of a registry: pull it by its digest (NAME@sha256:...). Two kinds of stores: turn
    containerd-snapshotter on or off alike ("features" in daemon.json); images are then loaded anew.

How to undo
    `docker tag ID NAME` gives the name back to the former image, as long as it is there.

Sources
    https://docs.docker.com/engine/storage/containerd/
    https://docs.docker.com/reference/cli/docker/image/ls/
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.docker_objects import Objects
    from hostsetup.facts.pci_tree import Pci

ID = "docker.image"
SOURCE = "https://docs.docker.com/reference/cli/docker/image/ls/"
REFERENCE = f"{ID}.reference"
EXPECTS = {REFERENCE: Want(str, "the image of a run; muster:cuda where there are NVIDIA GPUs, else muster:cpu")}
_GPU_IMAGE, _CPU_IMAGE = "muster:cuda", "muster:cpu"  # what `orchestrate build` makes and `launch` takes
_BUILD = Remedy("`orchestrate build` makes it, and `orchestrate launch` brings it to every host that lacks it.")
_BRING = Remedy(
    "Launch from the machine that holds the right one: it is brought to all hosts, or pull it by its digest."
)
_STORES = Remedy(
    'Have all engines store images alike: "features": {"containerd-snapshotter": ...} in daemon.json.', needs_root=True
)


def skip(docker: Docker) -> str:
    """Spare hosts whose engine does not answer."""
    return docker.absent


def judge(docker: Docker, docker_objects: Objects, expect: Expect, pci: Pci | None = None) -> Iterator[Finding]:
    """Tell the image, or that it is missing."""
    name = _name(expect, pci)
    if not name:
        yield Finding(
            State.UNKNOWN, saw="which image a run would use is not known: it depends on whether there are GPUs"
        )
        return
    image = docker_objects.image(name)
    if image is None:
        yield Finding(State.INFO, saw=f"the engine holds no image {name}", wanted=f"{name}", remedy=_BUILD)
        return
    beside = f", {image.size_bytes / 10**9:.1f} GB" if image.size_bytes else ""
    store = ", in the containerd store" if docker.containerd_store else ""
    yield Finding(State.PASS, saw=f"{name} is {_short(image.id)}{beside}{store}")


def _name(expect: Expect, pci: Pci | None) -> str:
    named = expect.text(REFERENCE)
    if named or pci is None:
        return named or ""
    return _CPU_IMAGE if nvidia.absent(pci) else _GPU_IMAGE


def _short(image_id: str) -> str:
    return image_id.removeprefix("sha256:")[:12]


def judge_fleet(
    docker: Mapping[str, Docker],
    docker_objects: Mapping[str, Objects],
    expect: Expect,
    pci: Mapping[str, Pci] | None = None,
) -> Iterator[Finding]:
    """Fail where hosts that store images alike hold another one; warn where they do not store alike."""
    held: dict[str, dict[str, str]] = defaultdict(dict)
    for host, objects in docker_objects.items():
        name = _name(expect, (pci or {}).get(host))
        if name and (image := objects.image(name)) is not None:
            held[name][host] = image.id
    for name, ids in held.items():
        stores = {host: "containerd" if docker[host].containerd_store else "classic" for host in ids}
        if len(set(stores.values())) > 1:
            yield from uniform(stores, f"image store that holds {name}", remedy=_STORES, probe="docker-info")
        for kind in sorted(set(stores.values())):
            alike = {host: one for host, one in ids.items() if stores[host] == kind}
            if len(set(alike.values())) > 1:
                yield from uniform(alike, f"image {name}", remedy=_BRING, state=State.FAIL, probe="docker-objects")
