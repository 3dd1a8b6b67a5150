"""One line of JSON for each result: what every part of the load tests prints, and what reads it back from a child.

It holds no opinion of a result, and lets no line grow longer than what a pipe writes in one piece.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace

SCHEMA = "muster.active/1"
BEGIN = "active: begins "  # before every test: a reader knows what hangs
_LONGEST_ERROR = 600
_STDOUT = 1


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement, or why there is none.

    `value` is in `unit`: for collectives the bus bandwidth, with the algorithm bandwidth beside it, both as nccl-tests
    define them. `verified`: whether the data that arrived are those that were sent; None when it came to no comparison.
    `kind` sorts errors: timeout, crashed, failed, peer (it was the other end's), usage, setup, busy. `next`: what a person can do about it.
    """

    test: str
    subject: str = ""
    value: float | None = None
    unit: str = "GB/s"
    verified: bool | None = None
    error: str = ""
    kind: str = ""
    next: str = ""
    hosts: tuple[str, ...] = ()
    backend: str = ""
    ranks: int = 0
    size_bytes: int = 0
    algorithm: float | None = None
    peer: bool | None = None  # whether the driver grants the two GPUs direct access

    def line(self) -> str:
        """Return the line without its newline; what is not known of a result is left out, what everybody reads is not."""
        kept = replace(self, error=self.error[:_LONGEST_ERROR], next=self.next[:_LONGEST_ERROR])
        always = ("test", "subject", "value", "unit", "verified", "error")
        fields = {key: value for key, value in asdict(kept).items() if key in always or value not in {None, "", 0, ()}}
        return json.dumps({"schema": SCHEMA, **fields})


def say(line: str) -> None:
    """Write one line in one piece: ranks and workers share the pipe."""
    os.write(_STDOUT, line.encode() + b"\n")


def tell(result: Result) -> None:
    """Print a result."""
    say(result.line())


def is_result(line: str) -> bool:
    """Return whether a line is a result, as `tell` prints it."""
    return line.startswith('{"schema": "' + SCHEMA + '"')
