"""`python -m trainer.active`: the load tests of one host. One line of JSON a result, on standard output.

It exits with 0 whatever the results are, for they are data; it refuses GPUs that something else uses, unless told so.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from trainer.active import gpus
from trainer.active.copies import COUNTED
from trainer.active.figures import ordered_pairs
from trainer.active.lines import Result, tell
from trainer.active.supervise import each, one

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CPU_RANKS = 2


def main(argv: Sequence[str]) -> int:
    """Test this host: every GPU, every ordered pair of them, and a collective over all; without GPUs over CPU ranks."""
    asked = _options().parse_args(argv)
    deadline = time.monotonic() + asked.budget_s
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that GPU0 is nvidia-smi's GPU 0
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
    }
    count = _count(environment, asked.limit_s, deadline)
    if count is None:
        return 0
    if asked.gpus is not None and count != asked.gpus:
        why = f"{asked.gpus} GPUs were given to the container and torch sees {count}"
        tell(
            Result(
                "setup", error=why, kind="setup", next="use an image with the CUDA build of torch that the driver takes"
            )
        )
        return 0
    used = "" if asked.busy_gpus or not count else gpus.in_use()
    if used:
        tell(Result("setup", error=f"the GPUs are in use: {used}", kind="busy", next="wait for them, or --busy-gpus"))
        return 0
    _copies(count, environment, asked.limit_s, deadline)
    if count != 1:
        _collective(count, environment, asked.limit_s, deadline)
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.active", description="Load tests of one host: copies and collectives, verified."
    )
    parser.add_argument("--gpus", type=int, help="how many GPUs there must be; otherwise as many as torch sees")
    parser.add_argument("--busy-gpus", action="store_true", help="test GPUs that other processes use, too")
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds for one test (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=300.0, help="seconds for all tests (default: %(default)s)")
    return parser


def _count(environment: dict[str, str], limit_s: float, deadline: float) -> int | None:
    """Return how many GPUs torch sees, asked in a process of its own: a driver that hangs hangs there."""
    argv = [sys.executable, "-m", "trainer.active.copies", "count"]
    said = one(argv, Result("setup"), environment, limit_s, deadline)
    counts = [line.removeprefix(COUNTED).split()[0] for line in said if line.startswith(COUNTED)]
    return int(counts[0]) if counts else None


def _copies(count: int, environment: dict[str, str], limit_s: float, deadline: float) -> None:
    each(
        [*(f"GPU{at}" for at in range(count)), *(f"GPU{a} -> GPU{b}" for a, b in ordered_pairs(count))],
        lambda subjects: [sys.executable, "-m", "trainer.active.copies", *subjects],
        test=lambda subject: "copy.peer" if "->" in subject else "copy.host",
        environment=environment,
        limit_s=limit_s,
        deadline=deadline,
    )


def _collective(count: int, environment: dict[str, str], limit_s: float, deadline: float) -> None:
    ranks = count or MOST_CPU_RANKS
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    argv += ["--local-addr=127.0.0.1", "--max-restarts=0", "-m", "trainer.active.ranks", "all_reduce.host"]
    argv += [f"--limit-s={limit_s:g}", *([] if count else ["--cpu"])]
    about = Result("all_reduce.host")
    one(argv, about, {"OMP_NUM_THREADS": "1", **environment}, 2 * limit_s + 30, deadline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
