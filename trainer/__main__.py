"""`python -m trainer`: from the command line to the exit code.

It refuses to hide a traceback: what a person can put right is one line and exit 2, everything else goes to torchrun.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.contract import ENV_OUT, EXIT_NO_PROGRESS, EXIT_USAGE
from trainer.errors import Diverged, UsageError
from trainer.options import parse

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.tasks import Datasets, Task
    from trainer.world import World


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        config = parse(sys.argv[1:])
        # Deferred: `--help` and a wrong option need no torch.
        from torch.distributed.elastic.multiprocessing.errors import record

        return record(_train)(config) or 0
    except UsageError as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)  # every rank ends alike; rank 0 speaks first, before torchrun stops it
            return EXIT_USAGE
        return _end(str(error), EXIT_USAGE)
    except Diverged as error:
        return _end(str(error), EXIT_NO_PROGRESS)


def _train(config: Config) -> int:
    from trainer.interrupt import Interrupt
    from trainer.loop import fit
    from trainer.record import say
    from trainer.tasks import find_task
    from trainer.world import session

    task = find_task(config.task)
    with Interrupt(grace_s=10) as interrupt, session(config.device, config.timeout_s, config.threads) as world:
        say(world.roll())
        out = _folder(config, world)
        data = _agreed_data(config, task, out, world)
        if world.is_main:
            say(
                f"task {config.task}  {len(data.train)} samples  {config.total_steps} steps of {config.global_batch}"
                f"  mode {config.mode}  seed {config.seed}  out {out}"
            )
        return fit(config, task, data, out, world, interrupt)


def _folder(config: Config, world: World) -> Path:
    """Return the run's folder, made and writable on rank 0's host, the same path on every rank."""
    refusal, path = "", Path(config.out or os.environ.get(ENV_OUT) or _fresh(config.task))
    if world.is_main:
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            refusal = f"--out {path}: cannot be written as user {os.getuid()} ({error.strerror}): give another folder"
    word = world.share({"refusal": refusal, "path": str(path)})
    if word["refusal"]:
        raise UsageError(word["refusal"])
    return Path(word["path"])


def _fresh(task: str) -> str:
    return f"runs/{task}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"


def _agreed_data(config: Config, task: Task, out: Path, world: World) -> Datasets:
    """Return the data, the same on every rank; raise UsageError naming the ranks that lack or differ."""
    data, words = None, {"refusal": "", "digest": ""}
    try:
        data = task.datasets(config, world, out)
        words["digest"] = data.digest
    except UsageError as error:
        words["refusal"] = str(error)
    told = world.gather(words)
    for rank, word in enumerate(told):
        if word["refusal"]:
            raise UsageError(f"rank {rank}: {word['refusal']}")
        if word["digest"] != told[0]["digest"]:
            raise UsageError(f"rank {rank} has other data than rank 0 ({word['digest']} against {told[0]['digest']})")
    assert data is not None  # noqa: S101 - every rank has told its refusal
    return data


def _end(text: str, code: int) -> int:
    sys.stderr.write(f"python -m trainer: {text}\n")
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
