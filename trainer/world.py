"""The ranks of a run: who this process is, its device, and the few collectives the trainer needs.

Messages between ranks are JSON and tensors; it refuses to pickle, and to start processes (torchrun did that).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer.contract import ENV_HOST
from trainer.errors import LonelyUsageError, UsageError

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class World:
    """One rank's view of the run; every method is a collective and does nothing when the size is 1."""

    rank: int
    local_rank: int
    local_size: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes files and progress."""
        return self.rank == 0

    def roll(self) -> str:
        """Return the line with which this rank reports for duty. Not a collective."""
        host = os.environ.get(ENV_HOST) or socket.gethostname()
        name = f" {torch.cuda.get_device_name(self.device)}" if self.device.type == "cuda" else ""
        return f"rank {self.rank}/{self.size}  local rank {self.local_rank}  host {host}  device {self.device}{name}"

    def sum_async(self, tensor: torch.Tensor) -> dist.Work | None:
        """Start summing `tensor` in place over all ranks; wait on what is returned."""
        return dist.all_reduce(tensor, async_op=True) if self.size > 1 else None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` in place over all ranks and return it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def share(self, value: Any = None) -> Any:
        """Return rank 0's JSON value on every rank."""
        if self.size == 1:
            return value
        data = _bytes(value if self.is_main else None)
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        if not self.is_main:
            data = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        data = _bytes(value)
        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(data)]))
        longest = max(int(length) for length in lengths)
        rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(rows, torch.nn.functional.pad(data, (0, longest - len(data))))
        return [json.loads(row.numpy()[: int(n)].tobytes()) for row, n in zip(rows, lengths, strict=True)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise on every rank the UsageError that the block raises on any; the block holds no collective."""
        refusal = ""
        try:
            yield
        except UsageError as error:
            refusal = str(error)
        for rank, word in enumerate(self.gather(refusal)):
            if word:
                raise UsageError(f"rank {rank}: {word}" if rank else word)

    def share_tensors(self, tensors: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Return rank 0's CPU tensors on every rank."""
        mine = dict(tensors or {})
        shapes = self.share([[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in mine.items()])
        for name, dtype, shape in shapes:
            if not self.is_main:
                mine[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            if self.size > 1:
                dist.broadcast(mine[name], 0)
        return mine


@contextmanager
def session(device: str, timeout_s: float, threads: int = 0) -> Iterator[World]:
    """Join the world that torchrun's variables describe, or one of size 1 without them; leave it in the end."""
    rank, size, local, local_size = _places()
    place = _device(device, local)
    if place.type == "cpu":
        # torchrun sets OMP_NUM_THREADS=1; a rank may use its share of the cores it is allowed.
        torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // local_size))
    world = World(rank, local, local_size, size, place)
    if size == 1:
        yield world
        return
    timeout = timedelta(seconds=timeout_s)
    if place.type == "cuda":
        torch.cuda.set_device(place)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, device_id=place)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    try:
        yield world
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _places() -> tuple[int, int, int, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "WORLD_SIZE" not in os.environ and "RANK" not in os.environ:
        return 0, 1, 0, 1
    try:
        rank, size, local, local_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError) as error:
        raise LonelyUsageError(
            f"{', '.join(names)} must all be whole numbers ({error}): start under torchrun"
        ) from error
    if not (0 <= rank < size and 0 <= local < local_size <= size):
        raise LonelyUsageError(
            f"RANK {rank}/{size} with LOCAL_RANK {local}/{local_size} cannot be: start under torchrun"
        )
    return rank, size, local, local_size


def _device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not count:
        raise LonelyUsageError("device is cuda, and no GPU is visible here: use device=cpu, or give the container GPUs")
    if local_rank >= count:
        raise LonelyUsageError(
            f"local rank {local_rank} has no GPU: {count} visible here; start at most {count} ranks a host"
        )
    return torch.device("cuda", local_rank)


def _bytes(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
