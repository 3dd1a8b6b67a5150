"""Reads a target (hosts.txt, a comma list, `local`) into hosts; every error names the line. Opens no connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a target.

    `name` identifies it in reports and is unique; `destination` is what SSH is asked for (an alias, name or numeric
    address, without user and port). `slots`: ranks to run there, None = its GPUs, or 1 without. `address`: what peers use
    for training, None = the launcher finds out. `local`: this machine, reached without SSH.
    """

    name: str
    destination: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    address: str | None = None
    iface: str | None = None
    spare: bool = False
    local: bool = False
    line: int | None = None
