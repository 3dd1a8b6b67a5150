"""Nothing keeps the host's clock right, or two services do at once.

What it means
    No time service runs, one runs that has not found the time, or two services set the same clock against each other.

Why it matters to training
    Clocks that nothing corrects drift by seconds a day. That does not show today; it shows when time.skew fails in the
    middle of a long run, and elastic agents take each other for dead.

How we tell
    By the services of systemd and the names of running processes: chronyd, ntpd (in all its kinds), systemd-timesyncd,
    ptp4l with phc2sys. Whether they have the time is asked of chrony and ntpd themselves, and else of the kernel by way
    of `timedatectl`. A host whose clock follows PTP, or chrony without `rtcsync`, looks unsynchronised to timedatectl:
    there the service's own word counts. Chrony that follows nothing but the host's own clock (`local`) has no source.
    In a container the clock is the machine's.

What to do
    Run one service: `timedatectl set-ntp true` starts what the distribution chose. Stop the second one. If the one that
    runs finds no source, open UDP port 123 to it, or name a server that the host reaches.

How to undo
    `timedatectl set-ntp false`, or enable the other service again.

Sources
    https://www.freedesktop.org/software/systemd/man/latest/timedatectl.html
    https://chrony-project.org/doc/latest/chronyc.html
    https://linuxptp.sourceforge.net/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.programs import Programs
    from hostsetup.facts.services import Services
    from hostsetup.facts.timesync import TimeSync
    from hostsetup.facts.virt import Virt

ID = "time.sync"
SOURCE = "https://www.freedesktop.org/software/systemd/man/latest/timedatectl.html"

_UNITS = {
    "chronyd": ("chrony", "chronyd"),
    "ntpd": ("ntp", "ntpd", "ntpsec", "openntpd"),
    "systemd-timesyncd": ("systemd-timesyncd",),
    "phc2sys": ("phc2sys",),
    "ptp4l": ("ptp4l",),
}
_WANTED = "one time service, and the clock synchronised by it"


def skip(virt: Virt) -> str:
    """Spare containers."""
    return "a container: its clock is the machine's" if virt.container else ""


def judge(timesync: TimeSync, services: Services | None = None, programs: Programs | None = None) -> Iterator[Finding]:
    """Warn of no service, of two, and of one without the time."""
    running = _running(services, programs)
    rivals = [name for name in running if name in {"chronyd", "ntpd", "systemd-timesyncd"}]
    if len(rivals) > 1:
        yield _warn(f"{' and '.join(rivals)} run at once", f"Keep one of {' and '.join(rivals)}.", running)
        return
    if "phc2sys" in running:
        yield Finding(State.PASS, saw="phc2sys sets the clock by PTP", evidence=_evidence(running))
        return
    said = _said(timesync, rivals)
    if said is True:
        yield Finding(State.PASS, saw=f"synchronised by {' and '.join(rivals) or 'a service without a name'}")
    elif said is False and rivals:
        saw = f"{rivals[0]} runs and has not found the time"
        if timesync.local:
            saw = "chronyd follows nothing but the host's own clock"
        yield _warn(saw, "Name a time server that the host reaches, and open UDP port 123 to it.", running)
    elif said is False or (not running and services is not None and programs is not None and programs.whole):
        yield _warn("no time service runs", "Start the distribution's time service.", running)
    else:
        told = f"{rivals[0]} runs; " if rivals else ""
        yield Finding(State.UNKNOWN, saw=f"{told}nothing says whether the clock is synchronised")


def _running(services: Services | None, programs: Programs | None) -> tuple[str, ...]:
    active = {
        name: (services is not None and bool(services.active(*units)))
        or (programs is not None and bool(programs.runs(name, *units)))
        for name, units in _UNITS.items()
    }
    return tuple(name for name, there in active.items() if there)


def _said(timesync: TimeSync, rivals: list[str]) -> bool | None:
    if timesync.chrony is not None and rivals != ["ntpd"]:
        return timesync.chrony and not timesync.local
    if timesync.ntpd is not None and rivals != ["chronyd"]:
        return timesync.ntpd or timesync.systemd is True
    return timesync.systemd


def _warn(saw: str, text: str, running: tuple[str, ...]) -> Finding:
    remedy = Remedy(text, ("sudo timedatectl set-ntp true",), needs_root=True)
    return Finding(State.WARN, saw=saw, wanted=_WANTED, remedy=remedy, evidence=_evidence(running))


def _evidence(running: tuple[str, ...]) -> tuple[str, ...]:
    return (f"services: running: {', '.join(running) or 'none that sets the clock'}",)
