"""Knows which things that run at boot change PCIe access control: units, their programs, rc.local, udev rules, cron.

Runs none of them, and does not say that they work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

# Only units that something wants at boot are enabled: their links lie in *.wants. Of programs, scripts of the site alone.
PROBES = (
    Probe(
        "acs-scripts",
        """[ -d /etc ] || exit 1
echo acs-scripts
p='[s]etpci|ECAP_ACS|[d]isable[-_]acs|[a]cs[-_](off|disable)'
grep -sHE -m3 "$p" /etc/systemd/system/*.wants/* /etc/rc.local /etc/rc.d/rc.local /etc/udev/rules.d/*.rules /etc/crontab /etc/cron.d/*
for f in $(grep -shoE '^Exec[^=]*=[-+!@:]*/(usr/local|opt|root|etc|home|srv)/[^[:space:]]+' /etc/systemd/system/*.wants/* | sed 's/^[^/]*//'); do
  [ -f "$f" ] && head -c 65536 "$f" | grep -aqE "$p" && echo "$f:program of an enabled unit"
done
[ -x /etc/rc.local ] && echo "rc.local runs"
[ -x /etc/rc.d/rc.local ] && echo "rc.local runs"
exit 0""",
        root=True,
    ),
)
_LINE = re.compile(r"(/[^:]{1,300}):(.*)")
_DIRECTIVE = re.compile(r"Description|Documentation|#")
MAX_FILES = 50


@dataclass(frozen=True, slots=True)
class AcsScripts:
    """`lines`: what changes ACS at boot, by file: the line that shows it."""

    lines: tuple[tuple[str, str], ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files, once each."""
        return tuple(dict.fromkeys(path for path, _ in self.lines))


def parse_acs_scripts(text: str) -> AcsScripts:
    """Read the lines `acs-scripts`, `PATH:LINE` and `rc.local runs`; comments do nothing, nor does an rc.local that cannot run."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "acs-scripts":
        raise ValueError("not what runs at boot")
    runs = "rc.local runs" in lines
    return AcsScripts(tuple(_active(lines[1:], runs=runs))[:MAX_FILES])


def _active(lines: Iterable[str], *, runs: bool) -> Iterable[tuple[str, str]]:
    for line in lines:
        if line == "rc.local runs" or not line.strip():
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError("a line of no file")
        path, said = found[1], found[2].strip()
        if not _DIRECTIVE.match(said) and (runs or not path.endswith("/rc.local")):
            yield path, said[:200]


def read(evidence: Evidence) -> Known[AcsScripts] | Unknown:
    """Return what changes ACS at boot."""
    reply = evidence.answer("acs-scripts")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_acs_scripts(reply.text))
    except ValueError as error:
        return Unknown(f"`acs-scripts`: {error}")
