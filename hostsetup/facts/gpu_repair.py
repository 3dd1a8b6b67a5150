"""Knows what each NVIDIA GPU says of its own repair: rows remapped, thresholds exceeded, what the driver wants done.

These are fields of newer drivers, group by group, so an old driver costs a few questions more and hides nothing else. The
reasons of slow clocks are asked a second time here: what holds in two answers is no passing change. Judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts import smi_query
from hostsetup.facts.gpu_state import gpus_of

if TYPE_CHECKING:
    from hostsetup.facts.gpu_fields import Gpus
    from hostsetup.model import Evidence, Known, Unknown

PROBE = "nvidia-smi-repair"
PROBES = (
    smi_query.query(
        PROBE,
        (
            "pci.bus_id,clocks_throttle_reasons.active",
            "remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure",
            "remapped_rows.histogram.low,remapped_rows.histogram.none",
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
            "ecc.errors.uncorrected.aggregate.sram",
            "gpu_recovery_action",
            "temperature.gpu.tlimit",
            "inforom.checksum_validation",
        ),
    ),
)


def read(evidence: Evidence) -> Known[Gpus] | Unknown:
    """Return the GPUs with these fields."""
    return gpus_of(evidence, PROBE)
