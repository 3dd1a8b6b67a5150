"""Where a run begins: at its own newest complete checkpoint, at another folder's, or at zero.

Rank 0 looks and every rank takes its word, so that hosts with different disks cannot disagree. It refuses a checkpoint
whose run differs in seed, global batch, model or data.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import checkpoint
from trainer.contract import CHECKPOINT_DIR, METRICS_FILE
from trainer.errors import UsageError
from trainer.optim import restore
from trainer.record import say

if TYPE_CHECKING:
    import torch
    from torch import nn

    from trainer.config import Config
    from trainer.tasks import Datasets
    from trainer.world import World


@dataclass(slots=True)
class Position:
    """How far a run has come, and which step was the best so far."""

    step: int = 0
    samples: int = 0
    best_step: int | None = None
    best_eval_loss: float | None = None

    def judge(self, eval_loss: float) -> None:
        """Note the evaluation of the present step."""
        if self.best_eval_loss is None or eval_loss < self.best_eval_loss:
            self.best_step, self.best_eval_loss = self.step, eval_loss

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def identity(config: Config, data: Datasets) -> dict[str, Any]:
    """Return what a checkpoint and a run must have in common."""
    run = {"task": config.task, "seed": config.seed, "global_batch": config.global_batch}
    return {**run, "data": data.digest, **data.identity}


def find_saved(
    config: Config, data: Datasets, out: Path, world: World, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Position:
    """Restore model and optimizer on every rank from what rank 0 finds; return where the run goes on."""
    saved = None
    with world.together():
        if world.is_main:
            saved = _look(config, identity(config, data), out)
    state = world.share(saved.state if saved else None)
    if state is None:
        return Position()
    model.load_state_dict(world.share_tensors(saved.model if saved else None))
    restore(model, optimizer, world.share_tensors(saved.optimizer if saved else None))
    return Position(**{name: state[name] for name in Position.__slots__})


def _look(config: Config, mine: dict[str, Any], out: Path) -> checkpoint.Saved | None:
    root = out / CHECKPOINT_DIR
    if config.resume == "never":
        _set_aside(out)
        return None
    checkpoint.sweep(root)
    folder = checkpoint.newest(root, say) if config.resume == "auto" else _given(Path(config.resume))
    if folder is None:
        return None
    saved = checkpoint.load(folder)
    theirs = saved.state["identity"]
    if differing := [
        f"{k}: there {theirs.get(k)!r}, here {mine.get(k)!r}"
        for k in sorted({*theirs, *mine})
        if theirs.get(k) != mine.get(k)
    ]:
        raise UsageError(
            f"{folder} belongs to another run ({'; '.join(differing)}): give the same options, another --out, or --resume never"
        )
    done, asked, planned = saved.state["samples"], config.total_samples, saved.state["total_samples"]
    if done > asked:
        raise UsageError(
            f"{folder} holds {done} samples of training, {asked} are asked for: give more, or another --out"
        )
    if done < asked and done % config.global_batch:
        raise UsageError(f"{folder} ended on a short last batch and cannot go on: give another --out")
    say(f"resuming from {folder}: step {saved.state['step']}, {done} samples")
    if asked != planned:
        say(f"the schedule now follows {asked} samples; that of the checkpoint followed {planned}")
    return saved


def _given(path: Path) -> Path:
    """Return the checkpoint that `--resume DIR` means: a step's folder, or the newest below it."""
    if (path / checkpoint.MANIFEST).is_file():
        try:
            checkpoint.verify(path)
        except checkpoint.Damaged as reason:
            raise UsageError(f"--resume {path}: {reason}") from reason
        return path
    for root in (path / CHECKPOINT_DIR, path):
        if folder := checkpoint.newest(root, say):
            return folder
    raise UsageError(f"--resume {path}: no complete checkpoint there")


def _set_aside(out: Path) -> None:
    """Rename what an earlier run left in `out`: a run that starts anew must neither lose nor mix it."""
    number = 1
    while any((out / f"{name}.before-{number}").exists() for name in (CHECKPOINT_DIR, METRICS_FILE)):
        number += 1
    for name in (CHECKPOINT_DIR, METRICS_FILE):
        if (out / name).exists():
            (out / name).rename(out / f"{name}.before-{number}")
            say(f"--resume never: {out / name} is now {name}.before-{number}")
