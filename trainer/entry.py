"""The image's entry point: apply the NCCL preset that MUSTER_PRESET names, then become the command.

Standard library only. It refuses presets that do not exist or do not parse, and never replaces a variable that is set.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.contract import ENV_PRESET, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRESETS = Path(__file__).with_name("presets")
_LINE = re.compile(r"([A-Z_][A-Z0-9_]*)=([^\s\x00]*)")


def main(argv: Sequence[str] = ()) -> int:
    """Replace this process by `argv` (default: `python -m trainer`); return an exit code only when that fails."""
    command = list(argv or sys.argv[1:]) or [sys.executable, "-m", "trainer"]
    name = os.environ.get(ENV_PRESET) or "default"
    try:
        wanted = read_preset(name)
    except ValueError as error:
        return _fail(str(error), EXIT_USAGE)
    added, kept = apply(wanted, os.environ)
    os.environ.update(added)
    if wanted:
        told = [f"{key}={value}" for key, value in added.items()] + [f"{key} (already set, kept)" for key in kept]
        sys.stdout.write(f"preset {name}: {'  '.join(told)}\n")
        sys.stdout.flush()  # the process is replaced; nobody would flush it later
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as error:
        return _fail(
            f"cannot run {command[0]!r}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126
        )


def read_preset(name: str, folder: Path = PRESETS) -> dict[str, str]:
    """Return the variables of a preset; raise ValueError naming what exists, or the line that does not parse."""
    known = sorted(path.stem for path in folder.glob("*.env"))
    if name not in known:
        raise ValueError(f"{ENV_PRESET}={name!r}: no such preset; there are: {', '.join(known)}")
    values: dict[str, str] = {}
    path = folder / f"{name}.env"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None or found[1] in values:
            raise ValueError(f"{path}:{number}: not KEY=VALUE, or a key twice: {text!r}")
        values[found[1]] = found[2]
    return values


def apply(wanted: Mapping[str, str], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables to add, and the names that stay as they were set."""
    kept = [key for key in wanted if key in environment]
    return {key: value for key, value in wanted.items() if key not in environment}, kept


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"trainer.entry: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
