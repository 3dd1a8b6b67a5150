"""Errors on standard error: three lines for what a person can put right, one line for a bug. Explains no finding."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate.report.screen import one_line

if TYPE_CHECKING:
    from orchestrate.errors import OperatorError

BUG = 70  # sysexits.h calls it EX_SOFTWARE


def show(error: OperatorError) -> None:
    """Print what, where and next."""
    lines = [f"error: {one_line(error.what)}"]
    if error.where:
        lines.append(f"where: {one_line(error.where)}")
    if error.next_step:
        lines.append(f"next:  {one_line(error.next_step)}")
    _say("\n".join(lines))


def usage(text: str) -> None:
    """Print the help of a command that was given nothing to do."""
    _say(text)


def interrupted() -> None:
    """Say that the run was interrupted."""
    _say("interrupted")


def bug(error: BaseException) -> None:
    """Keep the traceback in a file, and print one line that names it."""
    text = "".join(traceback.format_exception(error))
    try:
        place = str(_keep(text))
    except OSError:
        place = "nowhere: no folder could be written"
    _say(one_line(f"bug in orchestrate: {type(error).__name__}: {error} (the traceback is in {place})"))


def _keep(text: str) -> Path:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "muster"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=time.strftime("bug-%Y%m%dT%H%M%S-"), suffix=".txt", dir=folder if os.access(folder, os.W_OK) else None
    )
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)
    return Path(name)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
