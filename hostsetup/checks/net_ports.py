"""A port that a rendezvous needs is taken, or may be taken by any connection.

What it means
    Something already listens on 29500 (the port of a static rendezvous, torchrun's default) or 29400 (the default of the
    c10d rendezvous), or on a port that the site expects to use. Or such a port lies in the range from which the kernel
    hands out ports to outgoing connections.

Why it matters to training
    The first node must listen there. If it cannot, the store does not start, or, worse, the peers connect to a stranger
    and wait. A port in the range of outgoing connections is free today and taken in the middle of a restart tomorrow. Other
    ports matter, too: NCCL and Gloo open ports of that range in both directions, and there is no supported way to pin
    them, so a firewall that opens the rendezvous port alone is not enough.

How we tell
    The kernel's own table of TCP sockets (/proc/net/tcp and tcp6), where listening sockets are state 0A; a listener on
    any address counts, for the store listens on all of them. The range is ip_local_port_range, less what
    ip_local_reserved_ports takes out. The table names the user of a listener; naming its process needs root. Only the
    host that will be the first node needs the port, and any host may become that.

What to do
    Look at the owner and stop it if it is a left-over run, or choose another port (`--rdzv-endpoint HOST:PORT`,
    `--master-port PORT`). This launcher looks for a free port by itself. A port in the range: reserve it with
    net.ipv4.ip_local_reserved_ports.

How to undo
    Take the line out of the file below /etc/sysctl.d, and run `sysctl --system`.

Sources
    https://docs.kernel.org/networking/ip-sysctl.html
    https://docs.pytorch.org/docs/stable/elastic/run.html
    https://github.com/NVIDIA/nccl/issues/388
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.ports import Ports

ID = "net.ports"
SOURCE = "https://docs.kernel.org/networking/ip-sysctl.html"

EXPECTS = {
    "net.ports.needed": Want(int, "TCP ports that a run needs free on its first host", (29400, 29500), many=True)
}


def judge(ports: Ports, expect: Expect) -> Iterator[Finding]:
    """Fail on a port that is taken; warn of one that may be."""
    needed = [int(port) for port in expect.several("net.ports.needed")]
    taken = [port for port in needed if port in ports.listening]
    for port in taken:
        users = ", ".join(map(str, ports.listening[port]))
        yield Finding(
            State.FAIL,
            saw=f"something of user id {users} listens on port {port}",
            wanted=f"port {port} free",
            subject=str(port),
            remedy=Remedy(
                "Look who listens; end it if it is a left-over run, or give the run another port.",
                (f"sudo ss -Hltnp 'sport = :{port}'",),
                needs_root=True,
            ),
            evidence=(f"tcp-ports: listening on {port}, user id {users}",),
        )
    loose = [port for port in needed if port not in taken and ports.may_be_taken(port)]
    if loose and ports.ephemeral:
        first, last = ports.ephemeral
        listed = ", ".join(map(str, loose))
        yield Finding(
            State.WARN,
            saw=f"{listed} lies in the range of outgoing connections, {first} to {last}, and is not reserved",
            wanted="the ports of a rendezvous outside the range, or reserved",
            subject=listed,
            remedy=Remedy("Reserve the ports, or use others.", (_reserve(ports, loose),), needs_root=True),
            evidence=(f"tcp-ports: ip_local_port_range {first} {last}",),
        )
    if not taken and not loose:
        yield Finding(State.PASS, saw=f"{', '.join(map(str, needed))} free")


def _reserve(ports: Ports, more: list[int]) -> str:
    # a second file would replace what is reserved already: the kernel knows one list
    kept = [f"{first}-{last}" if last > first else str(first) for first, last in ports.reserved]
    line = f"net.ipv4.ip_local_reserved_ports = {','.join([*kept, *map(str, more)])}\\n"
    return f"printf '{line}' | sudo tee /etc/sysctl.d/90-rendezvous-ports.conf && sudo sysctl --system"
