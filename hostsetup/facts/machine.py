"""Knows small files of a host that name the machine, its boot and its firmware, all asked at once. Judges none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

DMI = "/sys/class/dmi/id"
FIRMWARE = (
    *("sys_vendor", "product_name", "product_version", "board_vendor", "board_name", "board_version"),
    *("bios_vendor", "bios_version", "bios_date", "bios_release"),
)
FILES = (
    *("/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname", "/proc/uptime"),
    *("/run/reboot-required", "/run/reboot-required.pkgs", "/run/systemd/container", "/sys/hypervisor/type"),
    *(f"{DMI}/{name}" for name in FIRMWARE),
)
# a container is told by marks, too: systemd-detect-virt is missing in most of them
PROBES = (
    Probe(
        "machine-files",
        f"""printf 'vm %s\\n' "$(systemd-detect-virt -v 2>/dev/null)"
printf 'container %s\\n' "$(systemd-detect-virt -c 2>/dev/null)"
for f in /.dockerenv /run/.containerenv; do [ -e "$f" ] && printf 'there %s\\n' "$f"; done
printf 'pidns %s\\n' "$(readlink /proc/self/ns/pid)"
grep -sh '^GPU UUID' /proc/driver/nvidia/gpus/*/information
grep -sHm1 '^microcode' /proc/cpuinfo
grep -sH '' {" ".join(FILES)} | head -c 60000
exit 0""",
    ),
)
MOST_LINES = 300
_FILE = re.compile(r"(/[^\s:]+):(.*)")
_SAID = re.compile(r"(vm|container|pidns|there) ?(.*)")
_UUID = re.compile(r"GPU UUID\s*:\s*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Machine:
    """`files`: lines by path, of those files that exist. `vm`, `container`: systemd's word, `none`, or empty: not said.

    `marks`: files that only containers have. `pid_namespace`: tells apart the containers of one machine.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vm: str = ""
    container: str = ""
    marks: tuple[str, ...] = ()
    pid_namespace: str = ""
    gpu_uuids: tuple[str, ...] = ()

    def first(self, path: str) -> str:
        """Return the first line of a file without blanks around it; empty: no such file, or nothing in it."""
        return next(iter(self.files.get(path, ())), "").strip()


def parse_machine(text: str) -> Machine:
    """Read the lines `vm W`, `container W`, `pidns W`, `there PATH`, `GPU UUID: ...` and `PATH:LINE`."""
    files: dict[str, list[str]] = {}
    said: dict[str, str] = {}
    marks: list[str] = []
    uuids: list[str] = []
    for line in text.splitlines()[: MOST_LINES * 2]:
        if found := _FILE.fullmatch(line):
            lines = files.setdefault(found[1], [])
            if len(lines) < MOST_LINES:
                lines.append(found[2][:500])
        elif found := _UUID.match(line):
            uuids.append(found[1].lower().replace("gpu-", "GPU-"))
        elif found := _SAID.fullmatch(line):
            if found[1] == "there":
                marks.append(found[2][:80])
            else:
                said.setdefault(found[1], found[2].strip()[:80])
    if not files and not any(said.values()):
        raise ValueError("none of the files that name a machine is in it")
    return Machine(
        files={path: tuple(lines) for path, lines in files.items()},
        vm=said.get("vm", ""),
        container=said.get("container", ""),
        marks=tuple(marks),
        pid_namespace=said.get("pidns", ""),
        gpu_uuids=tuple(dict.fromkeys(uuids)),
    )


def read(evidence: Evidence) -> Known[Machine] | Unknown:
    """Return the files."""
    reply = evidence.answer("machine-files")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_machine(reply.text))
    except ValueError as error:
        return Unknown(f"`machine-files`: {error}")
