"""The optimizer and its learning rate.

AdamW in two groups; the rate is a function of the step, set once an optimizer step. It refuses to keep scheduler state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Config


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.AdamW:
    """Return AdamW that decays matrices and embeddings but never biases and norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = all(p.is_cuda for p in parameters)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=fused or None)


def rate(step: int, config: Config) -> float:
    """Return the learning rate of optimizer step `step`, counted from 1: linear warm-up, then half a cosine."""
    total = config.total_steps
    rising = round(config.warmup * total)
    if step <= rising:
        return config.lr * step / rising
    done = (step - rising) / max(1, total - rising)
    floor = config.lr * config.lr_floor
    return floor + (config.lr - floor) * 0.5 * (1 + math.cos(math.pi * done))


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's memory as tensors named `parameter/slot`."""
    return {
        f"{name}/{slot}": value
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state.get(parameter, {}).items()
    }


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Give the optimizer the memory that `state_tensors` returned."""
    slots: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        slots.setdefault(name, {})[slot] = value
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state = {index: slots[name] for index, name in enumerate(ordered) if name in slots}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
