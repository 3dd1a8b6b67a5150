"""Knows what a host's time services say of themselves: systemd's, chrony's, ntpd's. Sets no clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES = (
    Probe(
        "timesync",
        """timedatectl show 2>/dev/null
if command -v chronyc >/dev/null; then chronyc -n tracking 2>&1; fi
if command -v ntpq >/dev/null; then ntpq -c 'rv 0 leap,stratum' 2>&1; fi
exit 0""",
    ),
)
_SYSTEMD = re.compile(r"^(?:NTPSynchronized=|[ \t]*System clock synchronized: )(yes|no)[ \t]*$", re.MULTILINE)
_CHRONY = re.compile(r"^Leap status[ \t]*: *(\S.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"^Reference ID[ \t]*: *(\S.*)$", re.MULTILINE)
_NTPQ = re.compile(r"\bleap=(\d\d)\b|\bleap_(none|add_sec|del_sec|alarm)\b", re.ASCII)
_LOCAL = re.compile(r"7F7F01\d\d|127\.127\.1\.\d|\(LOCAL\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TimeSync:
    """Each: whether it says that the clock is synchronised; None: it did not say. `reference`: chrony's source."""

    systemd: bool | None = None
    chrony: bool | None = None
    ntpd: bool | None = None
    reference: str = ""

    @property
    def local(self) -> bool:
        """Whether chrony follows nothing but the host's own clock."""
        return bool(_LOCAL.search(self.reference))


def parse_timesync(text: str) -> TimeSync:
    """Read `timedatectl show` (or `status`), `chronyc tracking` and `ntpq -c rv`, whichever are there."""
    systemd, chrony, reference = _SYSTEMD.search(text), _CHRONY.search(text), _REFERENCE.search(text)
    ntpq = _NTPQ.search(text)
    if not (systemd or chrony or ntpq):
        raise ValueError("neither timedatectl nor chronyc nor ntpq answered")
    return TimeSync(
        systemd=systemd[1] == "yes" if systemd else None,
        chrony=not chrony[1].lower().startswith("not ") if chrony else None,
        ntpd=(ntpq[1] or ntpq[2]) not in {"11", "alarm"} if ntpq else None,
        reference=reference[1][:100] if reference else "",
    )


def read(evidence: Evidence) -> Known[TimeSync] | Unknown:
    """Return what they say; that none of them is there is a fact, too."""
    reply = evidence.answer("timesync")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_timesync(reply.text))
    except ValueError:
        # chronyc without its daemon answers, and says nothing of the clock
        return Known(TimeSync())


def tell(timesync: TimeSync) -> dict[str, Any]:
    """Return the facts for JSON."""
    told = [said for said in (timesync.systemd, timesync.chrony, timesync.ntpd) if said is not None]
    return {"synchronised": any(told) if told else None}
