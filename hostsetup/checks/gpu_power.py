"""A GPU's power limit is below its default, or not that of its peers.

What it means
    The power limit is the ceiling that the GPU's clocks are governed by. It can be lowered by software, per GPU.

Why it matters to training
    A GPU with a lower limit is slower under load than its peers, and every collective waits for the slowest rank. Nothing
    else shows it: such a GPU is healthy.

How we tell
    `power.limit` against `power.default_limit`, against the other GPUs of the same model on the host and, for a fleet,
    on the other hosts. Deliberate caps are common, so this warns and shows the numbers; `gpu.power.limit_w` says what a
    site wants. The enforced limit may be lower still where the board or its cables cannot carry more: that warns, too.
    `[N/A]` is a board that does not tell: a skip.

What to do
    `nvidia-smi -i GPU -pl WATTS`; without persistence mode the setting is lost when the GPU falls idle.

How to undo
    The same command with the former limit.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.power"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
EXPECTS = {"gpu.power.limit_w": Want(float, "the power limit of every GPU, in watts; unless said, its default")}

_LIMIT, _DEFAULT, _ENFORCED, _MAX = "power.limit", "power.default_limit", "enforced.power.limit", "power.max_limit"
_NEAR_W = 1.0


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and boards that do not tell."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "power limit", _LIMIT) if gpu_state else "")


def judge(gpu_state: Gpus, expect: Expect) -> Iterator[Finding]:
    """Warn of each GPU that is capped, or that differs from its peers."""
    told = gpu_state.read(_LIMIT)
    for gpu, why in told.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    limits = [(gpu, limit) for gpu, _ in told.values if (limit := gpu.number(_LIMIT)) is not None]
    good: list[float] = []
    for gpu, limit in limits:
        wanted, saw = _wanted(gpu, limit, limits, expect)
        if not saw:
            good.append(limit)
            continue
        yield Finding(
            State.WARN,
            saw=saw,
            wanted=f"{wanted:g} W",
            subject=gpu.subject,
            remedy=_remedy(gpu, wanted),
            evidence=(gpu_state.evidence(gpu, _LIMIT, _DEFAULT, _ENFORCED, _MAX),),
            scope="gpu",
        )
    if good:
        yield Finding(State.PASS, saw=f"{_span(good)} on {len(good)} GPUs", wanted="the default limit, the same on all")
    elif not limits and not told.gaps:
        yield Finding(State.UNKNOWN, saw="the power limits are no numbers")


def _wanted(gpu: Gpu, limit: float, limits: Sequence[tuple[Gpu, float]], expect: Expect) -> tuple[float, str]:
    """Return the limit that a GPU should have, and what is wrong with the one that it has."""
    wish, default, enforced = expect.number("gpu.power.limit_w"), gpu.number(_DEFAULT), gpu.number(_ENFORCED)
    if wish is not None:
        off = abs(limit - wish) > _NEAR_W
        return wish, f"{limit:g} W, expected {wish:g} W ({expect.origin('gpu.power.limit_w')})" if off else ""
    if default is not None and limit < default - _NEAR_W:
        return default, f"{limit:g} W, {limit / default:.0%} of the default {default:g} W" if default else ""
    if enforced is not None and enforced < limit - _NEAR_W:
        return limit, f"{limit:g} W asked for, {enforced:g} W enforced"
    peers = Counter(other for one, other in limits if one.name == gpu.name)
    usual, count = peers.most_common(1)[0]
    if abs(limit - usual) > _NEAR_W and count * 2 > peers.total():
        return usual, f"{limit:g} W, {usual:g} W on most GPUs of this model here"
    return limit, ""


def _remedy(gpu: Gpu, wanted: float) -> Remedy:
    text = (
        "Set the limit, unless it is lower on purpose; where the enforced limit is the lower one, check power cables."
    )
    return Remedy(text, (f"sudo nvidia-smi -i {gpu.index} -pl {wanted:g}",), needs_root=True)


def _span(limits: Sequence[float]) -> str:
    low, high = min(limits), max(limits)
    return f"{low:g} W" if low == high else f"{low:g} to {high:g} W"


def judge_fleet(gpu_state: Mapping[str, Gpus]) -> Iterator[Finding]:
    """Warn of the hosts whose GPUs of one model have other limits than on most hosts."""
    names = sorted({gpu.name for gpus in gpu_state.values() for gpu in gpus.gpus})
    remedy = Remedy("Set the same limit on every host: nvidia-smi -pl WATTS", needs_root=True)
    for name in names[:16]:
        spans = {
            host: _span(limits)
            for host, gpus in gpu_state.items()
            if (limits := [one for gpu in gpus.gpus if gpu.name == name and (one := gpu.number(_LIMIT)) is not None])
        }
        if len(set(spans.values())) > 1:
            what = f"power limit of {name}" if name else "power limit"
            yield from uniform(spans, what, remedy=remedy, probe="nvidia-smi-state")


def baseline(gpu_state: Gpus) -> Mapping[str, Value]:
    """Return the limit, where all GPUs have the same."""
    limits = {limit for gpu in gpu_state.gpus if (limit := gpu.number(_LIMIT)) is not None}
    return {"gpu.power.limit_w": limits.pop()} if len(limits) == 1 else {}
