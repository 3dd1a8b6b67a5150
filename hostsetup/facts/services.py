"""Knows which of the services that matter to training run on a host, as systemd says. Starts and stops none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = (
    *("docker.service", "containerd.service", "nvidia-fabricmanager.service", "nvidia-persistenced.service"),
    *(
        "nvidia-imex.service",
        "nvidia-dcgm.service",
        "dcgm.service",
        "nv-hostengine.service",
        "nvidia-cdi-refresh.service",
    ),
    *("chrony.service", "chronyd.service", "ntp.service", "ntpd.service", "ntpsec.service", "openntpd.service"),
    *("systemd-timesyncd.service", "ptp4l.service", "phc2sys.service"),
    *("firewalld.service", "ufw.service", "nftables.service"),
    *(
        "slurmd.service",
        "kubelet.service",
        "k3s.service",
        "k3s-agent.service",
        "ray.service",
        "pbs.service",
        "sge.service",
    ),
    *("display-manager.service", "unattended-upgrades.service", "apt-daily-upgrade.timer", "dnf-automatic.timer"),
    *(
        "dnf-automatic-install.timer",
        "dnf5-automatic.timer",
        "packagekit.service",
        "irqbalance.service",
        "tuned.service",
        "opensm.service",
    ),
)
_WANTED = "-p Id -p LoadState -p ActiveState -p UnitFileState -p LimitMEMLOCK -p LimitNOFILE -p LimitNOFILESoft"
PROBES = (Probe("services", f"systemctl show {_WANTED} {' '.join(UNITS)}"),)
_LINE = re.compile(r"([A-Za-z]+)=(.*)")


@dataclass(frozen=True, slots=True)
class Service:
    """`loaded`: the unit exists. `active`: it runs. `enabled`: it starts by itself. `limits`: LimitNOFILE and the like."""

    loaded: bool
    active: bool
    enabled: bool
    limits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Services:
    """The services by name, without `.service`; a timer keeps its `.timer`."""

    units: Mapping[str, Service]

    def active(self, *names: str) -> tuple[str, ...]:
        """Return those of the names that run."""
        return tuple(name for name in names if name in self.units and self.units[name].active)

    def loaded(self, *names: str) -> tuple[str, ...]:
        """Return those of the names that exist on the host."""
        return tuple(name for name in names if name in self.units and self.units[name].loaded)


def parse_services(text: str) -> Services:
    """Read `systemctl show` of several units: blocks of NAME=VALUE, apart by blank lines."""
    units: dict[str, Service] = {}
    for block in re.split(r"\n\s*\n", text):
        said = {found[1]: found[2] for line in block.splitlines() if (found := _LINE.fullmatch(line))}
        if "Id" not in said or "ActiveState" not in said:
            continue
        units[said["Id"].removesuffix(".service")] = Service(
            loaded=said.get("LoadState") == "loaded",
            active=said["ActiveState"] in {"active", "reloading"},
            enabled=said.get("UnitFileState") in {"enabled", "enabled-runtime", "alias", "linked"},
            limits={name: value for name, value in said.items() if name.startswith("Limit")},
        )
    if not units:
        raise ValueError("not the answer of `systemctl show`")
    return Services(units)


def read(evidence: Evidence) -> Known[Services] | Unknown:
    """Return the services; unknown on a host without systemd."""
    reply = evidence.answer("services")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_services(reply.text))
    except ValueError as error:
        return Unknown(f"`services`: {error}")
