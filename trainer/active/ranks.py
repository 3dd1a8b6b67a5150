"""Collectives with a known result, over the ranks that torchrun started: verified element by element, then timed.

One rank of them. It waits for no peer longer than its limit: then it says so and leaves, and its peers do the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from trainer.active import figures
from trainer.active.lines import BEGIN, Result, say, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PERIOD, STEP, SHIFT = 1021, 7, 131  # sums of whole numbers this small are exact in float32, whatever the order
WARM_UP, TIMED = 2, 8
TESTS = ("all_reduce.host", "all_reduce.pair", "sendrecv.pair")
_PEER = ("closed by peer", "reset by peer", "Broken pipe", "ncclRemoteError")
_USAGE = ("ncclInvalidUsage", "ncclInvalidArgument", "invalid usage", "out of memory")


def main(argv: Sequence[str]) -> int:
    """Join the other ranks and do every test that is named."""
    asked = _options().parse_args(argv)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu" if asked.cpu else f"cuda:{os.environ['LOCAL_RANK']}")
    about = Result(
        asked.tests[0],
        " <-> ".join(asked.host or ()),
        hosts=tuple(asked.host or ()),
        backend="gloo" if asked.cpu else "nccl",
        ranks=size,
    )
    guard = Guard(rank, about, asked.limit_s)
    try:
        guard.begin(about)
        _join(device, asked.limit_s)
        for test in asked.tests:
            guard.begin(_for(about, test))
            result = _measure(_for(about, test), rank, device)
            if rank == 0:
                tell(result)
    except Exception as error:  # noqa: BLE001 - whatever ends a test is its result
        tell(_failed(guard.about, rank, error))
    guard.leave()
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.active.ranks")
    parser.add_argument("tests", nargs="+", choices=TESTS)
    parser.add_argument("--host", action="append", help="the hosts that take part, in the order of their ranks")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of one test")
    return parser


class Guard:
    """Ends this process when a test takes too long: a collective that waits for a dead peer never returns by itself."""

    def __init__(self, rank: int, about: Result, limit_s: float) -> None:
        self.about = about
        self._rank = rank
        self._limit_s = limit_s
        self._timer: threading.Timer | None = None

    def begin(self, about: Result) -> None:
        """Count the time anew, for this test."""
        if self._timer is not None:
            self._timer.cancel()
        self.about = about
        if self._rank == 0:
            say(f"{BEGIN}{about.test} {about.subject}")
        self._timer = threading.Timer(self._limit_s, self._late)
        self._timer.daemon = True
        self._timer.start()

    def _late(self) -> None:
        error = f"rank {self._rank}: no end after {self._limit_s:g} s"
        tell(_with(self.about, error, "timeout"))
        os._exit(0)

    def leave(self) -> None:
        """End the process at once: goodbyes to peers that are gone can hang."""
        sys.stdout.flush()
        os._exit(0)


def _join(device: torch.device, limit_s: float) -> None:
    timeout = timedelta(seconds=2 * limit_s)  # the guard comes first, and says which test it was
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    dist.barrier()


def _for(about: Result, test: str) -> Result:
    return Result(test, about.subject, hosts=about.hosts, backend=about.backend, ranks=about.ranks)


def _with(about: Result, error: str, kind: str) -> Result:
    return Result(
        about.test, about.subject, error=error, kind=kind, hosts=about.hosts, backend=about.backend, ranks=about.ranks
    )


def _failed(about: Result, rank: int, error: Exception) -> Result:
    said = f"rank {rank}: {type(error).__name__}: {error}"
    return _with(about, said, kind_of(said))


def kind_of(said: str) -> str:
    """Return the kind of an error: a wrong use, a peer that is gone (it knows why), or a failure."""
    if any(word in said for word in _USAGE):
        return "usage"
    return "peer" if any(word in said for word in _PEER) else "failed"


def _measure(about: Result, rank: int, device: torch.device) -> Result:
    size = _agreed_size(device)
    work = _all_reduce if about.test.startswith("all_reduce") else _sendrecv
    wrong, seconds = work(size // 4, rank, about.ranks, device)
    # every rank compares its own data; the counts travel by gloo, apart from what is tested
    counts = torch.tensor([wrong, int(seconds * 1e9)])
    everyone = [torch.zeros_like(counts) for _ in range(about.ranks)]
    dist.all_gather(everyone, counts)
    bad = [(at, int(one[0])) for at, one in enumerate(everyone) if one[0]]
    slowest = max(int(one[1]) for one in everyone) / 1e9
    rate = figures.gigabytes_a_second(size, slowest)
    if bad:
        told = ", ".join(f"rank {at}: {count}" for at, count in bad[:8])
        error = f"elements with another value than the known result, of {size // 4}: {told}"
        return Result(
            about.test, about.subject, verified=False, error=error, hosts=about.hosts, backend=about.backend,
            ranks=about.ranks, size_bytes=size,
        )  # fmt: skip
    return Result(
        about.test,
        about.subject,
        round(rate * figures.bus_factor(about.test, about.ranks), 3),
        verified=True,
        hosts=about.hosts,
        backend=about.backend,
        ranks=about.ranks,
        size_bytes=size,
        algorithm=rate,
    )


def _agreed_size(device: torch.device) -> int:
    """Return the bytes that the rank with the least free memory can move."""
    if device.type == "cpu":
        return figures.REDUCE_BYTES_CPU
    mine = torch.tensor([figures.size_bytes(torch.cuda.mem_get_info(device)[0], figures.REDUCE_BYTES)])
    dist.all_reduce(mine, dist.ReduceOp.MIN)
    return int(mine)


def pattern(elements: int, rank: int, device: torch.device) -> torch.Tensor:
    """Return the numbers that a rank contributes: they differ by place and by rank."""
    numbers = torch.arange(elements, dtype=torch.int32, device=device)
    return numbers.mul_(STEP).add_(rank * SHIFT).remainder_(PERIOD).to(torch.float32)


def _all_reduce(elements: int, rank: int, ranks: int, device: torch.device) -> tuple[int, float]:
    data = pattern(elements, rank, device)
    seconds = _timed(lambda: dist.all_reduce(data), device)
    data = pattern(elements, rank, device)
    dist.all_reduce(data)
    wanted = torch.zeros_like(data)
    for other in range(ranks):
        wanted += pattern(elements, other, device)
    return int((data != wanted).sum()), seconds


def _sendrecv(elements: int, rank: int, ranks: int, device: torch.device) -> tuple[int, float]:
    """Exchange with the rank of the same number on the other host, both directions at once."""
    peer = (rank + ranks // 2) % ranks
    mine = pattern(elements, rank, device)
    came = torch.zeros_like(mine)

    def exchange() -> None:
        wishes = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, came, peer)]
        for work in dist.batch_isend_irecv(wishes):
            work.wait()

    seconds = _timed(exchange, device)
    came.zero_()
    exchange()
    return int((came != pattern(elements, peer, device)).sum()), seconds


def _timed(step: Callable[[], object], device: torch.device) -> float:
    """Return this rank's seconds of one step."""
    began = 0.0
    for turn in range(WARM_UP + TIMED):
        if turn == WARM_UP:
            _settle(device)
            dist.barrier()
            began = time.perf_counter()
        step()
    _settle(device)
    return (time.perf_counter() - began) / TIMED


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1:])
