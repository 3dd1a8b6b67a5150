"""Knows what runs have left on a host: containers with our label, and segments in /dev/shm. Removes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hostsetup.model import Evidence, Known, Probe, Unknown

_FORMAT = r"""container {{.ID}} {{.State}} {{.Label "muster.run"}} {{.Names}}"""
# NCCL unlinks its segments once all ranks have opened them; those that are ten minutes old are not in the making
PROBES = (
    Probe(
        "leftovers",
        f"""find /dev/shm -maxdepth 1 '(' -name 'nccl-*' -o -name 'torch_*' ')' -mmin +10 -exec ls -lnd '{{}}' + 2>/dev/null |
  head -n 1000
for p in $(ls /dev/shm 2>/dev/null | sed -n 's/^torch_\\([0-9][0-9]*\\)_.*/\\1/p' | sort -u | head -n 200); do
  [ -d "/proc/$p" ] && echo "alive $p"
done
echo 'shm asked'
q() {{ out=$($1 docker ps -a --no-trunc --filter label=muster.run --format '{_FORMAT}' 2>/dev/null) && printf '%s\\n' "$out" | head -n 1000; }}
if ! command -v docker >/dev/null; then echo 'docker missing'
elif docker version >/dev/null 2>&1; then q && echo 'docker asked'
elif sudo -n docker version >/dev/null 2>&1; then q 'sudo -n' && echo 'docker asked'
fi
exit 0""",
        timeout_s=20,
    ),
)
MOST = 1000
_CONTAINER = re.compile(r"container ([0-9a-f]{12,64}) ([a-z]+) (\S{1,200}) (\S{1,200})", re.ASCII)
_SEGMENT = re.compile(
    r"-\S+\s+\d+\s+(\d{1,10})\s+\d{1,10}\s+(\d{1,18})\s.*?(/dev/shm/(?:nccl-|torch_)\S{1,200})", re.ASCII
)
_OWNER = re.compile(r".*/torch_(\d{1,10})_", re.ASCII)


@dataclass(frozen=True, slots=True)
class Container:
    """A container of ours. `state`: Docker's word: `running`, `exited`, `created`, `paused`, `dead`."""

    id: str
    state: str
    run: str
    name: str

    @property
    def live(self) -> bool:
        """Whether processes of it are there."""
        return self.state in {"running", "paused", "restarting"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A file in /dev/shm that is older than ten minutes. `alive`: the process that its name tells of still runs."""

    path: str
    uid: int
    size: int
    alive: bool = False


@dataclass(frozen=True, slots=True)
class Leftovers:
    """`engine`: whether the engine was asked, or there is none; else nothing is known of containers."""

    containers: tuple[Container, ...]
    segments: tuple[Segment, ...]
    engine: bool


def parse_leftovers(text: str) -> Leftovers:
    """Read the lines `container ID STATE RUN NAME`, of `ls -ln`, `alive PID`, `shm asked` and `docker asked|missing`."""
    lines = text.splitlines()[: 4 * MOST]
    alive = {line[6:].strip() for line in lines if line.startswith("alive ")}
    containers, segments = list[Container](), list[Segment]()
    for line in lines:
        if found := _CONTAINER.fullmatch(line.strip()):
            containers.append(Container(found[1], found[2], found[3], found[4]))
        elif found := _SEGMENT.fullmatch(line.strip()[:1000]):
            owner = _OWNER.match(found[3])
            segments.append(Segment(found[3], int(found[1]), int(found[2]), owner is not None and owner[1] in alive))
    engine = any(line.strip() in {"docker asked", "docker missing"} for line in lines)
    if "shm asked" not in {line.strip() for line in lines} and not (containers or segments):
        raise ValueError("neither /dev/shm nor the engine was asked")
    return Leftovers(tuple(containers), tuple(segments), engine or bool(containers))


def read(evidence: Evidence) -> Known[Leftovers] | Unknown:
    """Return what is left; where the engine hangs, what was said before."""
    reply = evidence.replies.get("leftovers")
    answer = reply if reply is not None and b"shm asked" in reply.stdout else evidence.answer("leftovers")
    if isinstance(answer, Unknown):
        return answer
    try:
        return Known(parse_leftovers(answer.text))
    except ValueError as error:
        return Unknown(f"`leftovers`: {error}")
