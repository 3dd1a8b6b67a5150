"""A host has no GPU, not the GPUs that were expected, or other GPUs than its peers.

What it means
    The driver runs no GPU at all, a GPU is missing, or the number, model or memory of the GPUs differs within the host or
    from host to host.

Why it matters to training
    torchrun starts as many ranks on each host as it is told: a missing GPU ends in "invalid device ordinal" or in two
    ranks on one GPU. Mixed models run at the pace of the slowest, need kernels for every architecture, and shards that fit
    in the largest memory do not fit in the smallest.

How we tell
    nvidia-smi lists index, UUID, PCI address, name and memory of each GPU; `[N/A]` is no number. Names are compared without
    "NVIDIA" and "Tesla", which drivers of some years put before them. Memory differs by some MiB between drivers and with
    ECC: 2 % is no difference. PCI addresses are written as the kernel writes them (`00000000:C1:00.0` is `0000:c1:00.0`).
    "No devices were found" is none; a driver that does not answer is unknown. Two models in one host are a warning, for
    one may serve a display. Across hosts another number or model fails, other memory warns. What a site expects
    (`gpu.inventory.count`, `gpu.inventory.model`, `gpu.inventory.memory_mib`) outranks the majority. That a GPU is on the
    PCI bus and not in the driver's list is also told by pcie.presence. A host without NVIDIA GPUs is skipped; AMD's are not
    read yet.

What to do
    A missing GPU: look into the kernel log for its address, reseat it or cut its power. Mixed hosts: give each run hosts
    of one kind, set `slots=` of a host in the hosts file where it has fewer, or accept the finding
    (`--accept gpu.inventory=REASON`). A display card: hide it from the run by `CUDA_VISIBLE_DEVICES`.

How to undo
    Nothing is changed.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.listed import Listed
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.inventory"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
COUNT, MODEL, MEMORY = "gpu.inventory.count", "gpu.inventory.model", "gpu.inventory.memory_mib"
EXPECTS = {
    COUNT: Want(int, "GPUs of each host"),
    MODEL: Want(str, "the GPUs' model, as nvidia-smi names it, with or without `NVIDIA`"),
    MEMORY: Want(int, "memory of each GPU in MiB; 2 % more or less is no difference"),
}
_TOLERANCE = 0.02
_PROBE = "nvidia-smi-gpus"
_MISSING = Remedy(
    "Look into the kernel log for the missing GPU's address; reseat it, or cut the host's power and start it again.",
    ("sudo journalctl -k -b --no-pager | grep NVRM", "lspci -d 10de: -nn"),
    needs_root=True,
)
_MIXED = Remedy(
    "Give each run hosts of one kind, or set `slots=` in the hosts file; hide a display card by CUDA_VISIBLE_DEVICES; or "
    "accept the finding: --accept gpu.inventory=REASON."
)


def skip(pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs."""
    return nvidia.absent(pci)


def judge(gpus: tuple[Gpu, ...], expect: Expect, listed: Listed | None = None) -> Iterator[Finding]:
    """Fail on no GPU and on what was not expected, warn of mixed models."""
    if not gpus:
        yield Finding(
            State.FAIL,
            saw="the driver finds no GPU",
            wanted=f"{expect.whole(COUNT) or 'at least one'} of them",
            remedy=_MISSING,
            evidence=(f"{_PROBE}: No devices were found",),
        )
        return
    bad = (*_unexpected(gpus, expect), *_too_few(gpus, listed))
    models = Counter(nvidia.model(gpu.name) for gpu in gpus if gpu.name)
    if len(models) > 1 and expect.text(MODEL) is None:
        rare = min(models, key=lambda name: (models[name], name))
        one = next(gpu for gpu in gpus if nvidia.model(gpu.name) == rare)
        yield Finding(
            State.WARN,
            saw=f"several models in one host: {', '.join(f'{n} {name}' for name, n in models.most_common(5))}",
            wanted="GPUs of one model",
            subject=one.subject,
            remedy=_MIXED,
            evidence=tuple(_line(gpu) for gpu in gpus[:8]),
        )
    elif not bad:
        sizes = {gpu.memory_mib for gpu in gpus}
        if len(models) == 1 and None not in sizes and _apart(tuple(size for size in sizes if size is not None)):
            yield Finding(
                State.WARN,
                saw=f"memory of like GPUs differs: {', '.join(f'{gpu.index}: {gpu.memory_mib} MiB' for gpu in gpus[:16])}",
                wanted="the same memory within 2 %",
                remedy=_MIXED,
                evidence=tuple(_line(gpu) for gpu in gpus[:8]),
            )
        else:
            yield Finding(State.PASS, saw=_told(gpus))
    yield from bad


def _too_few(gpus: tuple[Gpu, ...], listed: Listed | None) -> Iterator[Finding]:
    slots = listed.slots if listed is not None else None
    if slots is not None and slots > len(gpus):
        lines = tuple(_line(gpu) for gpu in gpus[:8])
        yield Finding(
            State.FAIL, _told(gpus), f"a GPU for each of slots={slots} in the hosts file", "", _MISSING, lines
        )


def _unexpected(gpus: tuple[Gpu, ...], expect: Expect) -> Iterator[Finding]:
    count, model, memory = expect.whole(COUNT), expect.text(MODEL), expect.whole(MEMORY)
    lines = tuple(_line(gpu) for gpu in gpus[:8])
    if count is not None and len(gpus) != count:
        yield Finding(State.FAIL, _told(gpus), f"{count} GPUs ({expect.origin(COUNT)})", "", _MISSING, lines)
    if model is not None and (other := [gpu for gpu in gpus if gpu.name and not _same(gpu.name, model)]):
        saw = f"{len(other)} of {len(gpus)} GPUs are of another model: {other[0].name}"
        subject = "" if len(other) == len(gpus) else other[0].subject
        yield Finding(State.FAIL, saw, f"{model} ({expect.origin(MODEL)})", subject, _MIXED, lines)
    sizes = [gpu for gpu in gpus if gpu.memory_mib is not None]
    if memory is not None and (off := [gpu for gpu in sizes if _apart((gpu.memory_mib or 0, memory))]):
        saw = f"{len(off)} of {len(gpus)} GPUs have other memory: {off[0].memory_mib} MiB"
        yield Finding(State.WARN, saw, f"{memory} MiB ({expect.origin(MEMORY)})", off[0].subject, _MIXED, lines)


def judge_fleet(
    gpus: Mapping[str, tuple[Gpu, ...]], expect: Expect, listed: Mapping[str, Listed] | None = None
) -> Iterator[Finding]:
    """Fail where number or model differs from host to host, warn where memory does; `slots=` decides a host's number."""
    some = {host: one for host, one in gpus.items() if one}
    if len(some) < 2:
        return
    if expect.whole(COUNT) is None:
        free = {host for host in some if host not in (listed or {}) or (listed or {})[host].slots is None}
        counts = {host: str(len(one)) for host, one in some.items() if host in free}
        yield from _told_apart(counts, "number of GPUs", State.FAIL, _MISSING)
    if expect.text(MODEL) is None:
        models = {host: names for host, one in some.items() if (names := _models(one))}
        yield from _told_apart(models, "model", State.FAIL, _MIXED)
    kinds: dict[str, dict[str, int]] = {}
    for host, one in some.items():
        sizes = [gpu.memory_mib for gpu in one if gpu.memory_mib is not None]
        if sizes and expect.whole(MEMORY) is None:
            kinds.setdefault(_models(one), {})[host] = min(sizes)
    for memory in kinds.values():
        if _apart(tuple(memory.values())):
            told = {host: f"{mib} MiB" for host, mib in memory.items()}
            yield from _told_apart(told, "least memory of a GPU", State.WARN, _MIXED)


def baseline(gpus: tuple[Gpu, ...]) -> Mapping[str, Value]:
    """Return what a good host has."""
    told: dict[str, Value] = {COUNT: len(gpus)}
    models = {nvidia.model(gpu.name) for gpu in gpus if gpu.name}
    sizes = {gpu.memory_mib for gpu in gpus}
    if len(models) == 1:
        told[MODEL] = models.pop()
    if len(sizes) == 1 and (size := sizes.pop()) is not None:
        told[MEMORY] = size
    return told if gpus else {}


def _told_apart(values: Mapping[str, str], what: str, state: State, remedy: Remedy) -> Iterator[Finding]:
    if len(set(values.values())) > 1:
        yield from uniform(values, what, remedy=remedy, state=state, probe=_PROBE)


def _same(name: str, model: str) -> bool:
    return nvidia.model(name).lower() == nvidia.model(model).lower()


def _apart(sizes: tuple[int, ...]) -> bool:
    return bool(sizes) and max(sizes) - min(sizes) > _TOLERANCE * max(sizes)


def _models(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(sorted({nvidia.model(gpu.name) for gpu in gpus if gpu.name}))


def _told(gpus: tuple[Gpu, ...]) -> str:
    models = Counter(nvidia.model(gpu.name) or "GPU of unknown model" for gpu in gpus)
    sizes = [gpu.memory_mib for gpu in gpus if gpu.memory_mib is not None]
    memory = f", {min(sizes)} MiB each" if sizes else ""
    return ", ".join(f"{count} {name}" for name, count in models.most_common(5)) + memory


def _line(gpu: Gpu) -> str:
    return f"{_PROBE}: {gpu.index}, {gpu.address}, {gpu.name}, {gpu.memory_mib} MiB"
