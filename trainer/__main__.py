"""`python -m trainer`: from the command line to the exit code.

It refuses to hide a traceback: what a person can put right is one line and exit 2, everything else goes to torchrun.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer.contract import ENV_OUT, EXIT_NO_PROGRESS, EXIT_USAGE
from trainer.errors import Diverged, LonelyUsageError, UsageError
from trainer.options import parse

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.tasks import Datasets, Task
    from trainer.world import World


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        config = parse(sys.argv[1:])
    except UsageError as error:
        return _end(error, EXIT_USAGE)
    # Deferred: `--help` and a wrong option need no torch.
    from torch.distributed.elastic.multiprocessing.errors import record

    return record(_run)(config) or 0


def _run(config: Config) -> int:
    try:
        return _train(config)
    except UsageError as error:
        return _end(error, EXIT_USAGE)
    except Diverged as error:
        return _end(error, EXIT_NO_PROGRESS)


def _train(config: Config) -> int:
    from trainer.interrupt import Interrupt
    from trainer.loop import fit
    from trainer.record import say
    from trainer.tasks import find_task
    from trainer.world import session

    task = find_task(config.task)
    with Interrupt(config.grace_s) as interrupt, session(config.device, config.timeout_s, config.threads) as world:
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
    path = Path(config.out or os.environ.get(ENV_OUT) or _fresh(config.task))
    with world.together():
        if world.is_main:
            probe = path / f".writable-{os.getpid()}"
            try:
                path.mkdir(parents=True, exist_ok=True)
                probe.touch()
                probe.unlink()
            except OSError as error:
                why = f"cannot be written by user {os.getuid()} ({error.strerror})"
                raise UsageError(f"--out {path}: {why}: give another folder") from error
    return Path(world.share(str(path)))


def _fresh(task: str) -> str:
    return f"runs/{task}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"


def _agreed_data(config: Config, task: Task, out: Path, world: World) -> Datasets:
    """Return the data; raise UsageError naming the first rank whose data differ from rank 0's."""
    data = task.datasets(config, world, out)
    digests = world.gather(data.digest)
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise UsageError(f"rank {rank} has other data ({digest}) than rank 0 ({digests[0]}): copy one to all hosts")
    return data


def _end(error: Exception, code: int) -> int:
    if os.environ.get("RANK", "0") != "0" and not isinstance(error, LonelyUsageError):
        time.sleep(1)  # every rank ends alike: rank 0 speaks, before torchrun stops it for another's exit
    else:
        sys.stderr.write(f"python -m trainer: {error}\n")
        sys.stderr.flush()
    return code


def leave() -> NoReturn:
    """Run the command line and end the process at once.

    DDP keeps gloo's threads alive, and the interpreter's slow farewell can race with them: a finished rank that
    aborts there would be reported as failed.
    """
    try:
        code = main()
    except SystemExit as wish:  # --help
        code = wish.code if isinstance(wish.code, int) else 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # noqa: BLE001 - torchrun has its copy; this one is for the log
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave()
