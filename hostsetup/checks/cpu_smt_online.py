"""Some CPUs are offline, or the hosts differ in CPUs or SMT.

What it means
    The kernel knows of CPUs that do not run, or one host has another number of CPUs, or another setting of SMT
    (hyper-threading), than its peers.

Why it matters to training
    Data loaders and the threads that feed the GPUs get fewer cores, and a rank that is bound to a CPU that is offline
    does not start. In a synchronous run the host with fewer cores sets the pace for all. A count that is lower than the
    peers' is often a socket that did not come up, or cores that the firmware switched off after errors.

How we tell
    The kernel's lists of CPUs that are present and online. Where SMT was switched off at run time or at boot (`nosmt`),
    its siblings are present and offline: half offline is then as it should be. Otherwise every present CPU should be
    online. The numbers, and whether SMT is on, are compared between the hosts. That a count is even or a power of two is
    not asked for, and possible CPUs that are not present (hot-plug slots of a virtual machine) do not count.

What to do
    Bring a CPU back with `echo 1 | sudo tee /sys/devices/system/cpu/cpuN/online`, and see in the kernel log why it was
    offline. Set SMT alike on all hosts (firmware, or `nosmt` on the boot line). Where the count itself is lower than the
    peers', look at the firmware's event log.

How to undo
    `echo 0 | sudo tee /sys/devices/system/cpu/cpuN/online`; set the firmware or the boot line back.

Sources
    https://docs.kernel.org/core-api/cpu_hotplug.html
    https://docs.kernel.org/admin-guide/cputopology.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpu import Cpu

ID = "cpu.smt_online"
SOURCE = "https://docs.kernel.org/core-api/cpu_hotplug.html"
EXPECTS = {"cpu.smt_online.cpus": Want(int, "how many CPUs are online; on the fleet, alike, whatever the number")}

_SMT_OFF = {"off", "forceoff"}
_ONLINE = Remedy(
    "See in the kernel log why CPUs are offline, then switch them on.",
    commands=(
        "cat /sys/devices/system/cpu/offline",
        'for cpu in /sys/devices/system/cpu/cpu[0-9]*/online; do echo 1 | sudo tee "$cpu" >/dev/null; done',
    ),
    needs_root=True,
)
_ALIKE = Remedy(
    "Set SMT alike on all hosts, in the firmware or on the boot line; look in the firmware's event log for sockets or"
    " cores that did not come up.",
    needs_root=True,
    needs_reboot=True,
    needs_firmware=True,
)


def judge(cpu: Cpu, expect: Expect) -> Iterator[Finding]:
    """Warn of CPUs that are there and do not run, and of a number that is not the expected one."""
    if cpu.online is None or cpu.present is None:
        yield Finding(State.UNKNOWN, saw="which CPUs are present and online is not known")
        return
    saw = f"{cpu.online} of {cpu.present} CPUs online, SMT {_smt(cpu) or 'not known'}"
    evidence = (f"sysfs-cpu: cpus online {cpu.online}, present {cpu.present}, smt/control {cpu.smt or 'not said'}",)
    wanted = expect.whole("cpu.smt_online.cpus")
    siblings_off = cpu.smt in _SMT_OFF and cpu.online * 2 == cpu.present
    if cpu.online < cpu.present and not siblings_off:
        yield Finding(State.WARN, saw, "every CPU online", "", _ONLINE, evidence)
    elif wanted is not None and cpu.online != wanted:
        origin = expect.origin("cpu.smt_online.cpus")
        yield Finding(State.WARN, saw, f"{wanted} CPUs online ({origin})", "", _ALIKE, evidence)
    else:
        yield Finding(State.PASS, saw)


def judge_fleet(cpu: Mapping[str, Cpu]) -> Iterator[Finding]:
    """Warn of the hosts whose CPUs or SMT are not those of most hosts."""
    counts = {host: str(one.online) for host, one in cpu.items() if one.online is not None}
    smt = {host: told for host, one in cpu.items() if (told := _smt(one)) is not None}
    for values, what in ((counts, "CPUs online"), (smt, "SMT")):
        if len(set(values.values())) > 1:
            yield from uniform(values, what, remedy=_ALIKE, probe="sysfs-cpu")


def _smt(cpu: Cpu) -> str | None:
    if cpu.threads_per_core is not None and cpu.threads_per_core > 1:
        return "on"
    if cpu.smt is not None:
        return "on" if cpu.smt == "on" and cpu.threads_per_core is None else "off"
    return "off" if cpu.threads_per_core == 1 else None


def baseline(cpu: Cpu) -> Mapping[str, Value]:
    """Return how many CPUs run."""
    return {"cpu.smt_online.cpus": cpu.online} if cpu.online and cpu.online == cpu.present else {}
