"""The kernel is locked down: what would clear PCIe access control at run time is refused.

What it means
    Kernel lockdown (mode integrity or confidentiality) keeps even root from changing the running kernel and the
    hardware below it. Firmware with Secure Boot usually switches it on.

Why it matters to training
    setpci cannot write to configuration space, so a port that redirects peer traffic (pcie.acs.redirect) cannot be put
    right until the next reboot. And only signed kernel modules load: an NVIDIA module that was built on the host and
    signed with no enrolled key is rejected, and the GPUs stay without a driver.

How we tell
    /sys/kernel/security/lockdown shows the mode in brackets; on many distributions only root may read it. A kernel whose
    list of security modules lacks lockdown has none. Where neither can be read, the kernel's log may still show that it
    is locked, never that it is not. It is a warning where a redirect bit waits to be cleared or a module was rejected,
    else a remark: reading works, so the audit loses nothing.

What to do
    Leave it on, and clear ACS for good instead: in the firmware, or by the boot parameter that pcie.acs.redirect names.
    For the module: install the distribution's signed package, or enrol the key that signed yours (`mokutil --import`)
    and confirm it at the console during the next boot. Switching Secure Boot off in the firmware is the last resort.

How to undo
    `mokutil --delete` takes an enrolled key back; Secure Boot is switched on where it was switched off.

Sources
    https://man7.org/linux/man-pages/man7/kernel_lockdown.7.html
    https://github.com/NVIDIA/nvtrust/issues/48
    https://github.com/FlyGoat/RyzenAdj/issues/149
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts.pci_acs import REDIRECTS
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.acs import Acs
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.lockdown import Lockdown
    from hostsetup.facts.pci_tree import Pci

ID = "host.lockdown"
SOURCE = "https://man7.org/linux/man-pages/man7/kernel_lockdown.7.html"

_REJECTED = re.compile(
    r"Loading of (?:unsigned module|module with unavailable key) is rejected"
    r"|Lockdown: \S+: unsigned module loading is restricted|Key was rejected by service",
    re.IGNORECASE,
)


def skip(pci: Pci) -> str:
    """Spare hosts without GPUs."""
    return "" if pci.gpus else "no GPU: nothing here needs setpci or a module of its driver"


def judge(
    lockdown: Lockdown,
    pci: Pci | None = None,
    acs: Acs | None = None,
    kernel_log: KernelLog | None = None,
    cpu: Cpu | None = None,
) -> Iterator[Finding]:
    """Warn where lockdown stands in the way of something."""
    rejected = kernel_log.find(_REJECTED)[:3] if kernel_log else ()
    boot = {True: "Secure Boot is on", False: "Secure Boot is off", None: "Secure Boot: not known"}[
        lockdown.secure_boot
    ]
    if rejected:
        yield Finding(
            State.WARN,
            saw=f"the kernel rejected a module that is not signed; lockdown: {lockdown.mode}, {boot}",
            wanted="a signed NVIDIA module, or the key that signed it enrolled",
            remedy=Remedy(
                "Install the distribution's signed NVIDIA package, or enrol the key that signs the modules of this host "
                "(mokutil --import) and confirm it at the console during a reboot.",
                needs_root=True,
                needs_reboot=True,
                needs_firmware=True,
            ),
            evidence=(*lockdown.lines, *(f"dmesg: {line}" for line in rejected)),
        )
    waiting = () if cpu is not None and cpu.hypervisor else _waiting(pci, acs)
    if not lockdown.locked:
        if not rejected:
            yield Finding(State.PASS, saw=f"lockdown: none; {boot}")
    elif waiting:
        yield Finding(
            State.WARN,
            saw=f"lockdown: {lockdown.mode}; setpci could not clear the redirect bits of {', '.join(waiting)}",
            wanted="lockdown none, or no port that has to be cleared at run time",
            remedy=Remedy(
                f"Clear ACS in the firmware, or boot with pci=disable_acs_redir={';'.join(waiting)} (quoted).",
                needs_root=True,
                needs_reboot=True,
                needs_firmware=True,
            ),
            evidence=lockdown.lines,
        )
    elif not rejected:
        saw = f"lockdown: {lockdown.mode}; {boot}: setpci is refused, and kernel modules must be signed"
        yield Finding(State.INFO, saw=saw, evidence=lockdown.lines)


def _waiting(pci: Pci | None, acs: Acs | None) -> tuple[str, ...]:
    if pci is None or acs is None or pci.own_acs or pci.virtual:
        return ()
    splits = {port for pair in pci.pairs() if pair.shared for port in pair.ports}
    return tuple(sorted(port for port in splits if acs.words.get(port, 0) & REDIRECTS))
