"""Knows the ACS control words of a host's ports. Refuses to take an unread register for a clean one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.pci_acs import REDIRECTS, SRC_VALID, flags
from hostsetup.model import Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostsetup.facts.pci_tree import Function, Pci

PROBES: tuple[Probe, ...] = ()  # the replies of facts/pci.py hold the registers, too


@dataclass(frozen=True, slots=True)
class Acs:
    """`words`: the control word of each function that has one. `unreadable`: bridges above GPUs and RDMA NICs whose
    register could not be read. `lines`: each word as evidence, after the probe that showed it. `loose`: words of lines
    without an address.
    """  # noqa: D205 - two sentences of one thought

    words: Mapping[str, int]
    unreadable: tuple[str, ...]
    lines: Mapping[str, str]
    loose: tuple[int, ...] = ()
    loose_source: str = "lspci-vvv"

    @property
    def redirecting(self) -> tuple[str, ...]:
        """The functions with a bit that redirects."""
        return tuple(address for address, word in self.words.items() if word & REDIRECTS)

    @property
    def source_validation_only(self) -> tuple[str, ...]:
        """The functions that check the requester's bus number and redirect nothing."""
        return tuple(address for address, word in self.words.items() if word & SRC_VALID and not word & REDIRECTS)


def read(pci: Pci) -> Known[Acs] | Unknown:
    """Return the words; unknown when bridges stand above GPUs or RDMA NICs and not one of them could be read."""
    functions = pci.functions
    if pci.excerpt and not pci.loose:
        return Unknown("an unprivileged listing that shows no bridge: nothing of ACS is in it")
    above = {parent for f in (*pci.gpus, *pci.rdma_nics) for parent in f.parents}
    # without GPUs and NICs every bridge counts: an unprivileged listing stays unreadable
    of_interest = sorted(above or {address for address, f in functions.items() if f.is_bridge})
    unreadable = tuple(address for address in of_interest if not _was_read(functions.get(address)))
    if of_interest and len(unreadable) == len(of_interest) and not pci.loose:
        return Unknown("no ACS register of a PCIe bridge could be read: that needs root (or `sudo -n`)")
    words = {address: f.acs for address, f in functions.items() if f.acs is not None}
    lines = {
        address: f"{functions[address].source}: {address} ACSCtl: {flags(word)}" for address, word in words.items()
    }
    return Known(Acs(words, unreadable, lines, pci.loose, pci.loose_source))


def _was_read(function: Function | None) -> bool:
    return function is not None and (function.acs is not None or function.acs_absent)


def tell(acs: Acs) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "ports": len(acs.words) + len(acs.loose),
        "redirecting": len(acs.redirecting) + sum(1 for word in acs.loose if word & REDIRECTS),
        "source_validation_only": len(acs.source_validation_only)
        + sum(1 for word in acs.loose if word & SRC_VALID and not word & REDIRECTS),
        "readable": not acs.unreadable,
    }
