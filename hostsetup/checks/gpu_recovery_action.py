"""The driver itself says that a GPU needs recovery.

What it means
    Newer drivers conclude from a GPU's errors what must be done before it is used again: nothing, end its peer-to-peer
    traffic, reset it, or reboot the host.

Why it matters to training
    A GPU that waits for its recovery refuses new work, or takes it and fails. The driver's verdict is better founded than
    any reading of Xids from outside.

How we tell
    `gpu_recovery_action` of nvidia-smi: anything but None fails. A GPU that prints `[GPU requires reset]` in place of its
    values says the same on any driver. Drivers without the field are a skip: gpu.xid judges by the log alone there.

What to do
    What it says. Reset: end all jobs on the GPU, then `nvidia-smi --gpu-reset -i GPU`; on machines with NVSwitches reset
    all GPUs together. Drain: end the jobs of all GPUs that talk to it. Reboot: reboot the host.

How to undo
    Nothing was changed.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.gpu_fields import Said, lacks, no_gpus, said
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.recovery_action"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

_FIELD = "gpu_recovery_action"
_WANTED = "recovery action None"


def skip(pci: Pci | None = None, gpu_repair: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and drivers without the field unless a GPU asks for its reset in other words."""
    if gpu_repair is None:
        return no_gpus(pci, gpu_repair)
    return "" if any(map(_requires_reset, gpu_repair.gpus)) else lacks(gpu_repair, "recovery action", _FIELD)


def judge(gpu_repair: Gpus) -> Iterator[Finding]:
    """Fail GPUs for which the driver wants anything."""
    good = 0
    for gpu in gpu_repair.gpus:
        action = gpu.value(_FIELD)
        if _requires_reset(gpu):
            action = "GPU requires reset"
        elif action is None:
            if said(gpu.fields.get(_FIELD)) is Said.ERROR:
                yield Finding(
                    State.UNKNOWN, f"nvidia-smi says {gpu.fields[_FIELD]!r}", _WANTED, gpu.subject, scope="gpu"
                )
            continue
        elif action.lower() == "none":
            good += 1
            continue
        shown = [name for name, value in gpu.fields.items() if name == _FIELD or said(value) is Said.RESET]
        yield Finding(
            State.FAIL,
            saw=f"the driver wants: {action[:80]}",
            wanted=_WANTED,
            subject=gpu.subject,
            remedy=_remedy(gpu, action.lower()),
            evidence=(gpu_repair.evidence(gpu, *shown[:4]),),
            scope="gpu",
        )
    if good:
        yield Finding(State.PASS, saw=f"None on {good} GPUs", wanted=_WANTED)


def _requires_reset(gpu: Gpu) -> bool:
    return any(said(value) is Said.RESET for value in gpu.fields.values())


def _remedy(gpu: Gpu, action: str) -> Remedy:
    if "reboot" in action:
        return Remedy("End the jobs and reboot the host.", needs_root=True, needs_reboot=True)
    if "reset" in action:
        text = "End the jobs on the GPU and reset it; where there are NVSwitches, reset all GPUs together."
        return Remedy(text, (f"sudo nvidia-smi --gpu-reset -i {gpu.index}",), needs_root=True)
    return Remedy("End the jobs of all GPUs that exchange data with this one, then look again.")
