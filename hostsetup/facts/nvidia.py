"""Knows what concerns every question about NVIDIA GPUs: whether a host has any, and how a model is called. Asks nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from hostsetup.facts.driver import Driver
    from hostsetup.facts.pci_tree import Pci

_BRAND = re.compile(r"^(?:NVIDIA|Tesla|Quadro)\s+", re.IGNORECASE)
_CONSUMER = re.compile(r"\bGeForce\b|\bTITAN\b", re.IGNORECASE)


def absent(pci: Pci) -> str:
    """Return why checks of NVIDIA GPUs do not apply to a host, or an empty string where they do."""
    vendors = {gpu.vendor for gpu in pci.gpus}
    if "10de" in vendors:
        return ""
    return "AMD GPUs are not read yet" if "1002" in vendors else "no NVIDIA GPU"


def present(pci: Pci | None, driver: Driver | None, runtimes: Container[str]) -> bool | None:
    """Return whether a host has NVIDIA GPUs, by its PCI tree, or else by what was installed for them; None: nothing tells."""
    if pci is not None:
        return not absent(pci)
    return True if (driver is not None and driver.loaded) or "nvidia" in runtimes else None


def model(name: str) -> str:
    """Return a GPU's name without the brands that drivers of some years put before it and others do not."""
    while short := _BRAND.match(name):
        name = name[short.end() :]
    return " ".join(name.split())


def is_consumer(name: str) -> bool:
    """Whether a card is sold for desktops: GeForce or TITAN."""
    return bool(_CONSUMER.search(name))


def numbers(version: str) -> tuple[int, ...]:
    """Return a driver's version as numbers that compare; raise ValueError when it is none."""
    if not re.fullmatch(r"\d{1,5}(?:\.\d{1,5}){0,3}", version, re.ASCII):
        raise ValueError(f"not a version: {version[:40]!r}")
    return tuple(int(part) for part in version.split("."))
