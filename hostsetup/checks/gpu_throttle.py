"""A GPU slows itself down, or is hot although nothing runs on it.

What it means
    The hardware halves a GPU's clocks, or worse, when it is too hot or when the power supply pulls the power brake; the
    driver lowers them when the temperature limit is near.

Why it matters to training
    One GPU at half speed makes the whole run half as fast, for every collective waits for it. Nothing fails, so nobody
    looks.

How we tell
    The mask of reasons that nvidia-smi prints (`clocks_event_reasons.active`, before driver 535
    `clocks_throttle_reasons.active`), in two answers one after the other, and the temperature. A mask that is not zero is
    no fault: the idle bit is set on each GPU without work; application clocks, sync boost, display clocks and the
    software power cap (the normal state under load) are not counted either. Thermal slowdown or power brake by hardware
    in both answers: failure. Any of them in one, the general hardware slowdown, and slowdown by software: warning. A GPU
    that is idle and hotter than `gpu.throttle.idle_warn_c` (60) warns, than `gpu.throttle.idle_fail_c` (85) fails. Where
    the driver tells how many degrees are left to the limit, none left warns. Lifetime counters of slowdowns are not
    judged: they speak of any time.

What to do
    Thermal: inlet temperature, fans, dust, blocked airflow, a loose heat sink. Power brake: power supplies and their
    cables, the BMC's event log, the rack's power cap. Compare with the neighbours.

How to undo
    Nothing was changed.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.throttle"
SOURCE = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"
EXPECTS = {
    "gpu.throttle.idle_warn_c": Want(float, "how hot a GPU without work may be, in degrees Celsius", 60.0),
    "gpu.throttle.idle_fail_c": Want(float, "at how many degrees a GPU without work fails", 85.0),
}

_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_HEAT, _LEFT = "temperature.gpu", "temperature.gpu.tlimit"
_MASK = re.compile(r"0x[0-9a-f]{1,16}", re.IGNORECASE | re.ASCII)
_IDLE, _HW, _SW_THERMAL, _HW_THERMAL, _BRAKE = 0x1, 0x8, 0x20, 0x40, 0x80
_LASTING = _HW_THERMAL | _BRAKE
_WORDS = {
    _HW_THERMAL: "hardware thermal slowdown",
    _BRAKE: "hardware power brake",
    _HW: "hardware slowdown",
    _SW_THERMAL: "software thermal slowdown",
}
_WANTED = "no slowdown by heat or power brake"
_COOL = Remedy("Check airflow, fans, inlet temperature and the GPU's heat sink; compare with its neighbours.")
_POWER = Remedy("Check power supplies, their cables and the BMC's event log; a rack's power cap also pulls the brake.")


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs that tell neither reasons nor temperature."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "slowdown", *_REASONS, _HEAT) if gpu_state else "")


def judge(gpu_state: Gpus, expect: Expect, gpu_repair: Gpus | None = None) -> Iterator[Finding]:
    """Judge each GPU by what slows it, then by its heat."""
    good = 0
    gaps = {gpu.index: why for gpu, why in (*gpu_state.read(_HEAT).gaps, *gpu_state.read(*_REASONS).gaps)}
    one_report = gpu_repair is not None and gpu_repair.source == gpu_state.source  # saved, and no two answers
    for gpu in gpu_state.gpus:
        if gpu.index in gaps:
            yield Finding(State.UNKNOWN, gaps[gpu.index], _WANTED, gpu.subject, scope="gpu")
            continue
        again = next((one for one in gpu_repair.gpus if one.index == gpu.index), None) if gpu_repair else None
        first = _mask(gpu)
        if first is None and gpu.number(_HEAT) is None:
            yield Finding(State.UNKNOWN, "nvidia-smi tells neither reasons nor heat", _WANTED, gpu.subject, scope="gpu")
            continue
        trouble = _slow(first or 0, None if one_report else _mask(again)) or _hot(gpu, again, first, expect)
        if trouble is None:
            good += 1
            continue
        state, saw, remedy = trouble
        shown = [gpu_state.evidence(gpu, *_REASONS, _HEAT, "utilization.gpu")]
        if gpu_repair and again and not one_report:
            shown.append(gpu_repair.evidence(again, *_REASONS, _LEFT))
        yield Finding(state, saw, _WANTED, gpu.subject, remedy, tuple(shown), scope="gpu")
    if good:
        yield Finding(State.PASS, saw=f"nothing slows {good} GPUs{_heat(gpu_state)}", wanted=_WANTED)


def _mask(gpu: Gpu | None) -> int | None:
    value = gpu.value(*_REASONS) if gpu is not None else None
    return int(value, 16) if value is not None and _MASK.fullmatch(value) else None


def _slow(first: int, second: int | None) -> tuple[State, str, Remedy] | None:
    both = first & second if second is not None else 0
    seen = first | (second or 0)
    words = [word for bit, word in _WORDS.items() if seen & bit]
    if not words:
        return None
    remedy = _POWER if seen & _BRAKE else _COOL
    if both & _LASTING:
        return State.FAIL, f"{', '.join(words)}, in two answers", remedy
    return State.WARN, ", ".join(words), remedy


def _hot(gpu: Gpu, again: Gpu | None, mask: int | None, expect: Expect) -> tuple[State, str, Remedy] | None:
    heat = gpu.number(_HEAT)
    left = again.number(_LEFT) if again is not None else None
    if left is not None and left <= 0:
        return State.WARN, f"{left:g} degrees left to its temperature limit", _COOL
    idle = bool(mask & _IDLE) if mask is not None else gpu.number("utilization.gpu") == 0
    if heat is None or not idle:
        return None
    warn, fail = expect.number("gpu.throttle.idle_warn_c"), expect.number("gpu.throttle.idle_fail_c")
    if fail is not None and heat > fail:
        return State.FAIL, f"{heat:g} C without work, more than {fail:g} C", _COOL
    if warn is not None and heat > warn:
        return State.WARN, f"{heat:g} C without work, more than {warn:g} C", _COOL
    return None


def _heat(gpus: Gpus) -> str:
    heats = [heat for gpu in gpus.gpus if (heat := gpu.number(_HEAT)) is not None]
    return f"; at most {max(heats):g} C" if heats else ""
