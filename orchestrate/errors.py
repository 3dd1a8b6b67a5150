"""Errors that a person can put right, and the exit codes that scripts rely on.

    OperatorError               what, where, next            exit 2 unless said otherwise
    ├── UsageError              the command line or a file is wrong      2
    ├── CannotTell              a host is out of reach, a needed fact is unknown    3
    │   └── RemoteError         the connection to a host failed, and how         3
    └── Refused                 asked to do what must not or cannot be done         1

A finding about a host or a run is data, not an error. Anything that is no OperatorError is our bug.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of every verb. On a mixed fleet NO outranks CANNOT_TELL."""

    YES = 0
    NO = 1
    USAGE = 2
    CANNOT_TELL = 3
    INTERRUPTED = 130


class OperatorError(Exception):
    """Something a person can put right: what is wrong, where, and what to do next."""

    exit_code: Exit = Exit.USAGE

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def as_json(self) -> dict[str, str]:
        """Return what, where and next for programs."""
        return {"what": self.what, "where": self.where, "next": self.next_step}


class UsageError(OperatorError):
    """The command line, or a file it names, is wrong; nothing was done."""

    exit_code = Exit.USAGE


class CannotTell(OperatorError):  # noqa: N818 - it reads as the answer it is
    """A host is out of reach, or a fact that the verb needs is not known."""

    exit_code = Exit.CANNOT_TELL


class RemoteError(CannotTell):
    """The connection to a host failed.

    `outcome` is one of `dns timeout refused unreachable auth host_key_unknown host_key_changed proxy closed error`.
    `partial` holds what a command had sent before the connection was lost.
    """

    def __init__(self, outcome: str, what: str, *, where: str = "", next_step: str = "", partial: bytes = b"") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.outcome = outcome
        self.partial = partial


class Refused(OperatorError):  # noqa: N818 - the same
    """What was asked for was not done: it failed, or it must not be done as things stand."""

    exit_code = Exit.NO
