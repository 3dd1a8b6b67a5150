"""What the launcher and the trainer agree on: names of variables, files, exit codes and record fields.

Standard library only: this one file is read on both sides of the container's wall. It refuses to hold anything
that only one side needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

VERSION: Final = 1

# Environment that the launcher sets in every container (or process) of a run.
ENV_RUN: Final = "MUSTER_RUN"
ENV_NODE: Final = "MUSTER_NODE"  # the node rank, 0-based
ENV_HOST: Final = "MUSTER_HOST"  # the host's name in hosts.txt
ENV_ATTEMPT: Final = "MUSTER_ATTEMPT"  # 1-based
ENV_OUT: Final = "MUSTER_OUT"  # the folder that the run may write to
ENV_PRESET: Final = "MUSTER_PRESET"  # a file of the image's presets folder, without `.env`

# Files below the run's folder (ENV_OUT).
METRICS_FILE: Final = "metrics.jsonl"
CHECKPOINT_DIR: Final = "checkpoints"
FINAL_WEIGHTS: Final = "final/weights.safetensors"

# Exit codes beyond Python's own 1 and torchrun's.
EXIT_USAGE: Final = 2
EXIT_RETRY: Final = 75  # stopped by a signal after a checkpoint was written: run it again
EXIT_NO_PROGRESS: Final = 93  # do not restart

# Fields of one line of METRICS_FILE.
METRIC_FIELDS: Final = ("step", "samples", "loss", "lr", "samples_per_s", "step_s", "data_wait_s", "comm_s")

_PROGRESS = re.compile(
    r"\bstep (?P<step>\d{1,12})/(?P<steps>\d{1,12})\s+loss (?P<loss>\S+)\s+lr (?P<lr>\S+)\s+(?P<rate>\S+) samples/s"
)
_RESUMED = re.compile(r"resuming from .+: step (\d{1,12}), \d+ samples$")


@dataclass(frozen=True, slots=True)
class Progress:
    """One logged training step, as rank 0 prints it and the launcher's live line shows it."""

    step: int
    steps: int
    loss: float
    lr: float
    samples_per_s: float

    def line(self) -> str:
        """Return the line that rank 0 prints; `parse_progress` reads it back."""
        return (
            f"step {self.step}/{self.steps}  loss {self.loss:.4f}  lr {self.lr:.3e}  {self.samples_per_s:.1f} samples/s"
        )


def resumed_line(place: str, step: int, samples: int) -> str:
    """Return the line that rank 0 prints when a run goes on; `parse_resumed` reads it back."""
    return f"resuming from {place}: step {step}, {samples} samples"


def parse_resumed(line: str) -> int | None:
    """Return the step that a run goes on from, or None when the line tells of something else."""
    found = _RESUMED.match(line)
    return int(found[1]) if found else None


def parse_progress(line: str) -> Progress | None:
    """Return the progress that a line of a rank's output tells, or None when it is any other line."""
    found = _PROGRESS.search(line)
    if found is None:
        return None
    try:
        return Progress(
            int(found["step"]), int(found["steps"]), float(found["loss"]), float(found["lr"]), float(found["rate"])
        )
    except ValueError:
        return None
