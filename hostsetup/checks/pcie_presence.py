"""A GPU of this host is missing, dead, or not in the driver's hands.

What it means
    The PCI tree, the driver and what this site expects do not show the same GPUs: one did not come up at power-on, fell off
    the bus, failed to initialise, or is held by another driver (vfio-pci for virtual machines, nouveau).

Why it matters to training
    A launch with one rank for each GPU fails, or starts with fewer ranks than the other hosts have. A GPU that reads as
    all ones takes the driver, and often the next run, with it.

How we tell
    Every GPU of the PCI tree (NVIDIA display and 3D controllers, AMD accelerators; no NVSwitches, audio functions, or displays
    of the management controller, and no MIG instances, which are parts of a GPU) is looked up by address: does it answer,
    which driver holds it, and does nvidia-smi list it? `(rev ff)` or a configuration that reads as all ones is a dead
    device. Where nvidia-smi cannot run, the driver that holds the device is asked for alone. With
    `pcie.presence.gpus` a site says how many GPUs a host has; only then can a card that was never seen at power-on be
    missed.

What to do
    Dead or fallen off: look for Xid 79 (gpu.xid), power the host off and on, reseat the card and its power cables; if it
    returns, the card or the slot is at fault. Held by vfio-pci or nouveau: take its parameter out of the boot line
    (cmdline.acs_override), or blacklist nouveau, and reboot. No driver: install or load it. Listed by none although the
    driver holds it: the kernel's log says why it failed to initialise.

How to undo
    Nothing is changed.

Sources
    https://docs.nvidia.com/deploy/xid-errors/index.html
    https://docs.kernel.org/PCI/sysfs-pci.html
    https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.pci_tree import NVIDIA
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.gpu_modules import GpuModules
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.pci_tree import Function, Pci

ID = "pcie.presence"
SOURCE = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html"
EXPECTS = {"pcie.presence.gpus": Want(int, "GPUs on the PCI bus")}

WANTED = "every GPU answers, and NVIDIA's driver (or amdgpu) holds it"
_DRIVERS = {"nvidia", "amdgpu"}


def skip(pci: Pci, expect: Expect, gpus: tuple[Gpu, ...] | None = None) -> str:
    """Spare hosts without GPUs, where none is expected."""
    if pci.gpus or gpus or expect.whole("pcie.presence.gpus"):
        return ""
    return "no GPU in the PCI tree"


def judge(
    pci: Pci, expect: Expect, gpus: tuple[Gpu, ...] | None = None, gpu_modules: GpuModules | None = None
) -> Iterator[Finding]:
    """Look every GPU up, by its address."""
    bound = gpu_modules.bound if gpu_modules is not None else None
    listed = None if gpus is None else {gpu.address for gpu in gpus}
    shown = [gpu for gpu in gpus or () if gpu.address and gpu.address not in pci.functions]
    good, unsure = 0, list[str]()
    for gpu in pci.gpus:
        driver = gpu.driver or (bound or {}).get(gpu.address, "")
        finding = _judged(gpu, driver, listed, loaded=driver != "" or bound is not None)
        if finding is not None:
            yield finding
        elif driver in _DRIVERS or (listed is not None and gpu.vendor == NVIDIA):
            good += 1
        else:
            unsure.append(gpu.address)
    if shown:
        saw = f"nvidia-smi lists {', '.join(gpu.address for gpu in shown[:8])}, which the PCI listing does not show"
        yield Finding(State.INFO, saw, WANTED)
    wanted = expect.whole("pcie.presence.gpus")
    if wanted is not None and len(pci.gpus) < wanted:
        yield _few(len(pci.gpus), wanted, expect.origin("pcie.presence.gpus"))
    if unsure:
        saw = f"neither nvidia-smi nor sysfs tells which driver holds {', '.join(unsure[:8])}"
        yield Finding(State.UNKNOWN, saw, WANTED)
    if good:
        by = "held by its driver" if listed is None else "held by the driver and listed by nvidia-smi"
        yield Finding(State.PASS, saw=f"{good} GPUs, each {by}", wanted=WANTED)


def _judged(gpu: Function, driver: str, listed: set[str] | None, *, loaded: bool) -> Finding | None:
    if gpu.dead:
        return _fail(gpu, "the device is dead: its configuration reads as all ones", _POWER)
    if driver and driver not in _DRIVERS:
        return _fail(gpu, f"{driver} holds it, so that the GPU's own driver cannot", _RELEASE)
    if gpu.vendor != NVIDIA:
        return None if driver or not loaded else _fail(gpu, "no driver holds it", _LOAD)
    if listed is not None and gpu.address not in listed:
        if not driver and loaded:
            return _fail(gpu, "no driver holds it, and nvidia-smi does not list it", _LOAD)
        return _fail(gpu, "nvidia-smi does not list it: it fell off the bus, or failed to initialise", _POWER)
    if listed is None and loaded and not driver:
        return _fail(gpu, "no driver holds it", _LOAD)
    return None


_POWER = Remedy(
    "Look for Xid 79 and for the driver's words about this address in the kernel's log; power the host off and on; reseat "
    "the card and its power cables.",
    ("sudo dmesg | grep -i -e NVRM -e Xid",),
    needs_root=True,
    needs_reboot=True,
)
_RELEASE = Remedy(
    "Take vfio-pci.ids=, or what else binds the device, out of the boot line and of /etc/modprobe.d (or blacklist nouveau), "
    "rebuild the initramfs, and reboot.",
    needs_root=True,
    needs_reboot=True,
)
_LOAD = Remedy(
    "Install the GPU's driver, or load it; the kernel's log says why it did not load.",
    ("lsmod | grep -e nvidia -e amdgpu", "sudo dmesg | grep -i -e NVRM -e amdgpu"),
    needs_root=True,
)


def _fail(gpu: Function, saw: str, remedy: Remedy) -> Finding:
    line = f"{gpu.source}: {gpu.address} {gpu.vendor}:{gpu.device} {gpu.name} driver {gpu.driver or '-'}"
    return Finding(State.FAIL, saw, WANTED, gpu.address, remedy, (line,), scope="gpu")


def _few(seen: int, wanted: int, origin: str) -> Finding:
    return Finding(
        State.FAIL,
        saw=f"{seen} GPUs on the PCI bus",
        wanted=f"{wanted} GPUs ({origin})",
        remedy=Remedy(
            "A card did not come up at power-on: power the host off and on, look at the firmware's log (BMC), reseat the card.",
            needs_root=True,
            needs_reboot=True,
        ),
    )


def baseline(pci: Pci) -> Mapping[str, Value]:
    """Return how many GPUs there are."""
    return {"pcie.presence.gpus": len(pci.gpus)} if pci.gpus else {}
