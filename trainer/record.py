"""What a run tells: lines on standard output, and one row of figures a logged step in the metrics file.

Rank 0 alone writes the file; it refuses to hold a step twice.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def say(text: str) -> None:
    """Write one line at once, whole: ranks share the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Metrics:
    """The metrics file, continued after `step`: rows of later steps belong to a timeline that was left."""

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in _lines(path) if _step(line) <= step]
        half = path.with_name(f"{path.name}.tmp")
        half.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        half.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def row(self, figures: dict[str, Any]) -> None:
        """Append one row."""
        self._file.write(json.dumps(figures, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Stopwatch:
    """Where the time of the steps since the last reading went, in seconds."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._begin = time.perf_counter()
        self._outside = self._waited = 0.0
        self._steps = self._samples = 0

    def count(self, samples: int) -> None:
        """One more step is done."""
        self._steps += 1
        self._samples += samples

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as waiting for data: part of a step."""
        begin = time.perf_counter()
        yield
        self._waited += time.perf_counter() - begin

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Count the block, which evaluates or saves, to no step."""
        begin = time.perf_counter()
        yield
        self._outside += time.perf_counter() - begin

    def read(self) -> dict[str, float]:
        """Return `samples_per_s`, `step_s` and `data_wait_s` (a step) since the last reading, and start anew."""
        spent = max(time.perf_counter() - self._begin - self._outside, 1e-9)
        done = max(self._steps, 1)
        figures = {
            "samples_per_s": round(self._samples / spent, 3),
            "step_s": round(spent / done, 6),
            "data_wait_s": round(self._waited / done, 6),
        }
        self._restart()
        return figures


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # cut short by the end of an earlier process
