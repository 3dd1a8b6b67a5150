"""Shared storage is missing on a host, is another one there, or does not answer.

What it means
    A folder that should be the same on every host lies on a host's own disk, on another file system than elsewhere, is
    read-only although runs write to it, or its server gives no answer.

Why it matters to training
    Where a mount is missing, programs write under its empty mount point: the checkpoint is there, on one host, and gone
    for the others. Where the source differs, hosts read different data and no error says so. A file system whose server
    is gone stops every process that touches it, and no signal ends them.

How we tell
    From the kernel's list of mounts: each named folder belongs to the mount above it, by its name (symbolic links are
    not followed, nor is the folder itself looked for). Hosts are compared by the source of that mount. Each network file
    system is asked for its size in the background, and what says nothing for five seconds is silent; nothing waits for
    it. Automatic mounts that are not there yet are left alone. A host that exports files itself may hold the folder on
    its own disk. Read-only is told by the mount's options; nothing is written. Without named folders only silent file
    systems are told of.

What to do
    Missing: mount it, and put it into /etc/fstab; first look into the empty mount point for what was written there.
    Silent: bring its server or the network back; `umount -f -l PATH` lets go of one that will not come back.

How to undo
    `umount PATH`, and take the line out of /etc/fstab.

Sources
    https://man7.org/linux/man-pages/man5/nfs.5.html
    https://man7.org/linux/man-pages/man5/proc_pid_mounts.5.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.mounts import Mount, Mounts

ID = "storage.mounts"
SOURCE = "https://man7.org/linux/man-pages/man5/nfs.5.html"
EXPECTS = {
    "storage.mounts.paths": Want(str, "folders on storage that all hosts share: data sets, checkpoints", many=True),
    "storage.mounts.writable": Want(str, "those of the shared folders that runs write to: checkpoints", many=True),
}


def skip(mounts: Mounts, expect: Expect) -> str:
    """Spare hosts of which nothing is expected and where nothing hangs."""
    if _paths(expect) or mounts.silent:
        return ""
    return 'no shared folder is named: put storage.mounts.paths = ["/data"] into the site\'s file'


def _paths(expect: Expect) -> tuple[str, ...]:
    named = (*expect.several("storage.mounts.paths"), *expect.several("storage.mounts.writable"))
    return tuple(dict.fromkeys(str(path) for path in named if str(path).startswith("/")))


def judge(mounts: Mounts, expect: Expect) -> Iterator[Finding]:
    """Judge the named folders, and any file system that does not answer."""
    told: set[str] = set()
    good: list[str] = []
    for path in _paths(expect):
        over = mounts.over(path)
        if over is None:
            yield Finding(State.UNKNOWN, saw=f"nothing is mounted at or above {path}", subject=path)
            continue
        writable = path in expect.several("storage.mounts.writable")
        finding = _judge(path, over, mounts, writable=writable)
        if finding is None:
            good.append(f"{path} from {over.device}")
            continue
        told.add(over.path)
        yield finding
    for place in sorted(mounts.silent - told):
        yield _silent(place, mounts.by_path.get(place), State.WARN)
    if good:
        yield Finding(State.PASS, saw=", ".join(good[:8]))


def _judge(path: str, over: Mount, mounts: Mounts, *, writable: bool) -> Finding | None:
    if over.path in mounts.silent:
        return _silent(over.path, over, State.FAIL)
    if over.path in mounts.failed:
        return _bad(path, over, f"{over.path} from {over.device} answers with an error (a stale handle?)", "an answer")
    if over.kind == "autofs":
        saw = f"{path} is mounted on demand, and not yet"
        return Finding(State.UNKNOWN, saw=saw, subject=path, evidence=(_line(over),))
    if not over.network:
        where = f"{path} lies on {over.path} of the host's own {over.kind} ({over.device}): no shared storage is mounted there"
        if mounts.serves_files:
            saw = f"{path} lies on the host's own disk; the host exports files itself (nfsd)"
            return Finding(State.INFO, saw=saw, subject=path, evidence=(_line(over),))
        return _bad(path, over, where, "shared storage mounted at or above it")
    if writable and over.read_only:
        return _bad(
            path, over, f"{over.path} is mounted read-only, and runs write to {path}", "a mount that can be written to"
        )
    return None


def _bad(path: str, over: Mount, saw: str, wanted: str) -> Finding:
    return Finding(
        State.FAIL,
        saw=saw,
        wanted=f"{path}: {wanted}",
        subject=path,
        remedy=Remedy(
            "Mount the shared storage here as on the other hosts; look first for what was written under the mount point.",
            ("findmnt --fstab --verify",),
            needs_root=True,
        ),
        evidence=(_line(over),),
    )


def _silent(place: str, mount: Mount | None, state: State) -> Finding:
    source = f" from {mount.device} ({mount.kind})" if mount is not None else ""
    return Finding(
        state,
        saw=f"{place}{source} gives no answer",
        wanted="an answer within seconds",
        subject=place,
        remedy=Remedy(
            "Bring the server or the network back; what will not come back can be let go of.",
            (f"sudo umount -f -l {shlex.quote(place)}",),
            needs_root=True,
        ),
        evidence=(_line(mount),) if mount is not None else (),
    )


def _line(mount: Mount) -> str:
    return f"mounts: {mount.device} {mount.path} {mount.kind} {','.join(mount.options)[:200]}"


def judge_fleet(mounts: Mapping[str, Mounts], expect: Expect) -> Iterator[Finding]:
    """Name the hosts whose folder comes from elsewhere."""
    for path in _paths(expect):
        sources = {
            host: over.device for host, one in mounts.items() if (over := one.over(path)) is not None and over.network
        }
        if len(sources) < 2:
            continue
        remedy = Remedy("Mount the same source on every host.", needs_root=True)
        for finding in uniform(sources, f"source of {path}", remedy=remedy, state=State.FAIL, probe="mounts"):
            if finding.state is not State.PASS:
                yield finding
