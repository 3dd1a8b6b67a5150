"""Asks every host everything in one exchange and keeps the raw answers. Reads nothing into them."""

from __future__ import annotations

import json
import random
import re
import secrets
import time
from typing import TYPE_CHECKING

from hostsetup import host as known_host
from hostsetup import script
from hostsetup.model import Evidence, Reply
from orchestrate import descriptors, remote
from orchestrate.errors import OperatorError, RemoteError, UsageError
from orchestrate.fan_out import WINDOW
from orchestrate.ssh import config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orchestrate.inventory import Host
    from orchestrate.shell import Completed, Shell

CONNECT_S = 15.0
MOST_BYTES = 32 << 20  # of one host's answers; an honest host sends a few hundred thousand
_SAMPLES, _QUICK_S = 3, 0.1
_GRACE_S = 5.0  # a host's own deadline comes first, and keeps what it had sent
_AGAIN = frozenset({"closed", "proxy"})
_PAUSE_S = (0.5, 2.0)
_DATE = re.compile(rb"[0-9]{1,12}(\.[0-9]{1,9}|\.%?N)?")


def collect(
    hosts: Iterable[Host], *, timeout_s: float, on_evidence: Callable[[Evidence], None] = lambda _: None
) -> tuple[Evidence, ...]:
    """Return the evidence of every host, in order; one that is out of reach has only the reply `ssh`, which says why.

    `timeout_s` is each host's deadline. `on_evidence` is called as soon as a host is done. Raise UsageError when ssh's
    configuration cannot be read.
    """
    config.load()
    found: dict[str, Evidence] = {}

    def settle(host: Host, result: Evidence | OperatorError) -> None:
        if isinstance(result, UsageError):
            raise result
        evidence = _out_of_reach(host, result, timeout_s) if isinstance(result, OperatorError) else result
        found[host.name] = evidence
        on_evidence(evidence)

    hosts = tuple(hosts)
    remote.fan_out(
        hosts,
        lambda host: ask(host, timeout_s=timeout_s),
        deadline_s=timeout_s + _GRACE_S,
        window=descriptors.room_for(WINDOW),
        on_result=settle,
    )
    return tuple(found[host.name] for host in hosts)


def ask(host: Host, *, timeout_s: float) -> Evidence:
    """Return one host's evidence within `timeout_s` seconds; raise no RemoteError, for that is an answer as well."""
    start = time.monotonic()
    try:
        shell, before = _reach(host, timeout_s)
    except RemoteError as error:
        return _out_of_reach(host, error, time.monotonic() - start)
    replies: dict[str, Reply] = {}
    broken = ""
    try:
        mark = secrets.token_hex(16)
        program = script.build(known_host.PROBES, mark).encode()
        left_s = max(timeout_s - (time.monotonic() - start), 1.0)
        stream, span, broken = _run(shell, program, left_s)
        answers = script.parse(stream, mark)
        # a host that reads the mark can answer what it was not asked, and so pass itself off as the collector
        replies = {probe.name: answers[probe.name] for probe in known_host.PROBES if probe.name in answers}
        replies["clock"] = _clock(script.parse_now(stream, mark), span)
        if not broken and not (span and span[1] - span[0] < _QUICK_S and replies["clock"].stdout):
            replies["clock"] = _asked(shell, replies["clock"].stdout)
    except RemoteError as error:
        broken = error.what
    finally:
        shell.close()
    missing = [probe.name for probe in known_host.PROBES if probe.name not in replies]
    if missing and not broken:
        broken = f"{len(missing)} probes were not answered: {', '.join(missing[:5])}"
    elapsed_s = time.monotonic() - start
    told = {"ssh": _ssh("ok", host, elapsed_s, detail=before, error=broken), "inventory": _listed(host)}
    return Evidence(host.name, {**told, **replies})


def _listed(host: Host) -> Reply:
    """Return the reply `inventory`: what the hosts file says of the host."""
    said = {"slots": host.slots, "addr": host.address, "iface": host.iface, "spare": host.spare}
    return Reply(json.dumps(said).encode() + b"\n")


def _reach(host: Host, timeout_s: float) -> tuple[Shell, str]:
    """Return a connection, and what went wrong with the first attempt, if it took two.

    Only a connection that was dropped before the login is tried again, once: an sshd, or a jump host's, that has too many
    unfinished logins (MaxStartups) drops some at random. Whatever else a host says is its answer.
    """
    deadline = time.monotonic() + timeout_s
    try:
        return remote.connect(host, timeout_s=min(CONNECT_S, timeout_s)), ""
    except RemoteError as error:
        pause_s = random.uniform(*_PAUSE_S)  # noqa: S311 - spreads logins, hides no secret
        left_s = deadline - time.monotonic() - pause_s
        if error.outcome not in _AGAIN or left_s < 1:
            raise
        first = error
    time.sleep(pause_s)
    try:
        return remote.connect(host, timeout_s=min(CONNECT_S, left_s)), f"at the second attempt; the first: {first.what}"
    except RemoteError as error:
        what = f"{error.what} (twice)" if error.what == first.what else f"{error.what} (at first: {first.what})"
        raise RemoteError(error.outcome, what, where=error.where, next_step=error.next_step) from error


def _run(shell: Shell, program: bytes, timeout_s: float) -> tuple[bytes, tuple[float, float] | None, str]:
    """Return what the program sent, between which times it began, and why it did not send all, if so."""
    try:
        done: Completed = shell.run("sh -s", stdin=program, timeout_s=timeout_s, max_bytes=MOST_BYTES)
    except RemoteError as error:
        return error.partial, None, error.what
    if done.truncated:
        return done.stdout, done.span, f"the answers were cut off at {MOST_BYTES >> 20} MiB"
    if done.exit_code is None:
        return done.stdout, done.span, f"the probes were cut off after {timeout_s:.0f} s"
    complaint = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
    broken = f"the probes ended with exit code {done.exit_code}: {complaint}" if done.exit_code else ""
    return done.stdout, done.span, broken


def _clock(there: str, span: tuple[float, float] | None) -> Reply:
    """Return the reply `clock`: a line is local time before, remote time, local time after."""
    if not there or span is None:
        return Reply()
    return Reply(f"{span[0]:.6f} {there} {span[1]:.6f}\n".encode())


def _asked(shell: Shell, sampled: bytes) -> Reply:
    """Sample the clock over the open connection as well: the exchange that began the program left much unsaid."""
    done = None
    for _ in range(_SAMPLES):
        done = shell.run("date +%s.%N", timeout_s=10, max_bytes=1000)
        remote_time = _DATE.fullmatch(done.stdout.strip().rpartition(b"\n")[2])
        if remote_time is None or done.span is None:
            break
        sampled += _clock(remote_time[0].decode(), done.span).stdout
        if done.span[1] - done.span[0] < _QUICK_S:
            break
    return Reply(sampled, done.stderr if done else b"", done.exit_code if done else None)


def _out_of_reach(host: Host, error: OperatorError, elapsed_s: float) -> Evidence:
    outcome = error.outcome if isinstance(error, RemoteError) else "error"
    return Evidence(host.name, {"ssh": _ssh(outcome, host, elapsed_s, detail=error.what, then=error.next_step)})


def _ssh(outcome: str, host: Host, elapsed_s: float, *, detail: str = "", then: str = "", error: str = "") -> Reply:
    """Return the reply `ssh`: how the host was reached, and how the exchange went."""
    said = {"outcome": outcome, "detail": detail, "next": then, "local": host.local}
    said |= {"elapsed_s": round(elapsed_s, 3), "error": error}
    return Reply(json.dumps(said).encode() + b"\n")
