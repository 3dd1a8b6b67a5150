"""Knows the kernel's boot parameters: running, configured, and what the kernel said of them. Changes no boot file."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.kernel_log import KernelLog

TELLS = "boot"  # the name of these facts in JSON

PROBES = (
    Probe("proc-cmdline", "cat /proc/cmdline"),
    Probe("etc-default-grub", "cat /etc/default/grub /etc/default/grub.d/*.cfg 2>/dev/null"),
)

_SAID = re.compile(r"(?P<override>PCIe ACS overrides? enabled)|Unknown kernel command line parameters? ", re.IGNORECASE)
_SETTING = re.compile(r"\s*(?:export\s+)?(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?)=(.*)")


@dataclass(frozen=True, slots=True)
class Cmdline:
    """`running`: the parameters of this boot; `configured`: those of GRUB's defaults. None: not known.

    `log`: the kernel's lines about parameters it does not know and about ACS overrides; None when the log was not read.
    """

    running: tuple[str, ...] | None
    configured: tuple[str, ...] | None = None
    log: tuple[str, ...] | None = None


def parse_cmdline(text: str) -> tuple[str, ...]:
    """Split /proc/cmdline as the kernel does: at blanks outside double quotes."""
    if "\0" in text or "\x1b" in text or len(text) > 1 << 16:
        raise ValueError("not a kernel command line")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        raise ValueError("a kernel command line is one line")
    return tuple(word.replace('"', "") for word in re.findall(r'(?:"[^"]*"?|[^\s"])+', lines[0]))


def parse_grub(text: str) -> tuple[str, ...]:
    """Return the parameters that GRUB's defaults add to the kernel line; a later assignment replaces an earlier one."""
    values: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        found = _SETTING.fullmatch(line)
        if found is None:
            continue
        name, more, value = found.groups()
        # the file is a shell script: an unquoted `;` ends the command
        words = shlex.split(value, comments=True)
        added = tuple(words[0].partition(";")[0].split()) if words and value[:1] not in {'"', "'"} else ()
        if value[:1] in {'"', "'"}:
            added = tuple(words[0].split()) if words else ()
        values[name] = values.get(name, ()) + added if more else added
    if not values and "GRUB_" not in text:
        raise ValueError("not GRUB's defaults: no GRUB_ setting")
    return tuple(word for name in sorted(values) for word in values[name] if not word.startswith("$"))


def read(evidence: Evidence, kernel_log: KernelLog | None = None) -> Known[Cmdline] | Unknown:
    """Return what is known of the boot parameters; unknown when neither the running nor the configured ones are."""
    reasons: list[str] = []
    found: dict[str, tuple[str, ...] | None] = {}
    for probe, parse in (("proc-cmdline", parse_cmdline), ("etc-default-grub", parse_grub)):
        found[probe] = None
        reply = evidence.answer(probe)
        if isinstance(reply, Unknown):
            reasons.append(reply.reason)
        else:
            try:
                found[probe] = parse(reply.text)
            except ValueError as error:
                reasons.append(f"`{probe}`: {error}")
    running, configured = found.values()
    if running is None and configured is None:
        return Unknown(reasons[0])
    return Known(Cmdline(running, configured, kernel_log.find(_SAID) if kernel_log else None))


def tell(cmdline: Cmdline) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {} if cmdline.running is None else {"args": list(cmdline.running)}
