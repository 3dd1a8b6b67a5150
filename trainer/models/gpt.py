"""A GPT-2-shaped decoder: pre-norm blocks, GELU, learned positions, head tied to the token embedding.

It refuses to know tokens' meaning, losses or devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name for it


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model."""

    vocab: int
    context: int
    layers: int
    heads: int
    width: int
    dropout: float = 0.0


class GPT(nn.Module):
    """Token ids (rows, length <= context) to logits (rows, length, vocab)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.drop = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self._initialise(shape)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at every place."""
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def _initialise(self, shape: Shape) -> None:
        # What joins the residual stream is scaled down, so that its variance does not grow with depth.
        joining = 0.02 * (2 * shape.layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=joining if name.endswith("out.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class Block(nn.Module):
    """Attention, then an MLP, each behind a norm and beside a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.mlp = MLP(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, length, width) to the same shape."""
        x = x + self.attention(self.norm_1(x))
        y: torch.Tensor = x + self.mlp(self.norm_2(x))
        return y


class Attention(nn.Module):
    """Causal self-attention over `heads` heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, length, width) to the same shape."""
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        z: torch.Tensor = self.drop(self.out(y.transpose(1, 2).reshape(rows, length, width)))
        return z


class MLP(nn.Module):
    """Two layers, four times as wide inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wide = nn.Linear(shape.width, 4 * shape.width)
        self.out = nn.Linear(4 * shape.width, shape.width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, length, width) to the same shape."""
        y: torch.Tensor = self.drop(self.out(F.gelu(self.wide(x), approximate="tanh")))
        return y
