"""A GPU counted memory errors that cannot be corrected, or its ECC is not as it should be.

What it means
    ECC corrects flips of single bits in a GPU's memory and detects worse ones. "Volatile" counts go back to the last
    start of the driver, "aggregate" ones to the factory.

Why it matters to training
    An uncorrectable error ends the program that touches the memory, and with it the run. Without ECC a flipped bit goes
    into the weights unseen. GPUs with ECC on and off differ in memory size and speed: the slowest sets the pace.

How we tell
    ECC mode and the counts of uncorrectable errors, by nvidia-smi. Since this start of the driver: failure. The driver
    says that a GPU's SRAM has passed its threshold, or more SRAM errors than `gpu.ecc.sram_errors` over its life:
    failure, the GPU is to be replaced. Other errors over its life: warning, on Ampere and newer they have been repaired by
    row remapping at a reset. ECC off on a data-centre GPU, GPUs or hosts that differ, a change that waits for a reset:
    warning. Corrected errors are normal, in thousands too, and are not judged. GeForce cards have no ECC: `[N/A]` there is
    a skip, whatever the other fields say.

What to do
    Reset the GPU or reboot, and audit again; replace GPUs whose SRAM counts. Modes: `nvidia-smi -i GPU -e 1`, then
    reboot.

How to undo
    `nvidia-smi -i GPU -e 0`, then reboot.

Sources
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/nvidia/debug.md
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.ecc"
SOURCE = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
EXPECTS = {
    "gpu.ecc.sram_errors": Want(int, "how many uncorrectable SRAM errors over its life a GPU may have", 4),
    "gpu.ecc.on": Want(bool, "whether ECC is on; unless said, data-centre GPUs have it on, others as they like"),
}

_MODE, _PENDING = "ecc.mode.current", "ecc.mode.pending"
_VOLATILE, _AGGREGATE = "ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total"
_SRAM, _THRESHOLD = "ecc.errors.uncorrected.aggregate.sram", "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"
_DATA_CENTRE = re.compile(r"\b(Tesla|[VAHBL]\d{2,3}[A-Z]?|GH200|GB[23]00|P100|T4)\b", re.ASCII)
_WANTED = "ECC on and no uncorrectable error"
_RESET = "End the jobs and reset the GPU or reboot, then audit again; if errors return, have the GPU replaced."
_WATCH = Remedy(
    "Nothing now: compare gpu.row_remap, and the count with that of the next audit; one that grows is a board to replace."
)


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs without ECC."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "ECC", _MODE) if gpu_state else "")


def judge(gpu_state: Gpus, expect: Expect, gpu_repair: Gpus | None = None) -> Iterator[Finding]:
    """Judge the errors first, then the mode, of each GPU that has ECC."""
    modes = gpu_state.read(_MODE)
    for gpu, why in modes.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    usual = Counter(mode for _, mode in modes.values).most_common(1)
    good = 0
    for gpu, mode in modes.values:
        repair = next((one for one in gpu_repair.gpus if one.index == gpu.index), None) if gpu_repair else None
        trouble = _errors(gpu, repair, expect) or _mode(gpu, mode, usual[0][0], expect)
        if trouble is None and mode.lower() == "enabled" and gpu.number(_VOLATILE) is None:
            told = gpu.fields.get(_VOLATILE, "nothing")
            yield Finding(
                State.UNKNOWN, f"ECC on; of its errors nvidia-smi says {told!r}", _WANTED, gpu.subject, scope="gpu"
            )
            continue
        if trouble is None:
            good += 1
            continue
        state, saw, remedy = trouble
        shown = [gpu_state.evidence(gpu, _MODE, _PENDING, _VOLATILE, _AGGREGATE)]
        if gpu_repair and repair and any(name in repair.fields for name in (_SRAM, _THRESHOLD)):
            shown.append(gpu_repair.evidence(repair, _SRAM, _THRESHOLD))
        yield Finding(state, saw, _WANTED, gpu.subject, remedy, tuple(shown), scope="gpu")
    if good:
        yield Finding(
            State.PASS, saw=f"{good} GPUs without uncorrectable errors, ECC {_modes(gpu_state)}", wanted=_WANTED
        )


def _errors(gpu: Gpu, repair: Gpu | None, expect: Expect) -> tuple[State, str, Remedy] | None:
    limit = expect.whole("gpu.ecc.sram_errors")
    if repair is not None and repair.yes(_THRESHOLD):
        return State.FAIL, "the driver says that SRAM errors exceed their threshold", Remedy("Have the GPU replaced.")
    sram = repair.number(_SRAM) if repair is not None else None
    if sram is not None and limit is not None and sram > limit:
        return State.FAIL, f"{sram:.0f} uncorrectable SRAM errors, more than {limit}", Remedy("Have the GPU replaced.")
    counts = gpu.number(_VOLATILE), gpu.number(_AGGREGATE)
    reset = Remedy(_RESET, (f"sudo nvidia-smi --gpu-reset -i {gpu.index}",), needs_root=True)
    if counts[0]:
        return State.FAIL, f"{counts[0]:.0f} uncorrectable errors since the driver started", reset
    if counts[1]:
        return State.WARN, f"{counts[1]:.0f} uncorrectable errors over its life, none since the driver started", _WATCH
    return None


def _mode(gpu: Gpu, mode: str, usual: str, expect: Expect) -> tuple[State, str, Remedy] | None:
    on = mode.lower() == "enabled"
    wish = expect.get("gpu.ecc.on")
    if wish is None and _DATA_CENTRE.search(gpu.name):
        wish = True
    text = "Set the mode and reboot."
    remedy = Remedy(
        text, (f"sudo nvidia-smi -i {gpu.index} -e {0 if wish is False else 1}",), needs_root=True, needs_reboot=True
    )
    if wish is not None and on != wish:
        return State.WARN, f"ECC {'on' if on else 'off'}" + (f" on {gpu.name[:60]}" if gpu.name else ""), remedy
    pending = gpu.value(_PENDING)
    if pending is not None and pending != mode:
        return (
            State.WARN,
            f"ECC {mode.lower()}, {pending.lower()} after the next reset",
            Remedy("Reboot the host.", needs_root=True, needs_reboot=True),
        )
    if mode != usual:
        return State.WARN, f"ECC {mode.lower()}, {usual.lower()} on most GPUs of this host", remedy
    return None


def _modes(gpus: Gpus) -> str:
    modes = {"on" if mode.lower() == "enabled" else "off" for _, mode in gpus.read(_MODE).values}
    return " and ".join(sorted(modes)) or "unknown"


def judge_fleet(gpu_state: Mapping[str, Gpus]) -> Iterator[Finding]:
    """Warn of the hosts whose mode is not that of most hosts."""
    modes = {host: _modes(gpus) for host, gpus in gpu_state.items() if gpus.read(_MODE).values}
    if len(set(modes.values())) > 1:
        remedy = Remedy("Set the same mode on every host, then reboot.", needs_root=True, needs_reboot=True)
        yield from uniform(modes, "ECC mode", remedy=remedy, probe="nvidia-smi-state")


def baseline(gpu_state: Gpus) -> Mapping[str, Value]:
    """Return the mode, where all GPUs have the same."""
    modes = _modes(gpu_state)
    return {"gpu.ecc.on": modes == "on"} if modes in {"on", "off"} else {}
