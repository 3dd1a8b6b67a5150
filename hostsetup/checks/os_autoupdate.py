"""The host updates its GPU driver, kernel or container engine by itself.

What it means
    Automatic upgrades are switched on, and packages of the driver, the kernel or the container engine are not kept from
    them; or the host may reboot by itself after an upgrade.

Why it matters to training
    An upgrade of the driver under a loaded module ends every new CUDA program with `Driver/library version mismatch`
    until the next reboot. An upgrade of the engine restarts it, and containers with it. Both come at night, on some
    hosts of a fleet first, in the middle of a run.

How we tell
    Debian and Ubuntu: `apt-config dump` says whether unattended-upgrades is on and what its blacklist spares, the timer
    apt-daily-upgrade whether it ever starts, and dpkg which installed packages are held. Where security updates alone
    are allowed this counts all the same: Ubuntu ships drivers and engines through that channel, too. A new kernel comes
    in by a meta package (linux-image-generic); without one there is none to hold. Red Hat's line: dnf-automatic with
    `apply_updates`, and what `exclude` or versionlock spare. Entries of the blacklist are regular expressions; they are
    read as plain beginnings of names.

What to do
    Hold the packages (`apt-mark hold PACKAGE`, `dnf versionlock add PACKAGE`) and upgrade by hand between runs; or
    switch the timer off: `systemctl disable --now apt-daily-upgrade.timer`.

How to undo
    `apt-mark unhold PACKAGE`; `dnf versionlock delete PACKAGE`; `systemctl enable --now apt-daily-upgrade.timer`.

Sources
    https://manpages.ubuntu.com/manpages/noble/man8/unattended-upgrade.8.html
    https://wiki.debian.org/UnattendedUpgrades
    https://dnf.readthedocs.io/en/latest/automatic.html
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.services import Services
    from hostsetup.facts.updates import Updates

ID = "os.autoupdate"
SOURCE = "https://manpages.ubuntu.com/manpages/noble/man8/unattended-upgrade.8.html"

_FAMILIES = {
    "GPU driver": re.compile(
        r"(nvidia-(driver|dkms|kernel|utils|compute|fabricmanager|open)|libnvidia-|cuda-drivers|linux-modules-nvidia-)"
    ),
    "kernel": re.compile(
        r"linux-(image-)?(generic|amd64|arm64|cloud-amd64|server|virtual|aws|azure|gcp|oracle|nvidia|lowlatency|kvm)"
    ),
    "container engine": re.compile(r"(docker\.io|docker-ce$|containerd|moby-engine|runc$)"),
}
_RPM_FAMILIES = {
    "GPU driver": ("nvidia", "kmod-nvidia", "cuda-drivers"),
    "kernel": ("kernel",),
    "container engine": ("docker", "containerd", "moby"),
}
_LITERAL = re.compile(r"[A-Za-z0-9+_-]|\\?\.|\\[+-]", re.ASCII)
_WANTED = "no automatic upgrades of driver, kernel and engine: held, or the timer off"
_SHOWN = 6

_REBOOT = "Unattended-Upgrade::Automatic-Reboot"
_NO_REBOOT = (
    "echo 'Unattended-Upgrade::Automatic-Reboot \"false\";' | sudo tee /etc/apt/apt.conf.d/99-no-automatic-reboot"
)


def judge(updates: Updates, services: Services | None = None) -> Iterator[Finding]:
    """Warn of what may change by itself."""
    apt, dnf = _apt_is_on(updates, services), _dnf_is_on(updates, services)
    found = []
    if apt:
        found.append(_judge_apt(updates))
        if updates.setting(_REBOOT).lower() in {"true", "1", "yes"}:
            found.append(_reboots(updates))
    if dnf:
        found.append(_judge_dnf(updates))
    told = [finding for finding in found if finding is not None]
    yield from told
    if not told and (apt or dnf):
        yield Finding(State.PASS, saw="automatic upgrades are on, and spare the driver, the kernel and the engine")
    elif not told and services is None and (updates.managers == {"dnf"} or not updates.managers):
        yield Finding(State.UNKNOWN, saw="whether dnf-automatic runs is not known: nothing tells of the host's timers")
    elif not told:
        yield Finding(State.PASS, saw="no automatic upgrades")


def _apt_is_on(updates: Updates, services: Services | None) -> bool:
    wanted = updates.setting("APT::Periodic::Unattended-Upgrade") not in {"", "0"}
    timed = services is None or bool(services.active("apt-daily-upgrade.timer"))
    return updates.unattended and wanted and timed and updates.setting("APT::Periodic::Enable") != "0"


def _dnf_is_on(updates: Updates, services: Services | None) -> bool:
    if services is None:
        return False
    # the timer with `install` in its name installs whatever the file says
    if services.active("dnf-automatic-install.timer"):
        return True
    applies = updates.dnf.get("apply_updates", "") in {"yes", "true", "1", "on"}
    return applies and bool(services.active("dnf-automatic.timer", "dnf5-automatic.timer"))


def _judge_apt(updates: Updates) -> Finding | None:
    spared = [
        _beginning(pattern) for pattern in updates.apt.get("Unattended-Upgrade::Package-Blacklist", ()) if pattern
    ]
    open_: dict[str, list[str]] = {}
    for family, pattern in _FAMILIES.items():
        for name, held in sorted(updates.packages.items()):
            if pattern.match(name) and not held and not any(_spares(entry, name) for entry in spared):
                open_.setdefault(family, []).append(name)
    names = [name for several in open_.values() for name in several]
    if not names:
        return None
    return Finding(
        State.WARN,
        saw=f"unattended-upgrades is on and may change the {', the '.join(open_)}: {_some(names)}",
        wanted=_WANTED,
        remedy=Remedy(
            "Hold these packages and upgrade them by hand between runs.",
            (f"sudo apt-mark hold {shlex.join(names)}",),
            needs_root=True,
        ),
        evidence=(
            f'updates: APT::Periodic::Unattended-Upgrade "{updates.setting("APT::Periodic::Unattended-Upgrade")}";',
            *(f"updates: package {name} install" for name in names[:_SHOWN]),
        ),
    )


def _beginning(pattern: str) -> tuple[str, bool]:
    """Return the plain beginning of a regular expression, and whether the name must end there."""
    rest, plain = pattern.removeprefix("^"), ""
    while found := _LITERAL.match(rest):
        if rest[found.end() :][:1] in {"*", "?", "{"}:
            break
        plain += found[0][-1]
        rest = rest[found.end() :]
    return plain, rest == "$"


def _spares(entry: tuple[str, bool], name: str) -> bool:
    plain, whole = entry
    return bool(plain) and (name == plain if whole else name.startswith(plain))


def _judge_dnf(updates: Updates) -> Finding | None:
    kept = [pattern.lstrip("*") for pattern in updates.kept]
    open_ = [
        family
        for family, beginnings in _RPM_FAMILIES.items()
        if not any(pattern.startswith(beginnings) for pattern in kept)
    ]
    if not open_:
        return None
    return Finding(
        State.WARN,
        saw=f"dnf-automatic installs updates, and nothing keeps it from the {', the '.join(open_)}",
        wanted=_WANTED,
        remedy=Remedy(
            "Lock these packages (`dnf versionlock add`), or let dnf-automatic only download.",
            ("sudo systemctl disable --now dnf-automatic-install.timer dnf-automatic.timer",),
            needs_root=True,
        ),
        evidence=(f"updates: apply_updates = {updates.dnf.get('apply_updates', 'not set')}",),
    )


def _reboots(updates: Updates) -> Finding:
    at = updates.setting("Unattended-Upgrade::Automatic-Reboot-Time") or "now"
    return Finding(
        State.WARN,
        saw=f"the host reboots by itself after an upgrade that wants it (at: {at})",
        wanted='Unattended-Upgrade::Automatic-Reboot "false"',
        remedy=Remedy(
            "Switch it off in /etc/apt/apt.conf.d.",
            (_NO_REBOOT,),
            needs_root=True,
        ),
        evidence=(f'updates: {_REBOOT} "{updates.setting(_REBOOT)}";',),
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
