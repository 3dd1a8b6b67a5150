"""A run from its first sample to its weights: resume, step, evaluate, record, save.

Position is one integer, samples consumed; it refuses to continue a checkpoint of another run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainer import checkpoint, order
from trainer.contract import CHECKPOINT_DIR, EXIT_RETRY, FINAL_WEIGHTS, METRICS_FILE, Progress
from trainer.errors import Diverged
from trainer.optim import build_optimizer, rate, state_tensors
from trainer.record import Metrics, Stopwatch, say
from trainer.resume import Position, find_saved, identity
from trainer.step import COUNT, LOSS, STOP, FastStep
from trainer.watch import GpuWatch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from trainer.config import Config
    from trainer.interrupt import Interrupt
    from trainer.tasks import Batch, Dataset, Datasets, Task
    from trainer.world import World


def fit(config: Config, task: Task, data: Datasets, out: Path, world: World, interrupt: Interrupt) -> int:
    """Train until the end, `stop_after` or SIGTERM; return the exit code, the same on every rank."""
    torch.manual_seed(order.key(config.seed, "init"))
    model = task.build_model(config, data).to(world.device)
    optimizer = build_optimizer(model, config)
    position = find_saved(config, data, out, world, model, optimizer)
    run = _Run(config, task, data, out, world, model, optimizer, position)
    return run.train(interrupt)


@dataclass(slots=True)
class _Run:
    config: Config
    task: Task
    data: Datasets
    out: Path
    world: World
    model: nn.Module
    optimizer: torch.optim.Optimizer
    position: Position
    clock: Stopwatch = field(default_factory=Stopwatch)

    def train(self, interrupt: Interrupt) -> int:
        config, world = self.config, self.world
        step = FastStep(self.task, self.model, self.optimizer, config.clip, world)
        samples = order.GlobalOrder(config.seed, len(self.data.train))
        metrics = Metrics(self.out / METRICS_FILE, self.position.step) if world.is_main else None
        gpu = GpuWatch(world)
        last = config.total_steps
        until = min(last, config.stop_after or last)
        stopping = False
        before: torch.Tensor | None = None
        self.clock = Stopwatch()
        while self.position.step < until and not stopping:
            now, start = self.position.step + 1, self.position.samples
            stop = min(start + config.global_batch, config.total_samples)
            with self.clock.waiting():
                batches = self._batches(self.data.train, samples.ids(start, stop), config.micro_batch)
            keys = [order.key(config.seed, "step", now, world.rank, n) for n in range(len(batches))]
            totals = step(batches, keys, rate(now, config), stop=interrupt.wished)
            self.position.step, self.position.samples = now, stop
            self.clock.count(stop - start)
            # One step late, so that on a GPU the host never waits for the step it has just queued.
            stopping = before is not None and bool(before[STOP] > 0)
            before = totals
            leaving = stopping or now == until
            interrupt.hear(leaving=leaving)
            judged = now == last or _due(now, config.eval_every)
            if judged or leaving or now == 1 or _due(now, config.log_every):
                row = self._row(totals) | self.clock.read() | {"comm_s": None} | gpu.figures()
                with self.clock.outside():
                    row |= self._evaluate() if judged else {}
                if metrics:
                    metrics.row(row)
                    say(Progress(now, last, row["loss"], row["lr"], row["samples_per_s"]).line() + _judgement(row))
            if leaving or _due(now, config.save_every) or (judged and self.position.best_step == now):
                with self.clock.outside():
                    self._save(totals)
        if metrics:
            metrics.close()
        return self._leave(stopping=stopping)

    def _batches(self, source: Dataset, ids: order.Ids, most: int) -> list[Batch]:
        """Return this rank's share of a global batch in micro-batches, on its device."""
        mine, weights = order.share(ids, self.world.rank, self.world.size)
        size = most or len(mine)
        batches = [source.batch(mine[i : i + size], weights[i : i + size]) for i in range(0, len(mine), size)]
        if self.world.device.type == "cpu":
            return batches
        return [
            {name: tensor.pin_memory().to(self.world.device, non_blocking=True) for name, tensor in batch.items()}
            for batch in batches
        ]

    def _row(self, totals: torch.Tensor) -> dict[str, Any]:
        step = self.position.step
        return {
            "step": step,
            "samples": self.position.samples,
            "loss": _finite_loss(totals, step),
            "lr": rate(step, self.config),
        }

    def _evaluate(self) -> dict[str, float]:
        """Return the figures of the held-out samples, the same on every rank, and note whether they are the best."""
        count = min(len(self.data.valid), self.config.eval_samples or len(self.data.valid))
        sums: dict[str, torch.Tensor] = {}
        self.model.eval()
        with torch.no_grad():
            for start in range(0, count, self.config.global_batch):
                ids = np.arange(start, min(start + self.config.global_batch, count))
                for batch in self._batches(self.data.valid, ids, self.config.micro_batch):
                    for name, pair in self.task.evaluate(self.model, batch).items():
                        sums[name] = sums.get(name, 0) + torch.stack(pair).double()
        self.model.train()
        totals = self.world.sum(torch.stack(list(sums.values())))
        figures = {name: float(total / number) for name, (total, number) in zip(sums, totals, strict=True)}
        self.position.judge(figures["eval_loss"])
        return figures

    def _save(self, totals: torch.Tensor) -> None:
        _finite_loss(totals, self.position.step)  # what is saved is what a restart would trust
        if not self.world.is_main:
            return
        state = {
            **self.position.to_json(),
            "identity": identity(self.config, self.data),
            "total_samples": self.config.total_samples,
            "torch": torch.__version__,
        }
        saved = checkpoint.Saved(
            state, _on_cpu(self.model.state_dict()), _on_cpu(state_tensors(self.model, self.optimizer))
        )
        checkpoint.save(self.out / CHECKPOINT_DIR, self.position.step, saved, self.position.best_step, self.config.keep)

    def _leave(self, *, stopping: bool) -> int:
        position, last = self.position, self.config.total_steps
        if position.step >= last:
            if self.world.is_main:
                checkpoint.export(self.out / FINAL_WEIGHTS, _on_cpu(self.model.state_dict()))
                say(
                    f"finished at step {position.step}, {position.samples} samples; weights: {self.out / FINAL_WEIGHTS}"
                )
            return 0
        if self.world.is_main:
            say(f"stopped at step {position.step}/{last} with a checkpoint in {self.out / CHECKPOINT_DIR}")
        return EXIT_RETRY if stopping else 0


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _finite_loss(totals: torch.Tensor, step: int) -> float:
    loss = float(totals[LOSS] / totals[COUNT])
    if not math.isfinite(loss):
        raise Diverged(
            f"loss is {loss} at step {step}: no checkpoint was written since; lower lr or clip, or look at the data"
        )
    return loss


def _judgement(row: dict[str, Any]) -> str:
    return f"  eval_loss {row['eval_loss']:.4f}" if "eval_loss" in row else ""


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
