"""Knows which kernels a host has, which runs, and which of them have NVIDIA's module. Builds and loads none.

Versions are ordered by their numbers: as text, 5.9 would be newer than 5.10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe(
        "kernels",
        r"""printf 'running %s\n' "$(uname -r)"
for d in /lib/modules/*; do
  [ -d "$d" ] || continue
  k=${d##*/} marks=
  for i in "/boot/vmlinuz-$k" "/boot/vmlinux-$k" "/boot/Image-$k" "$d/vmlinuz"; do
    [ -e "$i" ] && { marks=" image"; break; }
  done
  [ -e "$d/build" ] && marks="$marks headers"
  [ -r "$d/modules.dep" ] && marks="$marks list"
  printf 'kernel %s%s\n' "$k" "$marks"
done | head -n 100
grep -sHm1 -E '(^|/)nvidia\.ko' /lib/modules/*/modules.dep | head -n 100
for d in /var/lib/dkms/nvidia*/*; do [ -d "$d" ] && printf 'dkms %s\n' "${d#/var/lib/dkms/}"; done | head -n 100
exit 0""",
    ),
)
MOST_KERNELS = 200
_NAME = re.compile(r"\d[A-Za-z0-9._+~-]{0,127}", re.ASCII)
_MODULE = re.compile(r"/lib/modules/([^/\s]+)/modules\.dep:(\S*nvidia\.ko\S*?):", re.ASCII)
_FLAVOUR = re.compile(r"\d[\d.]*-[\d.]+-(?P<debian>[a-z][a-z0-9-]*)|.*(?P<rpm>\+[a-z0-9-]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kernel:
    """`image`: it can be booted. `headers`: modules can be built for it. `module`: the path of NVIDIA's, None: not said."""

    name: str
    image: bool = False
    headers: bool = False
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Kernels:
    """`running`: what runs. `installed`: by name. `dkms`: the versions of NVIDIA's source that DKMS builds."""

    running: str
    installed: Mapping[str, Kernel] = field(default_factory=dict)
    dkms: tuple[str, ...] = ()

    @property
    def next(self) -> Kernel | None:
        """The newest kernel of the running one's flavour, which boots next by default; None: cannot be told."""
        ours = self.installed.get(self.running)
        if ours is None or not ours.image:
            return None  # what is bootable cannot be seen: /boot is closed, or kernels come from elsewhere
        same = [one for one in self.installed.values() if one.image and flavour(one.name) == flavour(self.running)]
        return max(same, key=lambda one: order(one.name))

    @property
    def pending(self) -> str:
        """The newer kernel that waits for a reboot, or an empty string."""
        newest = self.next
        return newest.name if newest is not None and order(newest.name) > order(self.running) else ""


def order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts versions as package managers do; a release candidate comes before its release."""
    words = re.findall(r"\d{1,18}|[a-z]+", version.lower(), re.ASCII)
    key = [(2, int(word), "") if word[0].isdigit() else (-1 if word == "rc" else 1, 0, word) for word in words]
    return (*key, (0, 0, ""))


def flavour(name: str) -> str:
    """Return what a distribution calls this line of kernels: `generic`, `cloud-amd64`, `+debug`; empty: none."""
    found = _FLAVOUR.fullmatch(name)
    return (found["debian"] or found["rpm"] or "") if found else ""


def parse_kernels(text: str) -> Kernels:
    """Read the lines `running NAME`, `kernel NAME [image] [headers] [list]`, `dkms nvidia/VERSION`, and of modules.dep."""
    running, dkms = "", dict[str, None]()
    marks: dict[str, set[str]] = {}
    modules: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "running" and not running:
            running = words[1]
        elif len(words) > 1 and words[0] == "kernel" and len(marks) < MOST_KERNELS and _NAME.fullmatch(words[1]):
            marks[words[1]] = set(words[2:])
        elif len(words) > 1 and words[0] == "dkms" and len(dkms) < MOST_KERNELS:
            dkms[words[1][:100]] = None
        elif found := _MODULE.match(line[:1000]):
            modules[found[1]] = found[2]
    if not _NAME.fullmatch(running):
        raise ValueError("no line says which kernel runs")
    installed = {
        name: Kernel(name, "image" in said, "headers" in said, modules.get(name, "") if "list" in said else None)
        for name, said in marks.items()
        if "rescue" not in name
    }
    return Kernels(running, installed, tuple(dkms))


def read(evidence: Evidence) -> Known[Kernels] | Unknown:
    """Return the kernels."""
    reply = evidence.answer("kernels")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_kernels(reply.text))
    except ValueError as error:
        return Unknown(f"`kernels`: {error}")


def tell(kernels: Kernels) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"running": kernels.running, "pending": kernels.pending or None}
