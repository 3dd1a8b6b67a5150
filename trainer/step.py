"""One optimizer step: the gradient of (sum of losses) / (global count), whatever the ranks and micro-batches.

`fast` is DDP with overlap. It refuses means of means: losses come as (sum, count) and are divided once, at the end.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from trainer.tasks import Batch, Task
    from trainer.world import World

LOSS, COUNT, STOP = range(3)  # places in what a step returns


class FastStep:
    """Steps of one model: DDP over several ranks, the bare model on one."""

    def __init__(
        self, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float, world: World
    ) -> None:
        self._task, self._optimizer, self._clip, self._world = task, optimizer, clip, world
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._model, self._ddp = model, None
        if world.size > 1:
            devices = [world.device] if world.device.type == "cuda" else None
            self._ddp = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
            self._model = self._ddp

    def __call__(self, batches: Sequence[Batch], keys: Sequence[int], rate: float, *, stop: bool) -> torch.Tensor:
        """Consume one rank's micro-batches; return (loss sum, count, votes to stop) over all ranks, float64.

        The result stays on the device, so that nothing waits for it before somebody reads it. `keys` seed the
        random draws of each micro-batch. Every rank must bring the same number of micro-batches.
        """
        totals = torch.zeros(3, dtype=torch.float64, device=self._world.device)
        totals[STOP] = float(stop)
        pending = None
        for number, (batch, key) in enumerate(zip(batches, keys, strict=True), start=1):
            last = number == len(batches)
            with nullcontext() if last or self._ddp is None else self._ddp.no_sync():
                torch.manual_seed(key)
                loss_sum, count = self._task.loss(self._model, batch)
                totals[LOSS] += loss_sum.detach()
                totals[COUNT] += count
                if last:  # the small sum travels while the last backward pass runs
                    pending = self._world.sum_async(totals)
                loss_sum.backward()  # type: ignore[no-untyped-call]
        if pending is not None:
            pending.wait()
        self._scale(totals[COUNT])
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return totals

    def _scale(self, count: torch.Tensor) -> None:
        """Turn DDP's mean of sums into the mean over everything counted, and clip, in one pass over the gradients."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        factor = self._world.size / count
        if self._clip:
            norm = torch.nn.utils.get_total_norm(gradients) * factor
            factor = factor * (self._clip / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor.float())
