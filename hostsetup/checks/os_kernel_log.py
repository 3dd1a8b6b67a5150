"""The kernel reports broken memory, a full memory, a hang or a failing disk.

What it means
    Since the host started, the kernel has written lines that tell of a fault beside the GPUs (those have checks of their
    own): uncorrected memory or machine-check errors (failure); processes killed for want of memory, tasks that hang,
    processors that are stuck, errors of disks and file systems (warning).

Why it matters to training
    Uncorrected errors end processes at random, and corrupt what they do not end. A killed worker of a data loader ends
    the run minutes later with an error that names no memory. A disk that resets shows as a collective that waits.

How we tell
    From the kernel's log of this boot, by the journal or by dmesg. Only the kernel's own sentences count: a mount option
    such as `errors=remount-ro` is no read-only remount, a driver that introduces itself (`EDAC MC: Ver`) no memory
    error, an empty floppy or DVD drive no failing disk. Corrected errors are told, not judged. One line is shown of each
    kind, the last, with how many there are. dmesg forgets its beginning: where the first lines of the boot are gone, an
    empty result is only told and proves nothing. Container limits kill by memory, too: then the line says `Memory cgroup`.

What to do
    Uncorrected memory or machine-check errors: take the host out of the fleet, have the DIMM or CPU that
    `ras-mc-ctl --errors` or the machine's controller names replaced. Out of memory: fewer data loader workers, or more
    memory. Hung tasks and stuck processors: see what the task waited for (storage, driver). Disk errors: `smartctl -a`,
    `nvme smart-log`, then replace it. After the repair a reboot clears this finding.

How to undo
    There is nothing to undo.

Sources
    https://docs.kernel.org/admin-guide/RAS/main.html
    https://docs.kernel.org/admin-guide/sysctl/kernel.html
    https://docs.kernel.org/mm/oom.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from re import Pattern

    from hostsetup.facts.kernel_log import KernelLog

ID = "os.kernel_log"
SOURCE = "https://docs.kernel.org/admin-guide/RAS/main.html"

_DISKS = r"dev (?!fd\d|sr\d|loop)"
_KINDS: tuple[tuple[State, str, Pattern[str], str], ...] = (
    (
        State.FAIL,
        "uncorrected memory error",
        re.compile(r"EDAC \w+: *\d+ UE |Memory failure: 0x[0-9a-f]+: |[Uu]ncorrected hardware memory error"),
        "Take the host out of the fleet; have the DIMM that the machine's controller names replaced.",
    ),
    (
        State.FAIL,
        "uncorrected machine-check error",
        re.compile(
            r"\[Hardware Error\]: *(Uncorrected|Deferred|event severity: (fatal|recoverable))|Machine Check Exception: "
            r"|mce: .*Fatal machine check|mce: .*[Uu]ncorrected"
        ),
        "Take the host out of the fleet; have its maker look at the machine-check records.",
    ),
    (
        State.WARN,
        "process killed for want of memory",
        re.compile(r"[Oo]ut of memory: (Killed|Kill) process|Memory cgroup out of memory: (Killed|Kill) process"),
        "Use fewer data loader workers, a larger container limit, or more memory.",
    ),
    (
        State.WARN,
        "hung task",
        re.compile(r"INFO: task .{1,64}:\d+ blocked for more than \d+ seconds"),
        "See what the task waited for: the lines after it name storage, network file system or driver.",
    ),
    (
        State.WARN,
        "stuck processor",
        re.compile(r"BUG: soft lockup - CPU#|[Hh]ard LOCKUP|rcu_\w+ (self-)?detected (expedited )?stall"),
        "See the stack after the line; update the driver or kernel that it names.",
    ),
    (
        State.WARN,
        "kernel error",
        re.compile(r"kernel BUG at |\bOops: |BUG: unable to handle "),
        "The kernel has tripped over itself: reboot the host, and update the driver or kernel that the line names.",
    ),
    (
        State.WARN,
        "disk error",
        re.compile(rf"(I/O error|critical (medium|target) error), {_DISKS}|Buffer I/O error on {_DISKS}"),
        "Look at the disk with `smartctl -a` or `nvme smart-log`, and replace it.",
    ),
    (
        State.WARN,
        "NVMe reset",
        re.compile(r"nvme nvme\d+: (controller is down; will reset|I/O .{1,80}timeout, (aborting|reset|completion))"),
        "Update the drive's firmware; look at `nvme smart-log` and the slot.",
    ),
    (
        State.WARN,
        "file system error",
        re.compile(
            r"EXT4-fs error \(device |XFS \(.{1,40}\): .*(Corruption|[Ss]hut(ting)? down|metadata I/O error)"
            r"|BTRFS (error|critical) \(device |[Rr]emounting filesystem read-only|forced readonly"
        ),
        "Unmount and check the file system; look at the disk below it.",
    ),
)
_CORRECTED = re.compile(r"EDAC \w+: *\d+ CE |\[Hardware Error\]: *(Corrected error|event severity: corrected)")
_SHOWN = 300


def judge(kernel_log: KernelLog) -> Iterator[Finding]:
    """Tell each kind of fault once."""
    told = False
    for state, what, pattern, text in _KINDS:
        lines = kernel_log.find(pattern)
        if lines:
            told = True
            yield Finding(
                state,
                saw=f"{what}, {len(lines)} line{'' if len(lines) == 1 else 's'}; the last: {lines[-1][:160]}",
                wanted=f"no {what} since the host started",
                subject=what,
                remedy=Remedy(text, needs_root=True, needs_reboot="reboot" in text),
                evidence=(f"dmesg: {lines[-1][:_SHOWN]}",),
            )
    corrected = kernel_log.find(_CORRECTED)
    if corrected:
        saw = f"{len(corrected)} lines of corrected memory or machine-check errors"
        yield Finding(State.INFO, saw=saw, subject="corrected errors", evidence=(f"dmesg: {corrected[-1][:_SHOWN]}",))
    if told or corrected:
        return
    if kernel_log.whole:
        yield Finding(State.PASS, saw=f"nothing of the kind in {len(kernel_log.lines)} lines of this boot")
    else:
        yield Finding(
            State.INFO,
            saw=f"nothing of the kind in the {len(kernel_log.lines)} lines that are left; the boot's first are gone",
        )
