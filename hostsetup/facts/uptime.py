"""Knows how long a host is up and whether its packages ask for a reboot. Reboots nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.machine import Machine

REQUIRED = "/run/reboot-required"
_SECONDS = re.compile(r"(\d{1,12})(?:\.\d+)?(?:\s.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Uptime:
    """`asks`: Debian's and Ubuntu's mark for a reboot is there; `packages`: those that left it."""

    seconds: int
    asks: bool
    packages: tuple[str, ...]


def read(machine: Machine) -> Known[Uptime] | Unknown:
    """Return the uptime."""
    found = _SECONDS.fullmatch(machine.first("/proc/uptime"))
    if found is None:
        return Unknown("`machine-files`: /proc/uptime is not in it")
    packages = tuple(dict.fromkeys(line.strip() for line in machine.files.get(f"{REQUIRED}.pkgs", ()) if line.strip()))
    return Known(Uptime(int(found[1]), REQUIRED in machine.files or bool(packages), packages))


def tell(uptime: Uptime) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"seconds": uptime.seconds, "reboot_required": uptime.asks}
