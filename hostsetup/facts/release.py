"""Knows a host's distribution, kernel, architecture and C library. Compares nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe("os-release", "cat /etc/os-release 2>/dev/null || cat /usr/lib/os-release"),
    Probe("uname", "uname -a && { getconf GNU_LIBC_VERSION 2>/dev/null || :; }"),
)
_PAIR = re.compile(r"\s*([A-Z][A-Z0-9_]*)=(.*)", re.ASCII)
_KERNEL = re.compile(r"\d{1,9}\.\d[A-Za-z0-9._+~-]*", re.ASCII)
_MACHINES = re.compile(r"x86_64|amd64|i[3-6]86|aarch64|arm64|armv\w+|ppc64(le)?|s390x|riscv64|loongarch64", re.ASCII)
_LIBC = re.compile(r"glibc \d+\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Release:
    """`distribution`: its id and version (`debian 12`). Empty: not said. `libc`: `glibc 2.36`; musl says nothing."""

    distribution: str = ""
    pretty: str = ""
    like: tuple[str, ...] = ()
    kernel: str = ""
    architecture: str = ""
    libc: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What `uname -a` says, and `getconf` of the C library."""

    release: str
    architecture: str
    libc: str


def parse_os_release(text: str) -> Mapping[str, str]:
    """Read os-release: NAME=VALUE lines, quoted or not. Nothing is expanded."""
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        if found := _PAIR.fullmatch(line):
            value = found[2].strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            pairs.setdefault(found[1], (value[1:-1] if quoted else value)[:200])
    if not {"ID", "NAME", "PRETTY_NAME"} & pairs.keys():
        raise ValueError("not os-release: no ID and no NAME")
    return pairs


def parse_uname(text: str) -> Kernel:
    """Read `uname -a`, or `uname -rm`: the first word that is a kernel's release, the last that is an architecture."""
    first = next((line for line in text.splitlines() if _KERNEL.search(line) and not _LIBC.fullmatch(line.strip())), "")
    words = first.split()
    release = next((word for word in words[2 if words[:1] == ["Linux"] else 0 :] if _KERNEL.fullmatch(word)), "")
    # `uname -a` ends in machine, processor, platform and `GNU/Linux`; the host may be called like an architecture
    machine = next((word for word in reversed(words[1:]) if _MACHINES.fullmatch(word)), "")
    if not release:
        raise ValueError("not uname: no kernel release in it")
    libc = next((line.strip() for line in text.splitlines() if _LIBC.fullmatch(line.strip())), "")
    return Kernel(release[:100], machine, libc)


def read(evidence: Evidence) -> Known[Release] | Unknown:
    """Return what either source says."""
    kernel, pairs, gap = Kernel("", "", ""), dict[str, str](), ""
    for probe in ("os-release", "uname"):
        reply = evidence.answer(probe)
        if isinstance(reply, Unknown):
            gap = gap or reply.reason
            continue
        try:
            if probe == "uname":
                kernel = parse_uname(reply.text)
            else:
                pairs = dict(parse_os_release(reply.text))
        except ValueError as error:
            gap = gap or f"`{probe}`: {error}"
    if not pairs and not kernel.release:
        return Unknown(gap)
    name = pairs.get("ID") or pairs.get("NAME", "")
    return Known(
        Release(
            distribution=f"{name} {pairs.get('VERSION_ID', '')}".strip(),
            pretty=pairs.get("PRETTY_NAME", ""),
            like=tuple(pairs.get("ID_LIKE", "").split()),
            kernel=kernel.release,
            architecture=kernel.architecture,
            libc=kernel.libc,
        )
    )


def tell(release: Release) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"distribution": release.distribution, "kernel": release.kernel, "architecture": release.architecture}
