"""Knows what the inventory says of a host: slots, training address, interface. Takes nothing else from there.

The collector writes the reply `inventory`, so that saved evidence is judged as the hosts file had it.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES: tuple[Probe, ...] = ()  # the collector itself writes the reply `inventory`


@dataclass(frozen=True, slots=True)
class Listed:
    """`slots`: ranks to run there. `address`, `iface`: for training. None: the inventory does not say."""

    slots: int | None = None
    address: str | None = None
    iface: str | None = None


def parse_listed(text: str) -> Listed:
    """Read the collector's JSON object."""
    try:
        data: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the text is wrong, not the caller
    slots, address, iface = data.get("slots"), data.get("addr"), data.get("iface")
    return Listed(
        slots if isinstance(slots, int) and not isinstance(slots, bool) and 0 < slots < 10_000 else None,
        str(ipaddress.ip_address(address)) if isinstance(address, str) else None,
        iface if isinstance(iface, str) and re.fullmatch(r"[\w.:@-]{1,32}", iface, re.ASCII) else None,
    )


def read(evidence: Evidence) -> Known[Listed] | Unknown:
    """Return what the inventory says; evidence from elsewhere has none, and then nothing is said."""
    reply = evidence.replies.get("inventory")
    if reply is None:
        return Known(Listed())
    try:
        return Known(parse_listed(reply.text))
    except ValueError as error:
        return Unknown(f"`inventory`: {error}")
