"""Idle CPUs fall into a sleep from which they wake slowly.

What it means
    Deep idle states are enabled: an idle core switches off its caches or its power, and needs tens or hundreds of
    microseconds to come back.

Why it matters to training
    A wake-up in the path of a small message or of a kernel launch adds that time. Large transfers and busy hosts feel
    nothing of it, and cores that sleep leave power to those that work: hence only an information. It is worth a look when
    small collectives are slower than they should be, or slower on some hosts.

How we tell
    The idle states of CPU 0 in sysfs, each with its exit latency, and whether it is enabled (`disable` is 0). States that
    take longer than 50 µs to leave are named; the threshold is our judgement. A process that holds /dev/cpu_dma_latency
    open (tuned does) keeps CPUs out of deep states without switching them off: that is not seen here. Where the kernel
    has no idle states (virtual machines) the check does not apply. Hosts that differ are told of.

What to do
    For runs that are bound by latency: `sudo cpupower idle-set -D 50`, or the tuned profile `latency-performance`; or in
    the firmware global C-state control and DF C-states off (AMD), package C-states off (Intel).

How to undo
    `sudo cpupower idle-set -E`, the tuned profile and the firmware options as before.

Sources
    https://docs.kernel.org/admin-guide/pm/cpuidle.html
    https://docs.kernel.org/admin-guide/pm/intel_idle.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpuidle import Cpuidle

ID = "cpu.cstates"
SOURCE = "https://docs.kernel.org/admin-guide/pm/cpuidle.html"
EXPECTS = {"cpu.cstates.exit_latency_us": Want(int, "the longest wake-up that an idle state may need", 50)}

_REMEDY = Remedy(
    "Where latency matters, switch off the states that wake slowly, or use tuned's latency-performance.",
    commands=("sudo cpupower idle-set -D 50",),
    needs_root=True,
)


def skip(cpuidle: Cpuidle) -> str:
    """Spare hosts whose kernel puts no CPU to sleep."""
    return "" if cpuidle.states else "the kernel has no idle states here (a virtual machine, or idling is switched off)"


def judge(cpuidle: Cpuidle, expect: Expect) -> Iterator[Finding]:
    """Tell of idle states that wake slowly."""
    longest = expect.whole("cpu.cstates.exit_latency_us")
    limit = 50 if longest is None else longest
    deep = tuple(f"{state.name} {state.latency_us} µs" for state in cpuidle.enabled if state.latency_us > limit)
    wanted = f"no state that takes longer than {limit} µs to leave ({expect.origin('cpu.cstates.exit_latency_us')})"
    by = f" ({cpuidle.driver})" if cpuidle.driver else ""
    if deep:
        evidence = tuple(f"sysfs-cpuidle: {told}" for told in deep)
        yield Finding(State.INFO, f"idle states {', '.join(deep)}{by}", wanted, remedy=_REMEDY, evidence=evidence)
    else:
        yield Finding(State.PASS, f"idle states {_names(cpuidle) or 'none enabled'}{by}", wanted)


def _names(cpuidle: Cpuidle) -> str:
    return ", ".join(state.name for state in cpuidle.enabled)


def judge_fleet(cpuidle: Mapping[str, Cpuidle]) -> Iterator[Finding]:
    """Tell of hosts with other idle states than most."""
    names = {host: _names(one) or "none" for host, one in cpuidle.items()}
    if len(set(names.values())) > 1:
        yield from uniform(names, "idle states", state=State.INFO, remedy=_REMEDY, probe="sysfs-cpuidle")


def baseline(cpuidle: Cpuidle) -> Mapping[str, Value]:
    """Return how long the slowest wake-up takes."""
    latencies = [state.latency_us for state in cpuidle.enabled]
    return {"cpu.cstates.exit_latency_us": max(latencies)} if latencies else {}
