"""Runs commands on this machine under the limits that hold for hosts. Speaks to no other machine."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrate.inventory import Host

MOST_BYTES = 8 << 20
LINGER_S = 0.5  # a command has ended, but something that it left behind holds its output open
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command on a host did.

    `exit_code` is as a POSIX shell tells it (128 + n: killed by signal n), or None when the command was left behind: at
    its deadline, or when it had sent more than it may (`truncated`). `span`: this machine's clock (seconds since 1970) just
    before the command was sent and, at the latest, when its first output had come; None: nothing came.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    span: tuple[float, float] | None = None

    @property
    def signal(self) -> str | None:
        """The signal that ended the command, such as SIGKILL."""
        try:
            return signal.Signals((self.exit_code or 0) - 128).name
        except ValueError:
            return None


class Shell(Protocol):
    """A place where commands run: this machine, or a host behind SSH."""

    host: Host

    def run(
        self, command: str, *, stdin: bytes = b"", timeout_s: float = 30.0, max_bytes: int = MOST_BYTES
    ) -> Completed:
        """Run one POSIX sh command line and return what it did; raise RemoteError when the connection itself fails."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...


def wrapped(command: str) -> str:
    """Return a command line that does the same under any login shell, and tells a death by signal as 128 + n."""
    return f"exec sh -c 'sh -c \"$0\"; exit $?' {shlex.quote(command)}"


class Local:
    """This machine, without SSH (a Shell)."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def run(
        self, command: str, *, stdin: bytes = b"", timeout_s: float = 30.0, max_bytes: int = MOST_BYTES
    ) -> Completed:
        """Run one POSIX sh command line; what outlives its limits is killed with its children."""
        deadline, sent_at = time.monotonic() + timeout_s, time.time()
        process = subprocess.Popen(
            ["/bin/sh", "-c", wrapped(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            out, err = bytearray(), bytearray()
            try:
                whole = _pump(process, stdin, {"out": out, "err": err}, deadline, max_bytes)
                code = process.wait(max(deadline - time.monotonic(), 0.0)) if whole else None
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        truncated = len(out) + len(err) > max_bytes
        return Completed(
            None if code is None else code if code >= 0 else 128 - code,
            bytes(out[:max_bytes]),
            bytes(err[: max(max_bytes - len(out), 0)]),
            truncated,
            (sent_at, time.time()) if out or err else None,
        )

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _pump(
    process: subprocess.Popen[bytes], stdin: bytes, into: dict[str, bytearray], deadline: float, max_bytes: int
) -> bool:
    """Feed and drain a process until its pipes close; False when a limit was reached first."""
    feed, out, err = process.stdin, process.stdout, process.stderr
    assert feed and out and err  # noqa: S101, PT018 - all three were asked for
    left = memoryview(stdin)
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ, into["out"])
        ready.register(err, selectors.EVENT_READ, into["err"])
        if left:
            os.set_blocking(feed.fileno(), False)
            ready.register(feed, selectors.EVENT_WRITE, None)
        else:
            feed.close()
        while ready.get_map():
            if time.monotonic() >= deadline or sum(map(len, into.values())) > max_bytes:
                return False
            events = ready.select(min(max(deadline - time.monotonic(), 0.0), LINGER_S))
            if not events and process.poll() is not None:
                return True
            for key, _ in events:
                if key.data is None:
                    left = _feed(feed, left)
                    if not left:
                        ready.unregister(feed)
                        feed.close()
                elif block := os.read(key.fd, _BLOCK):
                    key.data.extend(block)
                else:
                    ready.unregister(key.fileobj)
    return True


def _feed(feed: IO[bytes], left: memoryview) -> memoryview:
    try:
        return left[os.write(feed.fileno(), left[:_BLOCK]) :]
    except BrokenPipeError:
        return left[:0]
