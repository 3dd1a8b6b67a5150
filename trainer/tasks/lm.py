"""Language modelling: a GPT-2-shaped model learns to name the next token of a text.

It refuses texts too short for one training block and one held-out block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812 - the field's own name for it

from trainer.data.blocks import Blocks
from trainer.data.corpus import read_corpus
from trainer.data.tokenizer import choose_tokenizer
from trainer.errors import UsageError
from trainer.models.gpt import GPT, Shape
from trainer.tasks import Datasets

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from trainer.config import Config
    from trainer.data.blocks import Batch
    from trainer.world import World


def datasets(config: Config, world: World, folder: Path) -> Datasets:
    """Return the training blocks and the held-out blocks of the text."""
    with world.together():
        corpus = read_corpus(config.data)
    seen, unseen = corpus.halves()
    tokenizer = choose_tokenizer(config.tokenizer, config.vocab, seen, folder, world)
    train, valid = (Blocks(tokenizer.encode(text), config.context) for text in (seen, unseen))
    if not len(train) or not len(valid):
        raise UsageError(
            f"--data {config.data or 'novel'}: {len(train)} training and {len(valid)} held-out blocks "
            f"of {config.context} tokens; both need one: give more text or a smaller context"
        )
    sizes = {name: getattr(config, name) for name in ("context", "layers", "heads", "width", "dropout")}
    digest = f"{corpus.digest[:16]}/{tokenizer.digest[:16]}"
    return Datasets(train, valid, digest, {"vocab": tokenizer.vocab, **sizes})


def build_model(config: Config, data: Datasets) -> nn.Module:
    """Return the model that the configuration describes."""
    return GPT(
        Shape(int(data.identity["vocab"]), config.context, config.layers, config.heads, config.width, config.dropout)
    )


def loss(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed cross entropy in nats, and the number of tokens it was summed over."""
    logits = model(batch["x"])
    each = F.cross_entropy(logits.flatten(0, 1).float(), batch["y"].flatten(), reduction="none").view_as(batch["y"])
    weight = batch["weight"][:, None]
    return (each * weight).sum(), weight.sum() * each.shape[1]


def evaluate(model: nn.Module, batch: Batch) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the loss on held-out text, and how often the likeliest token was the right one."""
    logits = model(batch["x"])
    each = F.cross_entropy(logits.flatten(0, 1).float(), batch["y"].flatten(), reduction="none").view_as(batch["y"])
    weight = batch["weight"][:, None].double()
    hits = (logits.argmax(-1) == batch["y"]) * weight
    count = weight.sum() * each.shape[1]
    return {"eval_loss": ((each * weight).sum(), count), "eval_accuracy": (hits.sum(), count)}
