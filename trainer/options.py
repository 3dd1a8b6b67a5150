"""The command line of `python -m trainer`: argv to Config.

Standard library only; it refuses to start anything.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainer.config import KEYS, Config, check, read_toml, settle
from trainer.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = (
    ("task", "lm"), ("steps", "N"), ("samples", "N"), ("stop_after", "STEP"), ("global_batch", "N"), ("mode", "fast"),
    ("seed", "N"), ("resume", "auto|never|DIR"), ("out", "DIR"), ("data", "PATH"), ("tokenizer", "byte|bpe|FILE"),
)  # fmt: skip
_EXAMPLES = """examples:
  python -m trainer --steps 40                               train on the novel that ships with the package
  torchrun --nproc-per-node 4 -m trainer --samples 20000 --global-batch 64 --out runs/a
  python -m trainer --data texts/ --tokenizer bpe --set layers=6 --set width=384 --set heads=6
  python -m trainer --config big.toml --set lr=6e-4          the later source wins: defaults, file, --set, options
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str]) -> Config:
    """Return the configuration that `argv` asks for; raise UsageError, or SystemExit(0) after `--help`."""
    given = vars(_parser().parse_args(argv))
    config = Config()
    if given["config"]:
        config = settle(config, read_toml(Path(given["config"])), f"--config {given['config']}")
    pairs = {}
    for text in given["set"]:
        name, found, value = text.partition("=")
        if not found:
            raise UsageError(f"--set {text!r}: write it as key=value")
        pairs[name.strip()] = value.strip()
    config = settle(config, pairs, "--set")
    return check(settle(config, {name: given[name] for name, _ in _NAMED if given[name] is not None}, "command line"))


def _parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {name:<14} {item.default!r:<8} {item.metadata['about']}" for name, item in KEYS.items())
    parser = _Parser(
        prog="python -m trainer",
        description="Train under torchrun, or alone as a world of one rank.",
        epilog=f"{_EXAMPLES}\nkeys of --set and of the TOML file, with their defaults:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, placeholder in _NAMED:
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar=placeholder, help=KEYS[name].metadata["about"].replace("%", "%%")
        )
    parser.add_argument("--config", metavar="FILE.toml", help="read keys from a file")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")
    return parser
