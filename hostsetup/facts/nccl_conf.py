"""Knows which settings of NCCL and its companions lie on a host, and which of them win. Judges no value.

Keeps lines that set such variables only: other lines of these files may hold secrets.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = "(NCCL|RCCL|UCX|FI|GLOO|TP_SOCKET|TORCH_NCCL)_[A-Z0-9_]+"
PROBES = (
    Probe(
        "nccl-conf",
        rf"""echo settings
env | grep -E '^{_NAMES}=' | head -c 20000 | sed 's/^/environment:/'
set -- /etc/environment /etc/profile /etc/profile.d/*.sh /etc/bash.bashrc "$HOME/.profile" "$HOME/.bash_profile" "$HOME/.bashrc"
grep -osHE '^[[:space:]]*(export[[:space:]]+)?{_NAMES}=[^;]*' "$@" | head -c 50000
set -- "$HOME/.nccl.conf" /etc/nccl.conf "$HOME/.rccl.conf" /etc/rccl.conf
[ -z "$NCCL_CONF_FILE" ] || set -- "$NCCL_CONF_FILE" "$@"
grep -osHE '^[[:space:]]*{_NAMES}=.*' "$@" | head -c 50000
exit 0""",
    ),
)

MAX_SETTINGS = 500
_SHELL = re.compile(
    r"environment|/etc/(environment|profile|profile\.d/.*|bash\.bashrc)|.*/\.(profile|bash_profile|bashrc)"
)
_LINE = re.compile(rf"([^:\s][^:]{{0,200}}):\s*(?:export\s+)?({_NAMES})=(.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line that sets a variable. `place`: the file, or `environment` (of the SSH session)."""

    name: str
    value: str
    place: str

    @property
    def is_conf(self) -> bool:
        """Whether NCCL itself reads the place; the others reach a process through its environment."""
        return _SHELL.fullmatch(self.place) is None


@dataclass(frozen=True, slots=True)
class NcclConf:
    """All settings that were found. A process started without a login shell does not see those of the shells' files."""

    settings: tuple[Setting, ...] = ()

    @property
    def effective(self) -> Mapping[str, Setting]:
        """Return the setting that wins by variable: environment, then the user's file, then the system's."""
        ranked = sorted(self.settings, key=_rank)
        return {one.name: one for one in reversed(ranked)}

    def value(self, name: str) -> str:
        """Return the value that wins, or an empty text."""
        found = self.effective.get(name)
        return found.value if found else ""


def _rank(setting: Setting) -> int:
    if setting.place == "environment":
        return 0
    return 3 if setting.place in {"/etc/nccl.conf", "/etc/rccl.conf"} else 2 if setting.is_conf else 1


def parse_nccl_conf(text: str) -> NcclConf:
    """Read `settings`, then lines of FILE:LINE; in shells' files a value may be quoted, later lines win."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "settings":
        raise ValueError("not the answer of the probe")
    found = [_LINE.fullmatch(line) for line in lines[1 : MAX_SETTINGS + 1]]
    settings = [Setting(m[2], _value(m[4], m[1]), m[1]) for m in found if m]
    return NcclConf(tuple({(one.place, one.name): one for one in settings}.values()))


def _value(text: str, place: str) -> str:
    if place.endswith("ccl.conf") or place == "environment":
        return text.strip()[:500]
    try:
        words = shlex.split(text.partition(";")[0], comments=True)
    except ValueError:
        words = []
    return words[0][:500] if words else ""


def read(evidence: Evidence) -> Known[NcclConf] | Unknown:
    """Return the settings; none at all is an answer, too."""
    reply = evidence.answer("nccl-conf")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_nccl_conf(reply.text))
    except ValueError as error:
        return Unknown(f"`nccl-conf`: {error}")


def tell(conf: NcclConf) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {name: setting.value for name, setting in conf.effective.items()}
