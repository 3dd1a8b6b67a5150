"""Where a run begins: at its own newest complete checkpoint, at another folder's, or at zero.

Rank 0 looks and every rank takes its word, so that hosts with different disks cannot disagree. It refuses a checkpoint
whose run differs in seed, global batch, model or data.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import checkpoint
from trainer.contract import CHECKPOINT_DIR, METRICS_FILE, resumed_line
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
    folder = _choose(config.resume, out)
    if folder is None:
        return None
    saved = checkpoint.load(folder)
    theirs = saved.state["identity"]
    keys = sorted({*theirs, *mine})
    differing = [f"{k}: there {theirs.get(k)!r}, here {mine.get(k)!r}" for k in keys if theirs.get(k) != mine.get(k)]
    if differing:
        way = "give the same options, another --out, or --resume never"
        raise UsageError(f"{folder} belongs to another run ({'; '.join(differing)}): {way}")
    done, asked, planned = saved.state["samples"], config.total_samples, saved.state["total_samples"]
    if done > asked:
        raise UsageError(f"{folder} holds {done} samples of training, only {asked} are asked for: ask for more")
    if done < asked and done % config.global_batch:
        raise UsageError(f"{folder} ended on a short last batch and cannot go on: give another --out")
    say(resumed_line(str(folder), saved.state["step"], done))
    if asked != planned:
        say(f"the schedule now follows {asked} samples; that of the checkpoint followed {planned}")
    return saved


def _choose(resume: str, out: Path) -> Path | None:
    """Return the folder to load; a run that its launcher starts again goes on from its own checkpoints first."""
    root = out / CHECKPOINT_DIR
    checkpoint.sweep(root)
    if resume == "never":
        _set_aside(out, 0)
        return None
    if resume == "auto":
        return checkpoint.newest(root, say)
    given = _given(Path(resume))
    if given.parent.resolve() == root.resolve():
        _set_aside(out, int(given.name.removeprefix("step-")))
        return given
    own = checkpoint.newest(root, say)
    if own:
        say(f"--resume {resume} only begins a run; this one goes on from {own}")
    return own or given


def _given(path: Path) -> Path:
    """Return the checkpoint that `--resume DIR` means: a step's folder, or the newest below it."""
    if (path / checkpoint.STATE).is_file():
        try:
            checkpoint.verify(path)
        except checkpoint.Damaged as reason:
            raise UsageError(f"--resume {path}: {reason}") from reason
        return path
    for root in (path / CHECKPOINT_DIR, path):
        if folder := checkpoint.newest(root, say):
            return folder
    raise UsageError(f"--resume {path}: no complete checkpoint there")


def _set_aside(out: Path, step: int) -> None:
    """Move checkpoints beyond `step` to a folder of their own: a new timeline must neither lose nor mix the old one."""
    root = out / CHECKPOINT_DIR
    beyond = [f"step-{number}" for number in checkpoint.steps(root) if number > step]
    if not beyond:
        return
    number = 1 + sum(1 for _ in out.glob("before-*"))
    aside = out / f"before-{number}"
    aside.mkdir()
    for name in beyond:
        (root / name).rename(aside / name)
    for pointer in (checkpoint.LATEST, checkpoint.BEST):
        (root / pointer).unlink(missing_ok=True)
    if (out / METRICS_FILE).exists():
        shutil.copy(out / METRICS_FILE, aside)
    say(f"checkpoints beyond step {step} and the curve so far are now in {aside}")
