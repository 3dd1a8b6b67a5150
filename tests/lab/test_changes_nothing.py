"""An audit changes nothing on a host: not one that is read-only, not its registers, not its settings, not what runs there.

The host is a container of the image of the lab whose root file system is read-only; /run and /dev/shm, and once /tmp, are
the only places where the probe program may put its own files. It shows the PCI functions of pcie-switch-4gpu: real
files, in which a write to a register would be seen.
"""

from __future__ import annotations

import os
import re
import time

import lab as labs
import pytest
import recorded

from hostsetup import host as known_host
from hostsetup import script

pytestmark = pytest.mark.lab

MARK = "0123456789abcdef0123456789abcdef"
START = "mkdir -p /run/sshd; dockerd --iptables=false --bridge=none --pidfile /run/d.pid >/run/d.log 2>&1 & exec sleep infinity"
# what a kernel counts, measures or draws by itself
RESTLESS = re.compile(
    r"^/proc/sys/(?:fs/(?:dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota/)|kernel/(?:random/|ns_last_pid|pty/nr|perf_|sched_|usermodehelper)"
    r"|net/(?:netfilter/nf_conntrack_count|ipv4/tcp_(?:fastopen_key|mem))|vm/stat_refresh)"
)
LOOK = {
    "what /etc holds": "find /etc -printf '%p %y %m %u %g %s %T@ %C@ %l\\n' | sort; find /etc -type f -exec sha256sum {} + | sort",
    "registers": f"cd /{recorded.PLACE} && find . -printf '%p %y %m %s %T@ %C@ %l\\n' | sort; find . -type f -exec sha256sum {{}} + | sort",
    "settings of the kernel": "grep -rs '' /proc/sys | sort",
    "rules of the firewall": "iptables-save | grep -v '^#' | sed 's/\\[.*\\]//'; ip6tables-save | grep -v '^#' | sed 's/\\[.*\\]//'",
    "network": "ip -o addr; ip rule; ip route show table all; ip neigh",
    "mounts": "cat /proc/self/mountinfo",
    "modules": "cut -d' ' -f1 /proc/modules | sort",
    "the kernel's first messages": "dmesg | head -n 3",
    "what runs": "ps -eo pid=,user=,args= | grep -vE ' (ps -eo|grep|sh -c ps|sort)'",
    # sudo keeps its own record of whom it refused
    "files of nobody else": (
        "find /tmp /dev/shm /run /home /root /var -xdev -not -path '/run/docker/*' -not -path /run/d.log"
        " -not -path '/run/sudo*' '(' -type d -printf '%p d %m\\n' -o -printf '%p %y %m %s\\n' ')' | sort"
    ),
    "containers and images": "docker ps -aq; docker images -q; docker volume ls -q; docker network ls -q",
}


def docker_exec(name, user, *argv, stdin=b""):
    return labs.docker("exec", "--interactive", "--user", user, name, *argv, stdin=stdin)


def look(name):
    seen = {what: docker_exec(name, "root", "sh", "-c", command) for what, command in LOOK.items()}
    lines = seen["settings of the kernel"].splitlines()
    return {**seen, "settings of the kernel": [line for line in lines if not RESTLESS.match(line)]}


@pytest.fixture(scope="module", params=["/tmp", "/dev/shm"])
def host(request):
    """A read-only host, in which only one place is meant for temporary files."""
    labs.sweep()
    labs.host_image()
    prefix = f"{labs.TESTS}-still-{os.getpid()}"
    places = ("/run", "/etc/docker", f"/{recorded.PLACE}", *(("/tmp",) if request.param == "/tmp" else ()))
    argv = ["run", "--detach", "--init", "--read-only", "--name", prefix, "--hostname", "still", "--network", "none"]
    argv += [word for place in places for word in ("--tmpfs", f"{place}:exec,mode=1777")]
    try:
        labs.docker(*argv, "--label", f"{labs.LABEL}={prefix}", *labs.ENGINE_INSIDE, labs.HOST_IMAGE, "sh", "-c", START)
        recorded.put_pci(labs.Lab(prefix, labs.FOLDER, (prefix,)), prefix, "pcie-switch-4gpu")
        docker_exec(prefix, "root", "iptables", "-A", "INPUT", "-s", "192.0.2.1", "-j", "DROP")
        deadline = time.monotonic() + labs.READY_WITHIN_S
        while not docker_exec(prefix, "root", "sh", "-c", "docker info >/dev/null 2>&1 && echo ready || :"):
            assert time.monotonic() < deadline, docker_exec(prefix, "root", "tail", "-n", "5", "/run/d.log")
            time.sleep(0.2)
        yield prefix
    finally:
        labs.down(prefix=prefix, folder=None)


@pytest.mark.parametrize("user", ["root", "ops", "guest"])
def test_the_probes_leave_a_host_as_it_was(host, user):
    program = script.build(known_host.PROBES, MARK).encode()
    before = look(host)
    replies = script.parse(docker_exec(host, user, "sh", "-s", stdin=program).encode(), MARK)
    after = look(host)
    assert set(replies) == {probe.name for probe in known_host.PROBES}
    for what in LOOK:
        assert after[what] == before[what], what
    assert {name: reply.error_text for name, reply in replies.items() if b"Read-only file" in reply.stderr} == {}
    if user != "guest":
        assert "ReqRedir+" in replies["lspci-vvv"].text


def test_the_look_would_have_seen_it(host):
    """Each of these changes one thing and is seen: an equal look is not an empty one."""
    changes = {
        "registers": "setpci -s 42:00.0 ECAP_ACS+6.w=0:2c",
        "settings of the kernel": "sysctl -qw net.ipv4.ip_default_ttl=65",
        "rules of the firewall": "iptables -P FORWARD DROP",
        "mounts": "mount -t tmpfs none /mnt",
        "what runs": "sleep 300 >/dev/null 2>&1 &",
        "files of nobody else": "touch /run/left",
        "containers and images": "docker volume create left",
        "network": "ip addr add 192.0.2.9/32 dev lo",
    }
    before = look(host)
    for command in changes.values():
        docker_exec(host, "root", "sh", "-c", command)
    after = look(host)
    for what in changes:
        assert after[what] != before[what], what
