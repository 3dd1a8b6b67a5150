"""The record of a run on this machine: runs/<id>/ with plan, manifest, events, logs and outcome.

Files are written whole or not at all. The hosts, not this folder, say what is running.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tempfile
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


def checked_name(name: str, where: str = "--name") -> str:
    """Return the name when it can be part of a container's, a volume's and a folder's name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a run",
            where=where,
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

    def create(self, plan: RunPlan) -> None:
        """Make the folder, with the plan in it; raise UsageError when a run of that name was recorded here."""
        try:
            self._set_aside_refused()
            self.path.mkdir(parents=True)
            self.write("plan.json", planning.to_json(plan))
        except FileExistsError:
            raise self._taken() from None
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.rmdir()  # an empty folder would hold the name
            raise self._unwritable(error) from error

    def open(self) -> None:
        """Make the folder where there is none; raise UsageError when it cannot be written to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as probe:
                probe.write(b"x")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"the record of the run cannot be written: {error.strerror}",
            where=str(self.path),
            next_step="run from a folder that you may write to",
        )

    def refuse_taken(self) -> None:
        """Raise UsageError when a run of this name, that was not refused itself, is recorded here."""
        if self.path.exists() and not self._was_refused():
            raise self._taken()

    def _taken(self) -> UsageError:
        return UsageError(
            f"a run named {self.run} is already recorded",
            where=str(self.path),
            next_step=f"choose another --name; or, to go on from its checkpoints: mv {self.path} {self.path}.1",
        )

    def _set_aside_refused(self) -> None:
        """Free a name whose run never started: its record moves to NAME.refused-K, and is not lost."""
        if not self._was_refused():
            return
        number = 1
        while (aside := self.path.with_name(f"{self.run}.refused-{number}")).exists():
            number += 1
        self.path.rename(aside)

    def _was_refused(self) -> bool:
        try:
            outcome = json.loads((self.path / "outcome.json").read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(outcome, dict) and outcome.get("state") == "refused"

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one JSON file, whole or not at all."""
        replace_file(self.path / name, json.dumps(value, indent=2).encode() + b"\n")

    def event(self, kind: str, **fields: Any) -> None:
        """Append one event to events.jsonl; a disk that is full loses it, never the run."""
        row = {"event": kind, "run": self.run, "time_s": round(time.time(), 3), **fields}
        with contextlib.suppress(OSError), (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def plan(self) -> RunPlan:
        """Return the plan that was recorded; raise UsageError when there is none or it is damaged."""
        path = self.path / "plan.json"
        try:
            return planning.from_json(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"no plan can be read: {error}", where=str(path)) from error


class NodeLog:
    """Keeps what one node prints: every line in the file of its rank, the agent's own in agent.log.

    A line that bears the mark of a rank of another node (`ranks`) is kept as the agent's: a program that prints marks
    at random opens no files. A disk that is full loses lines of the copy here (`lost` counts them), never the run.
    """

    def __init__(self, folder: RunFolder, node: int, ranks: range, *, afresh: bool = False) -> None:
        self._path = folder.path / "logs" / f"node{node}"
        self._ranks = ranks
        self._mode = "wb" if afresh else "ab"
        self._files: dict[int | None, IO[bytes]] = {}
        self.lost = 0

    def write(self, line: bytes) -> tuple[int | None, str]:
        """Keep one line and return (rank, text)."""
        whole = line.decode("utf-8", "replace").rstrip("\r\n")
        rank, text = split_rank(whole)
        if rank is not None and rank not in self._ranks:
            rank, text = None, whole
        body = (line if rank is None else line.partition(b"]:")[2]).removesuffix(b"\n") + b"\n"
        try:
            kept = self._file(rank).write(body) == len(body)
        except OSError:
            kept = False
        self.lost += not kept
        return rank, text

    def _file(self, rank: int | None) -> IO[bytes]:
        if rank not in self._files:
            name = "agent.log" if rank is None else f"rank{rank}.log"
            self._path.mkdir(parents=True, exist_ok=True)
            self._files[rank] = (self._path / name).open(self._mode, buffering=0)
        return self._files[rank]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
