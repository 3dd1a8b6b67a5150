"""What a person can put right, and what must not be tried again.

It knows how a run ends on purpose; it refuses to dress up the trainer's own bugs, which keep their tracebacks.
"""

from __future__ import annotations


class UsageError(Exception):
    """The command line or a file is wrong, as every rank knows; one line says what, where and next (exit 2)."""


class LonelyUsageError(UsageError):
    """The environment of this rank is wrong, and no other rank knows of it."""


class Diverged(Exception):  # noqa: N818 - names what happened to the run, not a fault of the program
    """The loss stopped being a finite number: starting again would end the same way (exit 93)."""
