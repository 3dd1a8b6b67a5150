"""Knows which governor drives the frequency of each CPU. Sets none, and knows no frequency."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES = (
    Probe(
        "sysfs-cpufreq",
        """[ -d /sys/devices/system/cpu ] || exit 1
echo cpufreq
for p in /sys/devices/system/cpu/cpufreq/policy[0-9]*; do
  [ -r "$p/scaling_governor" ] || continue
  d=- g=- e=-
  read -r g <"$p/scaling_governor"
  read -r d <"$p/scaling_driver"
  [ -r "$p/energy_performance_preference" ] && read -r e <"$p/energy_performance_preference"
  echo "${p##*/} ${d:--} ${g:--} ${e:--}"
done
exit 0""",
    ),
)

_POLICY = re.compile(r"policy(\d{1,6}) ([\w.-]{1,40}) ([\w.-]{1,40}) ([\w.-]{1,40})", re.ASCII)
_ACTIVE = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})
MAX_POLICIES = 20_000


@dataclass(frozen=True, slots=True)
class Setting:
    """How CPUs are driven. `preference`: what an active driver was told about energy; empty: it takes no such word."""

    driver: str
    governor: str
    preference: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the driver picks frequencies by itself: `powersave` is then a range and no lowest frequency."""
        return self.driver in _ACTIVE


@dataclass(frozen=True, slots=True)
class Cpufreq:
    """The settings by the first CPU that each is for; none: the kernel drives no frequency (virtual machines, firmware)."""

    settings: dict[int, Setting]


def parse_cpufreq(text: str) -> Cpufreq:
    """Read the word `cpufreq`, then lines `policyN DRIVER GOVERNOR PREFERENCE`; `-` stands for what is not there."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != "cpufreq":
        raise ValueError("not the frequency settings of sysfs")
    settings: dict[int, Setting] = {}
    for line in lines[1:]:
        found = _POLICY.fullmatch(line)
        if found is None or len(settings) >= MAX_POLICIES:
            raise ValueError("a line that is no policy, or too many of them")
        driver, governor, preference = ("" if word == "-" else word for word in found.groups()[1:])
        if governor:  # the policy of CPUs that are offline says nothing
            settings[int(found[1])] = Setting(driver, governor, preference)
    return Cpufreq(settings)


def read(evidence: Evidence) -> Known[Cpufreq] | Unknown:
    """Return the settings."""
    reply = evidence.answer("sysfs-cpufreq")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_cpufreq(reply.text))
    except ValueError as error:
        return Unknown(f"`sysfs-cpufreq`: {error}")
