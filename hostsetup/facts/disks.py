"""Knows how full a host's own file systems are, in bytes and in files. Asks nothing of a network file system.

A plain `df` asks every mount, and never comes back from one whose server is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe(
        "df",
        r"""set -- /
n=0 seen=' '
while read -r dev dir type rest; do
  case $type in
    ext2|ext3|ext4|xfs|btrfs|zfs|f2fs|bcachefs|jfs|reiserfs) ;;
    tmpfs) case $dir in /tmp|/var/tmp) ;; *) continue ;; esac ;;
    *) continue ;;
  esac
  [ "$dir" != / ] || { seen="$seen$dev "; continue; }
  [ "$type" = tmpfs ] || case $seen in *" $dev "*) continue ;; esac
  seen="$seen$dev "
  n=$((n + 1))
  [ "$n" -le 60 ] || break
  case $dir in *\\*) dir=$(printf '%b' "$dir") ;; esac
  set -- "$@" "$dir"
done </proc/mounts
out=$(df -PB1 "$@" 2>/dev/null)
[ -n "$out" ] || out=$(df -Pk "$@")
printf '%s\n\n' "$out"
df -Pi "$@" 2>/dev/null
exit 0""",
    ),
)
MOST_ROWS = 5000
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}
_BLOCKS = re.compile(r"(\d{1,7})([KMGT]?)B?-\S+", re.ASCII)
_SIZE = re.compile(r"(\d{1,18})(?:[.,](\d{1,3}))?([KMGTPE]?)i?B?", re.ASCII)
_PART = r"(?:[\d.,]{1,20}[A-Za-z]{0,2}|-)"
_ROW = re.compile(
    rf"(?P<device>.{{0,400}}?)\s+(?P<size>{_PART})\s+(?P<used>{_PART})\s+(?P<free>{_PART})\s+"
    r"(?P<share>\d{1,3}%|-)\s+(?P<path>/.*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Disk:
    """One file system. `files`, `files_free`: inodes, None where it has no fixed number of them. `use`: as df rounds it up."""

    device: str
    path: str
    size: int
    free: int
    files: int | None = None
    files_free: int | None = None
    use: str = ""

    @property
    def free_percent(self) -> float:
        """What a user can still write, of the whole."""
        return 100 * self.free / self.size

    @property
    def files_free_percent(self) -> float | None:
        """How many files can still be made, of all."""
        return 100 * self.files_free / self.files if self.files and self.files_free is not None else None


@dataclass(frozen=True, slots=True)
class Disks:
    """The file systems by mount point."""

    by_path: Mapping[str, Disk]


def parse_df(text: str) -> Disks:
    """Read `df`, with any block size, with -h, -T or -i, and several tables in a row. Only headers of the C locale.

    A row without a header above it, as people cut it out, is read where its sizes have units.
    """
    disks: dict[str, Disk] = {}
    unit, inodes, wrapped = 0, False, ""
    for line in map(str.strip, text.splitlines()[:MOST_ROWS]):
        if line.startswith("Filesystem"):
            unit, inodes = _header(line)
            wrapped = ""
            continue
        row = f"{wrapped} {line}" if wrapped else line
        found = _ROW.fullmatch(row[:2000])
        wrapped = line[:500] if found is None and len(line.split()) == 1 else ""
        if found is None or not (unit or found["size"][-1:].isalpha()):
            continue
        size, free = (_bytes(found[part], 1 if inodes else unit) for part in ("size", "free"))
        if not size or free is None:
            continue
        known = disks.get(found["path"])
        if inodes:
            if known is not None:
                disks[found["path"]] = replace(known, files=size, files_free=free)
        elif known is None:
            disks[found["path"]] = Disk(
                found["device"].split()[0] if found["device"] else "",
                found["path"],
                size,
                free,
                use=found["share"].rstrip("%-"),
            )
    if not disks:
        raise ValueError("not df in the C locale: no row below a header")
    return Disks(disks)


def _header(line: str) -> tuple[int, bool]:
    words = line.split()[1:]
    if "Inodes" in words:
        return 1, True
    for word in words[:2]:
        if found := _BLOCKS.fullmatch(word):
            return int(found[1]) * _UNITS[found[2]], False
        if word == "Size":
            return 1, False
    raise ValueError("a header of df without a block size")


def _bytes(text: str, unit: int) -> int | None:
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    scale = _UNITS[found[3]] if found[3] else unit
    part: int = int(found[2] or "0") * scale // 10 ** len(found[2] or "")
    return int(found[1]) * scale + part


def read(evidence: Evidence) -> Known[Disks] | Unknown:
    """Return the file systems."""
    reply = evidence.answer("df")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_df(reply.text))
    except ValueError as error:
        return Unknown(f"`df`: {error}")


def tell(disks: Disks) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {path: {"size": disk.size, "free": disk.free} for path, disk in disks.by_path.items()}
