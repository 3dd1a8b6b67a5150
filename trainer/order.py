"""Which samples a step consumes, and the key of every random draw, as pure functions of integers.

No torch and no iterator state: the position is one integer, samples consumed. It refuses to depend on the rank count.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def key(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for one draw; equal only for equal (seed, purpose, numbers)."""
    words = np.random.SeedSequence((seed, zlib.crc32(purpose.encode()), *numbers)).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


@dataclass(frozen=True, slots=True)
class GlobalOrder:
    """The endless sequence of sample ids of one run: a fresh permutation of `count` samples each epoch."""

    seed: int
    count: int

    def epoch(self, number: int) -> Ids:
        """Return the permutation of one epoch, shape (count,)."""
        # Sorting raw Philox words needs only the bit stream, which NumPy promises to keep between versions.
        bits = np.random.Philox(np.random.SeedSequence((self.seed, zlib.crc32(b"epoch"), number)))
        return np.argsort(bits.random_raw(self.count), kind="stable").astype(np.int64)

    def ids(self, start: int, stop: int) -> Ids:
        """Return the sample ids at positions start..stop-1; a range may cross epochs."""
        parts, position = [np.empty(0, np.int64)], start
        while position < stop:
            number, offset = divmod(position, self.count)
            taken = min(stop - position, self.count - offset)
            parts.append(_permutation(self, number)[offset : offset + taken])
            position += taken
        return np.concatenate(parts)


def share(ids: Ids, rank: int, size: int) -> tuple[Ids, NDArray[np.float32]]:
    """Return one rank's contiguous share of a global batch, and its weights.

    Every rank gets the same number of rows, so no rank ends early; a row beyond the batch repeats a sample with weight 0.
    """
    rows = -(-len(ids) // size)
    places = np.arange(rank * rows, (rank + 1) * rows)
    return ids[np.minimum(places, len(ids) - 1)], (places < len(ids)).astype(np.float32)


@lru_cache(maxsize=2)  # a batch may straddle two epochs
def _permutation(order: GlobalOrder, number: int) -> Ids:
    return order.epoch(number)
