"""The CPUs are not driven for performance.

What it means
    The frequency governor of some CPUs is not `performance`: they slow down whenever they seem idle, and take a while to
    come back.

Why it matters to training
    The thread that launches kernels, the data loaders and the proxy threads of NCCL work in short bursts: with `powersave`
    or `ondemand` each burst begins on a slow CPU. Small messages and small kernels suffer most, and hosts that differ in
    it make stragglers.

How we tell
    The governor and the driver of every frequency policy in sysfs, of CPUs that are online. Drivers in active mode
    (intel_pstate, amd-pstate-epp) offer only `performance` and `powersave`, and there `powersave` is no lowest frequency
    but a range that the hardware uses as its energy preference says: with `performance` or `balance_performance` that is
    told of and no warning. Where the kernel has no driver (virtual machines, firmware in control) the check does not
    apply.

What to do
    `sudo cpupower frequency-set -g performance`; to keep it, a tuned profile such as `throughput-performance`, or a unit
    that runs the command at boot. No reboot.

How to undo
    `sudo cpupower frequency-set -g` with the governor that was seen.

Sources
    https://docs.kernel.org/admin-guide/pm/intel_pstate.html
    https://docs.kernel.org/admin-guide/pm/amd-pstate.html
    https://github.com/Azure/azurehpc-health-checks
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpufreq import Cpufreq, Setting

ID = "cpu.governor"
SOURCE = "https://docs.kernel.org/admin-guide/pm/intel_pstate.html"
EXPECTS = {"cpu.governor": Want(str, "frequency governors that are right", ("performance",), many=True)}

_FAST = {"performance", "balance_performance"}
_REMEDY = Remedy(
    "Set the governor `performance`, and keep it by a tuned profile or a unit that runs at boot.",
    commands=("sudo cpupower frequency-set -g performance",),
    needs_root=True,
)


def skip(cpufreq: Cpufreq) -> str:
    """Spare hosts whose kernel drives no frequency."""
    return (
        "" if cpufreq.settings else "the kernel drives no CPU frequency here (a virtual machine, or the firmware does)"
    )


def judge(cpufreq: Cpufreq, expect: Expect) -> Iterator[Finding]:
    """Warn of CPUs whose governor is another; only tell of active drivers that prefer performance anyhow."""
    right = expect.several("cpu.governor") or ("performance",)
    wanted = f"{' or '.join(map(str, right))} ({expect.origin('cpu.governor')})"
    settings = tuple(cpufreq.settings.values())
    odd = tuple(one for one in settings if one.governor not in right)
    slow = tuple(one for one in odd if not (one.is_active and one.preference in _FAST))
    if slow:
        evidence = tuple(
            f"sysfs-cpufreq: policy{cpu}: {_told(one)}" for cpu, one in cpufreq.settings.items() if one in slow
        )
        yield Finding(State.WARN, _counted(slow, len(settings)), wanted, remedy=_REMEDY, evidence=evidence[:4])
    elif odd:
        yield Finding(State.INFO, f"{_counted(odd, len(settings))}: the hardware favours performance", wanted)
    else:
        yield Finding(State.PASS, _counted(settings, len(settings)), wanted)


def _counted(settings: tuple[Setting, ...], of: int) -> str:
    counts = Counter(map(_told, settings))
    return "; ".join(f"{count} of {of} frequency policies: {told}" for told, count in counts.most_common(3))


def _told(setting: Setting) -> str:
    by = f" by {setting.driver}" if setting.driver else ""
    return f"{setting.governor}{by}" + (f", preference {setting.preference}" if setting.preference else "")


def baseline(cpufreq: Cpufreq) -> Mapping[str, Value]:
    """Return the governors in use."""
    governors = sorted({one.governor for one in cpufreq.settings.values()})
    return {"cpu.governor": tuple(governors)} if governors else {}
