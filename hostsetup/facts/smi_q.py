"""Reads the report of `nvidia-smi -q`, section by section, as others may have saved it. Asks for none itself.

`as_query` gives its values the names and the form that `--query-gpu` has, so that whoever reads the one can read the other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROBE = "nvidia-smi-q"
MAX_GPUS = 256
MAX_FIELDS = 1000  # of one GPU; a report has about 250
MAX_DEPTH = 8

_GPU = re.compile(r"GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", re.ASCII)
_QUANTITY = re.compile(r"(-?\d{1,15}(?:\.\d{1,6})?)\s*(?:W|C|MiB|MHz|%|us|bank\(s\))", re.ASCII)

# the bits of NVML's mask of reasons, by their words in the report
_REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}

_NAMES: dict[str, tuple[str, ...]] = {
    "name": ("Product Name",),
    "persistence_mode": ("Persistence Mode",),
    "compute_mode": ("Compute Mode",),
    "vbios_version": ("VBIOS Version",),
    "inforom.img": ("Inforom Version/Image Version",),
    "pci.device_id": ("PCI/Device Id",),
    "pci.sub_device_id": ("PCI/Sub System Id",),
    "mig.mode.current": ("MIG Mode/Current",),
    "mig.mode.pending": ("MIG Mode/Pending",),
    "ecc.mode.current": ("ECC Mode/Current", "Ecc Mode/Current"),
    "ecc.mode.pending": ("ECC Mode/Pending", "Ecc Mode/Pending"),
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": ("ECC Errors/Aggregate/SRAM Threshold Exceeded",),
    "retired_pages.single_bit_ecc.count": ("Retired Pages/Single Bit ECC",),
    "retired_pages.double_bit.count": ("Retired Pages/Double Bit ECC",),
    "retired_pages.pending": ("Retired Pages/Pending Page Blacklist", "Retired Pages/Pending"),
    "remapped_rows.correctable": ("Remapped Rows/Correctable Error",),
    "remapped_rows.uncorrectable": ("Remapped Rows/Uncorrectable Error",),
    "remapped_rows.pending": ("Remapped Rows/Pending",),
    "remapped_rows.failure": ("Remapped Rows/Remapping Failure Occurred",),
    "remapped_rows.histogram.low": ("Remapped Rows/Bank Remap Availability Histogram/Low",),
    "remapped_rows.histogram.none": ("Remapped Rows/Bank Remap Availability Histogram/None",),
    "gpu_recovery_action": ("GPU Recovery Action",),
    "power.limit": (
        "GPU Power Readings/GPU Ceiling Power Limit/Requested Power Limit",
        "GPU Power Readings/Requested Power Limit",
        "Power Readings/Power Limit",
    ),
    "power.default_limit": (
        "GPU Power Readings/GPU Ceiling Power Limit/Default Power Limit",
        "GPU Power Readings/Default Power Limit",
        "Power Readings/Default Power Limit",
    ),
    "enforced.power.limit": (
        "GPU Power Readings/GPU Ceiling Power Limit/Current Power Limit",
        "GPU Power Readings/Current Power Limit",
        "Power Readings/Enforced Power Limit",
    ),
    "power.max_limit": ("GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
    "temperature.gpu": ("Temperature/GPU Current Temp",),
    "temperature.gpu.tlimit": ("Temperature/GPU Current T.Limit Temp", "Temperature/GPU T.Limit Temp"),
    "memory.used": ("FB Memory Usage/Used",),
    "utilization.gpu": ("Utilization/GPU", "Utilization/Gpu"),
    "clocks.max.sm": ("Max Clocks/SM",),
    "clocks.applications.graphics": ("Applications Clocks/Graphics",),
    "clocks.default_applications.graphics": ("Default Applications Clocks/Graphics",),
}
_UNCORRECTED = (
    "SRAM Uncorrectable",
    "SRAM Uncorrectable Parity",
    "SRAM Uncorrectable SEC-DED",
    "DRAM Uncorrectable",
    "Double Bit/Total",
)


def parse_smi_q(text: str) -> dict[str, dict[str, str]]:
    """Read a report: by GPU, as its heading says, the values by their path, such as `ECC Mode/Current`.

    Of values that repeat, as those of processes do, the first is kept.
    """
    gpus: dict[str, dict[str, str]] = {}
    values: dict[str, str] | None = None
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        words = line.strip()
        if not words:
            continue
        heading = _GPU.fullmatch(words)
        if heading:
            values, path = gpus.setdefault(heading[1], {}), []
            if len(gpus) > MAX_GPUS:
                raise ValueError("more GPUs than a host can hold")
            continue
        if values is None or len(values) >= MAX_FIELDS:
            continue
        indent = len(line) - len(line.lstrip())
        while path and path[-1][0] >= indent:
            path.pop()
        name, colon, value = (part.strip() for part in words.partition(":"))
        if colon:
            values.setdefault("/".join([*(above for _, above in path), name])[:300], value[:300])
        elif len(path) < MAX_DEPTH:
            path.append((indent, name[:80]))
    if not any(gpus.values()):
        raise ValueError("no GPU as `nvidia-smi -q` shows it")
    return gpus


def as_query(address: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the values of one GPU by their names in `--query-gpu`, without units."""
    fields = {"pci.bus_id": address}
    for name, paths in _NAMES.items():
        shown = next((values[path] for path in paths if path in values), None)
        if shown is not None:
            quantity = _QUANTITY.fullmatch(shown)
            fields[name] = quantity[1] if quantity else shown
    for where in ("Volatile", "Aggregate"):
        counts = [values[path] for part in _UNCORRECTED if (path := f"ECC Errors/{where}/{part}") in values]
        if counts:
            fields[f"ecc.errors.uncorrected.{where.lower()}.total"] = _sum(counts)
    if values.get("Remapped Rows", "") and "remapped_rows.pending" not in fields:
        fields["remapped_rows.pending"] = fields["remapped_rows.failure"] = values["Remapped Rows"]
    for head, name in (("Clocks Event Reasons", "clocks_event"), ("Clocks Throttle Reasons", "clocks_throttle")):
        told = {reason: values[path] for reason in _REASONS if (path := f"{head}/{reason}") in values}
        if told:
            mask = sum(_REASONS[reason] for reason, state in told.items() if state == "Active")
            fields[f"{name}_reasons.active"] = f"0x{mask:016x}"
    return fields


def _sum(counts: Iterable[str]) -> str:
    numbers = [count for count in counts if count.isascii() and count.isdigit() and len(count) < 16]
    return str(sum(map(int, numbers))) if numbers else next(iter(counts))


def ask(evidence: Evidence) -> list[dict[str, str]] | Unknown:
    """Return what a saved report tells of each GPU, in its order, which is that of the indices."""
    reply = evidence.answer(PROBE)
    if isinstance(reply, Unknown):
        return reply
    try:
        gpus = parse_smi_q(reply.text)
    except ValueError as error:
        return Unknown(f"`{PROBE}`: {error}")
    return [as_query(address, values) for address, values in gpus.items()]
