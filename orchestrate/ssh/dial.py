"""Opens the byte stream to a host's sshd: directly, through a jump host's connection, or by a ProxyCommand. Speaks no SSH."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrate.ssh.config import Route


def dial(route: Route, before: Any, deadline: float) -> Any:
    """Return a connected socket, or a channel of the jump host's transport `before`.

    `deadline` is a value of time.monotonic(). Raise OSError, or paramiko's exception when a jump host refuses.
    """
    left_s = max(deadline - time.monotonic(), 0.1)
    if before is not None:
        return before.open_channel("direct-tcpip", (route.hostname, route.port), ("", 0), timeout=left_s)
    if route.proxy_command:
        return _by_command(route.proxy_command)
    return _directly(route, deadline)


def _directly(route: Route, deadline: float) -> socket.socket:
    """Try each address of the name in turn; an address that never answers leaves time for the next."""
    last: OSError | None = None
    found = socket.getaddrinfo(route.hostname, route.port, type=socket.SOCK_STREAM)
    for index, (family, kind, protocol, _, address) in enumerate(found):
        left_s = max(deadline - time.monotonic(), 0.1) / (len(found) - index)
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_s)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            last = error
            continue
        return sock
    raise last or OSError(f"{route.hostname} has no address")


class _Piped(socket.socket):
    """One end of a socket pair, with the process that holds the other end."""

    process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        super().close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None


def _by_command(command: str) -> socket.socket:
    """Run ssh's ProxyCommand on one end of a socket pair, as ssh does; closing the socket ends it."""
    ours, theirs = socket.socketpair()
    piped = _Piped(fileno=ours.detach())
    with theirs:
        piped.process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return piped
