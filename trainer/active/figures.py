"""Pure arithmetic of the load tests: which pairs, how many bytes, and what a time means as bandwidth."""

from __future__ import annotations

MIB = 1 << 20
COPY_BYTES = 256 * MIB
REDUCE_BYTES = 512 * MIB
REDUCE_BYTES_CPU = 16 * MIB
LEAST_BYTES = MIB
_SHARE = 16  # of the free memory: a collective needs its data, the expected sum and what comparing costs


def ordered_pairs(count: int) -> list[tuple[int, int]]:
    """Return every ordered pair of distinct devices: the two directions of a link can differ."""
    return [(a, b) for a in range(count) for b in range(count) if a != b]


def size_bytes(free_bytes: int, most_bytes: int) -> int:
    """Return how many bytes to move: as many as wanted, a bounded share of what is free, whole MiB, at least one."""
    return max(LEAST_BYTES, min(most_bytes, free_bytes // _SHARE) // MIB * MIB)


def bus_factor(test: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests define it."""
    if test.startswith("all_reduce"):
        return 2 * (ranks - 1) / ranks
    return 1.0


def gigabytes_a_second(size: int, seconds: float) -> float:
    """Return a rate in GB/s (10**9 bytes), to three digits after the point."""
    return round(size / max(seconds, 1e-9) / 1e9, 3)
