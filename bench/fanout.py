"""Auditing many hosts at once, beside the tools that people use for it: wall time, the client's CPU, its memory.

    python bench/fanout.py [--hosts 64,256,1024] [--tools preflight,fabric,xargs,clush,ansible] [--window 32]

One sshd on loopback answers for every host, each under an address of its own (127.1.0.1 and up). Of the addresses 2 % are
dead (their port is closed) and 5 accept and never say a word. Every tool runs the same read-only program on the same
addresses with as many at once, one tool after the other; preflight and xargs then once more on the live hosts alone. CPU
is that of the client with its children (ssh among them), memory that of its largest process. What the hosts' side costs
is on the same machine, the same for all, and not counted in CPU; it is most of the wall time.

preflight does what the others do, and then reads, judges and reports what came back; its pairs are left out, for addresses
of loopback have no peers. clush comes with ClusterShell. ansible-core is installed into a folder of its own.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hostsetup import host, script

SSHD = "/usr/sbin/sshd"
DEAD_SHARE, HUNG, CONNECT_S = 0.02, 5, 10
TOOLS = ("preflight", "fabric", "xargs", "clush", "ansible")
FABRIC = """
import concurrent.futures, contextlib, sys
from fabric import Connection
hosts, config, window, program = sys.argv[1:]
from fabric import Config
from paramiko import SSHConfig
told = Config(ssh_config=SSHConfig.from_path(config))
program = open(program, "rb").read()
def ask(name):
    connection = Connection(name, config=told)
    try:
        connection.open()
        channel = connection.transport.open_session()
        channel.exec_command("sh -s")
        channel.sendall(program)
        channel.shutdown_write()
        size = 0
        while block := channel.recv(1 << 15):
            size += len(block)
        return channel.recv_exit_status() == 0 and size > 1000
    except Exception:
        return False
    finally:
        with contextlib.suppress(Exception):
            connection.close()
with concurrent.futures.ThreadPoolExecutor(int(window)) as pool:
    print(sum(pool.map(ask, open(hosts).read().split())))
"""


@dataclass(frozen=True)
class Fleet:
    """Addresses by what happens there, and the files that lead to them."""

    folder: Path
    live: tuple[str, ...]
    dead: tuple[str, ...]
    hung: tuple[str, ...]

    @property
    def every(self) -> tuple[str, ...]:
        """Return all addresses in order."""
        return tuple(
            sorted(self.live + self.dead + self.hung, key=lambda name: [int(part) for part in name.split(".")])
        )

    def hosts(self, names: tuple[str, ...]) -> Path:
        """Write a hosts file of some of them."""
        path = self.folder / f"hosts-{len(names)}"
        path.write_text("".join(f"{name}\n" for name in names))
        return path


def fleet(folder: Path, count: int, port: int, silent: int) -> Fleet:
    """Choose the odd ones, evenly spread, and write ssh's configuration."""
    names = [f"127.1.{n // 250}.{n % 250 + 1}" for n in range(count)]
    dead = max(1, round(count * DEAD_SHARE))
    step = count // (dead + HUNG)
    odd = names[step // 2 :: step][: dead + HUNG]
    made = Fleet(folder, tuple(name for name in names if name not in odd), tuple(odd[HUNG:]), tuple(odd[:HUNG]))
    (folder / "ssh_config").write_text(
        f"Host {' '.join(made.dead)}\n  Port 1\nHost {' '.join(made.hung)}\n  Port {silent}\n"
        f"Host *\n  User {getpass.getuser()}\n  Port {port}\n  IdentityFile {folder}/key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n  BatchMode yes\n"
        f"  ConnectTimeout {CONNECT_S}\n  StrictHostKeyChecking yes\n"
    )
    return made


def sshd(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the one sshd that answers on every address of loopback."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 0.0.0.0\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\n"
        "MaxStartups 5000:100:5000\nUsePAM no\nStrictModes no\nPidFile none\nLogLevel ERROR\nPermitRootLogin yes\n"
        "Subsystem sftp internal-sftp\nSetEnv SHLVL=2\n"  # bash then reads no .bashrc of whoever measures
    )
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.1.*.*]:{port} {key}\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    process = subprocess.Popen([SSHD, "-D", "-f", folder / "sshd_config"])
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            break
    return process


def command(tool: str, made: Fleet, names: tuple[str, ...], window: int) -> str:
    """Return the shell command line of one tool; its standard output ends with how many hosts answered."""
    hosts, config, program, folder = (
        made.hosts(names),
        made.folder / "ssh_config",
        made.folder / "program.sh",
        made.folder,
    )
    python = sys.executable
    match tool:
        case "preflight":
            return f"{python} -m orchestrate --ssh-config {config} preflight {hosts} --no-pairs --json -o {folder}/report.json; true"
        case "fabric":
            (folder / "fabric_pool.py").write_text(FABRIC)
            return f"{python} {folder}/fabric_pool.py {hosts} {config} {window} {program}"
        case "xargs":
            one = f"ssh -F {config} {{}} sh -s <{program} >{folder}/out-{{}} 2>/dev/null && echo {{}}; true"
            return f"xargs -P {window} -I{{}} sh -c '{one}' <{hosts} | wc -l"
        case "clush":
            clush = Path(python).with_name("clush")
            return (
                f"{clush} -q -f {window} -t {CONNECT_S} -o '-F {config}' --hostfile {hosts} sh -s <{program} 2>/dev/null"
                " | grep -c '0123456789abcdef id '"
            )
    (folder / "inventory").write_text("[all]\n" + hosts.read_text())
    (folder / "ansible.cfg").write_text(
        f"[defaults]\nhost_key_checking = true\nforks = {window}\ntimeout = {CONNECT_S}\nretry_files_enabled = false\n"
        f"[ssh_connection]\npipelining = true\nssh_args = -F {config} -o ControlMaster=no\n"
    )
    return (
        f"ANSIBLE_CONFIG={folder}/ansible.cfg {folder}/ansible/bin/ansible all -i {folder}/inventory -o -m script"
        f" -a {program} 2>/dev/null | grep -c '0123456789abcdef id '"
    )


def measure(line: str) -> tuple[float, float, float, str]:
    """Run a command; return wall seconds, CPU seconds, the largest process's MiB, and its last line."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(["sh", "-c", line], stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0
        wall = time.monotonic() - began
        out.seek(0)
        said = out.read().decode(errors="replace").strip().rpartition("\n")[2]
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said


def answered(tool: str, made: Fleet, names: tuple[str, ...], said: str) -> str:
    """Return how many hosts answered; of preflight also that every host is accounted for, and how."""
    if tool != "preflight":
        return said
    told = {one["name"]: one["state"] for one in json.loads((made.folder / "report.json").read_text())["hosts"]}
    assert set(told) == set(names), "a host is missing from the report"
    assert all(told[name] == "unreachable" for name in names if name in made.dead + made.hung), "a dead host answers"
    return str(sum(state != "unreachable" for state in told.values()))


def ansible(folder: Path) -> bool:
    """Install ansible-core; return whether that worked."""
    done = [
        subprocess.run(argv, check=False, capture_output=True).returncode == 0
        for argv in (
            [sys.executable, "-m", "venv", folder / "ansible"],
            [folder / "ansible/bin/pip", "install", "-q", "ansible-core"],
        )
    ]
    return all(done)


def main() -> None:
    """Measure every tool on every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="64,256")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--window", type=int, default=32)
    told = parser.parse_args()
    tools = told.tools.split(",")
    if not Path(SSHD).exists():
        print("not measured: needs openssh-server")
        return
    with tempfile.TemporaryDirectory() as place, socket.socket() as silent:
        folder = Path(place)
        silent.bind(("0.0.0.0", 0))
        silent.listen(1024)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "program.sh").write_text(script.build(host.PROBES, "0123456789abcdef"))
        if "ansible" in tools and not ansible(folder):
            tools.remove("ansible")
            print("ansible: not measured: ansible-core could not be installed")
        server = sshd(folder, port)
        try:
            for count in map(int, told.hosts.split(",")):
                made = fleet(folder, count, port, silent.getsockname()[1])
                print(
                    f"{count} hosts: {len(made.live)} live, {len(made.dead)} dead, {len(made.hung)} hung; {told.window} at once"
                )
                runs = [(tool, made.every) for tool in tools]
                runs += [(tool, made.live) for tool in ("preflight", "xargs") if {"preflight", "xargs"} <= set(tools)]
                for tool, names in runs:
                    wall, cpu, peak, said = measure(command(tool, made, names, told.window))
                    kind = "all" if names == made.every else "live"
                    print(
                        f"  {tool:<10} {kind:<5} wall {wall:7.1f} s   client CPU {1000 * cpu / len(names):6.1f} ms a host"
                        f"   peak {peak:5.0f} MiB   answered {answered(tool, made, names, said)}",
                        flush=True,
                    )
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
