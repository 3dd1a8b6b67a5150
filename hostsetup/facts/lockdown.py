"""Knows whether the kernel is locked down and the firmware boots signed code alone. Unlocks nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.kernel_log import KernelLog

PROBES = (
    Probe(
        "lockdown",
        """cd /sys 2>/dev/null || exit 1
echo lockdown
[ -r kernel/security/lockdown ] && { read -r l <kernel/security/lockdown; echo "modes $l"; }
[ -r kernel/security/lsm ] && { read -r l <kernel/security/lsm; echo "lsm $l"; }
[ -d firmware/efi ] && echo efi
for v in firmware/efi/efivars/SecureBoot-*; do [ -r "$v" ] && echo "secureboot $(od -An -tx1 "$v")"; done
exit 0""",
        root=True,
    ),
)

_LOCKED = re.compile(r"Kernel is locked down from|\bLockdown: ", re.IGNORECASE)
_MODE = re.compile(r"\[(none|integrity|confidentiality)\]", re.ASCII)
_VARIABLE = re.compile(r"secureboot ((?: *[0-9a-f]{2}){4}) *0([01])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lockdown:
    """`mode`: none, integrity or confidentiality. `secure_boot`: None: not said. `lines`: what showed it."""

    mode: str
    secure_boot: bool | None
    lines: tuple[str, ...]

    @property
    def locked(self) -> bool:
        """Whether writes to configuration space are refused, even to root."""
        return self.mode != "none"


def parse_lockdown(text: str) -> Lockdown:
    """Read the lines `lockdown`, `modes`, `lsm`, `efi` and `secureboot`; raise ValueError where no mode is shown."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != "lockdown":
        raise ValueError("not what the kernel says of lockdown")
    mode = secure = lsm = None
    for line in lines[1:50]:
        if line.startswith("modes "):
            found = _MODE.search(line)
            mode = found[1] if found else None
        elif line.startswith("lsm "):
            lsm = line[4:].split(",")
        elif line == "efi":
            secure = False if secure is None else secure
        elif found := _VARIABLE.fullmatch(line):
            secure = found[2] == "1"
        elif not line.startswith("secureboot"):
            raise ValueError("a line that says nothing of lockdown")
    if mode is None and lsm is not None and "lockdown" not in lsm:
        mode = "none"  # this kernel has no such thing
    if mode is None:
        raise ValueError("/sys/kernel/security/lockdown is not there, or not readable without root")
    # without its variable, firmware that could refuse unsigned code does not say whether it does
    known = secure if any(line.startswith("secureboot") for line in lines) or "efi" not in lines else None
    return Lockdown(mode, known, tuple(f"lockdown: {line}"[:200] for line in lines[1:5]))


def read(evidence: Evidence, kernel_log: KernelLog | None = None) -> Known[Lockdown] | Unknown:
    """Return the mode; the kernel's log can show that it is locked, never that it is not."""
    reply = evidence.answer("lockdown")
    reason = reply.reason if isinstance(reply, Unknown) else ""
    if not isinstance(reply, Unknown):
        try:
            return Known(parse_lockdown(reply.text))
        except ValueError as error:
            reason = f"`lockdown`: {error}"
    lines = kernel_log.find(_LOCKED) if kernel_log else ()
    if lines:
        mode = "confidentiality" if any("confidentiality" in line for line in lines) else "integrity"
        return Known(Lockdown(mode, None, tuple(f"dmesg: {line}" for line in lines[:3])))
    return Unknown(reason)
