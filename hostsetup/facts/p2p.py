"""Knows between which GPUs the driver permits peer-to-peer reads, as `nvidia-smi topo -p2p r` draws it. Proves no copy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.smi_query import TOOL
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (Probe("nvidia-smi-topo-p2p", "nvidia-smi topo -p2p r", timeout_s=30, tool=TOOL),)

MEANINGS = {
    "OK": "permitted",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled by a registry key of the driver",
    "U": "unknown",
}
MAX_GPUS = 256
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class P2p:
    """`codes`: what the driver says of each pair, by (lower, higher) index; two codes joined by `/` where the ways differ."""

    gpus: tuple[int, ...]
    codes: Mapping[tuple[int, int], str]


def parse_p2p(text: str) -> P2p:
    """Read the matrix: rows may be indented, cells parted by tabs or blanks; raise ValueError where it is cut off."""
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    header = next((words for words in lines if words and all(map(_GPU.fullmatch, words))), [])
    gpus = [int(word[3:]) for word in header]
    if not gpus or len(set(gpus)) != len(gpus) or len(gpus) > MAX_GPUS:
        raise ValueError("no header of a peer-to-peer matrix, or one with a GPU twice")
    rows: dict[int, list[str]] = {}
    for words in lines:
        if words and (found := _GPU.fullmatch(words[0])) and len(words) == len(gpus) + 1 and words[1] not in header:
            rows.setdefault(int(found[1]), words[1:])
    codes: dict[tuple[int, int], str] = {}
    for i, a in enumerate(gpus):
        if a not in rows:
            raise ValueError(f"the matrix is cut off: no row for GPU{a}")
        for j, b in enumerate(gpus):
            cell = rows[a][j]
            if (cell == "X") != (i == j) or (i != j and cell not in MEANINGS):
                raise ValueError(f"the row of GPU{a} is not {len(gpus)} codes")
            if i < j and b in rows:
                back = rows[b][i]
                codes[min(a, b), max(a, b)] = cell if cell == back else f"{cell}/{back}"
    return P2p(tuple(sorted(gpus)), codes)


def read(evidence: Evidence) -> Known[P2p] | Unknown:
    """Return the matrix, or in nvidia-smi's words why there is none."""
    reply = evidence.answer("nvidia-smi-topo-p2p")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_p2p(reply.text))
    except ValueError as error:
        said = (reply.text.strip() or reply.error_text.strip()).partition("\n")[0]
        return Unknown(f"`nvidia-smi-topo-p2p`: {error}" + (f" ({said[:120]})" if reply.exit_code and said else ""))


def tell(p2p: P2p) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"codes": {f"{a}-{b}": code for (a, b), code in p2p.codes.items()}}
