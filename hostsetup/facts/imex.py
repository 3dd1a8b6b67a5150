"""Knows whether a host has joined a multi-node NVLink domain: the IMEX daemon, its peers and its channels. Joins none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe(
        "imex",
        r"""[ -d /proc/sys ] || exit 1
echo imex
grep -sE '^[^#[:space:]]' /etc/nvidia-imex/nodes_config.cfg | head -n 300 | while read -r peer rest; do echo "peer $peer"; done
for c in /dev/nvidia-caps-imex-channels/channel*; do [ -e "$c" ] && echo "channel ${c##*/}" && break; done
[ -e /etc/nvidia-imex/nodes_config.cfg ] || exit 0
command -v nvidia-imex-ctl >/dev/null 2>&1 && nvidia-imex-ctl -N 2>&1 | head -c 100000
exit 0""",
        timeout_s=15,
    ),
)
_NODE = re.compile(r"Node #(\d{1,5})\s+[-*]+\s*(\S{1,80}?)\s*[-*]+\s+([A-Z_]{2,40})\b.*", re.ASCII)
_DOMAIN = re.compile(r"Domain State:\s*([A-Z_]{1,40})", re.ASCII)
_PEER = re.compile(r"[\w.:-]{1,100}", re.ASCII)
MAX_NODES = 1000


@dataclass(frozen=True, slots=True)
class Imex:
    """`peers`: the configured nodes. `domain`: the state that the daemon tells (`UP`, ...), empty: it told none.

    `nodes`: each node's state by address. `channels`: whether the device nodes of channels exist.
    """

    peers: tuple[str, ...] = ()
    domain: str = ""
    nodes: Mapping[str, str] | None = None
    channels: bool = False


def parse_imex(text: str) -> Imex:
    """Read the lines `peer` and `channel`, and what `nvidia-imex-ctl -N` printed after them."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "imex":
        raise ValueError("not the answer of the IMEX probe")
    peers: list[str] = []
    nodes: dict[str, str] = {}
    channels, domain = False, ""
    for line in lines[1:5000]:
        words = line.split()
        if words[:1] == ["peer"] and len(words) == 2 and _PEER.fullmatch(words[1]) and len(peers) < MAX_NODES:
            peers.append(words[1])
        elif words[:1] == ["channel"]:
            channels = True
        elif (found := _NODE.fullmatch(line.strip())) and len(nodes) < MAX_NODES:
            nodes[found[2]] = found[3]
        elif found := _DOMAIN.search(line):
            domain = found[1]
    return Imex(tuple(sorted(set(peers))), domain, nodes, channels)


def read(evidence: Evidence) -> Known[Imex] | Unknown:
    """Return the daemon's view of the domain."""
    reply = evidence.answer("imex")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_imex(reply.text))
    except ValueError as error:
        return Unknown(f"`imex`: {error}")


def tell(imex: Imex) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"domain": imex.domain, "peers": len(imex.peers)} if imex.peers or imex.domain else {}
