"""Real sshds on loopback, with keys of their own; skipped where sshd is not installed."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

SSHD = "/usr/sbin/sshd"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def new_key(path, kind="ed25519"):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", path.name, "-f", path], check=True)
    return Path(f"{path}.pub").read_text().split()[:2]


class Sshd:
    """One sshd on loopback that lets one key in."""

    def __init__(self, folder, options):
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        self.host_key = " ".join(new_key(folder / "host_key"))
        self.identity = folder / "identity"
        (folder / "authorized").write_text(" ".join(new_key(self.identity)) + "\n")
        settings = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": folder / "host_key",
            "AuthorizedKeysFile": folder / "authorized",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "LogLevel": "VERBOSE",
            "PermitRootLogin": "yes",
            "SetEnv": "SHLVL=2",  # bash then reads no .bashrc of the person who runs the tests
            **options,
        }
        (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                assert self.process.poll() is None, (folder / "log").read_text()
                time.sleep(0.02)
            else:
                break

    @property
    def known_line(self):
        return f"[127.0.0.1]:{self.port} {self.host_key}\n"

    def config(self, *, known=None, alias="there", more=""):
        """Write an ssh configuration that knows this sshd as `there`; `known` is the text of its known_hosts."""
        (self.folder / "known_hosts").write_text(self.known_line if known is None else known)
        (self.folder / "config").write_text(
            f"Host {alias}\n  HostName 127.0.0.1\n  Port {self.port}\n{more}\n"
            f"Host *\n  User {getpass.getuser()}\n  IdentityFile {self.identity}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder / 'known_hosts'}\n  GlobalKnownHostsFile none\n"
        )
        return self.folder / "config"

    def let_in(self, name, command=""):
        """Make another key, which leads to one command alone if there is one; return its file."""
        path = self.folder / name
        forced = f'command="{command}" ' if command else ""
        with (self.folder / "authorized").open("a") as file:
            file.write(f"{forced}{' '.join(new_key(path))}\n")
        return path

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


def _sshds(folder):
    if not Path(SSHD).exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("needs openssh-server")
    started = []

    def start(**options):
        started.append(Sshd(folder / f"sshd{len(started)}", options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def sshd(tmp_path):
    yield from _sshds(tmp_path)


@pytest.fixture(scope="module")
def lasting_sshd(tmp_path_factory):
    """The same for all tests of a file."""
    yield from _sshds(tmp_path_factory.mktemp("sshd"))


@pytest.fixture(autouse=True)
def _no_settings_of_the_person(monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_SSH_CONFIG", "")  # set, so that what --ssh-config puts there is taken back
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def silent_port():
    """A port that accepts connections and never says a word."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        yield sock.getsockname()[1]
