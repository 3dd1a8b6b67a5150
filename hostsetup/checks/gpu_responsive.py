"""The NVIDIA driver gives no answer, or has lost a GPU.

What it means
    nvidia-smi did not finish in time, or it said that it cannot reach a GPU any more. A process that hangs in the kernel
    (state D, uninterruptible sleep) cannot be killed, not even by root, and every further one hangs beside it.

Why it matters to training
    No rank starts on such a host: the first CUDA call hangs like nvidia-smi does, the other ranks wait in their first
    collective until its timeout, and the job dies after half an hour with a message about another host.

How we tell
    Every call of nvidia-smi has its own time limit; one that ran over it is left behind, and the others are then not made.
    That is the finding; it needs no answer from the driver. Processes in state D with the kernel function that they wait
    in are read from /proc and shown as evidence: on a host that answers, one of them in one sample is nothing, for short
    waits are normal.
    Exit codes: 15, and the words "GPU is lost" or "Unable to determine the device handle", are a GPU that fell off the
    bus; 10 is a problem with its interrupts, 8 a power cable. 14 is a corrupt InfoROM; the table beside it is whole and is
    used. 6 (no GPU), 9 (driver not loaded), 12 (no library) and 18 (library and module of two versions) are answers of a
    driver that is not in use: they are unknown here and judged by gpu.inventory, gpu.modules and gpu.driver.mismatch. 255
    is anything else. A host without NVIDIA GPUs is skipped.

What to do
    Save the kernel log (look for Xid 79, 119 and 120), drain the host and reboot it; when a GPU does not come back, cut its
    power (a cold start by the BMC). Killing the hanging processes does not help. If it happens again on one host, the
    board, its seat or its power is at fault.

How to undo
    Nothing is changed.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/deploy/xid-errors/index.html
    https://docs.kernel.org/filesystems/proc.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.facts.smi_health import MEANINGS
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.smi_health import SmiHealth, Stuck

ID = "gpu.responsive"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

WANTED = "every nvidia-smi call answered within its time limit"
_LOST = re.compile(
    r"GPU is lost|Unable to determine the device handle|fallen off the bus|GPU requires reset", re.IGNORECASE
)
_ADDRESS = re.compile(r"(?<![0-9A-Fa-f:])([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b")
_XIDS = re.compile(r"NVRM: .*?(?:Xid \(PCI:[^)]*\): (?:79|109|119|120|154)\b|fallen off the bus|RmInitAdapter failed)")
_ELSEWHERE = {6: "gpu.inventory", 9: "gpu.modules", 12: "gpu.modules", 18: "gpu.driver.mismatch"}
_HARD = {8, 10, 15}
_REBOOT = Remedy(
    "Save the kernel log, drain the host and reboot it; cut its power when a GPU does not come back. Killing the hanging "
    "processes does not help.",
    ("sudo journalctl -k -b --no-pager | grep -E 'NVRM|nvidia'",),
    needs_root=True,
    needs_reboot=True,
)
_INFOROM = Remedy(
    "Read which GPU it is, and have the vendor restore its InfoROM or replace the board.", ("nvidia-smi -q",)
)


def skip(pci: Pci) -> str:
    """Spare hosts without the driver's GPUs."""
    return nvidia.absent(pci)


def judge(smi_health: SmiHealth, kernel_log: KernelLog | None = None) -> Iterator[Finding]:
    """Fail on silence and on lost GPUs, warn on what else is wrong; what other checks judge is unknown here."""
    logged = kernel_log.find(_XIDS)[-3:] if kernel_log else ()
    evidence = (*_stuck(smi_health.stuck or ()), *(f"dmesg: {line[:300]}" for line in logged))
    if smi_health.late:
        what = f"nvidia-smi gave no answer in time ({len(smi_health.late)} of its probes)"
        hanging = _ours(smi_health.stuck or ())
        if hanging:
            what += f"; {len(hanging)} process{'es' * (len(hanging) > 1)} of the driver in uninterruptible sleep"
        late = tuple(f"{name}: no answer in time" for name in smi_health.late[:4])
        yield Finding(State.FAIL, saw=what, wanted=WANTED, remedy=_REBOOT, evidence=(*late, *evidence))
    lost = tuple(line for line in smi_health.said if _LOST.search(line))
    codes = sorted({code for code in smi_health.codes.values() if code})
    if lost or _HARD & set(codes):
        said = "; ".join(f"exit code {code}: {MEANINGS[code]}" for code in codes if code in _HARD)
        named = _ADDRESS.search(lost[0]) if lost else None
        yield Finding(
            State.FAIL,
            saw=said or lost[0].partition(": ")[2],
            wanted="every GPU within reach of the driver",
            subject=named[1].lower() if named else "",
            remedy=_REBOOT,
            evidence=(*(lost or smi_health.said), *evidence),
        )
        return
    if smi_health.late:
        return
    yield from _rest(smi_health, codes)


def _rest(smi_health: SmiHealth, codes: list[int]) -> Iterator[Finding]:
    elsewhere = [code for code in codes if code in _ELSEWHERE]
    if 14 in codes:
        yield Finding(
            State.WARN,
            saw=f"exit code 14: {MEANINGS[14]}; the values beside it are used",
            wanted="no warning of the driver about its boards",
            remedy=_INFOROM,
            evidence=smi_health.said,
        )
    elif elsewhere:
        told = "; ".join(f"exit code {code}: {MEANINGS[code]} (see {_ELSEWHERE[code]})" for code in elsewhere)
        yield Finding(State.UNKNOWN, saw=told, evidence=smi_health.said)
    elif not smi_health.usable:
        told = "; ".join(f"exit code {code}: {MEANINGS.get(code, 'not documented')}" for code in codes)
        said = smi_health.said[0].partition(": ")[2] if smi_health.said else "it printed nothing"
        yield Finding(State.UNKNOWN, saw=f"nvidia-smi told nothing of any GPU: {said}{f' ({told})' if told else ''}")
    else:
        hanging = _ours(smi_health.stuck or ())
        also = f"; {len(hanging)} of the driver's processes waited in the kernel at that moment" if hanging else ""
        yield Finding(State.PASS, saw=f"nvidia-smi answered each time it was asked{also}", wanted=WANTED)


def _ours(stuck: tuple[Stuck, ...]) -> tuple[Stuck, ...]:
    return tuple(one for one in stuck if one.name.startswith(("nvidia", "nv-", "nv_", "dcgm")))


def _stuck(stuck: tuple[Stuck, ...]) -> Iterator[str]:
    for one in sorted(stuck, key=lambda one: one not in _ours(stuck))[:8]:
        yield f"stuck-processes: {one.pid} ({one.name}) in state D, waits in {one.waits_in}"
