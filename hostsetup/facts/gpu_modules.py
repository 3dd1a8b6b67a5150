"""Knows which kernel modules and device nodes of GPUs a host has, and which driver holds each GPU. Loads none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostsetup.facts.pci_tree import full_address
from hostsetup.model import Evidence, Known, Probe, Reply, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVERS = ("nvidia", "nouveau", "nova_core", "NovaCore", "nvidiafb", "vfio-pci")
MODULES = (
    *("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs", "gdrdrv"),
    *("nouveau", "nova_core", "amdgpu", "ib_umad"),
)
# shell builtins only; a node is tried as the user who asks
PROBES = (
    Probe(
        "gpu-modules",
        f"""[ -d /sys/module ] || exit 1
echo gpu-modules
for m in {" ".join(MODULES)}; do [ -d "/sys/module/$m" ] && echo "module $m"; done
for d in {" ".join(DRIVERS)}; do
  for p in "/sys/bus/pci/drivers/$d/"*:*; do [ -e "$p" ] && echo "bound $d ${{p##*/}}"; done
done
for n in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]*; do
  [ -e "$n" ] || continue
  if [ -r "$n" ] && [ -w "$n" ]; then echo "node $n yes"; else echo "node $n no"; fi
done
exit 0""",
    ),
)
_LSMOD = re.compile(r"([A-Za-z0-9_]+)\s+\d+\s+-?\d+(?:\s.*)?", re.ASCII)
_NODE = re.compile(r"/dev/[\w-]{1,40}", re.ASCII)
_NO_DRIVER = re.compile(r"(?:couldn't|could not) communicate with the NVIDIA driver")
_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class GpuModules:
    """`loaded`: modules. `bound`: the driver by GPU address. `nodes`: whether the user may use each device node.

    `bound` and `nodes` are None where the evidence (a pasted `lsmod`) does not show them.
    """

    loaded: frozenset[str] = frozenset()
    bound: Mapping[str, str] | None = field(default_factory=dict)
    nodes: Mapping[str, bool] | None = field(default_factory=dict)
    source: str = "gpu-modules"


def parse_gpu_modules(text: str) -> GpuModules:
    """Read the lines `module`, `bound` and `node`."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "gpu-modules":
        raise ValueError("not the answer of the modules probe")
    loaded, bound, nodes = set[str](), dict[str, str](), dict[str, bool]()
    for line in filter(str.strip, lines[1:_LIMIT]):
        match line.split():
            case ["module", name]:
                loaded.add(name)
            case ["bound", driver, address]:
                bound[full_address(address)] = driver
            case ["node", node, usable] if _NODE.fullmatch(node):
                nodes[node] = usable == "yes"
            case _:
                raise ValueError("a line that is neither a module, a driver nor a node")
    return GpuModules(frozenset(loaded), bound, nodes)


def parse_lsmod(text: str) -> GpuModules:
    """Read `lsmod`, whole or filtered; it knows no drivers of devices and no nodes."""
    names = {found[1] for line in text.splitlines()[:_LIMIT] if (found := _LSMOD.fullmatch(line.strip()))}
    if not names:
        raise ValueError("no line of lsmod")
    return GpuModules(frozenset(names & set(MODULES)), None, None, "lsmod")


def read(evidence: Evidence) -> Known[GpuModules] | Unknown:
    """Return the modules, drivers and nodes, or from a saved `lsmod`, or nvidia-smi's complaint, the modules alone."""
    reply = evidence.answer("gpu-modules")
    pasted = evidence.replies.get("lsmod")
    try:
        if isinstance(reply, Reply):
            return Known(parse_gpu_modules(reply.text))
        if pasted is not None:
            return Known(parse_lsmod(pasted.text))
        for name, other in evidence.replies.items():
            if name.startswith("nvidia-smi") and _NO_DRIVER.search(f"{other.text}\n{other.error_text}"):
                return Known(GpuModules(frozenset(), None, None, name))
    except ValueError as error:
        return Unknown(f"`gpu-modules`: {error}")
    return reply


def tell(modules: GpuModules) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"loaded": sorted(modules.loaded), "bound": dict(modules.bound or {})} if modules.loaded else {}
