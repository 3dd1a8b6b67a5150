"""The boot line asks the kernel to pretend PCIe isolation (pcie_acs_override).

What it means
    The parameter belongs to a patch outside the mainline kernel that people use to pass devices to virtual machines. A
    mainline kernel ignores it. A patched one (Proxmox VE, Unraid, TrueNAS, zen and others) treats devices as isolated
    that are not. Either way it changes no register: hardware ACS is neither switched on nor off by it.

Why it matters to training
    It says that somebody prepared this host for passthrough: GPUs may be bound to vfio-pci, IOMMU groups cannot be
    trusted, and the IOMMU is probably translating. Nor does it help peer transfers, whatever guides say: see
    pcie.acs.redirect for what does.

How we tell
    The parameter, or its common misspelling pci_acs_override, stands in /proc/cmdline, in GRUB's defaults, or in what the
    boot loader reads next. Its values (downstream, multifunction, id:VENDOR:DEVICE) make no difference here. The kernel's
    log tells the two cases apart: it lists parameters it does not know (since about 5.14), or warns that overrides are
    enabled. That the parameter is absent is never a fault, and that it is there never a cure. Beside it we name what else
    shows that devices were meant for virtual machines: vfio-pci's parameters, and GPUs that vfio-pci holds.

What to do
    Unless this host passes devices to virtual machines: take the parameter out of the boot configuration, regenerate it
    (`update-grub`, `grub2-mkconfig`, or `grubby --update-kernel=ALL --remove-args=...`) and reboot.

How to undo
    Put the parameter back, regenerate, reboot.

Sources
    https://docs.kernel.org/admin-guide/kernel-parameters.html
    https://pve.proxmox.com/wiki/PCI_Passthrough
    https://github.com/truenas/linux/pull/171
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.boot import Boot
    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.pci_tree import Pci

ID = "cmdline.acs_override"
SOURCE = "https://docs.kernel.org/admin-guide/kernel-parameters.html"

NAMES = {"pcie_acs_override", "pci_acs_override"}
_PASSTHROUGH = {"vfio_pci.ids", "vfio_iommu_type1.allow_unsafe_interrupts"}


def judge(cmdline: Cmdline, boot: Boot | None = None, pci: Pci | None = None) -> Iterator[Finding]:
    """Warn when the parameter is running, configured or generated."""
    running = _found(cmdline.running, NAMES)
    configured = _found(cmdline.configured, NAMES)
    entry = next((one for one in (boot.entries if boot else ()) if _found(one.line.words, NAMES)), None)
    held = tuple(gpu.address for gpu in pci.gpus if gpu.driver == "vfio-pci") if pci else ()
    late = "not running now" if cmdline.running is not None else "the running line is not known"
    if running:
        yield _warn(cmdline, running, f"{' '.join(running)}: {_effect(cmdline, running)}", "proc-cmdline", held)
    elif configured:
        saw = f"{' '.join(configured)} in GRUB's defaults, {late}"
        yield _warn(cmdline, configured, saw, "etc-default-grub", held)
    elif entry is not None:
        words = _found(entry.line.words, NAMES)
        yield _warn(cmdline, words, f"{' '.join(words)} in {entry.where}, {late}", "boot-files", held)
    elif cmdline.running is None:
        yield Finding(State.UNKNOWN, saw="GRUB's defaults do not hold it, but the running boot line is not known")
    else:
        yield Finding(State.PASS, saw="no ACS override on the boot line")


def _found(given: tuple[str, ...] | None, names: set[str]) -> tuple[str, ...]:
    words = takewhile(lambda word: word != "--", given or ())
    return tuple(word for word in words if word.partition("=")[0].replace("-", "_") in names)


def _effect(cmdline: Cmdline, words: tuple[str, ...]) -> str:
    log = cmdline.log or ()
    if any("acs override" in line.lower() for line in log):
        return "a patched kernel pretends isolation; its IOMMU groups are not to be trusted"
    if any(word in line for line in log for word in words):
        return "this kernel does not know it and ignores it"
    if any(word.startswith("pci_acs_override") for word in words):
        return "a misspelling that no kernel knows"
    return "ignored by mainline kernels; a patched one pretends isolation"


def _warn(cmdline: Cmdline, words: tuple[str, ...], saw: str, probe: str, held: tuple[str, ...]) -> Finding:
    vfio = (*_found(cmdline.running, _PASSTHROUGH), *(f"vfio-pci holds {address}" for address in held[:8]))
    more = f"; the host is set up for passthrough ({', '.join(vfio)})" if vfio else ""
    log = tuple(f"dmesg: {line}" for line in (cmdline.log or ())[:3])
    return Finding(
        State.WARN,
        saw=saw + more,
        wanted="no such parameter, unless the host passes devices to virtual machines",
        remedy=Remedy(
            f"Take {' '.join(words)} out of the boot configuration, regenerate it, and reboot. It changes no register, "
            "so it neither causes nor cures slow peer transfers.",
            needs_root=True,
            needs_reboot=True,
        ),
        evidence=(f"{probe}: {' '.join(words)}", *log),
    )
