"""The record of a run on this machine: runs/<id>/ with plan, manifest, events, logs and outcome.

Files are written whole or not at all. The hosts, not this folder, say what is running.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hostsetup.runlog import split_rank
from orchestrate import plan as planning
from orchestrate.errors import UsageError
from orchestrate.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrate.plan import RunPlan

RUNS = Path("runs")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def new_name() -> str:
    """Return a name for a run that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def checked_name(name: str) -> str:
    """Return the name when it can be part of a container's, a volume's and a folder's name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a run",
            where="--name",
            next_step="use lower-case letters, digits, `.`, `_` and `-`, 63 at most, beginning with a letter or digit",
        )
    return name


class RunFolder:
    """runs/<id>/ of one run."""

    def __init__(self, run: str, root: Path = RUNS) -> None:
        self.run = run
        self.path = root / run

    @property
    def exists(self) -> bool:
        """Whether this machine has a record of the run."""
        return (self.path / "plan.json").is_file()

    def create(self) -> None:
        """Make the folder; raise UsageError when a run of that name was recorded here."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(
                f"a run named {self.run} is already recorded",
                where=str(self.path),
                next_step="choose another --name, or leave it out",
            ) from None
        except OSError as error:
            raise UsageError(
                f"the record of the run cannot be written: {error.strerror}",
                where=str(self.path),
                next_step="run from a folder that you may write to",
            ) from error

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one JSON file, whole or not at all."""
        replace_file(self.path / name, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append one event to events.jsonl and return it."""
        row = {"event": kind, "run": self.run, "time_s": round(time.time(), 3), **fields}
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return row

    def plan(self) -> RunPlan:
        """Return the plan that was recorded; raise UsageError when there is none or it is damaged."""
        path = self.path / "plan.json"
        try:
            return planning.from_json(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise UsageError(f"no plan can be read: {error}", where=str(path)) from error


class NodeLog:
    """Keeps what one node prints: every line in the file of its rank, the agent's own in agent.log.

    A disk that is full loses lines of the copy here (`lost` counts them), never the run.
    """

    def __init__(self, folder: RunFolder, node: int, *, afresh: bool = False) -> None:
        self._path = folder.path / "logs" / f"node{node}"
        self._path.mkdir(parents=True, exist_ok=True)
        self._mode = "wb" if afresh else "ab"
        self._files: dict[int | None, IO[bytes]] = {}
        self.lost = 0

    def write(self, line: bytes) -> tuple[int | None, str]:
        """Keep one line and return (rank, text)."""
        rank, text = split_rank(line.decode("utf-8", "replace").rstrip("\r\n"))
        body = line if rank is None else line.partition(b"]:")[2]
        try:
            self._file(rank).write(body.rstrip(b"\n") + b"\n")
        except OSError:
            self.lost += 1
        return rank, text

    def _file(self, rank: int | None) -> IO[bytes]:
        if rank not in self._files:
            name = "agent.log" if rank is None else f"rank{rank}.log"
            self._files[rank] = (self._path / name).open(self._mode, buffering=0)
        return self._files[rank]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
