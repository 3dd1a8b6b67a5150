"""Knows the NVIDIA driver's version where it is loaded, on disk and in its libraries, and its flavour. Loads nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Reply, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.gpus import Gpu

# Globs and grep: no process for each file. modinfo tells what the next load would take.
PROBES = (
    Probe(
        "nvidia-driver",
        r"""echo nvidia-driver
grep -sH '' /proc/driver/nvidia/version /sys/module/nvidia/version
modinfo nvidia 2>/dev/null | grep -E '^(filename|version|license):'
for f in /usr/lib/*/libnvidia-ml.so.*.* /usr/lib*/libnvidia-ml.so.*.* /usr/local/nvidia/lib64/libnvidia-ml.so.*.*; do
  [ -e "$f" ] && echo "library: $f"
done
exit 0""",
    ),
)
_VERSION = r"(\d{3,4}(?:\.\d{1,4}){1,2})"
_LOADED = re.compile(rf"NVRM version:.*?Kernel Module(?P<arch> for \S+)?\s+{_VERSION}\b", re.ASCII)
_SYSFS = re.compile(rf"(?:/sys/module/nvidia/version:)\s*{_VERSION}\s*", re.ASCII)
_FIELD = re.compile(r"(filename|version|license):\s*(\S.*)")
_LIBRARY = re.compile(rf"library: \S*/libnvidia-ml\.so\.{_VERSION}", re.ASCII)
_BANNER = re.compile(rf"\b(?:Driver|KMD) Version\s*:\s*{_VERSION}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Driver:
    """`loaded`, `on_disk`: versions of the kernel module, empty where there is none. `libraries`: the user libraries'.

    `flavour`: `open`, `proprietary`, or empty where nothing says so.
    """

    loaded: str = ""
    on_disk: str = ""
    flavour: str = ""
    libraries: tuple[str, ...] = ()
    source: str = ""

    @property
    def branch(self) -> str:
        """The first number of the loaded version."""
        return self.loaded.partition(".")[0]


def parse_driver(text: str) -> Driver:
    """Read the probe's lines: the files' behind their names, modinfo's fields, one line a library."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "nvidia-driver":
        raise ValueError("not the answer of the driver probe")
    loaded = flavour = ""
    fields: dict[str, str] = {}
    libraries = set[str]()
    for line in lines[1:500]:
        if found := _LOADED.search(line):
            loaded, flavour = found[2], "open" if "Open Kernel Module" in line else "proprietary"
        elif found := _SYSFS.fullmatch(line):
            loaded = loaded or found[1]
        elif found := _FIELD.fullmatch(line):
            fields.setdefault(found[1], found[2].strip())
        elif found := _LIBRARY.fullmatch(line):
            libraries.add(found[1])
    on_disk = fields.get("version", "")
    if not flavour and "license" in fields and (not loaded or loaded == on_disk):
        flavour = "proprietary" if fields["license"].upper() == "NVIDIA" else "open"
    return Driver(loaded, on_disk, flavour, tuple(sorted(libraries)), "nvidia-driver")


def parse_banner(text: str) -> Driver:
    """Read the version that nvidia-smi prints by its label; where it stands in the line differs between drivers."""
    if found := _BANNER.search(text[:20_000]):
        return Driver(loaded=found[1])
    raise ValueError("no version of a driver")


def read(evidence: Evidence, gpus: tuple[Gpu, ...] | None = None) -> Known[Driver] | Unknown:
    """Return the driver as the kernel tells it, or else as nvidia-smi does."""
    version = next((gpu.driver_version for gpu in gpus or () if gpu.driver_version), "")
    reply = evidence.answer("nvidia-driver")
    if isinstance(reply, Reply):
        try:
            driver = parse_driver(reply.text)
        except ValueError as error:
            reply = Unknown(f"`nvidia-driver`: {error}")
        else:
            if driver.loaded or not version:
                return Known(driver)
    if version:
        return Known(Driver(loaded=version, source="nvidia-smi-gpus"))
    for probe in ("nvidia-smi-q", "nvidia-smi"):
        try:
            banner = parse_banner(evidence.replies[probe].text)
        except (KeyError, ValueError):
            continue
        return Known(Driver(loaded=banner.loaded, source=probe))
    return reply if isinstance(reply, Unknown) else Unknown("no version of a driver is told")


def tell(driver: Driver) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"version": driver.loaded, "flavour": driver.flavour, "on_disk": driver.on_disk} if driver.loaded else {}
