"""What can be trained: each task is a module with `build_model`, `datasets`, `loss` and, if it likes, `evaluate`.

It refuses names it does not know, and says which there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainer.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from trainer.config import Config
    from trainer.order import Ids
    from trainer.world import World

    Batch = dict[str, torch.Tensor]
    SumCount = tuple[torch.Tensor, torch.Tensor]


class Dataset(Protocol):
    """Samples by number."""

    def __len__(self) -> int: ...

    def batch(self, ids: Ids, weights: NDArray[np.float32]) -> Batch:
        """Return the samples `ids` as CPU tensors; rows of weight 0 must not count."""
        ...


@dataclass(frozen=True, slots=True)
class Datasets:
    """What a task trains on and is judged by; `digest` names the data, `identity` what a checkpoint must match."""

    train: Dataset
    valid: Dataset
    digest: str
    identity: Mapping[str, int | float | str]


class Task(Protocol):
    """The few functions that make a task; a module that has them is one."""

    def datasets(self, config: Config, world: World, folder: Path) -> Datasets:
        """Return the data; `folder` is where rank 0 may keep what it derives from them. Called on all ranks at once."""
        ...

    def build_model(self, config: Config, data: Datasets) -> nn.Module:
        """Return a fresh model on the CPU; draws come from torch's global generator, already seeded."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> SumCount:
        """Return the differentiable sum of the losses and how many things were summed."""
        ...

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, SumCount]:
        """Return named figures as (sum, count); `eval_loss` decides which checkpoint is the best."""
        ...


def find_task(name: str) -> Task:
    """Return the task of this name; raise UsageError when there is none."""
    if name == "lm":
        from trainer.tasks import lm

        return lm
    raise UsageError(f"--task {name}: not built yet; there is: lm")
