"""The clocks of the hosts disagree.

What it means
    Two hosts tell times that differ by a second (warning) or by ten and more (failure).

Why it matters to training
    Agents that meet through torchrun's c10d rendezvous write heartbeats with their own time and drop peers whose
    heartbeat looks older than 15 s by theirs. A host that is late by that much seems dead and is thrown out, again and
    again. Logs of several hosts cannot be put in order either, nor do files on shared storage look as old as they are.

How we tell
    Over the open connection the launcher notes its time, asks the host's, and notes its own again, several times; the
    quickest exchange counts, and half its length is the uncertainty. The hosts' offsets are then compared with one
    another: the launcher's own clock cancels out, time zones play no part. A failure is told only where the difference
    exceeds the limit by more than the uncertainty; where it may or may not exceed it, the answer is unknown (near the
    limit of the warning it is only told). A host whose `date` knows whole seconds alone is unsure by half a second. One
    host alone has nothing to disagree with.

What to do
    Run one time service on every host, with the same sources: `timedatectl set-ntp true`, or chrony. Let it step a clock
    that is far off: `chronyc makestep`.

How to undo
    `timedatectl set-ntp false`, or stop the service.

Sources
    https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
    https://chrony-project.org/documentation.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.clock import Clock

ID = "time.skew"
SOURCE = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py"

EXPECTS = {
    "time.skew.warn_s": Want(float, "clocks that differ by this much are a warning, in seconds", 1.0),
    "time.skew.fail_s": Want(float, "clocks that differ by this much are a failure, in seconds", 10.0),
}
_REMEDY = Remedy(
    "Run one time service on every host with the same sources, and let it step the clock now.",
    ("sudo timedatectl set-ntp true",),
    needs_root=True,
)


def judge_fleet(clock: Mapping[str, Clock], expect: Expect) -> Iterator[Finding]:
    """Compare each host with the middle one, and the earliest with the latest."""
    limits = (expect.number("time.skew.warn_s") or 0.0, expect.number("time.skew.fail_s") or 0.0)
    order = sorted(clock, key=lambda host: clock[host].offset_s)
    middle = order[len(order) // 2]
    told = 0
    pairs = [(middle, host) for host in order if host != middle]
    for a, b in pairs:
        finding = _judge(a, b, clock, limits)
        if finding is not None:
            told += 1
            yield finding
    first, last = order[0], order[-1]
    apart = clock[last].offset_s - clock[first].offset_s
    if told == 0 and (finding := _judge(first, last, clock, limits)) is not None:
        yield finding
    elif told == 0:
        yield Finding(
            State.PASS, saw=f"{len(order)} clocks within {apart:.3f} s", wanted=_wanted(limits), scope="cluster"
        )


def _wanted(limits: tuple[float, float]) -> str:
    return f"clocks within {limits[0]:g} s of each other; {limits[1]:g} s is too much"


def _judge(a: str, b: str, clock: Mapping[str, Clock], limits: tuple[float, float]) -> Finding | None:
    warn_s, fail_s = limits
    apart = abs(clock[a].offset_s - clock[b].offset_s)
    unsure = clock[a].uncertainty_s + clock[b].uncertainty_s
    if apart - unsure >= fail_s:
        state = State.FAIL
    elif apart + unsure >= fail_s:
        state = State.UNKNOWN
    elif apart - unsure >= warn_s:
        state = State.WARN
    elif apart >= warn_s:
        state = State.INFO
    else:
        return None
    return Finding(
        state,
        saw=f"{apart:.3f} s apart (within {unsure:.3f} s)",
        wanted=_wanted(limits),
        subject=f"{a} <-> {b}",
        remedy=_REMEDY,
        evidence=tuple(f"clock: {host}: {clock[host].offset_s:+.3f} s against the launcher" for host in (a, b)),
        scope="pair",
        hosts=(a, b),
    )
