"""Knows each NVIDIA GPU's modes, limits, temperature and use, in one question that drivers since 450 all understand.

Where it was not asked, a saved `nvidia-smi -q` tells the same. Judges nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hostsetup.facts import smi_q, smi_query
from hostsetup.facts.gpu_fields import Gpus, gpu
from hostsetup.model import Evidence, Known, Unknown

if TYPE_CHECKING:
    from hostsetup.model import Reply

PROBE = "nvidia-smi-state"
# the old names of the reasons: drivers up to 610 take them as well as the new ones, and those before 535 no other
PROBES = (
    smi_query.query(
        PROBE,
        (
            "pci.bus_id,name,persistence_mode,compute_mode,memory.used,utilization.gpu,temperature.gpu",
            "vbios_version,inforom.img,pci.device_id,pci.sub_device_id",
            "mig.mode.current,mig.mode.pending",
            "ecc.mode.current,ecc.mode.pending",
            "ecc.errors.uncorrected.volatile.total,ecc.errors.uncorrected.aggregate.total",
            "retired_pages.single_bit_ecc.count,retired_pages.double_bit.count,retired_pages.pending",
            "power.limit,power.default_limit,power.max_limit,enforced.power.limit",
            "clocks_throttle_reasons.active",
            "clocks.max.sm,clocks.applications.graphics,clocks.default_applications.graphics",
        ),
    ),
)

_REMARK = re.compile(r"\b(WARNING|ERROR|infoROM|Unable to determine)\b", re.IGNORECASE)
_MAX_REMARKS = 16


def read(evidence: Evidence) -> Known[Gpus] | Unknown:
    """Return the GPUs with these fields."""
    return gpus_of(evidence, PROBE)


def gpus_of(evidence: Evidence, probe: str) -> Known[Gpus] | Unknown:
    """Return what a query tells of the GPUs, or else what a saved report tells."""
    table = smi_query.ask(evidence, probe)
    if not isinstance(table, Unknown):
        told = tuple(gpu(index, fields) for index, fields in sorted(table.items()))
        return Known(Gpus(told, probe, remarks(evidence.answer(probe))))
    report = smi_q.ask(evidence)
    if isinstance(report, Unknown):
        return table
    told = tuple(gpu(index, fields) for index, fields in enumerate(report))
    return Known(Gpus(told, smi_q.PROBE, remarks(evidence.answer(smi_q.PROBE))))


def remarks(reply: Reply | Unknown) -> tuple[str, ...]:
    """Return the warnings that nvidia-smi prints beside its answer."""
    if isinstance(reply, Unknown):
        return ()
    lines = (*reply.text.splitlines(), *reply.error_text.splitlines())
    return tuple(line.strip()[:200] for line in lines if _REMARK.search(line) and ": " in line and "," not in line)[
        :_MAX_REMARKS
    ]


def tell(gpu_state: Gpus) -> dict[str, Any]:
    """Return the facts for JSON."""
    shown = ("name", "persistence_mode", "mig.mode.current", "ecc.mode.current", "power.limit")
    return {
        "gpus": [
            {"index": one.index, "address": one.address, **{name: one.value(name) for name in shown}}
            for one in gpu_state.gpus
        ]
    }
