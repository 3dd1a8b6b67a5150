"""Reads the ACS options of the kernel's `pci=` parameter, and finds the devices that they name. Trusts none to have worked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import full_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostsetup.facts.pci_tree import Function, Pci

DISABLE, CONFIG = "disable_acs_redir", "config_acs"
_PATH = re.compile(
    r"((?:[0-9a-f]{1,4}:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-7])((?:/[0-9a-f]{1,2}\.[0-7])*)", re.IGNORECASE
)
_IDS = re.compile(r"pci:([0-9a-f]{1,8}):([0-9a-f]{1,8})(?::[0-9a-f]{1,8}:[0-9a-f]{1,8})?", re.IGNORECASE | re.ASCII)
_BITS = re.compile(r"(?:0b)?([01x]{1,7})", re.IGNORECASE | re.ASCII)
MAX_ENTRIES = 200


@dataclass(frozen=True, slots=True)
class AcsEntry:
    """One device of a list. `bits`: what config_acs asks for, the highest first, `x` leaves a bit alone. `text`: as written."""

    option: str
    device: str
    bits: str
    text: str

    @property
    def valid(self) -> bool:
        """Whether the kernel can read it."""
        named = _PATH.fullmatch(self.device) or _IDS.fullmatch(self.device)
        return bool(named) and (self.option == DISABLE or bool(_BITS.fullmatch(self.bits)))

    def wrong(self, word: int) -> bool:
        """Whether a control word is not what the entry asks for."""
        if self.option == DISABLE:
            return bool(word & 0x2C)
        asked = self.bits.lower().removeprefix("0b")
        return any(bit in "01" and int(bit) != word >> at & 1 for at, bit in enumerate(reversed(asked)))

    def devices(self, pci: Pci) -> tuple[Function, ...]:
        """Return the functions that it names."""
        if found := _IDS.fullmatch(self.device):
            vendor, device = (int(part, 16) for part in found.groups())
            return tuple(f for f in pci.functions.values() if _matches(f, vendor, device))
        found = _PATH.fullmatch(self.device)
        if found is None:
            return ()
        address: str | None = _address(found[1])
        for step in found[2].split("/")[1:]:
            address = _child(pci.functions, address, step) if address else None
        function = pci.functions.get(address or "")
        return (function,) if function else ()


def _matches(function: Function, vendor: int, device: int) -> bool:
    # 0 and all ones stand for any
    return all(
        wanted in {0, 0xFFFF, 0xFFFFFFFF} or (shown != "" and int(shown, 16) == wanted)
        for wanted, shown in ((vendor, function.vendor), (device, function.device))
    )


def _address(text: str) -> str:
    head, _, function = text.rpartition(".")
    *domain, bus, device = head.split(":")
    return full_address(f"{(domain or ['0'])[0]:0>4}:{bus:0>2}:{device:0>2}.{function}")


def _child(functions: Mapping[str, Function], parent: str, step: str) -> str | None:
    device, _, number = step.partition(".")
    tail = f":{device:0>2}.{number}".lower()
    return next((a for a, f in functions.items() if f.parents[:1] == (parent,) and a.endswith(tail)), None)


def acs_entries(words: Iterable[str]) -> tuple[AcsEntry, ...]:
    """Return the entries of a boot line; of two lists of one option the kernel takes the last."""
    lists: dict[str, list[AcsEntry]] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name == "--":
            break
        if name != "pci":
            continue
        for part in value.split(","):
            option, _, devices = part.partition("=")
            if option not in {DISABLE, CONFIG}:
                continue
            entries = lists[option] = []
            for device in devices.split(";"):
                bits, at, named = device.rpartition("@")
                entries.append(AcsEntry(option, named.strip(), bits if at else "", device[:100]))
    return tuple(entry for entries in lists.values() for entry in entries)[:MAX_ENTRIES]
