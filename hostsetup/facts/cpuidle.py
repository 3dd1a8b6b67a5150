"""Knows how deep a host's CPUs may sleep: idle states of CPU 0 and their exit latency. Wakes nobody."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES = (
    Probe(
        "sysfs-cpuidle",
        """cd /sys/devices/system/cpu || exit 1
echo cpuidle
for f in current_driver current_governor_ro current_governor; do
  [ -r "cpuidle/$f" ] && { read -r v <"cpuidle/$f"; echo "$f $v"; }
done
for s in cpu0/cpuidle/state[0-9]*; do
  [ -r "$s/name" ] || continue
  read -r n <"$s/name"; read -r x <"$s/disable"; read -r l <"$s/latency"
  echo "${s##*/} $x $l $n"
done
m=/sys/module/intel_idle/parameters/max_cstate
[ -r "$m" ] && { read -r v <"$m"; echo "max_cstate $v"; }
exit 0""",
    ),
)

_STATE = re.compile(r"state(\d{1,3}) (\d{1,10}) (\d{1,10}) ([\w <>()+,./-]{1,40})", re.ASCII)
_SAID = re.compile(r"(current_driver|current_governor|current_governor_ro|max_cstate) ?([\w-]{0,40})", re.ASCII)


@dataclass(frozen=True, slots=True)
class IdleState:
    """One idle state: its name, how long waking takes, and whether it may be entered."""

    name: str
    latency_us: int
    enabled: bool


@dataclass(frozen=True, slots=True)
class Cpuidle:
    """The states of CPU 0, shallow first; none: the kernel leaves idling to somebody else. `driver`: empty when not said."""

    driver: str
    states: tuple[IdleState, ...]

    @property
    def enabled(self) -> tuple[IdleState, ...]:
        """The states that a CPU may enter."""
        return tuple(state for state in self.states if state.enabled)


def parse_cpuidle(text: str) -> Cpuidle:
    """Read the word `cpuidle`, then lines `stateN DISABLED LATENCY NAME` and `FILE VALUE`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != "cpuidle":
        raise ValueError("not the idle states of sysfs")
    states: dict[int, IdleState] = {}
    said: dict[str, str] = {}
    for line in lines[1:]:
        if found := _STATE.fullmatch(line):
            states[int(found[1])] = IdleState(found[4], int(found[3]), enabled=int(found[2]) == 0)
        elif found := _SAID.fullmatch(line):
            said[found[1]] = found[2]
        else:
            raise ValueError("a line that is no idle state")
    driver = said.get("current_driver", "")
    return Cpuidle("" if driver == "none" else driver, tuple(states[number] for number in sorted(states)))


def read(evidence: Evidence) -> Known[Cpuidle] | Unknown:
    """Return the idle states."""
    reply = evidence.answer("sysfs-cpuidle")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_cpuidle(reply.text))
    except ValueError as error:
        return Unknown(f"`sysfs-cpuidle`: {error}")
