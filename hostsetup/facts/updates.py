"""Knows what may change a host's packages by itself, and which packages are kept from it. Installs and holds nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_INTEREST = "^(nvidia-|libnvidia-|xserver-xorg-video-nvidia|cuda-drivers|linux-|docker|containerd|moby-|runc)"
PROBES = (
    Probe(
        "updates",
        rf"""[ -d /etc/apt ] && echo 'there apt'
[ -d /etc/dnf ] && echo 'there dnf'
[ -x /usr/bin/unattended-upgrade ] && echo 'there unattended-upgrade'
if command -v apt-config >/dev/null; then
  apt-config dump 2>/dev/null | grep -E '^(APT::Periodic|Unattended-Upgrade)::' | grep -v '::Mail' | head -c 100000
fi
[ -r /var/lib/dpkg/status ] && awk '/^Package: / {{ p = $2 }}
/^Status: / {{ if (p ~ /{_OF_INTEREST}/ && $4 == "installed") print "package", p, $2 }}' /var/lib/dpkg/status | head -n 500
grep -sHE '^[[:space:]]*(apply_updates|upgrade_type|reboot|exclude|excludepkgs)[[:space:]]*=' \
  /etc/dnf/automatic.conf /etc/dnf/dnf.conf /etc/yum.conf
grep -sHv '^[[:space:]]*#' /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list | head -n 500
exit 0""",
    ),
)
MOST_LINES = 3000
_APT = re.compile(r'((?:APT::Periodic|Unattended-Upgrade)::[A-Za-z0-9_:-]{1,100}) "(.{0,300})";', re.ASCII)
_PACKAGE = re.compile(r"package (\S{1,200}) (install|hold|\S{1,20})", re.ASCII)
_DNF = re.compile(r"(/etc/\S+?):\s*([a-z_]+)\s*=\s*(.{0,2000})", re.ASCII)
_LOCK = re.compile(r"/etc/\S*versionlock\.list:(\S.{0,300})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Updates:
    """`managers`: apt, dnf. `unattended`: the program unattended-upgrade is installed. `apt`: its settings by name.

    `packages`: those of the driver, the kernel and the engine that dpkg has installed; True: held. `dnf`: the settings of
    dnf-automatic. `kept`: what dnf is told not to touch, as patterns.
    """

    managers: frozenset[str] = frozenset()
    unattended: bool = False
    apt: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    packages: Mapping[str, bool] = field(default_factory=dict)
    dnf: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

    def setting(self, name: str) -> str:
        """Return one setting of apt's; the last that was given counts."""
        return next(reversed(self.apt.get(name, ())), "")


def parse_updates(text: str) -> Updates:
    """Read the lines `there X`, of `apt-config dump`, `package NAME WANT`, and `FILE:SETTING = VALUE` of dnf's files."""
    there = set[str]()
    apt: dict[str, list[str]] = {}
    packages: dict[str, bool] = {}
    dnf: dict[str, str] = {}
    kept: list[str] = []
    for line in text.splitlines()[:MOST_LINES]:
        if line.startswith("there "):
            there.add(line[6:].strip())
        elif found := _APT.fullmatch(line.strip()):
            # a list has the name with `::` behind it, once for each item
            apt.setdefault(found[1].rstrip(":"), []).append(found[2])
        elif found := _PACKAGE.fullmatch(line.strip()):
            packages[found[1]] = found[2] == "hold"
        elif found := _LOCK.fullmatch(line.strip()):
            kept.append(found[1])
        elif found := _DNF.fullmatch(line.strip()):
            if found[2].startswith("exclude"):
                kept += re.split(r"[,\s]+", found[3].strip())
            else:
                dnf[found[2]] = found[3].strip().lower()
    if not (there or apt or packages or dnf):
        raise ValueError("neither apt nor dnf is on this host")
    return Updates(
        managers=frozenset(there & {"apt", "dnf"}),
        unattended="unattended-upgrade" in there,
        apt={name: tuple(values) for name, values in apt.items()},
        packages=packages,
        dnf=dnf,
        kept=tuple(pattern for pattern in kept if pattern),
    )


def read(evidence: Evidence) -> Known[Updates] | Unknown:
    """Return what may change packages."""
    reply = evidence.answer("updates")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_updates(reply.text))
    except ValueError as error:
        return Unknown(f"`updates`: {error}")
