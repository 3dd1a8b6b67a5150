"""A host has less memory than its peers, little of it free, or it swaps.

What it means
    The kernel counts another amount of memory than on the other hosts; or much of it is taken before a run begins; or
    swap is in use; or huge pages lie reserved that nobody uses.

Why it matters to training
    A host that lost a DIMM runs out first and takes the whole run with it: the kernel kills a rank, and the others wait
    for it. Memory that is taken now is missing for data loaders, pinned buffers, checkpoints on their way to disk and
    offloaded states. Memory of a training process that is swapped out stalls every rank. Reserved huge pages are lost to
    all programs that do not ask for them.

How we tell
    /proc/meminfo and /proc/swaps. Totals are compared between the hosts, within 5 % (kernels reserve a little
    differently). Less than half of it available on a host that should be idle is a warning, our judgement; so are more
    than 10 % reserved as huge pages and free. Swap that is on is told of; more than 1 GiB swapped out to a disk is a
    warning; zram is memory itself and no disk. Host memory smaller than the sum of the GPUs' memory is told of: offloading
    and checkpoint staging want at least that much.

What to do
    Compare the DIMMs with the board's plan (`sudo dmidecode -t memory`); see who holds memory (`ps aux --sort=-rss`);
    `sudo swapoff -a` and the swap line out of /etc/fstab; `sudo sysctl -w vm.nr_hugepages=0`.

How to undo
    `sudo swapon -a`, the line back into /etc/fstab; the number of huge pages as before.

Sources
    https://docs.kernel.org/filesystems/proc.html
    https://github.com/Azure/azurehpc-health-checks
    https://github.com/imbue-ai/cluster-health
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.memory import Memory

ID = "mem.size_swap"
SOURCE = "https://docs.kernel.org/filesystems/proc.html"
EXPECTS = {
    "mem.size_swap.total_gib": Want(float, "how much memory a host has, within 5 %"),
    "mem.size_swap.available_percent": Want(float, "how much of it should be available on an idle host", 50.0),
}

_GIB = 1 << 20  # in KiB
_TOLERANCE = 0.05
_HUGE_PERCENT = 10
_DIMMS = Remedy(
    "Compare the DIMMs that the firmware sees with a host that is right.",
    commands=("sudo dmidecode -t memory",),
    needs_root=True,
)
_HOLDERS = Remedy(
    "See who holds the memory, and end what should not run.", commands=("ps aux --sort=-rss | head -n 20",)
)
_SWAP = Remedy(
    "Switch swap off, and take it out of /etc/fstab.",
    commands=("sudo swapoff -a", "sudo sed -i.bak '/\\sswap\\s/s/^/#/' /etc/fstab"),
    needs_root=True,
)
_HUGE = Remedy(
    "Give back the huge pages that nobody uses.", commands=("sudo sysctl -w vm.nr_hugepages=0",), needs_root=True
)


def judge(memory: Memory, expect: Expect, gpus: tuple[Gpu, ...] | None = None) -> Iterator[Finding]:
    """Warn of memory that is missing, taken, swapped out or reserved for nobody; tell of swap and of small hosts."""
    found = tuple(_findings(memory, expect, gpus or ()))
    said = f"{_gib(memory.total_kib)} GiB of memory"
    if memory.available_kib is not None:
        said += f", {_gib(memory.available_kib)} available"
    yield from found or (Finding(State.PASS, saw=f"{said}, no swap"),)


def _findings(memory: Memory, expect: Expect, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    total = memory.total_kib
    wanted = expect.number("mem.size_swap.total_gib")
    if wanted is not None and not _alike(total, wanted * _GIB):
        origin = expect.origin("mem.size_swap.total_gib")
        yield _warn(
            f"{_gib(total)} GiB of memory", f"{wanted:g} GiB within 5 % ({origin})", _DIMMS, f"MemTotal: {total} kB"
        )
    least = expect.number("mem.size_swap.available_percent") or 0.0
    if memory.available_kib is not None and memory.available_kib * 100 < least * total:
        saw = f"{_gib(memory.available_kib)} of {_gib(total)} GiB available"
        shown = f"MemAvailable: {memory.available_kib} kB"
        yield _warn(
            saw,
            f"at least {least:g} % before a run ({expect.origin('mem.size_swap.available_percent')})",
            _HOLDERS,
            shown,
        )
    if memory.huge_free_kib * 100 > _HUGE_PERCENT * total:
        saw = f"{_gib(memory.huge_free_kib)} GiB reserved as huge pages that nobody uses"
        yield _warn(
            saw, f"at most {_HUGE_PERCENT} % of the memory", _HUGE, f"huge pages free: {memory.huge_free_kib} kB"
        )
    yield from _swap(memory)
    on_gpus = [gpu.memory_mib for gpu in gpus if gpu.memory_mib is not None]
    if on_gpus and sum(on_gpus) * 1024 > total:
        saw = f"{_gib(total)} GiB of host memory, {_gib(sum(on_gpus) * 1024)} GiB of GPU memory"
        yield Finding(State.INFO, saw, "at least as much as the GPUs have, for offloading and checkpoints")


def _swap(memory: Memory) -> Iterator[Finding]:
    on_disk = memory.swap_total_kib - memory.swap_free_kib
    names = ""
    if memory.swaps:
        disks = [swap for swap in memory.swaps if not swap.is_compressed_memory]
        on_disk = sum(swap.used_kib for swap in disks)
        names = f" ({', '.join(swap.name for swap in memory.swaps[:3])})"
    if memory.swap_total_kib <= 0:
        return
    saw = f"swap is on{names}: {_gib(on_disk)} of {_gib(memory.swap_total_kib)} GiB swapped out to disk"
    shown = f"SwapTotal: {memory.swap_total_kib} kB, SwapFree: {memory.swap_free_kib} kB"
    if on_disk > _GIB:
        yield _warn(saw, "nothing swapped out", _SWAP, shown)
    else:
        yield Finding(State.INFO, saw, "no swap", remedy=_SWAP, evidence=(f"proc-meminfo: {shown}",))


def _warn(saw: str, wanted: str, remedy: Remedy, shown: str) -> Finding:
    return Finding(State.WARN, saw, wanted, remedy=remedy, evidence=(f"proc-meminfo: {shown}",))


def judge_fleet(memory: Mapping[str, Memory]) -> Iterator[Finding]:
    """Warn of hosts whose memory is not within 5 % of what most have."""
    totals = {host: one.total_kib for host, one in memory.items()}
    ordered = sorted(totals.values())

    def rank(total: int) -> tuple[int, int]:
        least, most = total * (1 - _TOLERANCE), total / (1 - _TOLERANCE)
        return bisect_right(ordered, most) - bisect_left(ordered, least), total

    usual = max(ordered, key=rank)
    odd = {host: total for host, total in totals.items() if not _alike(total, usual)}
    if odd:
        others = len(totals) - len(odd)
        yield Finding(
            State.WARN,
            saw=f"{_gib(min(odd.values()))} to {_gib(max(odd.values()))} GiB of memory; {_gib(usual)} on {others} other hosts",
            wanted="the same within 5 % on all hosts",
            remedy=_DIMMS,
            evidence=tuple(f"proc-meminfo: {host}: MemTotal: {total} kB" for host, total in odd.items())[:8],
            hosts=tuple(odd),
            scope="cluster",
        )


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _TOLERANCE * max(one, other)


def _gib(kib: float) -> str:
    return f"{kib / _GIB:.1f}"


def baseline(memory: Memory) -> Mapping[str, Value]:
    """Return how much memory there is."""
    return {"mem.size_swap.total_gib": round(memory.total_kib / _GIB, 1)}
