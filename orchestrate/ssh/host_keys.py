"""Lets a connection go on only when the host's key is known; refuses unknown keys, and changed ones always."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orchestrate.errors import RemoteError
from orchestrate.ssh.known_hosts import Verdict, fingerprint, judge, known, parse_known_hosts
from orchestrate.ssh.transport import Transport

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrate.ssh.config import Route
    from orchestrate.ssh.known_hosts import Entry

_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class HostKeys:
    """The known keys of one route, as paramiko's transport factory and its missing-key policy."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.entries: tuple[Entry, ...] = known(
            (entry for path in route.known_hosts for entry in _entries(path)), route.key_name
        )

    def transport(self, sock: Any, **options: Any) -> Transport:
        """Return a transport that asks first for a key of a kind that is known, so that a host can show it."""
        transport = Transport(sock, **options)
        security = transport.get_security_options()
        kinds = [kind for entry in self.entries for kind in _ALGORITHMS.get(entry.kind, (entry.kind,))]
        first = [kind for kind in dict.fromkeys(kinds) if kind in security.key_types]
        security.key_types = (*first, *(kind for kind in security.key_types if kind not in first))
        return transport

    def missing_host_key(self, _client: Any, _hostname: str, key: Any) -> None:
        """Return when the key may be trusted; raise RemoteError otherwise. paramiko asks here about every key."""
        verdict, place = judge(self.entries, key.asbytes())
        if verdict is Verdict.KNOWN:
            return
        if verdict is Verdict.UNKNOWN:
            if self.route.strict in {"no", "accept-new"}:
                self._remember(key)
                return
            raise self._unknown(key)
        raise self._changed(key, verdict, place)

    def _unknown(self, key: Any) -> RemoteError:
        route = self.route
        scan = f"ssh-keyscan -p {route.port} {shlex.quote(route.hostname)} 2>/dev/null | ssh-keygen -lf -"
        accept = route.command.replace("ssh ", "ssh -o StrictHostKeyChecking=ask ", 1) + " true"
        see = "" if route.jumps or route.proxy_command else f"see it: {scan}; compare it with the host's own; then "
        return RemoteError(
            "host_key_unknown",
            f"the host's key is not known: {key.get_name()} {fingerprint(key.asbytes())}",
            where=f"{route.alias} ({route.key_name})",
            next_step=f"{see}accept it: {accept}",
        )

    def _changed(self, key: Any, verdict: Verdict, place: str) -> RemoteError:
        route = self.route
        how = "is revoked" if verdict is Verdict.REVOKED else "is not the known one"
        file = place.rpartition(":")[0]
        remove = f"ssh-keygen -R {shlex.quote(route.key_name)} -f {shlex.quote(file)}"
        return RemoteError(
            "host_key_changed",
            f"the host's key {how}: it shows {key.get_name()} {fingerprint(key.asbytes())}",
            where=f"{route.alias} ({route.key_name}), against {place}",
            next_step="somebody may be listening: ask the host's owner for its fingerprint"
            + ("" if verdict is Verdict.REVOKED else f"; only if the host was set up anew: {remove}"),
        )

    def _remember(self, key: Any) -> None:
        """Add the key to the user's file, as ssh does where the configuration says accept-new (or no)."""
        path = self.route.known_hosts[0] if self.route.known_hosts else None
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{self.route.key_name} {key.get_name()} {key.get_base64()}\n")
        except OSError:
            return  # ssh goes on as well: the key is simply asked for again next time


def _entries(path: Path) -> tuple[Entry, ...]:
    try:
        about = path.stat()
        return _parsed(path, about.st_mtime_ns, about.st_size)
    except OSError:
        return ()


@lru_cache(maxsize=16)
def _parsed(path: Path, _mtime_ns: int, _size: int) -> tuple[Entry, ...]:
    return parse_known_hosts(path.read_text("utf-8", "replace"), str(path))
