"""Knows what is mounted on a host, and which network file systems answer. Waits for none that does not.

Each network file system is asked in the background, so one whose server is gone costs seconds, not the audit. What is
mounted on demand (autofs) and not yet there is not touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

NETWORK = (
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "beegfs_nodev",
        "glusterfs",
        "wekafs",
    ),
    *("pvfs2", "orangefs", "afs", "9p", "ocfs2", "gfs2", "panfs", "vastnfs", "quobyte"),
)
_MOST_ASKED = 32
# a shell's builtins find out whether a child still runs: `wait` would wait for a process that nothing can end
PROBES = (
    Probe(
        "mounts",
        f"""head -c 400000 /proc/mounts || exit
t=
command -v timeout >/dev/null && t='timeout 5'
n=0 pids=
while read -r dev dir type rest; do
  case $type in {"|".join(NETWORK)}|fuse.*) ;; *) continue ;; esac
  case $type in fuse.lxcfs|fuse.portal|fuse.gvfsd-fuse|fuse.snapfuse) continue ;; esac
  n=$((n + 1))
  [ "$n" -le {_MOST_ASKED} ] || break
  printf '\\nasked %s\\n' "$dir"
  (
    $t stat -f -- "$(printf '%b' "$dir")" >/dev/null 2>&1
    printf '\\nanswer %s %s\\n' "$?" "$dir"
  ) &
  pids="$pids $!"
done </proc/mounts
i=0
while [ "$i" -lt 30 ]; do
  left=
  for p in $pids; do
    read -r a b s c 2>/dev/null <"/proc/$p/stat" && [ "$s" != Z ] && left=1
  done 2>/dev/null
  [ -n "$left" ] || break
  sleep 0.2 2>/dev/null || {{ sleep 1; i=$((i + 4)); }}
  i=$((i + 1))
done
exit 0""",
        timeout_s=15,
    ),
)
MOST_MOUNTS = 20_000
_ANSWER = re.compile(r"answer (\d{1,3}) (/\S*)", re.ASCII)
_OCTAL = re.compile(r"\\([0-7]{3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount, as the kernel lists it."""

    device: str
    path: str
    kind: str
    options: tuple[str, ...]

    @property
    def network(self) -> bool:
        """Whether it is a file system that several hosts can share."""
        return self.kind in NETWORK or self.kind.startswith("fuse.")

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written to it."""
        return "ro" in self.options


@dataclass(frozen=True, slots=True)
class Mounts:
    """`by_path`: what is on top at each mount point. `silent`: network file systems that gave no answer in time.

    `failed`: those that answered with an error. `asked`: all that were asked.
    """

    by_path: Mapping[str, Mount]
    asked: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()

    def over(self, path: str) -> Mount | None:
        """Return the mount that a path lies on; symbolic links are not followed."""
        path = "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
        while path not in self.by_path and path != "/":
            path = path.rpartition("/")[0] or "/"
        return self.by_path.get(path)

    @property
    def shared(self) -> tuple[Mount, ...]:
        """The network file systems."""
        return tuple(mount for mount in self.by_path.values() if mount.network)

    @property
    def serves_files(self) -> bool:
        """Whether the host is itself an NFS server."""
        return any(mount.kind == "nfsd" for mount in self.by_path.values())


def parse_mounts(text: str) -> Mounts:
    """Read /proc/mounts (or `mount` without arguments), and the lines `asked DIR` and `answer CODE DIR` between."""
    mounts: dict[str, Mount] = {}
    asked, silent, failed = set[str](), set[str](), set[str]()
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "asked" and words[1].startswith("/"):
            asked.add(_plain(words[1]))
        elif found := _ANSWER.fullmatch(line.strip()):
            place, code = _plain(found[2]), int(found[1])
            asked.add(place)
            silent.discard(place)
            if code in {124, 137, 143}:
                silent.add(place)
            elif code not in {0, 126, 127}:  # without a `stat` there is no answer, good or bad
                failed.add(place)
        elif len(words) >= 4 and words[1].startswith("/") and len(mounts) < MOST_MOUNTS:
            mount = Mount(_plain(words[0]), _plain(words[1]), words[2], tuple(words[3].split(",")))
            mounts[mount.path] = mount
        elif len(words) >= 6 and words[1] == "on" and words[-3] == "type" and len(mounts) < MOST_MOUNTS:
            place = " ".join(words[2:-3])
            mounts[place] = Mount(words[0], place, words[-2], tuple(words[-1].strip("()").split(",")))
    if "/" not in mounts:
        raise ValueError("not a list of mounts: nothing is mounted at /")
    answered = {_plain(found[2]) for line in text.splitlines() if (found := _ANSWER.fullmatch(line.strip()))}
    return Mounts(mounts, frozenset(asked), frozenset(silent | (asked - answered)), frozenset(failed))


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8) & 0xFF), text)[:1000]


def read(evidence: Evidence) -> Known[Mounts] | Unknown:
    """Return the mounts."""
    reply = evidence.replies.get("mounts")
    answer = reply if reply is not None and b" / " in reply.stdout else evidence.answer("mounts")
    if isinstance(answer, Unknown):
        return answer
    try:
        return Known(parse_mounts(answer.text))
    except ValueError as error:
        return Unknown(f"`mounts`: {error}")


def tell(mounts: Mounts) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"shared": {mount.path: mount.device for mount in mounts.shared}, "silent": sorted(mounts.silent)}
