"""The vocabulary of the audit: what is asked, what came back, what it means and what to do.

Every word here is a value; nothing in this file or in its package reads a file, a clock or a socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

MISSING = (126, 127)  # what a shell says of a command that it cannot run
LATE = (124, 137)  # what `timeout`, and our own script, say of a command that ran too long
_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")


class State(StrEnum):
    """What a check says of a host. `UNKNOWN` never folds into `PASS`."""

    PASS = "pass"  # noqa: S105 - no password
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to a host: a read-only POSIX sh command.

    `root`: try `sudo -n` when the user is not root; never prompts. `timeout_s`: after this the probe is left behind.
    `tool`: what all probes of that name depend on; once it gives one of them no answer in time, the others are not asked.
    """

    name: str
    command: str
    root: bool = False
    timeout_s: int = 10
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: the raw bytes, never decoded before a parser asks. `exit_code` is None when it was not kept."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = 0

    @property
    def text(self) -> str:
        """Standard output as text: invalid UTF-8 replaced, CRLF and lone CR turned into newlines.

        What a terminal, an editor or a web page adds when somebody saves an output is taken out: colours, a byte order
        mark, blanks that do not break.
        """
        return _text(self.stdout)

    @property
    def error_text(self) -> str:
        """Standard error as text, like `text`."""
        return _text(self.stderr)


def _text(raw: bytes) -> str:
    wide = raw[:2] in {b"\xff\xfe", b"\xfe\xff"}  # Windows saves text so
    text = raw.decode("utf-16" if wide else "utf-8", "replace").removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    return _COLOUR.sub("", text) if "\x1b" in text else text


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one host before anything is read into it.

    A probe that is absent from `replies` was not asked, or its answer was lost on the way. Besides the probes of
    `facts/`, some names come from the collector itself and are saved and judged like the rest: `ssh` (JSON: the outcome
    of connecting), `inventory` (JSON: what the hosts file says), `clock` (samples of local and remote time), `peers` (what
    the host found when it tried its peers) and `active` (what it measured under load).
    """

    host: str
    replies: Mapping[str, Reply] = field(default_factory=dict)

    def answer(self, probe: str) -> Reply | Unknown:
        """Return what a probe answered, or why it answered nothing: not asked, not installed, not in time."""
        reply = self.replies.get(probe)
        if reply is None:
            return Unknown(f"`{probe}` was not asked, or its answer was lost")
        if reply.exit_code in MISSING and not reply.stdout.strip():
            return Unknown(f"the command behind `{probe}` is not installed or not allowed to run")
        if reply.exit_code in LATE:
            return Unknown(f"`{probe}` gave no answer in time and was left behind")
        return reply


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A fact that the evidence shows."""

    value: T


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that the evidence does not show, and why not (one short sentence)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What puts it right: a sentence, and commands where commands can."""

    text: str
    commands: tuple[str, ...] = ()
    needs_root: bool = False
    needs_reboot: bool = False
    needs_firmware: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says of one subject on one host (or, with scope `pair` or `cluster`, of several).

    `check` and, unless the check sets them, `scope`, `hosts` and `source` are filled in by the runner.
    `saw` is what the evidence shows, `wanted` what would have passed. `evidence` holds trimmed raw lines,
    each after `PROBE: `.
    """

    state: State
    saw: str
    wanted: str = ""
    subject: str = ""
    remedy: Remedy | None = None
    evidence: tuple[str, ...] = ()
    check: str = ""
    scope: str = "host"
    hosts: tuple[str, ...] = ()
    source: str = ""
