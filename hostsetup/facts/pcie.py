"""Knows what sysfs says of PCIe functions without root: links, errors, BARs, IOMMU groups. Takes no absent file for zero.

Of lspci's text it reads the links and the BARs, where sysfs was not asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostsetup.facts.lspci import HEADER, LONGEST_LINE
from hostsetup.facts.pci_tree import MAX_FUNCTIONS, full_address
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

# Only GPUs, NICs and bridges: three processes, whatever the number of functions.
PROBES = (
    Probe(
        "sysfs-pcie",
        """[ -d /sys/bus ] || exit 1
echo pcie
for i in /sys/class/iommu/*; do [ -e "$i" ] && echo "iommu ${i##*/}"; done
cd /sys/bus/pci/devices 2>/dev/null || exit 0
all= gpus=
for d in *; do
  [ -r "$d/class" ] || continue
  read -r c <"$d/class"
  case $c in
    0x0300*|0x0302*|0x0380*|0x1200*) gpus="$gpus $d/resource"; all="$all $d"; [ -e "$d/iommu_group" ] && echo "$d/iommu_group:yes";;
    0x0200*|0x0207*|0x0280*) all="$all $d"; [ -e "$d/iommu_group" ] && echo "$d/iommu_group:yes";;
    0x0604*) all="$all $d";;
  esac
done
set --
for d in $all; do
  set -- "$@" "$d/current_link_speed" "$d/max_link_speed" "$d/current_link_width" "$d/max_link_width" "$d/iommu_group/type"
done
[ $# = 0 ] || grep -sH '' "$@"
set --
for d in $all; do set -- "$@" "$d/aer_dev_correctable" "$d/aer_dev_nonfatal" "$d/aer_dev_fatal"; done
[ $# = 0 ] || grep -sHE '^TOTAL_|[[:blank:]][1-9][0-9]*$' "$@"
[ -z "$gpus" ] || grep -sHn '' $gpus
exit 0""",
    ),
)

_FIELD = re.compile(r"([0-9a-f:]+\.[0-7])/([a-z_/]{1,40}):(.{0,200})", re.ASCII)
_BAR = re.compile(r"(\d{1,2}):0x([0-9a-f]{16}) 0x([0-9a-f]{16}) 0x([0-9a-f]{16})", re.ASCII)
_GTS = re.compile(r"(\d{1,3}(?:\.\d)?) ?GT/s", re.ASCII)
_COUNT = re.compile(r"(\w[\w ]{0,39}) (\d{1,20})", re.ASCII)
_LNK = re.compile(r"Lnk(Cap|Sta):.*?\bSpeed (?P<speed>[^,]*), Width x(?P<width>\d{1,2})\b", re.ASCII)
_REGION = re.compile(
    r"Region (?P<bar>[0-5]): Memory at (?P<at>\S+) \((?P<kind>[^)]*)\).*\[size=(?P<size>\d{1,4})(?P<unit>[KMGT]?)\]",
    re.ASCII,
)
_MOST_KINDS = 64
_MEMORY, _PREFETCH, _UNSET, _BARS = 0x200, 0x2000, 0x20000000, 6
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AER = {"aer_dev_correctable": "correctable", "aer_dev_nonfatal": "nonfatal", "aer_dev_fatal": "fatal"}


@dataclass(frozen=True, slots=True)
class Link:
    """One end of a link. Speeds in GT/s; None: not said, or `Unknown` (a dead or a virtual link)."""

    speed_gts: float | None = None
    max_speed_gts: float | None = None
    width: int | None = None
    max_width: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One memory window. `assigned`: it has an address."""

    number: int
    size_bytes: int
    prefetchable: bool
    assigned: bool


@dataclass(frozen=True, slots=True)
class Port:
    """What is said of one function. `grouped`: it is in an IOMMU group, of type `group_type` (empty: an old kernel).

    `errors`: totals by severity since boot, absent where the kernel keeps none; `kinds`: the counters that are not zero.
    """

    link: Link = Link()
    bars: tuple[Bar, ...] = ()
    grouped: bool = False
    group_type: str = ""
    errors: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pcie:
    """All functions by address. `iommus`: the active IOMMU units; None: not asked. `source`: the probe that spoke."""

    ports: Mapping[str, Port]
    iommus: tuple[str, ...] | None
    source: str


def parse_sysfs_pcie(text: str) -> Pcie:
    """Read the lines `pcie`, `iommu NAME` and `ADDRESS/FILE:CONTENT`; no function at all is an answer, too."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "pcie":
        raise ValueError("not what sysfs says of PCIe functions")
    ports: dict[str, Port] = {}
    iommus: list[str] = []
    for line in filter(None, map(str.rstrip, lines[1:])):
        if (name := line.removeprefix("iommu ")) != line:
            iommus.append(name[:40])
            if len(iommus) > MAX_FUNCTIONS:
                raise ValueError("more IOMMUs than any machine has")
        elif (found := _FIELD.fullmatch(line)) and len(ports) < MAX_FUNCTIONS:
            address = full_address(found[1])
            ports[address] = _with(ports.get(address, Port()), found[2], found[3])
        else:
            raise ValueError("a line that is no file of a function, or too many functions")
    return Pcie(ports, tuple(iommus), "sysfs-pcie")


def _with(port: Port, name: str, value: str) -> Port:
    match name:
        case "iommu_group":
            return replace(port, grouped=True)
        case "iommu_group/type":
            return replace(port, grouped=True, group_type=value.strip())
        case "current_link_speed":
            return replace(port, link=replace(port.link, speed_gts=_speed(value)))
        case "max_link_speed":
            return replace(port, link=replace(port.link, max_speed_gts=_speed(value)))
        case "current_link_width":
            return replace(port, link=replace(port.link, width=_width(value)))
        case "max_link_width":
            return replace(port, link=replace(port.link, max_width=_width(value)))
        case "resource":
            return replace(port, bars=(*port.bars, *_bar(value))[:_BARS])
        case "aer_dev_correctable" | "aer_dev_nonfatal" | "aer_dev_fatal":
            return _counted(port, _AER[name], value)
    raise ValueError("a file that was not asked for")


def _speed(text: str) -> float | None:
    found = _GTS.match(text.strip())
    return float(found[1]) if found else None


def _width(text: str) -> int | None:
    # 0 and 63 are what a link that is down, or a register of all ones, shows
    found = re.fullmatch(r"x?(\d{1,3})", text.strip(), re.ASCII)
    return int(found[1]) if found and 0 < int(found[1]) <= 32 else None


def _bar(text: str) -> tuple[Bar, ...]:
    found = _BAR.fullmatch(text.strip())
    if found is None:
        raise ValueError("a resource that is no address range")
    number = int(found[1]) - 1
    start, end, kind = (int(part, 16) for part in found.groups()[1:])
    if number >= _BARS or not kind or end < start or not kind & _MEMORY:
        return ()
    return (Bar(number, end - start + 1, bool(kind & _PREFETCH), assigned=start != 0 and not kind & _UNSET),)


def _counted(port: Port, severity: str, text: str) -> Port:
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError("a counter of errors that is no number")
    if found[1].startswith("TOTAL_"):
        return replace(port, errors={**port.errors, severity: int(found[2])})
    if len(port.kinds) >= _MOST_KINDS:
        raise ValueError("more kinds of errors than PCIe has")
    return replace(port, kinds={**port.kinds, f"{severity} {found[1]}": int(found[2])})


def parse_lspci_links(text: str) -> Pcie:
    """Read LnkCap, LnkSta and the memory regions of `lspci -vvv`; raise ValueError when no function shows any."""
    ports: dict[str, Port] = {}
    address = ""
    for line in text.splitlines():
        line = line[:LONGEST_LINE]  # noqa: PLW2901 - no more of it is looked at
        if header := HEADER.match(line):
            address = full_address(header[1])
        elif address and (found := _LNK.match(line.strip())):
            port = ports.get(address, Port())
            speed, width = _speed(found["speed"]), _width(found["width"])
            changed = (
                replace(port.link, max_speed_gts=speed, max_width=width)
                if found[1] == "Cap"
                else replace(port.link, speed_gts=speed, width=width)
            )
            ports[address] = replace(port, link=changed)
        elif address and (found := _REGION.match(line.strip())):
            port = ports.get(address, Port())
            bar = Bar(
                int(found["bar"]),
                int(found["size"]) * _UNITS[found["unit"]],
                "non-prefetchable" not in found["kind"],
                assigned=not found["at"].startswith("<"),
            )
            ports[address] = replace(port, bars=(*port.bars[:_BARS], bar))
        if len(ports) > MAX_FUNCTIONS:
            raise ValueError("more PCI functions than any machine has")
    if not ports:
        raise ValueError("no link and no memory region of a function")
    return Pcie(ports, None, "lspci-vvv")


def read(evidence: Evidence) -> Known[Pcie] | Unknown:
    """Return what sysfs says, else what lspci shows."""
    reasons: list[str] = []
    for probe, parse in (("sysfs-pcie", parse_sysfs_pcie), ("lspci-vvv", parse_lspci_links)):
        reply = evidence.answer(probe)
        if isinstance(reply, Unknown):
            reasons.append(reply.reason)
            continue
        try:
            return Known(parse(reply.text))
        except ValueError as error:
            reasons.append(f"`{probe}`: {error}")
    return Unknown(reasons[0])
