"""One SSH connection a host, verified, bounded and with a deadline; the only importer of fabric.

Refuses unknown host keys, never prompts, and treats a non-zero exit as data.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import paramiko
from fabric import Config, Connection

from orchestrate.errors import RemoteError
from orchestrate.fan_out import fan_out
from orchestrate.shell import LINGER_S, MOST_BYTES, Completed, Local, Shell, wrapped
from orchestrate.ssh import config, failures
from orchestrate.ssh.auth import Keys
from orchestrate.ssh.dial import dial
from orchestrate.ssh.host_keys import HostKeys
from orchestrate.ssh.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrate.inventory import Host
    from orchestrate.ssh.config import Route

__all__ = ["Completed", "Local", "Remote", "RemoteError", "Shell", "connect", "fan_out"]

_BLOCK = 1 << 15
_SILENCE = logging.NullHandler()  # what paramiko would print of a failure, RemoteError tells
_PAUSE_S = 0.02
_NAP_S = 0.05  # what trickles in is taken together: each look at it costs more than it does


class Remote:
    """A host behind SSH (a Shell), with the paramiko client that engine.py speaks through.

    `client` is the connected paramiko.SSHClient: engine.py opens channels on its transport from several threads.
    """

    def __init__(self, host: Host, route: Route, connection: Connection, give_back: Callable[[], None]) -> None:
        self.host = host
        self.route = route
        self.connection = connection
        self.client: Any = connection.client
        self._give_back = give_back

    def run(
        self, command: str, *, stdin: bytes = b"", timeout_s: float = 30.0, max_bytes: int = MOST_BYTES
    ) -> Completed:
        """Run one POSIX sh command line and return what it did; raise RemoteError when the connection itself fails."""
        deadline = time.monotonic() + timeout_s
        out, err = bytearray(), bytearray()
        try:
            channel = self.connection.transport.open_session(timeout=timeout_s)
            try:
                sent_at = time.time()
                execute(channel, wrapped(command), deadline)
                done, came_at = _pump(channel, stdin, (out, err), deadline, max_bytes)
                return replace(done, span=(sent_at, came_at)) if came_at else done
            finally:
                _close(channel)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise failures.lost(
                error, self.host.name, self.route, bytes(out), late=time.monotonic() >= deadline
            ) from error

    def close(self) -> None:
        """Drop the connection; those to the hosts that it leads through end with the last that needs them."""
        self.connection.close()
        self._give_back()


def connect(host: Host, *, ssh_config: Path | None = None, timeout_s: float = 15.0) -> Shell:
    """Connect to one host (or return this machine's shell for a local one); raise RemoteError with the class of error."""
    if host.local:
        return Local(host)
    logging.getLogger("paramiko").addHandler(_SILENCE)
    files = config.load(ssh_config)
    route = files.route(host.destination, user=host.user, port=host.port)
    deadline = time.monotonic() + min(timeout_s, route.connect_s or timeout_s)
    before, give_back = None, _nothing
    if route.jumps:
        key = (files.option, route.jumps)
        try:
            chain, give_back = _JUMPS.take(
                key, lambda: _chain(files, route, host.name, deadline), timeout_s=_left(deadline)
            )
        except TimeoutError as error:
            raise failures.failed(error, host.name, files.hop(route.jumps[-1]), late=True, final=False) from error
        before = chain[-1].transport
    try:
        return Remote(host, route, _open(route, before, host.name, deadline, final=True), give_back)
    except BaseException:
        give_back()
        raise


def _nothing() -> None:
    """Give back nothing: the host is reached directly."""


def _chain(files: config.Files, route: Route, name: str, deadline: float) -> list[Connection]:
    """Open the connections to a route's jump hosts, each through the one before."""
    chain: list[Connection] = []
    try:
        for jump in route.jumps:
            before = chain[-1].transport if chain else None
            chain.append(_open(files.hop(jump), before, name, deadline, final=False))
    except BaseException:
        _end(chain)
        raise
    return chain


def _end(chain: list[Connection]) -> None:
    for connection in reversed(chain):
        connection.close()


# A hundred logins at once would be too many for a jump host's MaxStartups, so hosts behind it share one.
_JUMPS: Shared[list[Connection]] = Shared(alive=lambda chain: all(one.is_connected for one in chain), close=_end)


def _open(route: Route, before: Any, name: str, deadline: float, *, final: bool) -> Connection:
    """Open one connection, directly or through the transport of the hop before it."""
    keys = HostKeys(route)
    connection = None
    try:
        sock = dial(route, before, deadline)
        left_s = _left(deadline)
        connection = Connection(
            route.hostname,
            user=route.user,
            port=route.port,
            gateway=False,  # dial has dealt with jumps
            forward_agent=False,
            config=Config(lazy=True, ssh_config=paramiko.SSHConfig()),  # no file or variable of fabric's has a say
            connect_kwargs={
                "sock": sock,
                "timeout": left_s,
                "banner_timeout": left_s,
                "auth_timeout": left_s,
                "channel_timeout": left_s,
                "auth_strategy": Keys(route),
                "transport_factory": keys.transport,
            },
        )
        connection.client.set_missing_host_key_policy(keys)
        connection.open()
        connection.transport.set_keepalive(route.keepalive_s)
    except RemoteError:
        _drop(connection)
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        _drop(connection)
        raise failures.failed(error, name, route, late=time.monotonic() >= deadline - 0.1, final=final) from error
    return connection


def _drop(connection: Connection | None) -> None:
    if connection is not None:
        connection.client.close()  # Fabric's own close does nothing before the login


def execute(channel: paramiko.Channel, command: str, deadline: float) -> None:
    """Ask for the command; paramiko waits for the host's answer without end, so a silent host loses its connection."""
    watch = threading.Timer(_left(deadline), channel.get_transport().close)
    watch.daemon = True
    watch.start()
    try:
        channel.exec_command(command)
    finally:
        watch.cancel()


def _pump(
    channel: paramiko.Channel, stdin: bytes, into: tuple[bytearray, bytearray], deadline: float, max_bytes: int
) -> tuple[Completed, float]:
    """Feed and drain a channel until the command ends or a limit is reached; return also when its first output came."""
    out, err = into
    left = memoryview(stdin)
    channel.settimeout(0.0)
    ready = select.poll()
    ready.register(channel.fileno(), select.POLLIN)
    open_end, quiet_since, came_at, began = True, 0.0, 0.0, time.monotonic()
    while True:
        # The exit is asked for before the streams are: what came before it is then already there to be read.
        ended = channel.exit_status_ready()
        complete = ended and channel.eof_received
        came = _drain(channel, out, err, max_bytes)
        came_at = came_at or (time.time() if came else 0.0)
        if len(out) + len(err) > max_bytes:
            kept = bytes(out[:max_bytes]), bytes(err[: max(max_bytes - len(out), 0)])
            return Completed(None, *kept, truncated=True), came_at
        if open_end:
            left = _feed(channel, left)
            if not left:
                channel.shutdown_write()
                open_end = False
        now = time.monotonic()
        quiet_since = now if came or not ended else quiet_since
        if complete or (ended and now - quiet_since > LINGER_S):
            if channel.exit_status < 0:
                raise EOFError("the command's exit code never came")
            return Completed(channel.exit_status, bytes(out), bytes(err)), came_at
        if now >= deadline:
            return Completed(None, bytes(out), bytes(err)), came_at
        if came:
            time.sleep(_NAP_S if now - began > _NAP_S else 0)
        elif not (left and channel.send_ready()):
            _await(channel, ready, _PAUSE_S if left else min(LINGER_S, deadline - now))


def _await(channel: paramiko.Channel, ready: select.poll, longest_s: float) -> None:
    """Wait until something comes, or the exit code where nothing more will come."""
    if channel.eof_received:
        channel.status_event.wait(_PAUSE_S)
    else:
        ready.poll(1000 * longest_s)


def _close(channel: paramiko.Channel) -> None:
    """Close a channel that the host may still be filling.

    paramiko's own thread would go on writing to the pipe of fileno() while that is closed: into nothing, which ends the
    connection, or into whatever has got its number since, which may be another host's connection.
    """
    for buffer in (channel.in_buffer, channel.in_stderr_buffer):
        buffer.set_event(threading.Event())
    channel.close()


def _feed(channel: paramiko.Channel, left: memoryview) -> memoryview:
    """Send as much as the host will take now; a command that has ended takes nothing more."""
    try:
        return left[channel.send(bytes(left[:_BLOCK])) :] if left and channel.send_ready() else left
    except TimeoutError:
        return left
    except OSError:
        return left[:0]


def _drain(channel: paramiko.Channel, out: bytearray, err: bytearray, max_bytes: int) -> bool:
    """Take what has come, up to a little over the limit; say whether anything had."""
    before = len(out) + len(err)
    while channel.recv_ready() and len(out) + len(err) <= max_bytes:
        out += channel.recv(_BLOCK)
    while channel.recv_stderr_ready() and len(out) + len(err) <= max_bytes:
        err += channel.recv_stderr(_BLOCK)
    return len(out) + len(err) > before


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)
