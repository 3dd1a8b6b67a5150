"""Reads the text of `lspci -vvv`: with or without domains and numbers, as root or not, from a host or a paste."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hostsetup.facts.pci_acs import FLAGS
from hostsetup.facts.pci_tree import MAX_DEPTH, MAX_FUNCTIONS, Function, full_address

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
HEADER = re.compile(rf"[ \t]*({_ADDRESS}) +(\S.*)", re.IGNORECASE | re.ASCII)
_NUMBERED = re.compile(
    r"(?P<class>.*?) \[(?P<code>[0-9a-f]{4})\]: (?P<name>.*) \[(?P<id>[0-9a-f]{4}:[0-9a-f]{4})\]", re.ASCII
)
_CODED = re.compile(r"(?P<class>.*?) \[(?P<code>[0-9a-f]{4})\]: (?P<name>.*)", re.ASCII)
_NUMERIC = re.compile(r"(?P<code>[0-9a-f]{4}): (?P<id>[0-9a-f]{4}:[0-9a-f]{4})", re.ASCII)
_BUS = re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2})\b", re.ASCII)
_CAPABILITY = re.compile(r"Capabilities: \[([0-9a-f]{2,3})(?: v\d+)?\] (.*)", re.ASCII)

LONGEST_LINE = 2000
_LONGEST_PREFIX = 120
_SETPCI = re.compile(rf"(?:{_ADDRESS}\s*(?:[:=]|->)?\s*)?(?:0x)?([0-9a-f]{{4}})", re.IGNORECASE | re.ASCII)
_LARGEST_WORD = 0x1FFF  # with the enhanced bits of PCIe 6

_CLASSES: Final = {
    "VGA compatible controller": "0300",
    "3D controller": "0302",
    "Display controller": "0380",
    "Processing accelerators": "1200",
    "PCI bridge": "0604",
    "Bridge": "0680",
    "Host bridge": "0600",
    "Ethernet controller": "0200",
    "Infiniband controller": "0207",
    "Network controller": "0280",
}
_VENDORS: Final = {
    "NVIDIA Corporation": "10de",
    "Advanced Micro Devices, Inc. [AMD/ATI]": "1002",
    "Mellanox Technologies": "15b3",
    "Red Hat, Inc. QEMU": "1b36",
    "VMware": "15ad",
    "XenSource": "5853",
    "Microsoft Corporation": "1414",
}


class _Block:
    """One function's lines, while they are read."""

    def __init__(self, address: str, header: str) -> None:
        self.function = _from_header(address, header)
        self.secondary: str | None = None
        self.denied = self.express = self.extended = self.acs_listed = self.listed = False
        self.acs: int | None = None
        self.able: int | None = None

    def add(self, line: str) -> None:
        if found := _BUS.match(line):
            self.secondary = found[1]
        elif found := _CAPABILITY.match(line):
            self.listed = True
            self.express |= found[2].startswith("Express")
            self.extended |= int(found[1], 16) >= 0x100
            self.acs_listed |= found[2].startswith("Access Control Services")
        elif line.startswith("Capabilities: <access denied>"):
            self.denied = True
        elif line.startswith("ACSCtl:"):  # AER's ACSViol and ARI's MFVC/ACS also hold the letters
            self.acs = parse_flags(line)
        elif line.startswith("ACSCap:"):
            self.able = _word(line)
        elif line.startswith("Status: Cap-"):
            self.listed = True  # there is no list of capabilities
        elif line.startswith("Kernel driver in use: "):
            self.function = replace(self.function, driver=line.rpartition(": ")[2])
        elif line.startswith("!!! Unknown header type 7f"):
            self.function = replace(self.function, dead=True)

    def finish(self) -> Function:
        acs = None if self.function.dead else self.acs
        # without one extended capability in sight, nothing shows that extended space was read at all; a terse listing
        # shows no capability of any kind
        readable = self.listed and not self.denied and not self.function.dead and (self.extended or not self.express)
        absent = acs is None and readable and not self.acs_listed
        return replace(self.function, acs=acs, acs_able=self.able, acs_absent=absent)


def parse_flags(line: str) -> int | None:
    """Return the control word of an `ACSCtl:` line, or None when the line is not whole or reads as all ones."""
    word = _word(line)
    return None if word == (1 << len(FLAGS)) - 1 else word


def _word(line: str) -> int | None:
    signs = dict(re.findall(r"(\w+)([+-])(?=\s|$)", line, re.ASCII))
    if set(signs) != set(FLAGS):
        return None
    return sum(1 << bit for bit, name in enumerate(FLAGS) if signs[name] == "+")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines, none too long; flags and ids that a paste wrapped to the next line are put together again."""
    held = ""
    for whole in text.splitlines():
        line = whole[:LONGEST_LINE]
        if held:
            mended = (f"{held}{line.strip()}", f"{held} {line.strip()}")
            found = next((one for one in mended if not _is_broken(one)), "")
            yield found or held
            held = ""
            if found:
                continue
        if _is_broken(line):
            held = line.rstrip()
        else:
            yield line
    if held:
        yield held


def _is_broken(line: str) -> bool:
    if line.lstrip().startswith(("ACSCtl:", "ACSCap:")):
        return _word(line) is None
    header = HEADER.match(line)
    return header is not None and bool(_CODED.match(header[2])) and not _NUMBERED.match(header[2])


def parse_loose(text: str) -> tuple[int, ...]:
    """Return the words of the `ACSCtl:` lines above the first address; raise ValueError when there is none."""
    words: list[int] = []
    for line in _lines(text):
        if HEADER.match(line) or len(words) > MAX_FUNCTIONS:
            break
        # `grep -n` and tools that ask many hosts put a number or a name before it
        at = line.find("ACSCtl:", 0, _LONGEST_PREFIX)
        if at >= 0 and (word := parse_flags(line[at:].strip())) is not None:
            words.append(word)
    if not words:
        raise ValueError("no ACS control word without an address")
    return tuple(words)


def parse_setpci(text: str) -> tuple[int, ...]:
    """Return what somebody read of control words by setpci, a line each; raise ValueError where a value cannot be one."""
    found = [_SETPCI.fullmatch(line[:LONGEST_LINE].strip()) for line in text.splitlines()[:MAX_FUNCTIONS]]
    words = [word for one in found if one and (word := int(one[1], 16)) != 0xFFFF]  # all ones: nothing answers there
    if not words or max(words) > _LARGEST_WORD:
        raise ValueError("no ACS control word, or other registers")
    return tuple(words)


def parse_lspci(text: str) -> dict[str, Function]:
    """Read the functions, by full address; parents by the buses that bridges own. Raise ValueError without any."""
    blocks: dict[str, _Block] = {}
    block: _Block | None = None
    for line in _lines(text):
        if header := HEADER.match(line):
            address = full_address(header[1])
            block = blocks[address] = _Block(address, header[2])
            if len(blocks) > MAX_FUNCTIONS:
                raise ValueError("more PCI functions than any machine has")
        elif block is not None:
            block.add(line.strip())
    if not blocks:
        raise ValueError("no PCI function")
    owners = {
        (address.partition(":")[0], block.secondary): address
        for address, block in blocks.items()
        if block.secondary and block.secondary != "00" and block.function.is_bridge
    }
    functions = {address: block.finish() for address, block in blocks.items()}
    return {address: replace(f, parents=_parents(address, owners)) for address, f in functions.items()}


def _parents(address: str, owners: dict[tuple[str, str], str]) -> tuple[str, ...]:
    chain: list[str] = []
    here: str | None = address
    while here is not None:
        domain, bus, _ = here.split(":")
        here = owners.get((domain, bus))
        if here is None or here in chain or here == address or len(chain) == MAX_DEPTH:  # text may claim a loop
            break
        chain.append(here)
    return tuple(chain)


def _from_header(address: str, header: str) -> Function:
    dead = "(rev ff)" in header
    if found := _NUMERIC.match(header) or _NUMBERED.match(header):
        vendor, _, device = found["id"].partition(":")
        name = found.groupdict().get("name") or ""
        return Function(address, name, vendor, device, found["code"], dead=dead, source="lspci-vvv")
    coded = _CODED.match(header)
    kind, colon, name = (coded["class"], ": ", coded["name"]) if coded else header.partition(": ")
    if not colon:
        raise ValueError(f"no class in the line of {address}")
    vendor = next((code for words, code in _VENDORS.items() if name.startswith(words)), "")
    name = re.sub(r" \((?:rev|prog-if) .*", "", name)
    code = coded["code"] if coded else _CLASSES.get(kind.strip(), "")
    return Function(address, name, vendor, "", code, dead=dead, source="lspci-vvv")
