"""The hosts differ in transparent huge pages.

What it means
    Whether the kernel backs ordinary memory with huge pages by itself (`always`), where a program asks for it (`madvise`)
    or not at all (`never`) is not the same on every host.

Why it matters to training
    No mode is wrong for training: `always` helps some data loaders and costs others memory and pauses while pages are
    put together. But a difference between hosts is a difference in speed and memory that nothing else explains.

How we tell
    The word in brackets in /sys/kernel/mm/transparent_hugepage/enabled. Every mode passes by itself; hosts that differ
    from most are told of, with no warning. A kernel without transparent huge pages is skipped.

What to do
    Set the same on all hosts: `echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`, and
    `transparent_hugepage=madvise` on the boot line to keep it.

How to undo
    Write the mode that was seen into the same file.

Sources
    https://docs.kernel.org/admin-guide/mm/transhuge.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.memory import Memory

ID = "mem.thp"
SOURCE = "https://docs.kernel.org/admin-guide/mm/transhuge.html"
EXPECTS = {"mem.thp": Want(str, "modes of transparent huge pages that are right", many=True)}

_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"
_REMEDY = Remedy(
    "Set the same mode on all hosts, in the file and on the boot line.",
    commands=(f"echo madvise | sudo tee {_FILE}",),
    needs_root=True,
)


def skip(memory: Memory) -> str:
    """Spare kernels that have none."""
    return "this kernel has no transparent huge pages" if memory.thp == "" else ""


def judge(memory: Memory, expect: Expect) -> Iterator[Finding]:
    """Tell of a mode that is not one of the expected; without such a word every mode passes."""
    if memory.thp is None:
        yield Finding(State.UNKNOWN, saw="the mode of transparent huge pages was not read")
        return
    right = expect.several("mem.thp")
    saw = f"transparent huge pages: {memory.thp}" + (f", defrag {memory.thp_defrag}" if memory.thp_defrag else "")
    if right and memory.thp not in right:
        wanted = f"{' or '.join(map(str, right))} ({expect.origin('mem.thp')})"
        yield Finding(State.INFO, saw, wanted, remedy=_REMEDY, evidence=(f"proc-meminfo: thp enabled {memory.thp}",))
    else:
        yield Finding(State.PASS, saw)


def judge_fleet(memory: Mapping[str, Memory]) -> Iterator[Finding]:
    """Tell of hosts with another mode than most."""
    modes = {host: one.thp for host, one in memory.items() if one.thp}
    if len(set(modes.values())) > 1:
        yield from uniform(modes, "transparent huge pages", state=State.INFO, remedy=_REMEDY, probe="proc-meminfo")


def baseline(memory: Memory) -> Mapping[str, Value]:
    """Return the mode."""
    return {"mem.thp": (memory.thp,)} if memory.thp else {}
