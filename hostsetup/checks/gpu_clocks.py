"""A GPU's clocks are held below what it can do.

What it means
    Somebody set application clocks below the default, the driver says that such a setting limits the clocks, or GPUs of
    one model have different maximum clocks.

Why it matters to training
    Such a GPU is slower than its peers, and the slowest rank sets the pace. It may also be wanted, for steady power; so
    this is for information.

How we tell
    Application clocks against their default, bit 0x2 of the mask of reasons, and `clocks.max.sm` against the other GPUs of
    the model on the host. The default itself may lie below the maximum: boost takes the GPU beyond it. Drivers of the 610
    series no longer tell application clocks ("Requested functionality has been deprecated"); that part is left out there.
    Clocks locked with `-lgc` are not told by any field.

What to do
    `nvidia-smi -i GPU -rac` for application clocks, `nvidia-smi -i GPU -rgc` for locked ones.

How to undo
    `nvidia-smi -i GPU -ac MEMORY,GRAPHICS`, `nvidia-smi -i GPU -lgc MIN,MAX`.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.clocks"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

_MAX, _SET, _DEFAULT = "clocks.max.sm", "clocks.applications.graphics", "clocks.default_applications.graphics"
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_MASK = re.compile(r"0x[0-9a-f]{1,16}", re.IGNORECASE | re.ASCII)
_APPLICATION_CLOCKS = 0x2
_WANTED = "clocks that no setting limits, the same on all GPUs of a model"


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs that tell no clocks."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "clocks", _MAX, _SET) if gpu_state else "")


def judge(gpu_state: Gpus) -> Iterator[Finding]:
    """Tell of each GPU that is held below its default, or differs from its peers."""
    told = gpu_state.read(_MAX, _SET)
    for gpu, why in told.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    good = 0
    for gpu, _ in told.values:
        saw = _held(gpu) or _odd(gpu, gpu_state)
        if not saw:
            good += 1
            continue
        remedy = Remedy(
            "Reset the clocks, unless they are held on purpose.",
            (f"sudo nvidia-smi -i {gpu.index} -rac", f"sudo nvidia-smi -i {gpu.index} -rgc"),
            needs_root=True,
        )
        shown = gpu_state.evidence(gpu, _SET, _DEFAULT, _MAX, *_REASONS)
        yield Finding(State.INFO, saw, _WANTED, gpu.subject, remedy, (shown,), scope="gpu")
    if good:
        yield Finding(State.PASS, saw=f"no setting limits the clocks of {good} GPUs", wanted=_WANTED)


def _held(gpu: Gpu) -> str:
    clock, default, mask = gpu.number(_SET), gpu.number(_DEFAULT), gpu.value(*_REASONS)
    if clock is not None and default is not None and clock < default:
        return f"application clock {clock:g} MHz, by default {default:g} MHz"
    if mask is not None and _MASK.fullmatch(mask) and int(mask, 16) & _APPLICATION_CLOCKS:
        return "the driver says that an application clock limits the GPU"
    return ""


def _odd(gpu: Gpu, gpus: Gpus) -> str:
    peers = Counter(clock for one in gpus.gpus if one.name == gpu.name and (clock := one.number(_MAX)) is not None)
    clock = gpu.number(_MAX)
    if clock is None or not peers:
        return ""
    usual, count = peers.most_common(1)[0]
    if clock == usual or count * 2 <= peers.total():
        return ""
    return f"at most {clock:g} MHz, {usual:g} MHz on most GPUs of this model here"
