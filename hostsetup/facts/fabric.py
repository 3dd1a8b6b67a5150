"""Knows how far the GPUs have joined their NVLink fabric, and what runs it on this host. Starts no service."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts import smi_q, smi_query
from hostsetup.model import Evidence, Known, Probe, Reply, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

# The tool that runs the fabric says its version and leaves; it is asked only where there are switches to run.
PROBES = (
    smi_query.query("nvidia-smi-fabric", ("fabric.state,fabric.status", "fabric.clusterUuid,fabric.cliqueId")),
    Probe(
        "nvswitch",
        r"""[ -d /proc/sys ] || exit 1
echo nvswitch
for d in /proc/driver/nvidia-nvswitch/devices/*; do [ -e "$d" ] && echo "device ${d##*/}" && switch=1; done
[ -d /sys/module/ib_umad ] && echo "module ib_umad"
command -v nvlsm >/dev/null 2>&1 || [ -e /opt/nvidia/nvlsm/sbin/nvlsm ] && echo "tool nvlsm"
command -v nv-fabricmanager >/dev/null 2>&1 && echo "tool nv-fabricmanager"
read -r up rest </proc/uptime && echo "uptime $up"
[ -z "$switch" ] || nv-fabricmanager --version 2>/dev/null | head -n 3
exit 0""",
    ),
)
_VERSION = re.compile(r"fabric ?manager version is\s*:?\s*(\d{3,4}(?:\.\d{1,4}){1,2})", re.IGNORECASE | re.ASCII)
_UPTIME = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_REPORT = {
    "fabric.state": "Fabric/State",
    "fabric.status": "Fabric/Status",
    "fabric.clusterUuid": "Fabric/ClusterUUID",
    "fabric.cliqueId": "Fabric/CliqueId",
}
_NO_FIELD = re.compile(r"not a valid field", re.IGNORECASE)  # a driver that does not know fabrics yet
_NOTHING = frozenset({"", "n/a", "not supported"})
_MAX_DEVICES = 100


@dataclass(frozen=True, slots=True)
class GpuFabric:
    """What the driver says of one GPU, empty: not said or not applicable. `cluster`: empty also where it is all zeros."""

    state: str = ""
    status: str = ""
    cluster: str = ""
    clique: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """`gpus`: by index; None: the driver did not tell; empty: it is too old to know of fabrics. `switches`: NVSwitches that the driver runs, None: not known.

    `manager_version`: of the installed fabric manager. `uptime_s`: None: not known.
    """

    gpus: Mapping[int, GpuFabric] | None
    switches: tuple[str, ...] | None = None
    manager_version: str = ""
    has_umad: bool = False
    has_nvlsm: bool = False
    uptime_s: float | None = None

    @property
    def states(self) -> Mapping[int, GpuFabric]:
        """The GPUs that are, or should be, part of a fabric."""
        return {gpu: one for gpu, one in (self.gpus or {}).items() if one.state}

    @property
    def domains(self) -> tuple[tuple[str, str], ...]:
        """The multi-node NVLink domains and cliques that the GPUs belong to."""
        return tuple(sorted({(one.cluster, one.clique) for one in (self.gpus or {}).values() if one.cluster}))


def _bare(text: str | None) -> str:
    value = (text or "").strip().strip("[]").strip()
    return "" if value.lower() in _NOTHING else value[:80]


def gpu_fabric(fields: Mapping[str, str]) -> GpuFabric:
    """Return one GPU's part of the answer."""
    cluster = _bare(fields.get("fabric.clusterUuid"))
    real = _UUID.fullmatch(cluster) and set(cluster) - set("0-")
    return GpuFabric(
        _bare(fields.get("fabric.state")),
        _bare(fields.get("fabric.status")),
        cluster.lower() if real else "",
        _bare(fields.get("fabric.cliqueId")),
    )


def parse_nvswitch(text: str) -> Fabric:
    """Read the lines `device`, `module`, `tool`, `uptime`, and the fabric manager's own word of its version."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "nvswitch":
        raise ValueError("not the answer of the NVSwitch probe")
    switches: list[str] = []
    seen = set[str]()
    version, uptime_s = "", None
    for line in lines[1:500]:
        if found := _VERSION.search(line):
            version = found[1]
        match line.split():
            case ["device", name] if len(switches) < _MAX_DEVICES:
                switches.append(name[:40])
            case ["module" | "tool", name]:
                seen.add(name)
            case ["uptime", seconds] if _UPTIME.fullmatch(seconds):
                uptime_s = float(seconds)
    return Fabric(None, tuple(switches), version, "ib_umad" in seen, "nvlsm" in seen, uptime_s)


def read(evidence: Evidence) -> Known[Fabric] | Unknown:
    """Return what is known of the fabric: of the GPUs, of the switches, or of both."""
    told = smi_query.ask(evidence, "nvidia-smi-fabric")
    if isinstance(told, Unknown):
        told = _saved(evidence) or told
    gpus = None if isinstance(told, Unknown) else {index: gpu_fabric(fields) for index, fields in told.items()}
    if isinstance(told, Unknown) and _NO_FIELD.search(told.reason):
        gpus, told = {}, {}
    reply = evidence.answer("nvswitch")
    try:
        host = parse_nvswitch(reply.text) if isinstance(reply, Reply) else None
    except ValueError:
        host = None
    if host is None:
        return told if isinstance(told, Unknown) else Known(Fabric(gpus))
    return Known(Fabric(gpus, host.switches, host.manager_version, host.has_umad, host.has_nvlsm, host.uptime_s))


def _saved(evidence: Evidence) -> dict[int, dict[str, str]]:
    """Return what a saved report of `nvidia-smi -q` tells; nothing where no GPU of it speaks of a fabric."""
    reply = evidence.answer(smi_q.PROBE)
    if isinstance(reply, Unknown):
        return {}
    try:
        report = list(smi_q.parse_smi_q(reply.text).values())
    except ValueError:
        return {}
    told = ({name: values[path] for name, path in _REPORT.items() if path in values} for values in report)
    return dict(enumerate(told)) if any("Fabric/State" in values for values in report) else {}


def tell(fabric: Fabric) -> dict[str, Any]:
    """Return the facts for JSON."""
    states = {str(gpu): one.state for gpu, one in fabric.states.items()}
    return {"states": states, "switches": len(fabric.switches or ())} if states or fabric.switches else {}
