"""Offers the keys that ssh(1) would offer, agent first. Never prompts, and knows no passwords."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramiko import (
    Agent,
    AuthenticationException,
    BadAuthenticationType,
    PasswordRequiredException,
    PKey,
    SSHException,
)
from paramiko.pkey import UnknownKeyType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrate.ssh.config import Route


class AuthRefused(AuthenticationException):  # type: ignore[misc]
    """No key was accepted; the message tells what was tried and what the host would take."""


@dataclass(slots=True)
class Keys:
    """The keys of one route, in the form that paramiko calls an authentication strategy."""

    route: Route
    tried: list[str] = field(default_factory=list)

    def authenticate(self, transport: Any) -> list[str]:
        """Log in, or raise AuthRefused."""
        methods = self._methods(transport)
        if not methods:
            return []
        if "publickey" not in methods:
            raise AuthRefused(f"the host takes {', '.join(methods)}; only keys are offered, and nothing is asked")
        for name, key in self._keys():
            try:
                further = transport.auth_publickey(self.route.user, key)
            except BadAuthenticationType as error:
                raise AuthRefused(self._story(error.allowed_types)) from error
            except AuthenticationException as error:
                if not transport.is_active():
                    raise AuthRefused(f"{self._story(methods)}; then the host closed the connection") from error
                self.tried.append(f"{name}: not accepted")
                continue
            except SSHException as error:
                self.tried.append(f"{name}: {error}")
                continue
            if further:
                raise AuthRefused(f"{name} was accepted, but the host wants {', '.join(further)} as well")
            return []
        raise AuthRefused(self._story(methods))

    def _methods(self, transport: Any) -> list[str]:
        """Return what the host takes; empty when it lets anyone in."""
        try:
            transport.auth_none(self.route.user)
        except BadAuthenticationType as error:
            return list(error.allowed_types)
        return []

    def _keys(self) -> Iterator[tuple[str, Any]]:
        """Give the agent's keys that a file names, then the agent's others, then the files."""
        files = {path: _public(path) for path in self.route.identities}
        if self.route.agent:
            with closing(self._agent()) as agent:
                held = {key.blob: key for key in agent.get_keys()}
                named = [blob for blob in files.values() if blob in held]
                others = [] if self.route.identities_only else [blob for blob in held if blob not in named]
                for blob in dict.fromkeys([*named, *others]):
                    yield f"{held[blob].comment or 'a key'} (agent)", held[blob]
            files = {path: blob for path, blob in files.items() if blob not in held}
        for path in files:
            if path.is_file():
                yield from self._load(path)

    def _agent(self) -> Any:
        try:
            return Agent()
        except (SSHException, OSError) as error:
            self.tried.append(f"the agent: {error}")
            return _NoAgent()

    def _load(self, path: Path) -> Iterator[tuple[str, Any]]:
        try:
            yield str(path), PKey.from_path(path)
        except (TypeError, PasswordRequiredException):
            self.tried.append(f"{path}: needs a passphrase, and no agent holds it")
        except (OSError, ValueError, SSHException, UnknownKeyType) as error:
            self.tried.append(f"{path}: {str(error) or type(error).__name__}")

    def _story(self, methods: list[str]) -> str:
        tried = "; ".join(self.tried) or "no key was found"
        return f"{tried}; the host takes {', '.join(methods)}"


class _NoAgent:
    """An agent that holds nothing."""

    def get_keys(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


def _public(path: Path) -> bytes | None:
    """Return the public half that lies beside a private key, or None."""
    beside = path if path.suffix == ".pub" else Path(f"{path}.pub")
    try:
        return base64.b64decode(beside.read_text("utf-8", "replace").split()[1], validate=True)
    except (OSError, IndexError, ValueError):
        return None
