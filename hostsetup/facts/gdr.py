"""Knows what GPUDirect RDMA needs of a host's kernel and driver: dma-buf, or a peer-memory module. Copies no byte."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES = (
    Probe(
        "gdr-support",
        """echo gdr
grep -sH '' /proc/sys/kernel/osrelease /proc/driver/nvidia/version
for m in nvidia nvidia_peermem nv_peer_mem gdrdrv ib_core mlx5_ib efa bnxt_re irdma; do [ -d "/sys/module/$m" ] && echo "module $m"; done
exit 0""",
    ),
)

DMABUF_KERNEL = (5, 12)
_KERNEL = re.compile(r"\S*osrelease:((\d{1,3})\.(\d{1,4})\S{0,80})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gdr:
    """`kernel`: its release. `open_driver`: NVIDIA's open kernel modules run; None: no NVIDIA driver is loaded."""

    kernel: str
    version: tuple[int, int]
    open_driver: bool | None = None
    driver: str = ""
    modules: frozenset[str] = frozenset()

    @property
    def dmabuf(self) -> bool:
        """Whether the kernel and NVIDIA's open modules can share GPU memory with a NIC by dma-buf."""
        return bool(self.open_driver) and self.version >= DMABUF_KERNEL

    @property
    def backported(self) -> bool:
        """Whether this is an older enterprise kernel, which may or may not have dma-buf ported back."""
        return self.version < DMABUF_KERNEL and re.search(r"\.el\d|\.amzn|-azure|-gcp|-aws", self.kernel) is not None

    @property
    def peermem(self) -> tuple[str, ...]:
        """Return the loaded modules that register GPU memory with the RDMA core."""
        return tuple(sorted(self.modules & {"nvidia_peermem", "nv_peer_mem"}))


def parse_gdr(text: str) -> Gdr:
    """Read the answer of the probe; raise ValueError without the kernel's release."""
    lines = text.splitlines()
    kernels = [found for line in lines if (found := _KERNEL.fullmatch(line))]
    if not lines or lines[0].strip() != "gdr" or not kernels:
        raise ValueError("the kernel's release is not there")
    drivers = [line.partition(":")[2] for line in lines if "NVRM version" in line]
    version = re.search(r"\s(\d{3}\.[\d.]{1,12})\s", drivers[0]) if drivers else None
    return Gdr(
        kernels[0][1],
        (int(kernels[0][2]), int(kernels[0][3])),
        "Open Kernel Module" in drivers[0] if drivers else None,
        version[1] if version else "",
        frozenset(line.removeprefix("module ").strip()[:40] for line in lines if line.startswith("module ")),
    )


def read(evidence: Evidence) -> Known[Gdr] | Unknown:
    """Return what the kernel and the driver can."""
    reply = evidence.answer("gdr-support")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_gdr(reply.text))
    except ValueError as error:
        return Unknown(f"`gdr-support`: {error}")


def tell(gdr: Gdr) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"dmabuf": gdr.dmabuf, "peermem": list(gdr.peermem)}
