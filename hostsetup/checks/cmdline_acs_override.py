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
    The parameter, or its common misspelling pci_acs_override, stands in /proc/cmdline or in GRUB's defaults. The kernel's
    log tells the two cases apart: it lists parameters it does not know (since about 5.14), or warns that overrides are
    enabled. That the parameter is absent is never a fault.

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

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.cmdline import Cmdline

ID = "cmdline.acs_override"
SOURCE = "https://docs.kernel.org/admin-guide/kernel-parameters.html"

NAMES = {"pcie_acs_override", "pci_acs_override"}
_PASSTHROUGH = {"vfio_pci.ids", "vfio_iommu_type1.allow_unsafe_interrupts"}


def judge(cmdline: Cmdline) -> Iterator[Finding]:
    """Warn when the parameter is running or configured."""
    running = _found(cmdline.running, NAMES)
    configured = _found(cmdline.configured, NAMES)
    if running:
        yield _warn(cmdline, running, f"{' '.join(running)}: {_effect(cmdline, running)}", "proc-cmdline")
    elif configured:
        late = "not running now" if cmdline.running is not None else "the running line is not known"
        yield _warn(cmdline, configured, f"{' '.join(configured)} in GRUB's defaults, {late}", "etc-default-grub")
    elif cmdline.running is None:
        yield Finding(State.UNKNOWN, saw="GRUB's defaults do not hold it, but the running boot line is not known")
    else:
        yield Finding(State.PASS, saw="no ACS override on the boot line")


def _found(words: tuple[str, ...] | None, names: set[str]) -> tuple[str, ...]:
    return tuple(word for word in words or () if word.partition("=")[0].replace("-", "_") in names)


def _effect(cmdline: Cmdline, words: tuple[str, ...]) -> str:
    log = cmdline.log or ()
    if any("acs override" in line.lower() for line in log):
        return "a patched kernel pretends isolation; its IOMMU groups are not to be trusted"
    if any(word in line for line in log for word in words):
        return "this kernel does not know it and ignores it"
    if any(word.startswith("pci_acs_override") for word in words):
        return "a misspelling that no kernel knows"
    return "ignored by mainline kernels; a patched one pretends isolation"


def _warn(cmdline: Cmdline, words: tuple[str, ...], saw: str, probe: str) -> Finding:
    vfio = _found(cmdline.running, _PASSTHROUGH)
    more = f"; the host is set up for passthrough ({' '.join(vfio)})" if vfio else ""
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
