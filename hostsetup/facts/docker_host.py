"""Knows how a host's container engine was started and what it gives to containers by default. Restarts no engine.

From the file of the engine (daemon.json), from the engine's own process, and from the kernel: shared memory and SELinux.
What could be a secret in the file never leaves the host.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hostsetup.facts.disks import Disk, parse_df
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_USUAL = "/etc/docker/daemon.json"
_FILES = f"{_USUAL} /var/snap/docker/current/config/daemon.json"
_WORDS = "(token|passw|secret|auth|credential|api-?key)"
_SECRETS = (  # who logs in where, texts under a telling name, and NAME=VALUE; JSON may write / as \/
    r"""s#(:\\?/\\?/)[^" ]*@#\1***@#g""",
    rf"""s#("[^"]*{_WORDS}[^"]*" *: *")([^"\]|\\.)*#\1***#Ig""",
    rf"""s#({_WORDS}[^",: =]*=)[^", ]*#\1***#Ig""",
)
PROBES = (
    Probe(
        "docker-host",
        rf"""echo docker-host
hide() {{ sed -E {" ".join(f"-e '{one}'" for one in _SECRETS)}; }}
for f in {_FILES}; do
  [ -e "$f" ] || continue
  printf '\nfile %s\n' "$f"
  if [ -r "$f" ]; then head -c 20000 "$f" | hide; else echo unreadable; fi
  printf '\nend\n'
done
p=
[ -r /var/run/docker.pid ] && read -r p </var/run/docker.pid
if [ -z "$p" ]; then # another --pidfile; containers may run engines of their own
  n=$(readlink /proc/self/ns/pid)
  for q in $(pidof dockerd 2>/dev/null); do [ "$(readlink "/proc/$q/ns/pid" 2>/dev/null)" != "$n" ] || p=$q; done
fi
if [ -n "$p" ] && [ -d "/proc/$p" ]; then
  printf 'argv '
  tr '\0\n' '  ' <"/proc/$p/cmdline" | head -c 8000 | hide
  printf '\n'
  grep -E '^Max (locked memory|open files|processes)' "/proc/$p/limits"
fi
grep -sH '' /sys/fs/selinux/enforce
printf '\n'
df -Pk /dev/shm 2>/dev/null
exit 0""",
        root=True,
    ),
)
_LIMIT = re.compile(
    r"Max (locked memory|open files|processes)\s+(\d{1,20}|unlimited)\s+(\d{1,20}|unlimited)(?:\s.*)?", re.ASCII
)
_NAMES = {"locked memory": "memlock", "open files": "nofile", "processes": "nproc"}
_ENFORCE = re.compile(r"/sys/fs/selinux/enforce:([01])")
_SIZE = re.compile(r"(\d{1,18})(?:\.\d{1,3})?\s*([kmgtKMGT]?)(?:i?[bB])?", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SHM = "/dev/shm"  # noqa: S108 - the mount is what is asked about
MOST_LINES = 2000


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit; infinity: none."""

    soft: float
    hard: float


@dataclass(frozen=True, slots=True)
class DockerHost:
    """`config`: daemon.json, empty without the file, None where it is there and cannot be read. `path`: of it.

    `argv`: of the engine's process. `limits`: of that process. `enforcing`: SELinux; None: the kernel has none.
    """

    config: Mapping[str, Any] | None = field(default_factory=dict)
    path: str = ""
    fault: str = ""
    argv: tuple[str, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    enforcing: bool | None = None
    shm: Disk | None = None

    def option(self, key: str, flag: str = "") -> str:
        """Return a text or number of the file, or else what the process was started with (`--FLAG VALUE`); or nothing."""
        value = (self.config or {}).get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)[:200]
        return next(self.flags(flag or key), "")

    def flags(self, flag: str) -> Iterator[str]:
        """Yield the values of a flag of the engine's process."""
        for at, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            if name == f"--{flag}":
                yield value if equals else next(iter(self.argv[at + 1 : at + 2]), "")

    @property
    def ulimits(self) -> Mapping[str, Limit]:
        """The limits that the engine sets in every container that says nothing else, by name."""
        found: dict[str, Limit] = {}
        told = (self.config or {}).get("default-ulimits")
        for name, one in list(told.items())[:50] if isinstance(told, dict) else ():
            if isinstance(one, dict) and (hard := _limit(one.get("Hard"))) is not None:
                soft = _limit(one.get("Soft"))
                found[str(name)[:40]] = Limit(hard if soft is None else soft, hard)
        for flag in self.flags("default-ulimit"):
            name, _, values = flag.partition("=")
            soft, hard = (_limit(part) for part in ([*values.split(":"), ""])[:2])
            if soft is not None:
                found[name[:40]] = Limit(soft, soft if hard is None else hard)
        return found

    @property
    def shm_bytes(self) -> int | None:
        """What a container gets as /dev/shm unless it asks for more; None: nobody set it, or not in words we know."""
        found = _SIZE.fullmatch(self.option("default-shm-size").strip())
        return int(found[1]) * _UNITS[found[2].lower()] if found else None


def _limit(value: Any) -> float | None:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-1|\d{1,20}|unlimited", text, re.ASCII):
        return None
    return math.inf if text in {"-1", "unlimited"} else float(text)


def parse_docker_host(text: str) -> DockerHost:
    """Read the probe's blocks: `file PATH` to `end`, `argv WORDS`, lines of /proc/PID/limits, SELinux, and df."""
    lines = text.splitlines()[:MOST_LINES]
    if not lines or lines[0].strip() != "docker-host":
        raise ValueError("not the answer of the probe of the engine's files")
    path, body = _file(lines)
    config, fault = _config(body) if path else ({}, "")
    limits: dict[str, Limit] = {}
    argv: tuple[str, ...] = ()
    enforcing = None
    for line in lines:
        if line.startswith("argv "):
            argv = tuple(line.split()[1:500])
        elif found := _LIMIT.fullmatch(line[:300]):
            soft, hard = (math.inf if found[part] == "unlimited" else float(found[part]) for part in (2, 3))
            limits[_NAMES[found[1]]] = Limit(soft, hard)
        elif found := _ENFORCE.fullmatch(line.strip()):
            enforcing = found[1] == "1"
    if not argv or not argv[0].rpartition("/")[2].startswith("dockerd"):
        argv, limits = (), {}  # the file of its number outlived the engine
    told = DockerHost(config, path, fault, argv, limits, enforcing, _shm(lines))
    other = next(told.flags("config-file"), path or _USUAL)
    return told if other == (path or _USUAL) else replace(told, config=None, path=other, fault="it was not read")


def _file(lines: list[str]) -> tuple[str, str]:
    """Return the first file and what it holds."""
    at = next((n for n, line in enumerate(lines) if line.startswith("file /")), None)
    if at is None:
        return "", ""
    ends = next((n for n, line in enumerate(lines) if n > at and line.strip() == "end"), len(lines))
    return lines[at].removeprefix("file ")[:200], "\n".join(lines[at + 1 : ends])


def _config(body: str) -> tuple[Mapping[str, Any] | None, str]:
    if body.strip() == "unreadable":
        return None, "it cannot be read without root"
    if not body.strip():
        return {}, ""
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"[:200]
    return (data, "") if isinstance(data, dict) else (None, "it holds no JSON object")


def _shm(lines: list[str]) -> Disk | None:
    at = next((n for n, line in enumerate(lines) if line.startswith("Filesystem ")), None)
    if at is None:
        return None
    try:
        return parse_df("\n".join(lines[at:])).by_path.get(SHM)
    except ValueError:
        return None


def read(evidence: Evidence) -> Known[DockerHost] | Unknown:
    """Return how the engine is set up."""
    reply = evidence.answer("docker-host")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_docker_host(reply.text))
    except ValueError as error:
        return Unknown(f"`docker-host`: {error}")


def tell(host: DockerHost) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "file": host.path,
        "default_shm_bytes": host.shm_bytes,
        "selinux_enforcing": host.enforcing,
        "shm_bytes": host.shm.size if host.shm else None,
    }
