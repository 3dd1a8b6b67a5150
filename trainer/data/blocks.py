"""A stream of tokens as numbered samples: block i predicts, at each of its places, the token that follows.

Samples are read by id and carry weights; it refuses to shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.data.tokenizer import Tokens
    from trainer.order import Ids

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Neighbouring, non-overlapping blocks of `context` tokens."""

    tokens: Tokens
    context: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.context)

    def batch(self, ids: Ids, weights: NDArray[np.float32]) -> Batch:
        """Return `x` and `y`, int64 (rows, context), and `weight`, float32 (rows,); weight 0 marks padding."""
        places = ids[:, None] * self.context + np.arange(self.context + 1)
        window = torch.from_numpy(self.tokens[places].astype(np.int64))
        return {"x": window[:, :-1], "y": window[:, 1:], "weight": torch.from_numpy(weights)}
