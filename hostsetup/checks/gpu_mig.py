"""A GPU is in MIG mode, or will be after its next reset.

What it means
    With MIG (multi-instance GPU) one GPU is cut into instances that programs see as GPUs of their own.

Why it matters to training
    Instances cannot reach each other's memory: there is no CUDA IPC, hence neither NVLink nor PCIe peer-to-peer between
    them, and NCCL refuses two ranks on one physical GPU. A rank also gets a part of the memory only.

How we tell
    `mig.mode.current` and `mig.mode.pending`. `[N/A]` is a GPU that cannot do it. In MIG mode other fields read `[N/A]`
    too (utilisation, row remapping), and checks of these say so instead of passing. A pending mode that differs from the
    current one takes effect at the next reset: a warning.

What to do
    End what runs on the GPU, then `nvidia-smi -i GPU -mig 0` and, where it stays pending, reset the GPU; reboot if that
    is refused. A host that serves instances on purpose does not belong in a training run, or accept the finding:
    `--accept gpu.mig=REASON`.

How to undo
    `nvidia-smi -i GPU -mig 1`, and create the instances again.

Sources
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    https://docs.rapids.ai/deployment/stable/guides/mig
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.mig"
SOURCE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"

_CURRENT, _PENDING = "mig.mode.current", "mig.mode.pending"
_WANTED = "MIG mode off"


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs that cannot do it."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "MIG", _CURRENT) if gpu_state else "")


def judge(gpu_state: Gpus) -> Iterator[Finding]:
    """Fail GPUs in MIG mode, warn of a change that waits."""
    modes = gpu_state.read(_CURRENT)
    for gpu, why in modes.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    good = 0
    for gpu, mode in modes.values:
        pending = gpu.value(_PENDING)
        on = mode.lower() == "enabled"
        waits = pending is not None and pending != mode
        if on or waits:
            saw = f"MIG mode {'on' if on else 'off'}" + (
                f", {pending.lower()} after the next reset" if pending and waits else ""
            )
            yield Finding(
                State.FAIL if on else State.WARN,
                saw=saw,
                wanted=_WANTED,
                subject=gpu.subject,
                remedy=_remedy(gpu),
                evidence=(gpu_state.evidence(gpu, _CURRENT, _PENDING),),
                scope="gpu",
            )
        else:
            good += 1
    if good:
        yield Finding(State.PASS, saw=f"off on {good} GPUs", wanted=_WANTED)


def _remedy(gpu: Gpu) -> Remedy:
    return Remedy(
        "End what runs on the GPU, switch MIG off, reset the GPU where the change stays pending; reboot if it is refused.",
        (f"sudo nvidia-smi -i {gpu.index} -mig 0", f"sudo nvidia-smi --gpu-reset -i {gpu.index}"),
        needs_root=True,
    )
