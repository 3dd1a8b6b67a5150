"""Knows a host's PCI functions, from sysfs, from lspci, or from both. Writes to no register."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostsetup.facts.lspci import parse_loose, parse_lspci, parse_setpci
from hostsetup.facts.pci_sysfs import PROBE as SYSFS
from hostsetup.facts.pci_sysfs import parse_sysfs
from hostsetup.facts.pci_tree import Function, Pci
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

PROBES = (Probe("lspci-vvv", "lspci -D -vvv -nn", root=True, timeout_s=30), SYSFS)


def read(evidence: Evidence) -> Known[Pci] | Unknown:
    """Return the functions: sysfs tells the tree, lspci the names, and either the registers that the other lacks."""
    text = _functions(evidence, "lspci-vvv", parse_lspci)
    tree = _functions(evidence, "sysfs-pci", parse_sysfs)
    if isinstance(tree, Unknown):
        loose, source = _loose(evidence)
        if isinstance(text, Unknown):
            return Known(Pci({}, loose, source)) if loose else text
        return Known(Pci(text, loose, source))
    if isinstance(text, Unknown):
        return Known(Pci(tree))
    merged = {**text, **{address: _merge(function, text.get(address)) for address, function in tree.items()}}
    return Known(Pci(merged))


def _loose(evidence: Evidence) -> tuple[tuple[int, ...], str]:
    """Return words without an address: of a grep of lspci, or of setpci by somebody's hand, which we never ask."""
    for probe, parse in (("lspci-vvv", parse_loose), ("setpci", parse_setpci)):
        reply = evidence.answer(probe)
        try:
            if not isinstance(reply, Unknown):
                return parse(reply.text), probe
        except ValueError:
            continue
    return (), ""


def _functions(
    evidence: Evidence, probe: str, parse: Callable[[str], dict[str, Function]]
) -> dict[str, Function] | Unknown:
    reply = evidence.answer(probe)
    if isinstance(reply, Unknown):
        return reply
    try:
        return parse(reply.text)
    except ValueError as error:
        return Unknown(f"`{probe}`: {error}")


def _merge(tree: Function, text: Function | None) -> Function:
    if text is None:
        return tree
    merged = replace(tree, name=text.name, dead=tree.dead or text.dead)
    if tree.acs is None and not tree.acs_absent:
        return replace(merged, acs=text.acs, acs_able=text.acs_able, acs_absent=text.acs_absent, source=text.source)
    return merged


def tell(pci: Pci) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"gpus": [gpu.address for gpu in pci.gpus], "rdma_nics": [nic.address for nic in pci.rdma_nics]}
