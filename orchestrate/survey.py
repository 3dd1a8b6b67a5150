"""Asks hosts what a plan needs: training address, interface, GPUs, RDMA devices and a free port.

The address is the one on the route between the hosts: each host is asked how it reaches the first, and the first how it
reaches them. Reads only; holds no port.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from typing import TYPE_CHECKING

from orchestrate.errors import CannotTell, Refused
from orchestrate.plan import NodeFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from orchestrate.inventory import Host
    from orchestrate.remote import Shell

# Below Linux's default range of ephemeral ports (32768 and up), above the registered ones in common use.
PORTS = range(20000, 32000)

_GPUS = "command -v nvidia-smi >/dev/null || exit 127; timeout 30 nvidia-smi --query-gpu=uuid --format=csv,noheader"
_RDMA = 'for d in /dev/infiniband/uverbs* /dev/infiniband/rdma_cm; do [ -c "$d" ] && printf \'%s\\n\' "$d"; done; true'
_IFACE = re.compile(r"[\w.:@-]{1,15}", re.ASCII)
_LISTENING = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"
_LISTENER = re.compile(r"^ *[0-9]+: [0-9A-F]{8,32}:([0-9A-F]{4}) [0-9A-F]{8,32}:[0-9A-F]{4} 0A ", re.MULTILINE)
_HOLDER = "{ ss -Hltnp; sudo -n ss -Hltnp; } 2>/dev/null | head -c 400000"  # root sees every process


def gpus(shell: Shell) -> tuple[str, ...]:
    """Return the UUIDs of the host's GPUs in driver order; empty without NVIDIA's tool, or when it finds none.

    Raises CannotTell when the tool fails or hangs: a broken driver must not turn a run into one without GPUs.
    """
    said = shell.run(_GPUS, timeout_s=40)
    lines = said.stdout.decode("utf-8", "replace").splitlines()
    if said.exit_code == 0:
        return tuple(line.strip() for line in lines if line.startswith("GPU-"))
    told = [*lines, *said.stderr.decode("utf-8", "replace").splitlines(), f"no answer (exit code {said.exit_code})"]
    if said.exit_code == 127 or "No devices were found" in " ".join(told):
        return ()
    raise CannotTell(
        f"nvidia-smi fails: {next(line for line in told if line.strip())[:200]}",
        where=shell.host.name,
        next_step="repair the driver on that host, or leave the host out",
    )


def rdma_devices(shell: Shell) -> tuple[str, ...]:
    """Return the device files that user-space RDMA needs; empty without."""
    lines = shell.run(_RDMA).stdout.decode("utf-8", "replace").splitlines()
    return tuple(line for line in lines if re.fullmatch(r"/dev/infiniband/[\w.]+", line))


def listening(shell: Shell) -> frozenset[int]:
    """Return the TCP ports that something listens on, read from the kernel's own table."""
    text = shell.run(_LISTENING).stdout.decode("utf-8", "replace")
    if "local_address" not in text:
        raise CannotTell(
            "the ports in use are not known: /proc/net/tcp cannot be read",
            where=shell.host.name,
            next_step="see what `cat /proc/net/tcp` says on that host",
        )
    return parse_listening(text)


def parse_listening(text: str) -> frozenset[int]:
    """Return the listening ports of /proc/net/tcp and tcp6 (state 0A); lines of another form say nothing."""
    return frozenset(int(port, 16) for port in _LISTENER.findall(text))


def routed(table: Path) -> tuple[str, ...]:
    """Return the networks that this machine has routes to, read from the kernel's own table (/proc/net/route)."""
    try:
        rows = [line.split() for line in table.read_text("utf-8", "replace").splitlines()[1:]]
    except OSError:
        return ()
    pairs = [(_little(r[1]), _little(r[7])) for r in rows if len(r) > 7]
    return tuple(f"{to}/{mask}" for to, mask in pairs if to and mask and mask != "0.0.0.0")  # noqa: S104 - a default route


def _little(word: str) -> str:
    """Return the address that the kernel writes as eight hexadecimal digits, lowest byte first; empty for anything else."""
    if not re.fullmatch(r"[0-9A-Fa-f]{8}", word):
        return ""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(word)))


def free_port(run: str, busy: Collection[int]) -> int:
    """Return a port for a run that is not in `busy`: the run's name picks where the search starts."""
    start = int.from_bytes(hashlib.sha256(run.encode()).digest()[:4]) % len(PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(start + step) % len(PORTS)]
        if port not in busy:
            return port
    raise Refused("no port between 20000 and 31999 is free", where="the master host")


def port_on(shell: Shell, run: str, wanted: int | None) -> int:
    """Return the wanted port, proved free on the master, or a free one; raise Refused that names the holder."""
    busy = listening(shell)
    if wanted is None:
        return free_port(run, busy)
    if wanted in busy:
        rows = shell.run(_HOLDER).stdout.decode("utf-8", "replace").splitlines()
        holder = next((m[1] for r in rows if f":{wanted} " in r and (m := re.search(r'\("([^"]+)",pid=\d+', r))), "")
        raise Refused(
            f"port {wanted} is in use" + (f" by {holder}" if holder else ""),
            where=shell.host.name,
            next_step="leave --master-port out (a free one is found), or name another",
        )
    return wanted


def routes(
    shells: Sequence[Shell], each: Callable[[Sequence[Shell], Callable[[Shell], object]], Sequence[object]]
) -> dict[str, NodeFacts]:
    """Return address and interface of every host, as the routes between them say.

    `each(shells, work)` runs work on all hosts at once and returns the results in order. One host talks to itself.
    """
    if len(shells) == 1:
        return {shells[0].host.name: NodeFacts("127.0.0.1", "lo")}
    first = shells[0]
    seen = _own_address(first)
    # The first host's address as its peers route to it may differ from the one we logged in on: ask it back.
    second = _source_towards(shells[1], seen)
    master = _numeric(first.host) if first.host.address else _source_towards(first, second[0])[0]

    def ask(shell: Shell) -> NodeFacts:
        host = shell.host
        target = second[0] if shell is first else master
        address, iface = _source_towards(shell, target)
        if host.iface:
            address, iface = _address_of(shell, host.iface), host.iface
        if host.address:
            address = _numeric(host)
            iface = host.iface or _iface_of(shell, address)
        return NodeFacts(address, iface)

    answers = each(shells, ask)
    return {
        shell.host.name: answer for shell, answer in zip(shells, answers, strict=True) if isinstance(answer, NodeFacts)
    }


def _numeric(host: Host) -> str:
    """Return addr= of hosts.txt, which must be numeric: a name may mean another address on every host."""
    try:
        return str(ipaddress.ip_address(host.address or ""))
    except ValueError:
        raise _no_address(host, f"addr={host.address} is not a numeric address") from None


def _own_address(shell: Shell) -> str:
    """Return the address at which the launcher reached the host."""
    if shell.host.address:
        return _numeric(shell.host)
    said = shell.run('printf "%s" "$SSH_CONNECTION"').stdout.decode("utf-8", "replace").split()
    try:
        return str(ipaddress.ip_address(said[2].partition("%")[0]))
    except (IndexError, ValueError):
        raise _no_address(shell.host, "its SSH server does not tell the address of the connection") from None


def _source_towards(shell: Shell, target: str) -> tuple[str, str]:
    """Return (address, interface) that a host uses to reach another."""
    said = shell.run(f"PATH=$PATH:/usr/sbin:/sbin ip -j route get {target}")  # target is a parsed address
    try:
        row = json.loads(said.stdout)[0]
        address, iface = str(ipaddress.ip_address(row["prefsrc"])), str(row["dev"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        reason = said.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _no_address(shell.host, f"`ip route get {target}`: {reason[0] if reason else 'no answer'}") from None
    if not _IFACE.fullmatch(iface):
        raise _no_address(shell.host, f"`ip route get {target}` names the interface {iface!r}")
    return address, iface


def _interfaces(shell: Shell) -> list[tuple[str, str]]:
    """Return (interface, address) pairs of a host, IPv4 first."""
    said = shell.run("PATH=$PATH:/usr/sbin:/sbin ip -j addr")
    try:
        rows = [
            (str(link["ifname"]), str(ipaddress.ip_address(a["local"])))
            for link in json.loads(said.stdout)
            if _IFACE.fullmatch(link["ifname"])
            for a in link.get("addr_info", ())
            if "local" in a and a.get("scope") != "link"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _no_address(shell.host, "`ip -j addr` gives no list") from None
    return sorted(rows, key=lambda row: ":" in row[1])


def _address_of(shell: Shell, iface: str) -> str:
    for name, address in _interfaces(shell):
        if name == iface:
            return address
    raise _no_address(shell.host, f"interface {iface} (iface= in hosts.txt) has no address there")


def _iface_of(shell: Shell, address: str) -> str:
    for name, own in _interfaces(shell):
        if own == address:
            return name
    raise _no_address(shell.host, f"no interface there has the address {address} (addr= in hosts.txt)")


def _no_address(host: Host, why: str) -> CannotTell:
    return CannotTell(
        f"the training address of the host is not known: {why}",
        where=host.name,
        next_step="give it in hosts.txt with addr=ADDRESS (numeric), or iface=NAME",
    )
