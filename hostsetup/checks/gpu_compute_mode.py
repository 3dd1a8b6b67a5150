"""A GPU's compute mode keeps programs away.

What it means
    The compute mode says how many programs may use a GPU at once: any number (Default), one (Exclusive_Process) or none
    (Prohibited).

Why it matters to training
    On a prohibited GPU every CUDA program fails at its first call: "all CUDA-capable devices are busy or unavailable".
    With exclusive mode the rank works, but an evaluation job or a helper process that touches the same GPU fails, and a
    process left over from the last run blocks the next one.

How we tell
    `compute_mode` of nvidia-smi: Prohibited fails, Exclusive_Process and the old Exclusive_Thread warn. Sites whose
    scheduler sets exclusive mode on purpose accept the finding.

What to do
    `nvidia-smi -i GPU -c 0`; the setting lasts until the driver is loaded anew.

How to undo
    `nvidia-smi -i GPU -c 3` for exclusive mode.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.gpu_fields import Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.compute_mode"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

_FIELD = "compute_mode"
_WANTED = "compute mode Default"


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "compute mode", _FIELD) if gpu_state else "")


def judge(gpu_state: Gpus) -> Iterator[Finding]:
    """Fail prohibited GPUs, warn of exclusive ones."""
    modes = gpu_state.read(_FIELD)
    for gpu, why in modes.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    good = 0
    for gpu, mode in modes.values:
        if mode == "Default":
            good += 1
            continue
        yield Finding(
            State.FAIL if mode == "Prohibited" else State.WARN,
            saw=f"compute mode {mode[:40]}",
            wanted=_WANTED,
            subject=gpu.subject,
            remedy=Remedy("Set the default mode.", (f"sudo nvidia-smi -i {gpu.index} -c 0",), needs_root=True),
            evidence=(gpu_state.evidence(gpu, _FIELD),),
            scope="gpu",
        )
    if good:
        yield Finding(State.PASS, saw=f"Default on {good} GPUs", wanted=_WANTED)
