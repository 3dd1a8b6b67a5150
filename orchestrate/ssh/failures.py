"""Tells the classes of failed connections apart, and what a person does about each. Hides no first error."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import paramiko

from orchestrate.errors import RemoteError

if TYPE_CHECKING:
    from orchestrate.ssh.config import Route

_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL}
_CLOSED = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN}


def failed(error: Exception, name: str, route: Route, *, late: bool, final: bool) -> RemoteError:
    """Return what a failed attempt to connect means.

    `late`: the deadline was over. `final`: the route is the host's own; otherwise it is a jump host's.
    """
    outcome, what, hint = _classify(error, route, late=late)
    where = f"{name} ({route.user}@{route.hostname}:{route.port})"
    if not final:
        where = f"{name}, at its jump host {route.user}@{route.hostname}:{route.port}"
        what = f"the jump host: {what}"
        outcome = outcome if outcome == "auth" else "proxy"
    return RemoteError(outcome, what, where=where, next_step=hint)


def lost(error: Exception, name: str, route: Route, partial: bytes, *, late: bool) -> RemoteError:
    """Return what it means that a connection ended while a command ran; `partial` is the output until then."""
    reason = str(error) or type(error).__name__
    return RemoteError(
        "timeout" if late else "closed",
        "the host stopped answering" if late else f"the connection was lost: {reason}",
        where=f"{name} ({route.user}@{route.hostname}:{route.port})",
        next_step=f"see whether the host is up: {route.command} uptime",
        partial=partial,
    )


def _classify(error: Exception, route: Route, *, late: bool) -> tuple[str, str, str]:
    verbose = f"see why: {route.command.replace('ssh ', 'ssh -v ', 1)} true"
    listen = f"see whether sshd runs there and listens on port {route.port}"
    match error:
        case socket.gaierror():
            return (
                "dns",
                f"the name {route.hostname!r} does not resolve: {error.strerror}",
                (
                    f"correct the name, or give it an address in the hosts file or ssh's configuration: getent hosts {route.hostname}"
                ),
            )
        case paramiko.AuthenticationException() if not late:
            return "auth", f"the host lets {route.user!r} not in: {error}", verbose
        case paramiko.ChannelException():
            return "proxy", f"the jump host cannot reach {route.hostname}:{route.port}: {error.args[-1]}", verbose
        case ConnectionRefusedError():
            return "refused", f"port {route.port} refuses connections", listen
        case OSError() if error.errno in _UNREACHABLE:
            return "unreachable", f"no route: {error.strerror}", f"see whether the host is up: ping {route.hostname}"
    if late or isinstance(error, TimeoutError):
        return (
            "timeout",
            "no answer before the deadline",
            f"see whether the host is up and not behind a firewall; {verbose}",
        )
    banner = "banner" in str(error) or "protocol version" in str(error)
    if banner or isinstance(error, EOFError) or (isinstance(error, OSError) and error.errno in _CLOSED):
        if route.proxy_command:
            return "proxy", f"the ProxyCommand led to no SSH server: {route.proxy_command}", verbose
        what = (
            "what answers there is no SSH server, or it hung up at once"
            if banner
            else "the host hung up before the login"
        )
        return "closed", what, f"{listen}; {verbose}"
    return "error", f"{type(error).__name__}: {error}", verbose
