"""Persistence mode of a GPU is off.

What it means
    Without persistence mode the driver shuts a GPU down when the last program that uses it ends, and starts it anew for
    the next one.

Why it matters to training
    Each start costs seconds a GPU: the first CUDA call of a run, and every nvidia-smi, is slow. Settings such as a power
    limit or locked clocks are lost in between, and what is read of an idle GPU (link speed, clocks) says little.

How we tell
    `persistence_mode` of nvidia-smi. The service nvidia-persistenced is named when it is known not to run. The audit does
    not switch the mode on.

What to do
    `systemctl enable --now nvidia-persistenced`; where the service is not installed, `nvidia-smi -pm 1` after each boot.

How to undo
    `systemctl disable --now nvidia-persistenced`, or `nvidia-smi -pm 0`.

Sources
    https://docs.nvidia.com/deploy/driver-persistence/index.html
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
    from hostsetup.facts.services import Services

ID = "gpu.persistence"
SOURCE = "https://docs.nvidia.com/deploy/driver-persistence/index.html"

_FIELD = "persistence_mode"
_SERVICE = "nvidia-persistenced"


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and where the mode does not exist."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "persistence mode", _FIELD) if gpu_state else "")


def judge(gpu_state: Gpus, services: Services | None = None) -> Iterator[Finding]:
    """Warn of the GPUs where it is off, all in one."""
    modes = gpu_state.read(_FIELD)
    for gpu, why in modes.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    off = [gpu for gpu, mode in modes.values if mode.lower() != "enabled"]
    if off:
        idle = services is not None and services.loaded(_SERVICE) and not services.active(_SERVICE)
        yield Finding(
            State.WARN,
            saw=f"off on {len(off)} of {len(modes.values)} GPUs" + (f"; {_SERVICE} does not run" if idle else ""),
            wanted="persistence mode on",
            subject=", ".join(f"GPU {gpu.index}" for gpu in off) if len(off) < len(modes.values) else "",
            remedy=_remedy(services),
            evidence=tuple(gpu_state.evidence(gpu, _FIELD) for gpu in off[:8]),
        )
    elif modes.values:
        yield Finding(State.PASS, saw=f"on, on {len(modes.values)} GPUs", wanted="persistence mode on")


def _remedy(services: Services | None) -> Remedy:
    if services is not None and not services.loaded(_SERVICE):
        return Remedy(
            "Switch it on after each boot, or install nvidia-persistenced.", ("sudo nvidia-smi -pm 1",), needs_root=True
        )
    return Remedy("Let nvidia-persistenced run.", (f"sudo systemctl enable --now {_SERVICE}",), needs_root=True)
