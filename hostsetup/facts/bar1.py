"""Knows the window into each GPU's memory that PCIe offers (BAR1), and whether it has an address. Resizes none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts import smi_q
from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.pcie import Pcie

PROBES: tuple[Probe, ...] = ()  # the replies of facts/pcie.py and facts/gpus.py hold it

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """One GPU's. `memory_mib`: None where the driver does not say. `line`: what showed it."""

    address: str
    size_mib: int
    assigned: bool
    memory_mib: int | None
    line: str


def read(
    evidence: Evidence, pci: Pci | None = None, pcie: Pcie | None = None, gpus: tuple[Gpu, ...] | None = None
) -> Known[tuple[Window, ...]] | Unknown:
    """Return the largest prefetchable window of each GPU, by sysfs or lspci; else what a saved `nvidia-smi -q` says."""
    memory = {gpu.address: gpu.memory_mib for gpu in gpus or ()}
    windows: list[Window] = []
    for gpu in pci.gpus if pci else ():
        port = pcie.ports.get(gpu.address) if pcie else None
        bars = [bar for bar in port.bars if bar.prefetchable] if port else []
        if bars and pcie:
            bar = max(bars, key=lambda bar: bar.size_bytes)
            size = bar.size_bytes // _MIB
            line = f"{pcie.source}: {gpu.address}: BAR {bar.number} {size} MiB{'' if bar.assigned else ', no address'}"
            windows.append(Window(gpu.address, size, bar.assigned, memory.get(gpu.address), line))
    if windows:
        return Known(tuple(windows))
    reply = evidence.answer(smi_q.PROBE)
    if isinstance(reply, Unknown):
        return Unknown("neither sysfs nor lspci shows a memory window of a GPU")
    try:
        return Known(_reported(smi_q.parse_smi_q(reply.text)))
    except ValueError as error:
        return Unknown(f"`{smi_q.PROBE}`: {error}")


def _reported(gpus: Mapping[str, Mapping[str, str]]) -> tuple[Window, ...]:
    windows: list[Window] = []
    for address, values in gpus.items():
        size, memory = (_mib(values.get(f"{part} Memory Usage/Total")) for part in ("BAR1", "FB"))
        if size is not None:
            line = f"{smi_q.PROBE}: BAR1 Memory Usage/Total: {size} MiB"
            windows.append(Window(full_address(address), size, assigned=True, memory_mib=memory, line=line))
    if not windows:
        raise ValueError("no BAR1 in the report")
    return tuple(windows)


def _mib(text: str | None) -> int | None:
    number, _, unit = (text or "").partition(" ")
    return int(number) if unit == "MiB" and number.isascii() and number.isdigit() and len(number) < 12 else None


def tell(bar1: tuple[Window, ...]) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"mib": {window.address: window.size_mib for window in bar1}}
