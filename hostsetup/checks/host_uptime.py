"""The host waits for a reboot, or has booted just now.

What it means
    Packages were updated that take effect at the next start: Debian or Ubuntu left their mark for it, or a newer kernel
    than the running one is installed. Or the host is up for less than half an hour.

Why it matters to training
    A host between two states holds surprises: libraries of the new driver beside the module of the old one, a reboot
    that somebody else triggers in the middle of a run, hosts of one fleet on different kernels. Right after a start,
    links still come up and the log is short; what it does not show yet means little.

How we tell
    The file /run/reboot-required and the packages it names; and the newest kernel that can be booted, of the same
    flavour as the running one (a lone `cloud` or `+debug` kernel does not count), compared by version numbers and not as
    text. Which kernel boots next is the boot loader's choice: the newest is its default. Other updates of Red Hat's
    line that want a reboot leave no mark that can be read without a long query.

What to do
    Reboot the host between two runs, one after the other: `systemctl reboot`.

How to undo
    The older kernel stays installed; the boot menu offers it.

Sources
    https://www.debian.org/doc/debian-policy/ch-opersys.html
    https://manpages.ubuntu.com/manpages/noble/man8/unattended-upgrade.8.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.kernels import Kernels
    from hostsetup.facts.uptime import Uptime
    from hostsetup.facts.virt import Virt

ID = "host.uptime"
SOURCE = "https://manpages.ubuntu.com/manpages/noble/man8/unattended-upgrade.8.html"
EXPECTS = {"host.uptime.settled_minutes": Want(int, "minutes after a boot until a host counts as settled", 30)}


def skip(virt: Virt) -> str:
    """Spare containers: the uptime and the kernel are their machine's."""
    return "a container: it has its machine's kernel and uptime" if virt.container else ""


def judge(uptime: Uptime, expect: Expect, kernels: Kernels | None = None) -> Iterator[Finding]:
    """Warn of a reboot that is due; tell of one that was just now."""
    newer = kernels.pending if kernels is not None else ""
    if uptime.asks or newer:
        named = f" for {', '.join(uptime.packages[:4])}" if uptime.packages else ""
        reasons = [f"packages ask for a reboot{named}"] if uptime.asks else []
        evidence = [f"machine-files: /run/reboot-required.pkgs:{name}" for name in uptime.packages[:4]]
        if uptime.asks and not evidence:
            evidence.append("machine-files: /run/reboot-required")
        if newer and kernels is not None:
            reasons.append(f"kernel {newer} is installed, {kernels.running} runs")
            evidence += [f"kernels: running {kernels.running}", f"kernels: kernel {newer} image"]
        yield Finding(
            State.WARN,
            saw="; ".join(reasons),
            wanted="no reboot due",
            remedy=Remedy(
                "Reboot the host between two runs; see os.dkms first.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=tuple(evidence),
        )
        return
    settled = expect.whole("host.uptime.settled_minutes") or 0
    if uptime.seconds < settled * 60:
        saw = f"up for {uptime.seconds // 60} min: what the log does not show yet means little"
        yield Finding(State.INFO, saw=saw, evidence=(f"machine-files: /proc/uptime:{uptime.seconds}",))
        return
    beside = "" if kernels is not None else "; the installed kernels are not known"
    days = f"{uptime.seconds // 86400} days" if uptime.seconds >= 2 * 86400 else f"{uptime.seconds // 3600} h"
    yield Finding(State.PASS, saw=f"up for {days}, no reboot asked for{beside}")
