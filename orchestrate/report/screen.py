"""Where output goes: standard output, a file, or the line of progress. Lets no byte of a host act on the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate.errors import UsageError
from orchestrate.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

# Control characters, and those that turn or hide text; a newline and a tab are left to the caller.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\xad\u061c\u180e\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def harmless(text: str) -> str:
    r"""Return the text with every control character made visible (\x1b), newlines and tabs kept."""
    return _ACTIVE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return harmless text without newlines and tabs."""
    return harmless(" ".join(text.split("\n")).replace("\t", " "))


def out(text: str, path: Path | None = None) -> None:
    """Write text and a newline to standard output, or to a file: whole or not at all."""
    text = text.removesuffix("\n") + "\n"
    if path is None or str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        replace_file(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(
            f"cannot write the report: {error.strerror}", where=str(path), next_step="choose another -o FILE"
        ) from error


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let work go on when standard output takes no more (a reader that left, a full disk): the rest goes nowhere."""
    try:
        yield
    except OSError:
        give_up_output()


def give_up_output() -> None:
    """Send standard output nowhere from now on, what is buffered included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stand_in() -> None:
    """Give the streams that the caller has closed a place to write to, and let no character be too much for the others."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - it lives as long as the program
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def width() -> int | None:
    """Return how many columns standard output has, if it is a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def colours(stream: TextIO | None = None) -> bool:
    """Whether the stream is a terminal that wants colours (NO_COLOR and TERM=dumb are heard)."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
