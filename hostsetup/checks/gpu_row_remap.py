"""A GPU has memory rows to remap, or can remap no more.

What it means
    GPUs since Ampere replace a bad row of memory by a spare one. The replacement takes effect at the next reset; a bank
    whose spares are used up cannot be repaired.

Why it matters to training
    While a replacement waits, the bad row is still in use: the next uncorrectable error in it ends the run. After a
    failure to remap, the row stays bad for good.

How we tell
    The fields `remapped_rows.*` of nvidia-smi, which print Yes and No or, by older drivers, 1 and 0. A failure, or more
    rows remapped for uncorrectable errors than `gpu.row_remap.uncorrectable` (512): failure, the GPU is to be replaced. A
    remapping that waits: failure until it is reset. Banks with few or no spare rows left: warning. `[N/A]` on GeForce and
    older GPUs, or in MIG mode, is a skip; drivers that lack the fields leave it open, and gpu.xid still sees Xid 63 and 64.

What to do
    Waiting: end the jobs, reset the GPU or reboot. Failure or banks without spares: run the vendor's field diagnostics
    and have the GPU replaced.

How to undo
    Nothing can be taken back: a remapped row stays remapped.

Sources
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.row_remap"
SOURCE = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
EXPECTS = {
    "gpu.row_remap.uncorrectable": Want(int, "how many rows remapped for uncorrectable errors a GPU may have", 512)
}

_PENDING, _FAILURE = "remapped_rows.pending", "remapped_rows.failure"
_UNCORRECTABLE, _CORRECTABLE = "remapped_rows.uncorrectable", "remapped_rows.correctable"
_LOW, _NONE = "remapped_rows.histogram.low", "remapped_rows.histogram.none"
_WANTED = "no remapping that waits or failed"


def skip(pci: Pci | None = None, gpu_repair: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs or drivers that do not tell."""
    return no_gpus(pci, gpu_repair) or (lacks(gpu_repair, "row remapping", _PENDING) if gpu_repair else "")


def judge(gpu_repair: Gpus, expect: Expect) -> Iterator[Finding]:
    """Judge each GPU that remaps rows."""
    told = gpu_repair.read(_PENDING)
    for gpu, why in told.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    good = 0
    for gpu, _ in told.values:
        trouble = _trouble(gpu, expect.whole("gpu.row_remap.uncorrectable"))
        if trouble is None:
            good += 1
            continue
        state, saw, remedy = trouble
        shown = gpu_repair.evidence(gpu, _CORRECTABLE, _UNCORRECTABLE, _PENDING, _FAILURE, _LOW, _NONE)
        yield Finding(state, saw, _WANTED, gpu.subject, remedy, (shown,), scope="gpu")
    if good:
        yield Finding(State.PASS, saw=f"nothing waits, nothing failed on {good} GPUs", wanted=_WANTED)


def _trouble(gpu: Gpu, limit: int | None) -> tuple[State, str, Remedy | None] | None:
    replace = Remedy("Run the vendor's field diagnostics and have the GPU replaced.")
    reset = Remedy(
        "End the jobs, then reset the GPU (with NVSwitches: all GPUs) or reboot.",
        (f"sudo nvidia-smi --gpu-reset -i {gpu.index}",),
        needs_root=True,
    )
    failure, pending = gpu.yes(_FAILURE), gpu.yes(_PENDING)
    rows = gpu.number(_UNCORRECTABLE)
    if failure:
        return State.FAIL, "a row could not be remapped", replace
    if pending:
        return State.FAIL, "a remapping waits for a reset", reset
    if rows is not None and limit is not None and rows > limit:
        return State.FAIL, f"{rows:.0f} rows remapped for uncorrectable errors, more than {limit}", replace
    if pending is None or failure is None:
        shown = f"{_PENDING} {gpu.fields.get(_PENDING)!r}, {_FAILURE} {gpu.fields.get(_FAILURE)!r}"
        return State.UNKNOWN, f"nvidia-smi says {shown}", None
    low, none = gpu.number(_LOW) or 0, gpu.number(_NONE) or 0
    if low or none:
        return State.WARN, f"banks with few spare rows left: {low:.0f}; with none: {none:.0f}", replace
    return None
