"""A file system that a run needs is nearly full, or may not be written to.

What it means
    The root, /tmp, /home, the engine's data or a folder that the site named has little room left, in bytes or in files;
    or it is mounted read-only.

Why it matters to training
    Checkpoints are written for hours and then fail; an image that does not fit stops the host before the run begins; a
    full /tmp breaks shared memory files, compilers' caches and logins. A kernel that met errors on a disk mounts it
    read-only, and everything seems to work until the first write.

How we tell
    `df` in bytes and in inodes, of the host's own file systems alone: a plain `df` also asks network file systems, and
    waits forever for one whose server is gone. Each folder is judged by the file system that it lies on. Images and
    snaps that are always 100 % full are not looked at; file systems without a fixed number of files have none to run
    out of. A percentage says little of a very large disk: what leaves 500 GB free is enough. The count of gigabytes
    holds for the engine's data and the folders that the site names, where images and checkpoints go.

What to do
    `docker system df` and `docker image prune` show and free what images take; `journalctl --vacuum-size=1G` shortens
    the journal; move checkpoints elsewhere. Read-only: see os.kernel_log for the reason, check the disk, then reboot.

How to undo
    Nothing is changed by this check. What was deleted is gone.

Sources
    https://docs.docker.com/engine/manage-resources/pruning/
    https://man7.org/linux/man-pages/man1/df.1.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.disks import Disk, Disks
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.mounts import Mounts

ID = "disk.space"
SOURCE = "https://docs.docker.com/engine/manage-resources/pruning/"
EXPECTS = {
    "disk.space.paths": Want(str, "folders of the host's own disks that runs write to: checkpoints, caches", many=True),
    "disk.space.warn_percent": Want(float, "free space below this is a warning, in percent", 10.0),
    "disk.space.fail_percent": Want(float, "free space below this is a failure, in percent", 5.0),
    "disk.space.warn_gb": Want(
        float, "less than this free for the engine's data and the named folders is a warning, in GB", 20.0
    ),
    "disk.space.plenty_gb": Want(float, "as much as this free is enough, whatever the percentage, in GB", 500.0),
}
_GB = 10**9
_ALWAYS = ("/", "/tmp", "/var", "/var/tmp", "/home")  # noqa: S108 - folders to look at, not to write to
_ENGINE = "/var/lib/docker"


def judge(
    disks: Disks, expect: Expect, docker: Docker | None = None, mounts: Mounts | None = None
) -> Iterator[Finding]:
    """Judge the file systems that the folders lie on."""
    engine = docker.root_dir if docker is not None and docker.root_dir.startswith("/") else _ENGINE
    named = tuple(str(path) for path in expect.several("disk.space.paths"))
    roomy = (engine, *named)
    folders: dict[str, list[str]] = {}
    for path in dict.fromkeys((*_ALWAYS, *roomy)):
        if (place := _below(disks.by_path, path)) is not None and not _elsewhere(mounts, place, path):
            folders.setdefault(place, []).append(path)
    told = False
    for place, paths in folders.items():
        large = next((path for path in paths if path in roomy), "")
        for finding in (_space(disks.by_path[place], large, expect), _files(disks.by_path[place], expect)):
            if finding is not None:
                told = True
                yield finding
    for finding in _read_only(mounts, (*_ALWAYS, *roomy)):
        told = True
        yield finding
    if not folders:
        yield Finding(State.UNKNOWN, saw="df tells of no file system that / or the engine's data lie on")
    elif not told:
        least = min((disks.by_path[place] for place in folders), key=lambda disk: disk.free)
        yield Finding(State.PASS, saw=f"{_gb(least.free)} free at {least.path}, the least of {len(folders)}")


def _below(disks: Mapping[str, Disk], path: str) -> str | None:
    path = path.rstrip("/") or "/"
    while path not in disks and path != "/":
        path = path.rpartition("/")[0] or "/"
    return path if path in disks else None


def _elsewhere(mounts: Mounts | None, place: str, path: str) -> bool:
    """Whether a folder lies on a mount that df was not asked about: a network file system, memory."""
    over = mounts.over(path) if mounts is not None else None
    return over is not None and over.path != place and over.kind not in {"overlay", "autofs"} and path != "/"


def _space(disk: Disk, large: str, expect: Expect) -> Finding | None:
    free = disk.free / _GB
    percent = disk.free_percent
    enough = free >= (expect.number("disk.space.plenty_gb") or float("inf"))
    room = expect.number("disk.space.warn_gb") or 0.0
    if percent < (expect.number("disk.space.fail_percent") or 0.0) and not enough:
        state = State.FAIL
    elif (percent < (expect.number("disk.space.warn_percent") or 0.0) and not enough) or (large and free < room):
        state = State.WARN
    else:
        return None
    what = f" ({large} lies there)" if large and large != disk.path else ""
    wanted = f"{expect.number('disk.space.warn_percent') or 0.0:g} % free" + (f" and {room:g} GB" if large else "")
    return Finding(
        state,
        saw=f"{_gb(disk.free)} free of {_gb(disk.size)} ({percent:.1f} %) at {disk.path}{what}",
        wanted=wanted,
        subject=disk.path,
        remedy=_remedy(disk.path, images=bool(large)),
        evidence=(f"df: {disk.device} {disk.size} bytes, {disk.free} available, on {disk.path}",),
    )


def _files(disk: Disk, expect: Expect) -> Finding | None:
    percent = disk.files_free_percent
    if percent is None or percent >= (expect.number("disk.space.warn_percent") or 0.0):
        return None
    fail = percent < (expect.number("disk.space.fail_percent") or 0.0)
    return Finding(
        State.FAIL if fail else State.WARN,
        saw=f"{disk.files_free} inodes free of {disk.files} ({percent:.1f} %) at {disk.path}: files run out before bytes do",
        wanted=f"{expect.number('disk.space.warn_percent') or 0.0:g} % of the inodes free",
        subject=disk.path,
        remedy=Remedy("Find and remove the many small files.", (f"du --inodes -x -d 3 {shlex.quote(disk.path)}",)),
        evidence=(f"df: {disk.files} inodes, {disk.files_free} free, on {disk.path}",),
    )


def _read_only(mounts: Mounts | None, folders: tuple[str, ...]) -> Iterator[Finding]:
    if mounts is None:
        return
    over = {mount.path: mount for path in folders if (mount := mounts.over(path)) is not None}
    for path, mount in over.items():
        # systems with an unwritable root have one of another kind (overlay, erofs, squashfs), or a writable /var
        if mount.read_only and mount.kind in {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}:
            yield Finding(
                State.FAIL,
                saw=f"{path} is mounted read-only",
                wanted=f"{path} writable",
                subject=path,
                remedy=Remedy(
                    "See the kernel log for the error that made it so; check the disk, then mount it again.",
                    (f"sudo mount -o remount,rw {shlex.quote(path)}",),
                    needs_root=True,
                ),
                evidence=(f"mounts: {mount.device} {path} {mount.kind} {','.join(mount.options)[:200]}",),
            )


def _remedy(path: str, *, images: bool) -> Remedy:
    show = f"du -x -h -d 2 {shlex.quote(path)}"
    if images:
        return Remedy(
            "Remove images and containers that nobody needs; see what else takes the room.", ("docker system df", show)
        )
    return Remedy("See what takes the room, and move or remove it.", (show,))


def _gb(size: int) -> str:
    return f"{size / _GB:.0f} GB" if size >= 10 * _GB else f"{size / _GB:.1f} GB"
