"""The engine stores images on a file system that is unfit or nearly full.

What it means
    The folder in which the engine keeps images, containers and volumes has little room left, lies on a network file
    system, or is managed by a storage driver that is slow or gone from new engines.

Why it matters to training
    A CUDA image with torch has 10 to 20 GB, and needs its size again while it is being loaded; the volume that a run writes
    its checkpoints and logs to lies there, too. A full disk ends a run in the middle of a checkpoint. Overlay
    storage does not work on NFS. The driver vfs copies every layer whole, devicemapper and aufs were removed.

How we tell
    The driver and the folder (Docker Root Dir) from `docker info`; what is mounted there and how full it is from
    /proc/mounts and df. overlay2, overlayfs (of the containerd image store), btrfs and zfs are fine, fuse-overlayfs is
    what rootless engines use. With GPUs less than 50 GB free is a failure: our judgement, for one CUDA image and what its
    load needs. Without GPUs that is a warning, and less than 5 GB a failure. 5 % free or less is a failure everywhere; what
    is kept for root alone does not count as free. We do not measure how much the images take.

What to do
    See what takes the room: `docker system df`. `docker image prune` removes images without a name; volumes of old runs
    go with `docker volume rm`, after a look at what is in them. Or move the folder: stop the engine, copy it, set
    "data-root" in /etc/docker/daemon.json, start the engine.

How to undo
    What is pruned must be built or pulled again. Set "data-root" back.

Sources
    https://docs.docker.com/engine/storage/drivers/select-storage-driver/
    https://docs.docker.com/engine/daemon/#daemon-data-directory
    https://docs.docker.com/reference/cli/docker/system/df/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.disks import Disk, Disks
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.mounts import Mount, Mounts
    from hostsetup.facts.pci_tree import Pci

ID = "docker.storage"
SOURCE = "https://docs.docker.com/engine/storage/drivers/select-storage-driver/"
FREE, LEAST, SHARE = f"{ID}.free_gb", f"{ID}.least_gb", f"{ID}.free_percent"
EXPECTS = {
    FREE: Want(float, "GB that should be free where the engine keeps its data; less fails on hosts with GPUs", 50.0),
    LEAST: Want(float, "GB that must be free there on any host", 5.0),
    SHARE: Want(float, "percent of that file system that must be free", 5.0),
}
_GOOD = frozenset({"overlay2", "overlayfs", "btrfs", "zfs", "fuse-overlayfs", "stargz", "nydus"})
_BAD = {
    "vfs": "it copies every layer whole",
    "devicemapper": "it is slow, and gone since engine 25",
    "aufs": "it is gone since engine 24",
    "overlay": "it runs out of inodes, and is gone since engine 24",
}
_GB = 10**9
_ROOM = Remedy(
    "Make room, or move the engine's folder (data-root) to a larger local disk.",
    ("docker system df", "docker image prune"),
)


def skip(docker: Docker) -> str:
    """Spare hosts whose engine does not answer."""
    return docker.absent


def judge(
    docker: Docker, expect: Expect, disks: Disks | None = None, mounts: Mounts | None = None, pci: Pci | None = None
) -> Iterator[Finding]:
    """Judge the driver, the file system and its room; one pass when all is well."""
    told = f"{docker.storage_driver or 'no driver named'} at {docker.root_dir or 'a folder that is not named'}"
    found = [one for one in (_driver(docker), _network(docker, mounts)) if one is not None]
    room = _room(docker, _disk(docker.root_dir, disks, mounts), expect, gpus=pci is None or bool(pci.gpus))
    if room.state is not State.PASS:
        found.append(room)
    yield from found
    if not found:
        yield Finding(State.PASS, saw=f"{told}, {room.saw}")


def _driver(docker: Docker) -> Finding | None:
    if docker.storage_driver in _GOOD:
        return None
    if not docker.storage_driver:
        return Finding(State.UNKNOWN, saw="`docker-info` names no storage driver")
    why = _BAD.get(docker.storage_driver)
    if why is None:
        return Finding(State.INFO, saw=f"the storage driver is {docker.storage_driver}, which we do not know")
    return Finding(
        State.WARN,
        saw=f"the storage driver is {docker.storage_driver}: {why}",
        wanted="overlay2, or overlayfs of the containerd image store",
        remedy=Remedy(
            "Set the storage driver to overlay2 in /etc/docker/daemon.json; images are then loaded anew.",
            needs_root=True,
        ),
        evidence=(f"docker-info: Driver: {docker.storage_driver}",),
    )


def _network(docker: Docker, mounts: Mounts | None) -> Finding | None:
    mount = mounts.over(docker.root_dir) if mounts and docker.root_dir else None
    if mount is None or not mount.network or mount.kind == "fuse.fuse-overlayfs":
        return None
    return Finding(
        State.FAIL,
        saw=f"{docker.root_dir} lies on {mount.kind} ({mount.device})",
        wanted="a local disk",
        subject=docker.root_dir,
        remedy=Remedy('Move it to a local disk: "data-root" in /etc/docker/daemon.json.', needs_root=True),
        evidence=(f"mounts: {mount.device} {mount.path} {mount.kind}",),
    )


def _disk(root: str, disks: Disks | None, mounts: Mounts | None) -> Disk | str:
    """Return the file system of a folder, or why it is not known. df lists a device once, however often it is mounted."""
    if not root or disks is None:
        return "df did not answer" if root else "the engine names no folder"
    mount = mounts.over(root) if mounts else None
    if mount is None:
        over = [path for path in disks.by_path if path in {"/", root} or root.startswith(f"{path}/")]
        return disks.by_path[max(over, key=len)] if over else f"df does not list the file system of {root}"
    if mount.path in disks.by_path:
        return disks.by_path[mount.path]
    return _same(mount, disks) or f"df does not list {mount.path} ({mount.kind})"


def _same(mount: Mount, disks: Disks) -> Disk | None:
    return next((disk for disk in disks.by_path.values() if disk.device == mount.device), None)


def _room(docker: Docker, disk: Disk | str, expect: Expect, *, gpus: bool) -> Finding:
    if isinstance(disk, str):
        return Finding(State.UNKNOWN, saw=f"how much room the engine has is not known: {disk}")
    free = disk.free / _GB
    saw = f"{free:.1f} GB free, {disk.free_percent:.0f} % of {disk.device or disk.path}"
    enough, least, share = (expect.number(name) or 0.0 for name in (FREE, LEAST, SHARE))
    full = disk.free_percent <= share
    if free >= enough and not full:
        return Finding(State.PASS, saw=saw)
    wanted = (
        f"more than {share:g} % free ({expect.origin(SHARE)})"
        if full
        else f"{enough:g} GB or more free ({expect.origin(FREE)})"
    )
    return Finding(
        State.FAIL if full or gpus or free < least else State.WARN,
        saw=saw,
        wanted=wanted,
        subject=docker.root_dir,
        remedy=_ROOM,
        evidence=(f"df: {disk.device} {disk.size} {disk.free} {disk.path}",),
    )
