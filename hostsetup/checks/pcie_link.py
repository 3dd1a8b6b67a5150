"""A PCIe link of a GPU or an RDMA NIC runs with fewer lanes, or slower, than both of its ends can.

What it means
    Links negotiate their width and speed when they come up. A bad contact, riser, cable or retimer, or a setting of the
    firmware, makes them settle for less, on the device's own link or between a switch and the processor.

Why it matters to training
    Half the lanes are half the bandwidth for loading data, for offloading, for transfers between GPUs without NVLink, and
    for RDMA. In a group of ranks the slowest link sets the pace of all.

How we tell
    sysfs (or lspci) shows what is in use and what is possible at both ends of every link from the device up to the root
    port; the lesser of the two ends is what to expect. Fewer lanes than that are a failure for NICs and for the GPUs of data
    centres, a warning for boards with a display output. A port that is wired with fewer lanes than the card has is a remark:
    that is the slot. GPUs slow their links down while idle, so a low speed counts only under load; NICs and switches do not
    do so. lspci never marks ports as downgraded, so its mark is not used. GPUs of one model that differ from the
    others of the host, and hosts that differ from the others, are warnings. A link that shows no width (a dead device, no
    root for lspci) is unknown.

What to do
    Reboot once, since that trains the link anew. Then reseat the card, its riser and cables; in the firmware set the
    slot's speed to the generation that both ends have instead of Auto. If it stays, the slot or the card is at fault.

How to undo
    Set the firmware option back.

Sources
    https://docs.kernel.org/PCI/sysfs-pci.html
    https://github.com/NVIDIA/NVSentinel/issues/890
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.pci_links import Hop, hops
from hostsetup.facts.pci_tree import AMD
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.gpu_fields import Gpus
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pci_tree import Function, Pci
    from hostsetup.facts.pcie import Pcie

ID = "pcie.link"
SOURCE = "https://docs.kernel.org/PCI/sysfs-pci.html"
EXPECTS = {"pcie.link.gpu_lanes": Want(int, "lanes of every GPU's link")}

WANTED = "every link as wide and as fast as both of its ends"
_LOAD = 20  # percent: a GPU that works this much keeps its link up


def skip(pci: Pci, cpu: Cpu | None = None) -> str:
    """Spare virtual machines, whose links are drawn, and hosts without GPUs and RDMA NICs."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci.virtual):
        return "a virtual machine: its links are not the machine's"
    return "" if pci.gpus or pci.rdma_nics else "no GPU and no RDMA NIC"


def judge(
    pci: Pci, pcie: Pcie, expect: Expect, gpu_state: Gpus | None = None, kernel_log: KernelLog | None = None
) -> Iterator[Finding]:
    """Judge the link of every device, and every link above it once."""
    judged: set[str] = set()
    good: Counter[str] = Counter()
    gaps: list[str] = []
    for device in (*pci.gpus, *pci.rdma_nics):
        for hop in hops(device, pci, pcie):
            if hop.lower in judged:
                continue
            judged.add(hop.lower)
            found = _hop(hop, device, pci, pcie.source, gpu_state, kernel_log, expect)
            yield from found
            if hop.width is None or hop.speed_gts is None:
                gaps.append(hop.lower)
            elif not found and hop.lower == device.address:
                good[f"{'GPU' if device.is_gpu else 'RDMA NIC'} x{hop.width} {hop.speed_gts:g} GT/s"] += 1
        if device.address not in judged:
            gaps.append(device.address)
    yield from _odd(pci, pcie)
    if gaps:
        yield Finding(State.UNKNOWN, saw=f"no width or speed is shown for {', '.join(gaps[:8])}", wanted=WANTED)
    if good:
        yield Finding(State.PASS, saw=", ".join(f"{count} {what}" for what, count in good.items()), wanted=WANTED)


def _hop(
    hop: Hop,
    device: Function,
    pci: Pci,
    source: str,
    gpu_state: Gpus | None,
    kernel_log: KernelLog | None,
    expect: Expect,
) -> list[Finding]:
    own = hop.lower == device.address
    lines = [
        f"{source}: {hop.lower}: width {hop.width} of {hop.down.max_width}, above {hop.upper}: of {hop.up.max_width}"
    ]
    if kernel_log is not None:
        said = [line for line in kernel_log.lines if hop.lower in line and "limited by" in line]
        lines += [f"dmesg: {line}" for line in said[:2]]
    evidence = tuple(lines)
    lanes = expect.whole("pcie.link.gpu_lanes") if own and device.is_gpu else None
    found: list[Finding] = []
    if hop.narrow or (lanes and hop.width and hop.width < lanes):
        state = State.WARN if device.is_gpu and _is_display(device) else State.FAIL
        wanted = f"x{max(hop.best_width or 0, lanes or 0)}"
        saw = f"x{hop.width} instead of {wanted}" + ("" if own else f", between a switch and {hop.upper}")
        found.append(Finding(state, saw, wanted, hop.lower, _remedy(), evidence, scope=_scope(device, own=own)))
    elif own and hop.down.max_width and hop.up.max_width and hop.up.max_width < hop.down.max_width:
        saw = f"the slot has x{hop.up.max_width}, the card x{hop.down.max_width}"
        found.append(Finding(State.INFO, saw, WANTED, hop.lower, evidence=evidence, scope=_scope(device, own=own)))
    if hop.slow:
        found.append(_slow(hop, device, pci, gpu_state, source, own=own))
    return found


def _slow(hop: Hop, device: Function, pci: Pci, gpu_state: Gpus | None, source: str, *, own: bool) -> Finding:
    saw = f"{hop.speed_gts:g} GT/s instead of {hop.best_speed_gts:g} GT/s"
    evidence = (f"{source}: {hop.lower}: {hop.speed_gts:g} GT/s of {hop.down.max_speed_gts or 0:g} GT/s",)
    wanted = f"{hop.best_speed_gts:g} GT/s"
    lower = pci.functions.get(hop.lower)
    if own and device.is_gpu:
        gpu = gpu_state.at(device.address) if gpu_state else None
        load = gpu.number("utilization.gpu") if gpu else None
        if load is None or load < _LOAD:
            return Finding(
                State.INFO, f"{saw}, as an idle GPU's link may be", wanted, hop.lower, evidence=evidence, scope="gpu"
            )
        saw = f"{saw}, with the GPU {load:g}% busy"
    elif not own and lower is not None and lower.vendor == AMD:  # the switch on an AMD GPU's own board idles with it
        return Finding(State.INFO, f"{saw}, on the board of an idle GPU", wanted, hop.lower, evidence=evidence)
    return Finding(State.WARN, saw, wanted, hop.lower, _remedy(), evidence, scope=_scope(device, own=own))


def _scope(device: Function, *, own: bool) -> str:
    return ("gpu" if device.is_gpu else "nic") if own else "host"


def _is_display(gpu: Function) -> bool:
    return gpu.class_code == "0300"


def _remedy() -> Remedy:
    return Remedy(
        "Reboot once: that trains the link anew. If it stays, reseat the card, its riser and cables, and set the slot's "
        "speed in the firmware.",
        needs_root=True,
        needs_reboot=True,
        needs_firmware=True,
    )


def _own(device: Function, pci: Pci, pcie: Pcie) -> Hop | None:
    return next(iter(hops(device, pci, pcie)), None)


def _able(device: Function, pci: Pci, pcie: Pcie) -> str:
    hop = _own(device, pci, pcie)
    if hop is None or hop.best_width is None or hop.best_speed_gts is None:
        return ""
    return f"x{hop.best_width} {hop.best_speed_gts:g} GT/s"


def _odd(pci: Pci, pcie: Pcie) -> Iterator[Finding]:
    """Name the GPUs whose link can do less than most of the same model."""
    models = {(gpu.device, gpu.name) for gpu in pci.gpus}
    for model in sorted(models):
        able = {gpu: text for gpu in pci.gpus if (gpu.device, gpu.name) == model and (text := _able(gpu, pci, pcie))}
        if len(able) < 3:
            continue
        most, count = Counter(able.values()).most_common(1)[0]
        if count * 2 <= len(able):
            continue
        for gpu, text in able.items():
            if text != most:
                saw = f"this GPU's link can do {text}, that of the others {most}"
                evidence = (f"{pcie.source}: {gpu.address}: {text}",)
                yield Finding(State.WARN, saw, most, gpu.address, _remedy(), evidence, scope="gpu")


def judge_fleet(pci: Mapping[str, Pci], pcie: Mapping[str, Pcie]) -> Iterator[Finding]:
    """Compare what the GPUs' links can do on every host."""
    shapes = {}
    for host, tree in pci.items():
        able = Counter(_able(gpu, tree, pcie[host]) for gpu in tree.gpus)
        if able and "" not in able:
            shapes[host] = ", ".join(f"{count} GPUs {text}" for text, count in sorted(able.items()))
    if len(shapes) > 1:
        yield from uniform(shapes, "PCIe links of the GPUs", remedy=_remedy(), probe="sysfs-pcie")


def baseline(pci: Pci, pcie: Pcie) -> Mapping[str, Value]:
    """Return the lanes that all GPUs have."""
    widths = {hop.width for gpu in pci.gpus if (hop := _own(gpu, pci, pcie)) is not None}
    width = next(iter(widths)) if len(widths) == 1 else None
    return {"pcie.link.gpu_lanes": width} if width else {}
