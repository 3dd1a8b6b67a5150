"""Gives a lab host the PCI functions of a machine of tests/machines: configuration space, tree and processors.

A container sees its machine's /sys, so a folder is mounted over /sys/bus/pci/devices; od, lspci and setpci are the real
ones and read real bytes. Only `lscpu` is replaced, by one that prints what the recorded machine said. The kernel lets
others than root read the first 64 bytes of configuration space; a file cannot do so, and here they read none, which
lspci shows them as a dead device.
"""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hostsetup.facts.lspci import parse_lspci

if TYPE_CHECKING:
    from hostsetup.facts.pci_tree import Function

MACHINES = Path(__file__).parents[1] / "machines"
PLACE = "opt/recorded"
_TYPES = {"Root Port": 4, "Upstream Port": 5, "Downstream Port": 6}
_BUSES = re.compile(r"Bus: primary=(\w\w), secondary=(\w\w), subordinate=(\w\w)")
_NO_WINDOW = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
_WINDOW = "0x0000380000000000 0x00003807ffffffff 0x000000000014220c\n"


@dataclass
class Folder:
    """A tar archive in the making."""

    data: io.BytesIO = field(default_factory=io.BytesIO)

    def __post_init__(self) -> None:
        self.tar = tarfile.open(fileobj=self.data, mode="w")  # noqa: SIM115 - closed when it is packed

    def add(self, path: str, content: bytes | str, mode: int = 0o444) -> None:
        body = content.encode() if isinstance(content, str) else content
        info = tarfile.TarInfo(path)
        info.size, info.mode, info.mtime = len(body), mode, 1_700_000_000
        self.tar.addfile(info, io.BytesIO(body))

    def link(self, path: str, to: str) -> None:
        info = tarfile.TarInfo(path)
        info.type, info.linkname = tarfile.SYMTYPE, to
        self.tar.addfile(info)

    def packed(self) -> bytes:
        self.tar.close()
        return self.data.getvalue()


def put(lab, host: str, name: str) -> None:
    """Let a host show the PCI functions and the processors of a recorded machine, until it is started anew."""
    put_pci(lab, host, name)
    folder = Folder()
    folder.add(f"{PLACE}/lscpu.txt", (MACHINES / name / "lscpu.txt").read_bytes())
    folder.add("usr/local/bin/lscpu", f"#!/bin/sh\nexec cat /{PLACE}/lscpu.txt\n", 0o755)
    lab.run_on(host, ["tar", "-x", "-C", "/"], stdin=folder.packed())


def put_pci(lab, host: str, name: str) -> None:
    """Let a host show the PCI functions alone; all of it lies below PLACE."""
    folder = Folder()
    text = (MACHINES / name / "lspci-vvv.txt").read_text()
    blocks = re.split(r"\n(?=[0-9a-f])", text)
    for block, function in zip(blocks, parse_lspci(text).values(), strict=True):
        _function(folder, function, block)
    lab.run_on(host, ["tar", "-x", "-C", "/"], stdin=folder.packed())
    lab.run_on(host, ["mount", "--bind", f"/{PLACE}/bus", "/sys/bus/pci/devices"])


def _function(folder: Folder, function: Function, block: str) -> None:
    chain = [*reversed(function.parents), function.address]
    root = f"pci{chain[0][:7]}"
    place = f"{PLACE}/devices/{root}/{'/'.join(chain)}"
    files = {
        "vendor": f"0x{function.vendor}\n",
        "device": f"0x{function.device}\n",
        "class": f"0x{function.class_code}00\n",
        "irq": "0\n",
        "numa_node": "0\n",
        "resource": _NO_WINDOW + (_WINDOW if function.is_gpu else _NO_WINDOW) + _NO_WINDOW * 11,
        **dict.fromkeys(("current_link_speed", "max_link_speed"), "16.0 GT/s PCIe\n"),
        **dict.fromkeys(("current_link_width", "max_link_width"), "16\n"),
    }
    for name, content in files.items():
        folder.add(f"{place}/{name}", content)
    folder.add(f"{place}/config", config(function, block), 0o600)
    if function.driver:
        folder.link(f"{place}/driver", f"/{PLACE}/drivers/{function.driver}")
        folder.add(f"{PLACE}/drivers/{function.driver}/name", function.driver)
    folder.link(f"{PLACE}/bus/{function.address}", f"/{place}")


def config(function: Function, block: str) -> bytes:
    """Return 4096 bytes of configuration space: the header, PCI Express, error reporting, and ACS as recorded."""
    space = bytearray(4096)

    def word(at: int, value: int, size: int = 2) -> None:
        space[at : at + size] = value.to_bytes(size, "little")

    word(0x00, int(function.vendor, 16))
    word(0x02, int(function.device, 16))
    word(0x04, 0x0006)  # memory and bus mastering
    word(0x06, 0x0010)  # there is a list of capabilities
    word(0x0A, int(function.class_code, 16))
    if buses := _BUSES.search(block):
        space[0x0E] = 1
        space[0x18:0x1B] = bytes.fromhex("".join(buses.groups()))
    space[0x34] = 0x40
    kind = next((number for words, number in _TYPES.items() if f"(v2) {words}" in block), 0)
    word(0x40, 0x0010)
    word(0x42, 2 | kind << 4)
    word(0x4C, 4 | 16 << 4)  # able to 16 GT/s on 16 lanes
    word(0x52, 4 | 16 << 4)  # and so it runs
    word(0x100, 0x0001 | 2 << 16 | (0x148 << 20 if function.acs is not None else 0), 4)
    if function.acs is not None:
        word(0x148, 0x000D | 1 << 16, 4)
        word(0x14C, function.acs_able or 0)
        word(0x14E, function.acs)
    return bytes(space)
