"""Reads the PCI tree and the bridges' configuration space as sysfs shows them. Needs no tool but od."""

from __future__ import annotations

import re
from dataclasses import replace

from hostsetup.facts.pci_tree import MAX_FUNCTIONS, Function, full_address
from hostsetup.model import Probe

PROBE = Probe(
    "sysfs-pci",
    """[ -d /sys/bus ] || exit 1
echo tree
cd /sys/bus/pci/devices 2>/dev/null || exit 0
for d in *; do
  [ -e "$d/vendor" ] || continue
  read -r v <"$d/vendor"; read -r i <"$d/device"; read -r c <"$d/class"
  k=-; [ -e "$d/driver" ] && k=$(readlink "$d/driver")
  echo "dev $d $v $i $c ${k##*/} $(readlink "$d")"
  [ -e "$d/physfn" ] && echo "vf $d"
  case $c in 0x0604*) echo "config $d"; od -Ax -tx1 "$d/config" 2>/dev/null;; esac
done
for d in /sys/class/infiniband/*; do [ -e "$d/device" ] && echo "rdma ${d##*/} $(readlink -f "$d/device")"; done
exit 0""",
    root=True,
    timeout_s=30,
)

_HEX = re.compile(r"0x([0-9a-f]{4,6})", re.ASCII)
_OD = re.compile(r"([0-9a-f]{4,8})((?: +[0-9a-f]{2}){0,16})", re.ASCII)
_CONFIG_BYTES = 4096
_LONGEST_PATH = 1000
_ACS, _EXPRESS = 0x000D, 0x10


def parse_sysfs(text: str) -> dict[str, Function]:
    """Read the lines `tree`, `dev`, `config` with its dump, and `rdma`; no function at all is an answer, too."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "tree":
        raise ValueError("not the PCI tree of sysfs")
    functions: dict[str, Function] = {}
    dumps: dict[str, list[str]] = {}
    rdma, virtual = set[str](), set[str]()
    dump: list[str] = []
    for line in filter(None, map(str.strip, lines[1:])):
        match line.split():
            case ["dev", *words] if len(words) == 6 and len(functions) < MAX_FUNCTIONS:
                function = _device(words)
                functions[function.address] = function
            case ["config", address]:
                dump = dumps.setdefault(full_address(address), [])
            case ["rdma", _, path]:
                rdma.add(path.rpartition("/")[2])
            case ["vf", address]:
                virtual.add(full_address(address))
            case _ if _OD.fullmatch(line) or line == "*":
                dump.append(line)
            case _:
                raise ValueError("a line that is neither a device nor a dump, or too many devices")
    return {
        address: _with_acs(
            replace(function, rdma=address in rdma, virtual=address in virtual), parse_dump(dumps.get(address, []))
        )
        for address, function in functions.items()
    }


def _device(words: list[str]) -> Function:
    address, vendor, device, code, driver, path = words
    numbers = [_HEX.fullmatch(number) for number in (vendor, device, code)]
    if not all(numbers) or len(path) > _LONGEST_PATH:
        raise ValueError(f"no vendor, device and class for {address[:20]}")
    # the tree of a VMD controller hangs below that device, but is a root complex of its own
    _, _, below = re.sub(r".*/(?=pci[0-9a-f]{4,8}:[0-9a-f]{2}/)", "", path).partition("/")
    parts = (below or path).split("/")[:-1]
    above = [full_address(part) for part in parts if re.fullmatch(r"[0-9a-f:]+\.[0-7]", part)]
    return Function(
        full_address(address),
        vendor=vendor[2:],
        device=device[2:],
        class_code=code[2:6],
        driver="" if driver == "-" else driver,
        parents=tuple(reversed(above)),
        source="sysfs-pci",
    )


def parse_dump(lines: list[str]) -> bytes:
    """Return the bytes of a dump by `od -Ax -tx1`, in which `*` stands for the line before, repeated."""
    data = bytearray()
    repeat = False
    for line in lines:
        if line == "*":
            repeat = True
            continue
        at, _, rest = line.partition(" ")
        offset = int(at, 16)
        if offset > _CONFIG_BYTES or offset < len(data) or (offset > len(data) and not (repeat and len(data) >= 16)):
            raise ValueError("a dump with a gap, or larger than configuration space")
        while len(data) < offset:
            data += data[-16:]
        data += bytes.fromhex(rest)
        repeat = False
    return bytes(data[:_CONFIG_BYTES])


def _with_acs(bridge: Function, config: bytes) -> Function:
    if not config or config[:4] == b"\xff\xff\xff\xff":
        return replace(bridge, dead=bool(config))
    if len(config) <= 64:
        return bridge  # without root no more is shown
    if len(config) <= 256:
        return replace(bridge, acs_absent=not _is_express(config))
    at, seen = 0x100, set[int]()
    while at >= 0x100 and at not in seen and at + 8 <= len(config):
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header == 0xFFFFFFFF:
            return bridge
        if header & 0xFFFF == _ACS:
            able, word = (int.from_bytes(config[at + i : at + i + 2], "little") & 0x7F for i in (4, 6))
            return replace(bridge, acs=word, acs_able=able)
        at = header >> 20 & 0xFFC
    return replace(bridge, acs_absent=True)


def _is_express(config: bytes) -> bool:
    at, seen = config[0x34] & 0xFC, set[int]()
    while at >= 0x40 and at not in seen and at + 2 <= len(config):
        seen.add(at)
        if config[at] == _EXPRESS:
            return True
        at = config[at + 1] & 0xFC
    return False
