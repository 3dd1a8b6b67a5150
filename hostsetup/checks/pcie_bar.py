"""The window into a GPU's memory that PCIe offers (BAR1) is small, or has no address.

What it means
    Other devices reach a GPU's memory through BAR1. With the firmware option for resizable BAR, or on GPUs for data
    centres, it spans all of the memory; without it is 256 MiB. Where the firmware keeps all windows below 4 GiB, there may be
    no room for it at all.

Why it matters to training
    GPUDirect RDMA and transfers between GPUs over PCIe need the peer's memory in that window. A small one limits what can
    be mapped at once: registrations fail, or transfers are staged through the CPU's memory. Without an address the driver may
    not start the GPU.

How we tell
    sysfs shows the size and the address of every window, without root; lspci and nvidia-smi -q show the same. A window
    is small when it holds less than a quarter of the memory (256 MiB and less, where the memory's size is not known). It
    is a warning where peers need it: several GPUs for data centres, or one with an RDMA NIC. Boards with a display output
    offer no such transfers over PCIe without patched drivers, so there it is a remark. The kernel's log often tells of no
    space first and of success later: it counts only where no address was found in the end.

What to do
    In the firmware switch on `Above 4G Decoding` and `Resizable BAR` (also called Re-Size BAR or Smart Access Memory),
    with CSM off. On boards that offer neither, `pci=realloc` in the boot line may find room.

How to undo
    Switch the options off again.

Sources
    https://docs.nvidia.com/cuda/gpudirect-rdma/
    https://docs.kernel.org/admin-guide/kernel-parameters.html
    https://github.com/tinygrad/open-gpu-kernel-modules
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.bar1 import Window
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pci_tree import Pci

ID = "pcie.bar"
SOURCE = "https://docs.nvidia.com/cuda/gpudirect-rdma/"
EXPECTS = {"pcie.bar.mib": Want(int, "size of every GPU's BAR1 in MiB")}

WANTED = "a window that spans the GPU's memory"
_SMALL_MIB = 256
_NO_ROOM = re.compile(r"BAR \d+\b.*(?:no space|can't assign|failed to assign)", re.IGNORECASE)


def skip(pci: Pci) -> str:
    """Spare hosts without GPUs."""
    return "" if pci.gpus or pci.loose else "no GPU"


def judge(
    bar1: tuple[Window, ...], expect: Expect, pci: Pci | None = None, kernel_log: KernelLog | None = None
) -> Iterator[Finding]:
    """Judge each GPU's window by its memory and by who needs it."""
    good: list[int] = []
    wanted = expect.whole("pcie.bar.mib")
    for window in bar1:
        if not window.assigned:
            log = [line for line in kernel_log.find(_NO_ROOM) if window.address in line] if kernel_log else []
            yield _warn(window, f"its {window.size_mib} MiB window has no address: no room was found for it", log)
        elif wanted is not None and window.size_mib < wanted:
            yield _warn(window, f"a window of {window.size_mib} MiB, where {wanted} MiB are expected")
        elif _small(window):
            yield _judged(window, pci)
        else:
            good.append(window.size_mib)
    missing = sorted({gpu.address for gpu in pci.gpus} - {window.address for window in bar1}) if pci else []
    if missing:
        yield Finding(State.UNKNOWN, saw=f"no window is shown of {', '.join(missing[:8])}", wanted=WANTED)
    if good:
        sizes = " and ".join(f"{size} MiB" for size in sorted(set(good))[:4])
        yield Finding(State.PASS, saw=f"windows of {sizes} on {len(good)} GPUs", wanted=WANTED)


def _small(window: Window) -> bool:
    if window.memory_mib is None:
        return window.size_mib <= _SMALL_MIB
    return window.size_mib * 4 < window.memory_mib


def _judged(window: Window, pci: Pci | None) -> Finding:
    of = f" for {window.memory_mib} MiB of memory" if window.memory_mib else ""
    saw = f"a window of {window.size_mib} MiB{of}"
    gpu = pci.functions.get(window.address) if pci else None
    if gpu is None or pci is None:
        return Finding(State.INFO, saw, WANTED, window.address, evidence=(window.line,), scope="gpu")
    peers = len(pci.gpus) > 1 or bool(pci.rdma_nics)
    if gpu.class_code == "0300" or not peers:
        why = (
            "no peer on this host needs more" if not peers else "this board offers no transfers between GPUs over PCIe"
        )
        return Finding(State.INFO, f"{saw}; {why}", WANTED, window.address, evidence=(window.line,), scope="gpu")
    return _warn(window, saw)


def _warn(window: Window, saw: str, log: list[str] | None = None) -> Finding:
    return Finding(
        State.WARN,
        saw,
        WANTED,
        window.address,
        Remedy(
            "Switch `Above 4G Decoding` and `Resizable BAR` on in the firmware, with CSM off; failing that, try pci=realloc.",
            needs_reboot=True,
            needs_firmware=True,
        ),
        (window.line, *(f"dmesg: {line}" for line in (log or [])[:2])),
        scope="gpu",
    )


def baseline(bar1: tuple[Window, ...]) -> Mapping[str, Value]:
    """Return the size that all windows have."""
    sizes = {window.size_mib for window in bar1 if window.assigned}
    return {"pcie.bar.mib": next(iter(sizes))} if len(sizes) == 1 else {}
