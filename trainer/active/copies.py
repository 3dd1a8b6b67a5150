"""Copies between host memory and a GPU, and between two GPUs: the bytes that arrive are compared with those sent.

A worker of `supervise`: it does the tests that its arguments name, one after the other, and may be killed in any of them.
The data are random and their copy in host memory is the judge, so a driver that claims a copy and moves nothing is seen.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch

from trainer.active.figures import COPY_BYTES, gigabytes_a_second, size_bytes
from trainer.active.lines import BEGIN, Result, say, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UP, TIMED = 2, 10
COUNTED = "gpus "


def main(argv: Sequence[str]) -> int:
    """`count`, or subjects: `GPU0` (host memory and back), `GPU0 -> GPU1`."""
    if list(argv) == ["count"]:
        say(f"{COUNTED}{torch.cuda.device_count()} {torch.__version__}")
        return 0
    sent = torch.empty(0, dtype=torch.uint8)
    for subject in argv:
        say(BEGIN + subject)
        places = [int(word.removeprefix("GPU")) for word in subject.split(" -> ")]
        free = min(torch.cuda.mem_get_info(place)[0] for place in places)
        size = size_bytes(free, COPY_BYTES)
        if sent.numel() != size:
            generator = torch.Generator().manual_seed(size)
            sent = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).pin_memory()
        tell(_tried(subject, places, sent))
    return 0


def _tried(subject: str, places: Sequence[int], sent: torch.Tensor) -> Result:
    test = "copy.peer" if len(places) == 2 else "copy.host"
    try:
        return _peer(subject, places[0], places[1], sent) if len(places) == 2 else _host(subject, places[0], sent)
    except torch.cuda.OutOfMemoryError as error:
        return Result(test, subject, error=str(error), kind="usage", next="free the GPU's memory, then test again")
    except RuntimeError as error:
        return Result(test, subject, error=str(error), kind="failed")


def _host(subject: str, place: int, sent: torch.Tensor) -> Result:
    there = torch.zeros(sent.numel(), dtype=torch.uint8, device=f"cuda:{place}")
    back = torch.zeros_like(sent).pin_memory()
    seconds = _timed(lambda: there.copy_(sent, non_blocking=True), (place,))
    back.copy_(there)
    return _compared("copy.host", subject, sent, back, seconds)


def _peer(subject: str, source: int, target: int, sent: torch.Tensor) -> Result:
    there = sent.to(f"cuda:{source}")
    here = torch.zeros(sent.numel(), dtype=torch.uint8, device=f"cuda:{target}")
    seconds = _timed(lambda: here.copy_(there, non_blocking=True), (source, target))
    # the copies above may have left right data; what is compared is one copy onto zeros
    here.zero_()
    torch.cuda.synchronize(target)
    here.copy_(there)
    torch.cuda.synchronize(source)
    torch.cuda.synchronize(target)
    peer = torch.cuda.can_device_access_peer(source, target)
    return _compared("copy.peer", subject, sent, here.cpu(), seconds, peer=peer)


def _timed(copy: object, places: Sequence[int]) -> float:
    """Return the seconds of one copy."""
    began = 0.0
    for turn in range(WARM_UP + TIMED):
        if turn == WARM_UP:
            _settle(places)
            began = time.perf_counter()
        copy()  # type: ignore[operator]
    _settle(places)
    return (time.perf_counter() - began) / TIMED


def _settle(places: Sequence[int]) -> None:
    for place in places:
        torch.cuda.synchronize(place)


def _compared(
    test: str, subject: str, sent: torch.Tensor, came: torch.Tensor, seconds: float, *, peer: bool | None = None
) -> Result:
    size = sent.numel()
    if torch.equal(sent, came):
        value = gigabytes_a_second(size, seconds)
        return Result(test, subject, value, verified=True, size_bytes=size, peer=peer, backend="cuda")
    wrong = sent != came
    first = int(wrong.to(torch.uint8).argmax())
    error = f"{int(wrong.sum())} of {size} bytes are not those that were sent, the first at {first}" + (
        "; all that came is zero" if not came.any() else ""
    )
    return Result(test, subject, verified=False, error=error, size_bytes=size, peer=peer, backend="cuda")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
