"""Knows what a machine's firmware says of itself: maker, product, board, BIOS, and the CPU's microcode. Reads no serial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.machine import DMI
from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.machine import Machine

# makers leave these where a name should stand; they are no identity
_BLANKS = frozenset(
    {
        *("to be filled by o.e.m.", "to be filled by oem", "default string", "system manufacturer", "not specified"),
        *("system product name", "system version", "not applicable", "o.e.m.", "oem", "none", "n/a", "na", "unknown"),
        *("base board product name", "empty", "invalid", "...", "x", "0123456789", "undefined"),
    }
)


@dataclass(frozen=True, slots=True)
class Dmi:
    """Empty: not said, or a maker's placeholder."""

    vendor: str = ""
    product: str = ""
    board: str = ""
    bios_version: str = ""
    bios_date: str = ""
    microcode: str = ""


def read(machine: Machine) -> Known[Dmi] | Unknown:
    """Return the firmware's own words; unknown where the machine has no such tables (many ARM boards)."""

    def said(name: str) -> str:
        value = " ".join(machine.first(f"{DMI}/{name}").split())
        return "" if value.lower() in _BLANKS else value

    dmi = Dmi(
        vendor=said("sys_vendor"),
        product=said("product_name"),
        board=said("board_name"),
        bios_version=said("bios_version"),
        bios_date=said("bios_date"),
        microcode=machine.first("/proc/cpuinfo").rpartition(":")[2].strip(),
    )
    if not (dmi.product or dmi.board) or not dmi.bios_version:
        return Unknown("the firmware names neither a product nor a version (no DMI tables, or placeholders in them)")
    return Known(dmi)


def tell(dmi: Dmi) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"vendor": dmi.vendor, "product": dmi.product, "bios": dmi.bios_version, "microcode": dmi.microcode}
