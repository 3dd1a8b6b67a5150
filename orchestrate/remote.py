"""One SSH connection a host, verified, bounded and with a deadline; the only importer of fabric.

Refuses unknown host keys, never prompts, and treats a non-zero exit as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrate.inventory import Host


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command on a host did: its exit code (None when it was left behind at the deadline), and its output."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool = False


class Shell(Protocol):
    """A place where commands run: this machine, or a host behind SSH."""

    host: Host

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = 30.0, max_bytes: int = 8 << 20) -> Completed:
        """Run one POSIX sh command line and return what it did; raise RemoteError when the connection itself fails."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...


class Remote:
    """A host behind SSH (a Shell), with the paramiko client that engine.py speaks through.

    `client` is the connected paramiko.SSHClient: engine.py opens channels on its transport from several threads.
    """

    host: Host
    client: Any


def connect(host: Host, *, ssh_config: Path | None = None, timeout_s: float = 15.0) -> Shell:
    """Connect to one host (or return this machine's shell for a local one); raise RemoteError with the class of error."""
    raise NotImplementedError
