"""Carries the Engine API through channels of an SSH connection that remote.py holds. Opens no connection of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import docker
import requests.adapters
import urllib3.connection
from docker.transport.sshconn import SSHConnectionPool, SSHHTTPAdapter
from urllib3._collections import RecentlyUsedContainer

from orchestrate.remote import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrate.remote import Remote


class _Connection(urllib3.connection.HTTPConnection):
    """One HTTP connection: a channel that runs `docker system dial-stdio` on the host."""

    def __init__(self, client: Any, command: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._client = client
        self._command = command
        self._timeout_s = timeout_s

    def connect(self) -> None:
        channel = self._client.get_transport().open_session(timeout=self._timeout_s)
        channel.settimeout(self._timeout_s)
        execute(channel, self._command, time.monotonic() + self._timeout_s)
        self.sock = channel


class _Pool(SSHConnectionPool):  # type: ignore[misc]
    """The SDK's pool, which knows that a channel is no file, with our connections in it."""

    def __init__(self, client: Any, command: str, timeout_s: float) -> None:
        super().__init__(ssh_client=None, timeout=timeout_s, maxsize=4, host="localhost")
        self._make: Callable[[], _Connection] = lambda: _Connection(client, command, timeout_s)

    def _new_conn(self) -> _Connection:
        return self._make()


class _Adapter(SSHHTTPAdapter):  # type: ignore[misc]
    """The SDK's adapter without its own SSH client: closing it does not end the connection."""

    def __init__(self, client: Any, command: str, timeout_s: float) -> None:
        self.ssh_client = None
        self.timeout = timeout_s
        self.max_pool_size = 4
        self.pools: Any = RecentlyUsedContainer(4, dispose_func=lambda pool: pool.close())
        self._make: Callable[[], _Pool] = lambda: _Pool(client, command, timeout_s)
        requests.adapters.HTTPAdapter.__init__(self)

    def get_connection(self, url: str, proxies: Any = None) -> _Pool:  # noqa: ARG002 - the SDK's signature
        with self.pools.lock:
            pool: _Pool | None = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = self._make()
            return pool


def api_over(remote: Remote, command: str, timeout_s: float) -> Any:
    """Return a docker APIClient whose requests travel through channels that run `command` on the host."""
    api = docker.APIClient(base_url="unix:///dev/null", version="1.41", timeout=timeout_s)  # connects to nothing yet
    api.base_url = "http+docker://ssh"
    api._custom_adapter = adapter = _Adapter(remote.client, command, timeout_s)  # noqa: SLF001 - no public seam
    api.mount("http+docker://ssh", adapter)
    api._version = str(api.version(api_version=False)["ApiVersion"])  # noqa: SLF001 - the same
    return api
