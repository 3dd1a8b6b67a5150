"""Knows which NVIDIA GPUs the driver runs: index, UUID, PCI address, model and memory. Counts none that is not listed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts import smi_q, smi_query
from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Evidence, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

# compute_cap came late: older drivers are asked for it alone
PROBES = (
    smi_query.query(
        "nvidia-smi-gpus", ("uuid,pci.bus_id,name,memory.total,driver_version", "compute_cap"), timeout_s=45
    ),
)
_REPORT = {"uuid": "GPU UUID", "name": "Product Name", "memory.total": "FB Memory Usage/Total"}
_NONE = re.compile(r"no devices were found", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `address`: PCI, as sysfs writes it. `memory_mib`, `compute_cap`: None where the driver does not say."""

    index: int
    uuid: str = ""
    address: str = ""
    name: str = ""
    memory_mib: int | None = None
    compute_cap: str = ""
    driver_version: str = ""

    @property
    def subject(self) -> str:
        """How reports name it."""
        return f"GPU {self.index} ({self.address})" if self.address else f"GPU {self.index}"


def _gpu(index: int, fields: Mapping[str, str]) -> Gpu:
    memory = smi_query.number(fields, "memory.total")
    bus_id = smi_query.known(fields, "pci.bus_id", "gpu_bus_id")
    return Gpu(
        index,
        uuid=smi_query.known(fields, "uuid", "gpu_uuid") or "",
        address=full_address(bus_id) if bus_id else "",
        name=(smi_query.known(fields, "name", "gpu_name") or "")[:100],
        memory_mib=round(memory) if memory is not None else None,
        compute_cap=smi_query.known(fields, "compute_cap") or "",
        driver_version=smi_query.known(fields, "driver_version", "kmd_version") or "",
    )


def read(evidence: Evidence) -> Known[tuple[Gpu, ...]] | Unknown:
    """Return the GPUs by index; an empty tuple where the driver says that there are none."""
    for probe in ("nvidia-smi-gpus", smi_q.PROBE, "nvidia-smi"):
        reply = evidence.answer(probe)
        if not isinstance(reply, Unknown) and _NONE.search(reply.text[:500] or reply.error_text[:500]):
            return Known(())
    told = smi_query.ask(evidence, "nvidia-smi-gpus")
    if isinstance(told, Unknown):
        told = _saved(evidence) or told
    if isinstance(told, Unknown):
        return told
    try:
        return Known(tuple(_gpu(index, fields) for index, fields in sorted(told.items())))
    except ValueError as error:
        return Unknown(f"`nvidia-smi-gpus`: {error}")


def _saved(evidence: Evidence) -> dict[int, dict[str, str]]:
    """Return what a saved report of `nvidia-smi -q` tells, in its order, which is that of the indices."""
    reply = evidence.answer(smi_q.PROBE)
    if isinstance(reply, Unknown):
        return {}
    try:
        report = smi_q.parse_smi_q(reply.text)
    except ValueError:
        return {}
    told: dict[int, dict[str, str]] = {}
    for index, (address, values) in enumerate(report.items()):
        fields = {name: values[path].removesuffix(" MiB") for name, path in _REPORT.items() if path in values}
        told[index] = {"pci.bus_id": address, **fields}
    return told


def tell(gpus: tuple[Gpu, ...]) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "count": len(gpus),
        "names": [gpu.name for gpu in gpus],
        "addresses": [gpu.address for gpu in gpus],
        "memory_mib": [gpu.memory_mib for gpu in gpus],
    }
