"""Knows how far a host's clock is from the launcher's, and how sure that is. Reads no clock itself."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES: tuple[Probe, ...] = ()  # the collector itself writes the reply `clock`


@dataclass(frozen=True, slots=True)
class Clock:
    """`offset_s`: the host's clock minus the launcher's; the truth lies within `uncertainty_s` of it."""

    offset_s: float
    uncertainty_s: float


def parse_clock(text: str) -> Clock:
    """Read samples, one a line: local time before, remote time, local time after, in seconds since 1970.

    The sample with the shortest round trip decides. A remote time in whole seconds (busybox has no `%N`) stands for
    any instant of that second.
    """
    samples = [_sample(line.split()) for line in text.splitlines() if line.strip()]
    if not samples:
        raise ValueError("no sample of the clock")
    return min(samples, key=lambda sample: sample.uncertainty_s)


def _sample(words: list[str]) -> Clock:
    if len(words) != 3:
        raise ValueError("a clock sample is three numbers")
    whole = "." not in words[1] or words[1].endswith((".%N", ".N"))
    try:
        # the differences of times since 1970 need more digits than a float holds
        before, there, after = (
            Decimal(words[0]),
            Decimal(words[1].partition(".")[0] if whole else words[1]),
            Decimal(words[2]),
        )
        if not all(time.is_finite() and 0 < time < 10**11 for time in (before, there, after)) or after < before:
            raise ValueError("a clock sample is out of range or out of order")
        slack = Decimal("0.5") if whole else Decimal(0)
        return Clock(float(there + slack - (before + after) / 2), float((after - before) / 2 + slack))
    except InvalidOperation as error:
        raise ValueError("a clock sample is not a number") from error


def read(evidence: Evidence) -> Known[Clock] | Unknown:
    """Return the host's clock against the launcher's."""
    reply = evidence.answer("clock")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_clock(reply.text))
    except ValueError as error:
        return Unknown(f"`clock`: {error}")


def tell(clock: Clock) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"offset_s": round(clock.offset_s, 4), "uncertainty_s": round(clock.uncertainty_s, 4)}
