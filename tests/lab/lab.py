"""Real hosts to test on: containers with their own sshd, accounts and Docker Engine, on a network of their own.

python tests/lab/lab.py up --hosts 2     writes .lab/hosts.txt, .lab/ssh_config, keys; repeats are cheap
python tests/lab/lab.py down             removes every trace

Refuses to touch anything that does not carry its label, and to learn a host key from the network.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PREFIX = "muster-lab"
TESTS = "muster-test"  # and the number of the process that runs the tests
FOLDER = ROOT / ".lab"
LABEL = "muster.lab"  # its value is the lab's prefix
RECIPE = "muster.lab.recipe"  # what a host was made of: another recipe, another host
HOST_IMAGE = "muster-lab-host"
USERS = ("ops", "dev", "guest", "pw")
READY_WITHIN_S = 60.0

# An engine inside a container needs these; --privileged would hand it the machine's devices as well.
ENGINE_INSIDE = (
    *("--cap-add", "ALL"),
    *("--security-opt", "seccomp=unconfined"),
    *("--security-opt", "apparmor=unconfined"),
    *("--security-opt", "systempaths=unconfined"),
    *("--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
    *("--device-cgroup-rule", "a *:* rwm"),
)


class LabError(Exception):
    """The lab cannot be made or did not come up; the text says what, and what to do next."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Hosts that are up, and the files that lead to them."""

    prefix: str
    folder: Path
    hosts: tuple[str, ...]

    @property
    def hosts_file(self) -> Path:
        return self.folder / "hosts.txt"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    def run_on(self, host: str, argv: Sequence[str], *, stdin: bytes = b"", check: bool = True) -> str:
        """Run a command as root on a host, past sshd; return its standard output."""
        return docker("exec", "--interactive", host, *argv, stdin=stdin, check=check)

    def ssh(self, alias: str, command: str, *, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a shell command over SSH, as `muster-lab-1` (root) or `muster-lab-1-ops` (and so on) names it."""
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "ConnectTimeout=5", alias, command]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def pause(self, host: str) -> None:
        """Freeze a host and all that runs on it: its connections hang."""
        docker("pause", host)

    def unpause(self, host: str) -> None:
        docker("unpause", host)

    def kill(self, host: str) -> None:
        """Cut a host's power."""
        docker("kill", host)

    def start(self, host: str) -> None:
        """Power a host on again and wait for it."""
        docker("start", host)
        wait_until_ready(self.prefix, [host])

    def disconnect(self, host: str) -> None:
        """Pull a host's network cable."""
        docker("network", "disconnect", self.prefix, host)

    def connect(self, host: str) -> None:
        """Plug it in again, at the same address."""
        address = json.loads(
            docker("inspect", "--format", f'{{{{json (index .Config.Labels "{LABEL}.address")}}}}', host)
        )
        docker("network", "connect", "--ip", address, self.prefix, host)


def docker(*argv: str, stdin: bytes = b"", check: bool = True) -> str:
    """Run the docker command line; return its standard output, raise LabError with its standard error."""
    done = subprocess.run(["docker", *argv], input=stdin, capture_output=True, check=False)
    if check and done.returncode:
        what = done.stderr.decode(errors="replace").strip()
        if "Cannot connect to the Docker daemon" in what:
            what = "no Docker Engine answers\nnext: tests/lab/engine.sh start"
        raise LabError(f"docker {argv[0]}: {what}")
    return done.stdout.decode(errors="replace").strip()


def say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def up(hosts: int = 2, *, prefix: str = PREFIX, folder: Path = FOLDER) -> Lab:
    """Bring up exactly so many hosts, keeping those that are right already; return when each answers."""
    docker("version", "--format", "{{.Server.Version}}")
    if shutil.which("ssh-keygen") is None:
        raise LabError("ssh-keygen is missing\nnext: tests/lab/engine.sh install")
    host_image()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = tuple(f"{prefix}-{n}" for n in range(1, hosts + 1))
    subnet = network(prefix)
    addresses = {name: str(subnet[10 + n]) for n, name in enumerate(names, 1)}
    write_ssh_files(folder, addresses)
    for stranger in set(_names("container", prefix)) - set(names):
        say(f"removing {stranger}")
        docker("rm", "--force", "--volumes", stranger)
    for name in names:
        ensure_host(name, addresses[name], prefix, folder)
    wait_until_ready(prefix, names)
    (folder / "hosts.txt").write_text("".join(f"{name}\n" for name in names))
    return Lab(prefix, folder, names)


def down(*, prefix: str = PREFIX, folder: Path | None = FOLDER) -> None:
    """Remove the lab's hosts with their volumes, its network and its folder; images stay, they are a cache."""
    for name in _names("container", prefix):
        docker("rm", "--force", "--volumes", name)
    for name in _names("network", prefix):
        docker("network", "rm", name)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what test sessions left that were killed before they could: labs and images."""
    value = f'{{{{.Label "{LABEL}"}}}}'
    listed = [
        docker(*kind, "--filter", f"label={LABEL}", "--format", value) for kind in (("ps", "--all"), ("network", "ls"))
    ]
    for prefix in {word for text in listed for word in text.split() if _is_of_a_dead_session(word, TESTS)}:
        down(prefix=prefix, folder=None)
    for image in docker("images", "--format", "{{.Repository}}:{{.Tag}}", "muster").split():
        if _is_of_a_dead_session(image, "muster:test"):
            docker("rmi", image, check=False)


def _is_of_a_dead_session(name: str, stem: str) -> bool:
    head, _, pid = name.rpartition("-")
    return f"{head}-".startswith(f"{stem}-") and pid.isdigit() and not Path("/proc", pid).exists()


def base_image(suite: str = "bookworm", image: str = "muster-lab-base", *packages: str) -> None:
    """Bootstrap a base image, unless it is there."""
    if subprocess.run([HERE / "base.sh", suite, image, *packages], check=False).returncode:
        raise LabError(f"the base image {image} could not be made")


def host_image() -> None:
    """Make the image of a host: its base once, then whatever changed in tests/lab/host."""
    base_image()
    say(f"image {HOST_IMAGE}")
    docker("build", "--quiet", "--tag", HOST_IMAGE, str(HERE / "host"))


def network(prefix: str) -> ipaddress.IPv4Network:
    """Return the lab's subnet, making its network on one that no route and no other network of the engine uses."""
    if prefix in _names("network", prefix):
        config = json.loads(docker("network", "inspect", "--format", "{{json .IPAM.Config}}", prefix))
        return ipaddress.IPv4Network(config[0]["Subnet"])
    routes = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, check=True, text=True).stdout
    taken = [ipaddress.IPv4Network(route["dst"]) for route in json.loads(routes) if route["dst"] != "default"]
    for subnet in ipaddress.IPv4Network("10.213.0.0/16").subnets(new_prefix=24):
        if any(subnet.overlaps(other) for other in taken):
            continue
        try:
            docker("network", "create", "--label", f"{LABEL}={prefix}", "--subnet", str(subnet), prefix)
        except LabError as error:  # a network without a bridge shows no route
            if "overlaps" not in str(error):
                raise
        else:
            return subnet
    raise LabError("no free subnet within 10.213.0.0/16\nnext: docker network ls")


def write_ssh_files(folder: Path, addresses: dict[str, str]) -> None:
    """Write ssh_config and known_hosts, making the keys that are missing: the users' one, and one a host."""
    user_key = ensure_key(folder / "id_ed25519")
    blocks, known = [], []
    for name, address in addresses.items():
        host_key = ensure_key(folder / "hostkeys" / name)
        known.append(f"{name},{address} {' '.join(host_key.with_suffix('.pub').read_text().split()[:2])}\n")
        for user in ("root", *USERS):
            alias = name if user == "root" else f"{name}-{user}"
            blocks.append(f"Host {alias}\n    HostName {address}\n    User {user}\n")
    (folder / "known_hosts").write_text("".join(known))
    blocks.append(
        f"Host {' '.join(f'{name} {name}-*' for name in addresses)}\n"
        f'    IdentityFile "{user_key}"\n    IdentitiesOnly yes\n'
        f'    UserKnownHostsFile "{folder / "known_hosts"}"\n    GlobalKnownHostsFile /dev/null\n'
        "    StrictHostKeyChecking yes\n"
    )
    (folder / "ssh_config").write_text("\n".join(blocks))


def ensure_key(path: Path) -> Path:
    """Return the path of an Ed25519 key without passphrase, made if need be; its public half lies beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)
    return path


def ensure_host(name: str, address: str, prefix: str, folder: Path) -> None:
    """Create and start one host, unless it is there and made of the same image, keys, address and arguments."""
    image = docker("image", "inspect", "--format", "{{.Id}}", HOST_IMAGE)
    user_key, host_key = folder / "id_ed25519", folder / "hostkeys" / name
    parts = (image, address, *ENGINE_INSIDE, user_key.read_text(), host_key.read_text())
    recipe = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    if docker("ps", "--quiet", "--filter", f"name=^{name}$", "--filter", f"label={RECIPE}={recipe}", "--all"):
        docker("unpause", name, check=False)
        docker("start", name)
        return
    if name in _names("container", prefix):
        docker("rm", "--force", "--volumes", name)
    say(f"host {name} at {address}")
    labels = (f"{LABEL}={prefix}", f"{RECIPE}={recipe}", f"{LABEL}.address={address}")
    docker(
        *("create", "--init", "--name", name, "--hostname", name, "--network", prefix, "--ip", address),
        *(part for label in labels for part in ("--label", label)),
        *ENGINE_INSIDE,
        HOST_IMAGE,
    )
    # Copied in before the first start: nobody ever has to trust a key that a network offered.
    docker("cp", str(host_key), f"{name}:/etc/ssh/ssh_host_ed25519_key")
    docker("cp", str(user_key.with_suffix(".pub")), f"{name}:/etc/ssh/authorized_keys")
    docker("start", name)


def wait_until_ready(prefix: str, names: Sequence[str]) -> None:
    """Return when every host's engine and sshd answer; raise LabError with a host's own words when one does not."""
    deadline = time.monotonic() + READY_WITHIN_S
    for name in names:
        while True:
            probe = "docker info >/dev/null 2>&1 && grep -q 00000000:0016 /proc/net/tcp && echo ready"
            if docker("exec", name, "sh", "-c", probe, check=False) == "ready":
                say(f"{name} answers")
                break
            if time.monotonic() > deadline:
                logs = docker("exec", name, "tail", "-n", "5", "/var/log/dockerd.log", check=False)
                words = logs or docker("logs", "--tail", "5", name, check=False)
                raise LabError(
                    f"{name} did not answer within {READY_WITHIN_S:.0f} s: {words}\nnext: docker logs {name}"
                )
            time.sleep(0.3)


def _names(kind: str, prefix: str) -> list[str]:
    listing = ("ps", "--all") if kind == "container" else (kind, "ls")
    field = "{{.Names}}" if kind == "container" else "{{.Name}}"
    return docker(*listing, "--filter", f"label={LABEL}={prefix}", "--format", field).split()


def main(argv: Sequence[str] | None = None) -> int:
    """Bring a lab up or down; 0, or 3 with what is missing and what to do next."""
    parser = argparse.ArgumentParser(prog="lab.py", description="Real hosts to test on.")
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("--hosts", type=int, default=2, metavar="N")
    parser.add_argument("--prefix", default=PREFIX)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args(argv)
    try:
        if args.verb == "down":
            down(prefix=args.prefix, folder=args.folder.resolve())
        else:
            lab = up(args.hosts, prefix=args.prefix, folder=args.folder.resolve())
            say(f"try: ssh -F {lab.ssh_config} {lab.hosts[0]} docker info")
    except LabError as error:
        say(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
