"""Reads ssh's configuration and says how to reach a host. Opens no connection; refuses what it cannot read."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError, CouldNotCanonicalize

from orchestrate.errors import UsageError
from orchestrate.ssh.known_hosts import lookup_name

if TYPE_CHECKING:
    from collections.abc import Iterator


VARIABLE = "MUSTER_SSH_CONFIG"
DEEPEST_INCLUDE = 16

_USER_KNOWN = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_GLOBAL_KNOWN = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_KEYS = ("rsa", "ecdsa", "ed25519")


@dataclass(frozen=True, slots=True)
class Route:
    """How ssh would reach a host: all that its configuration says, resolved.

    `key_name` is the name that the host's key is filed under; `strict` is one of `yes ask accept-new no`. `jumps` are
    the hosts of ProxyJump, first hop first, each as `user@host:port`. `connect_s` is ConnectTimeout. `command` is the ssh command line a person would type.
    """

    alias: str
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...]
    identities_only: bool
    agent: bool
    jumps: tuple[str, ...]
    proxy_command: str | None
    known_hosts: tuple[Path, ...]
    key_name: str
    strict: str
    keepalive_s: int
    connect_s: int | None
    command: str


@dataclass(frozen=True, slots=True)
class Files:
    """The configuration that is in force: `option` is `-F FILE` when a person chose the file."""

    rules: Any
    option: tuple[str, ...]

    def route(self, alias: str, *, user: str | None = None, port: int | None = None) -> Route:
        """Return the route to a destination; raise UsageError when the configuration does not make sense for it."""
        try:
            says = self.rules.lookup(alias)
            port = port or int(says.get("port", 22))
            connect_s = int(says.get("connecttimeout", 0))
            keepalive_s = int(says.get("serveraliveinterval", 0)) or 15
        except (ConfigParseError, CouldNotCanonicalize, ValueError, KeyError) as error:
            raise UsageError(
                f"the ssh configuration cannot be applied: {error}", where=alias, next_step=f"try: ssh -G {alias}"
            ) from error
        user = user or says.get("user") or getpass.getuser()
        hostname = says.get("hostname") or alias
        tokens = {"%": "%", "d": str(Path.home()), "h": hostname, "n": alias, "p": str(port), "r": user}
        tokens |= {"u": getpass.getuser(), "k": says.get("hostkeyalias", alias)}
        known = f"{says.get('userknownhostsfile', _USER_KNOWN)} {says.get('globalknownhostsfile', _GLOBAL_KNOWN)}"
        jumps = says.get("proxyjump", "none")
        identities = says.get("identityfile") or [f"~/.ssh/id_{kind}" for kind in _KEYS]
        return Route(
            alias=alias,
            hostname=hostname,
            port=port,
            user=user,
            identities=tuple(_path(name, tokens) for name in identities if name.lower() != "none"),
            identities_only=_yes(says.get("identitiesonly")),
            agent=says.get("identityagent", "").lower() != "none",
            jumps=() if jumps.lower() == "none" else tuple(hop.strip() for hop in jumps.split(",")),
            proxy_command=says.get("proxycommand"),
            known_hosts=tuple(_path(name, tokens) for name in _words(known) if name.lower() != "none"),
            key_name=says["hostkeyalias"].lower() if says.get("hostkeyalias") else lookup_name(hostname, port),
            strict=_strict(says.get("stricthostkeychecking", "ask")),
            keepalive_s=keepalive_s,
            connect_s=connect_s or None,
            command=self._command(alias, user if user != says.get("user", getpass.getuser()) else None, port, says),
        )

    def hop(self, jump: str) -> Route:
        """Return the route to one hop of a ProxyJump: `user@host:port`, `ssh://...` or an alias of its own."""
        found = re.fullmatch(
            r"(?:ssh://)?(?:(.+)@)?(?:\[([^\]]+)\]|([^:\[\]]+)|([0-9A-Fa-f:.]+))(?::(\d{1,5}))?/?", jump
        )
        if found is None:
            raise UsageError("ProxyJump names no host", where=jump, next_step="write ProxyJump user@host:port")
        user, bracketed, plain, v6, port = found.groups()
        return self.route(bracketed or plain or v6, user=user, port=int(port) if port else None)

    def _command(self, alias: str, user: str | None, port: int, says: dict[str, str]) -> str:
        words = [*self.option]
        words += ["-p", str(port)] if str(port) != says.get("port", "22") else []
        words += ["-l", user] if user else []
        return shlex.join(["ssh", *words, alias])


def load(path: Path | None = None) -> Files:
    """Return the configuration of a file, or of MUSTER_SSH_CONFIG, or else ssh's own (the user's, then the system's)."""
    chosen = path or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if chosen is not None:
        if not chosen.is_file():
            raise UsageError(
                "no such ssh configuration", where=str(chosen), next_step=f"see --ssh-config and {VARIABLE}"
            )
        return _load((chosen,), ("-F", str(chosen)), _stamp(chosen))
    usual = tuple(path for path in (Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")) if path.is_file())
    return _load(usual, (), *map(_stamp, usual))


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns


@lru_cache(maxsize=8)
def _load(paths: tuple[Path, ...], option: tuple[str, ...], *_stamps: int) -> Files:
    rules = SSHConfig()
    for path in paths:
        try:
            rules.parse(_lines(path, 0))
        except (ConfigParseError, OSError, ValueError) as error:
            raise UsageError(
                f"cannot read the ssh configuration: {error}", where=str(path), next_step=f"try: ssh -F {path} -G HOST"
            ) from error
    return Files(rules, option)


def _lines(path: Path, depth: int) -> Iterator[str]:
    """Give the lines of a file with its Include lines replaced by what they name; paramiko knows no Include."""
    if depth > DEEPEST_INCLUDE:
        raise ConfigParseError(f"Include goes deeper than {DEEPEST_INCLUDE} files")
    block = "Host *"
    for line in path.read_text("utf-8-sig", "replace").splitlines():
        key, _, value = re.sub(r"^\s*(\S+?)(\s*=\s*|\s+|$)", r"\1 ", line).partition(" ")
        if key.lower() != "include":
            block = line if key.lower() in {"host", "match"} else block
            yield line
            continue
        for pattern in _words(value):
            for file in _glob(pattern):
                yield block
                yield from _lines(file, depth + 1)
        yield block


def _glob(pattern: str) -> list[Path]:
    full = Path("~/.ssh").expanduser() / Path(pattern).expanduser()
    return sorted(path for path in Path("/").glob(str(full).lstrip("/")) if path.is_file())


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _path(name: str, tokens: dict[str, str]) -> Path:
    expanded = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), name)
    return Path(os.path.expandvars(expanded)).expanduser()


def _yes(value: str | None) -> bool:
    return (value or "no").lower() in {"yes", "true"}


def _strict(value: str) -> str:
    value = value.lower()
    return {"true": "yes", "false": "no", "off": "no"}.get(value, value)
