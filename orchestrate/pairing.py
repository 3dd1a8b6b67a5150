"""Pure: which hosts try which peers, and the program with which one host tries its own. Sends nothing.

Up to 16 hosts every ordered pair is tried. Above, each host tries a few peers at fixed distances around the ring of
hosts, the same for all, so that each is tried from as many; and all try the first, where ranks meet.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.facts.peers import HEADER_BYTES
from hostsetup.model import Probe

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Mapping, Sequence

EVERY_PAIR_UP_TO = 16
DISTANCES = 6  # of a sample: peers that each host tries, beside the first host
PORTS = (29400, 29500)
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Place:
    """Where peers find a host: its name in the inventory, its address, and what it calls itself."""

    name: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    hostname: str = ""


def pairs(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, for every host, the peers that it tries."""
    count = len(names)
    if count <= EVERY_PAIR_UP_TO:
        return {name: tuple(other for other in names if other != name) for name in names}
    steps = sorted({1, count - 1, *(max(1, count * k // (DISTANCES - 1)) for k in range(1, DISTANCES - 1))})
    told = {}
    for at, name in enumerate(names):
        peers = dict.fromkeys((names[0], *(names[(at + step) % count] for step in steps)))
        told[name] = tuple(peer for peer in peers if peer != name)
    return told


_PROGRAM = r"""
connect() {
  if command -v bash >/dev/null 2>&1; then timeout "$3" bash -c ': 2>&1 <"/dev/tcp/$0/$1"' "$1" "$2"
  elif command -v python3 >/dev/null 2>&1; then timeout "$(($3 + 1))" python3 -c 'import socket,sys
try: socket.create_connection((sys.argv[1],int(sys.argv[2])),int(sys.argv[3])).close()
except OSError as e: sys.exit(str(e))' "$@"
  elif command -v nc >/dev/null 2>&1; then nc -z -w "$3" "$1" "$2"
  else echo "neither bash, python3 nor nc"; return 126; fi
}
tcp() {
  said=$(connect "$1" "$2" 3 2>&1); rc=$?
  # silence accuses a firewall, so a host that is only busy gets long enough to hear the answer
  case $rc in 124|137|143) said=$(connect "$1" "$2" 12 2>&1); rc=$?;; esac
  printf 'tcp %s %s %s\n' "$2" "$rc" "$(printf '%s' "$said" | tail -n 1 | head -c 150)"
}
path() {
  set -- "$1" "$2" $(ip route get "$1" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).* src \([^ ]*\).*/\1 \2/p' | head -n 1)
  mtu=; [ -n "$3" ] && read -r mtu <"/sys/class/net/$3/mtu"
  [ -n "$mtu" ] || return
  size=$((mtu - $2)); [ "$size" -le 65000 ] || size=65000
  printf 'route %s %s %s\nwhole %s %s\n' "$3" "$4" "$mtu" "$((size + $2))" "$(ping -n -M do -c 2 -i 0.3 -W 2 -s "$size" "$1" 2>&1 | tr '\n' ' ' | head -c 500)"
}
round() { printf 'ping %s\n' "$(ping -n -q -c 10 -i 0.2 -W 2 "$1" 2>&1 | tr '\n' ' ' | tail -c 300)"; }
login() {
  said=$( { timeout 15 ssh -o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=yes -- "$1" true </dev/null 2>&1 >/dev/null
    echo "(exit $?)"; } | tail -c 300 | tail -n 2 | tr '\n' ' ')
  case $said in *'(exit 0) ') echo ok ;; *) printf '%s\n' "${said% }" ;; esac
}
peer() {
  name=$1 address=$2 header=$3 hostname=$4; shift 4
  head="peer $name $address"
  told=$( { for port in "$@"; do tcp "$address" "$port" & done; path "$address" "$header" & round "$address" & wait; } 2>/dev/null )
  [ -z "$hostname" ] || told="$told
name $(getent ahosts "$hostname" 2>/dev/null | while read -r a _; do printf '%s ' "$a"; done | head -c 500)"
  [ -z "$trust" ] || told="$told
trust $(login "$hostname")"
  printf '%s\n%s\n' "$head" "$told"
}
"""


def probe(own: Place, peers: Sequence[Place], ports: Mapping[str, Sequence[int]], *, every: int, trust: bool) -> Probe:
    """Return the probe with which a host tries its peers.

    `ports`: for each peer, ports beside the usual ones that should be closed there. `every`: how many peers there are
    in all. `trust`: whether the host is to log in on its peers over SSH.
    """
    lines = [_PROGRAM, f"trust={'yes' if trust else ''}", f"echo own {own.address}"]
    if len(peers) < every:
        lines.append(f"echo sample {every}")
    for peer in peers:
        words = (peer.name, str(peer.address), str(HEADER_BYTES[peer.address.version]), peer.hostname)
        tried = map(str, (*PORTS, *ports.get(peer.name, ())))
        lines.append(f"peer {shlex.join(words)} {' '.join(tried)} &")
    return Probe("peers", "\n".join((*lines, "wait", "exit 0")), timeout_s=TIMEOUT_S)
