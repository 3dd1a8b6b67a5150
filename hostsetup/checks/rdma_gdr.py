"""The NIC cannot reach GPU memory directly: GPUDirect RDMA is not available.

What it means
    Neither way to hand GPU memory to the RDMA core is there: dma-buf (NVIDIA's open kernel modules on a kernel since
    5.12) or a peer-memory module (nvidia_peermem).

Why it matters to training
    Without it every byte between hosts is copied to host memory first, which costs bandwidth, latency and CPU, and NCCL
    says so only in a line of its INFO log.

How we tell
    The kind of driver from /proc/driver/nvidia/version, the kernel's release, and the loaded modules. Either way is
    enough: nvidia_peermem missing beside a working dma-buf is fine. Older enterprise kernels may have dma-buf ported
    back, which no file tells; those are told as not known. EFA brings a way of its own and is not judged. Where the
    driver's link matrix is known, GPUs without a NIC behind the same PCIe switches are told: NCCL's default uses the
    direct path only that near (NCCL_NET_GDR_LEVEL=PXB), and sends through a neighbour over NVLink where it can.
    Redirection by ACS is pcie.acs.redirect's question. Whether data really flows directly only a run tells.

What to do
    Load nvidia_peermem, now and at boot; or install the open kernel modules, which new GPUs need anyway. Unload the old
    nv_peer_mem where both are loaded: they register the same memory twice.

How to undo
    `modprobe -r nvidia_peermem`, and remove the file below /etc/modules-load.d.

Sources
    https://docs.nvidia.com/cuda/gpudirect-rdma/
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-dmabuf-enable
    https://download.nvidia.com/XFree86/Linux-x86_64/570.86.16/README/nvidia-peermem.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.rdma_port import training_ports
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.gdr import Gdr
    from hostsetup.facts.net import Net
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.rdma_port import Rdma
    from hostsetup.facts.topology import Topology

ID = "rdma.gdr"
SOURCE = "https://docs.nvidia.com/cuda/gpudirect-rdma/"

_NEAR = {"PIX", "PXB", "C2C"}
_LOAD = Remedy(
    "Load nvidia_peermem, now and at boot; or change to the driver's open kernel modules.",
    ("sudo modprobe nvidia_peermem && echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia_peermem.conf",),
    needs_root=True,
)


def skip(rdma: Rdma, pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs, without an active port, or with EFA."""
    if not any(gpu.vendor == "10de" for gpu in pci.gpus):
        return "no NVIDIA GPU"
    active = [port for port in rdma.ports if port.active]
    if not active:
        return "no RDMA port is active"
    drivers = {found.driver for port in active if (found := pci.functions.get(rdma.of(port).pci))}
    return "EFA has its own way to GPU memory" if drivers == {"efa"} else ""


def judge(
    gdr: Gdr,
    rdma: Rdma,
    pci: Pci,  # noqa: ARG001 - without it the runner would judge hosts that may have no GPU
    expect: Expect,
    net: Net | None = None,
    topology: Topology | None = None,
) -> Iterator[Finding]:
    """Warn when neither way is there; tell which one is."""
    driver = "open" if gdr.open_driver else "proprietary"
    evidence = (
        f"gdr-support: kernel {gdr.kernel}, {driver} driver {gdr.driver}, modules {', '.join(sorted(gdr.modules))}",
    )
    if gdr.open_driver is None:
        yield Finding(State.UNKNOWN, saw="NVIDIA's driver is not loaded: what it can do is not known")
        return
    if len(gdr.peermem) > 1:
        yield Finding(
            State.WARN,
            saw="nv_peer_mem and nvidia_peermem are both loaded",
            wanted="one of them, nvidia_peermem",
            remedy=Remedy(
                "Unload the old module and remove its package.", ("sudo modprobe -r nv_peer_mem",), needs_root=True
            ),
            evidence=evidence,
        )
    elif gdr.dmabuf or gdr.peermem:
        ways = [*(["dma-buf"] if gdr.dmabuf else []), *gdr.peermem]
        yield Finding(State.PASS, saw=f"GPU memory goes to the NIC by {' or '.join(ways)}")
    elif gdr.open_driver and gdr.backported:
        yield Finding(
            State.UNKNOWN, saw=f"kernel {gdr.kernel} may or may not have dma-buf, and no peermem module is loaded"
        )
    else:
        why = "the driver is not the open one" if not gdr.open_driver else f"kernel {gdr.kernel} is older than 5.12"
        yield Finding(
            State.WARN,
            saw=f"no dma-buf ({why}) and no nvidia_peermem: data between hosts is staged through host memory",
            wanted="dma-buf or nvidia_peermem",
            remedy=_LOAD,
            evidence=evidence,
        )
    if topology is not None:
        yield from _far(
            topology, {port.device for port in training_ports(rdma, net, expect.several("rdma.port.devices"))}
        )


def _far(topology: Topology, devices: set[str]) -> Iterator[Finding]:
    links = {(gpu, nic): link for (gpu, nic), link in topology.nic_links.items() if nic in devices}
    gpus = sorted({gpu for gpu, _ in links})
    far = [gpu for gpu in gpus if not any(link in _NEAR for (one, _), link in links.items() if one == gpu)]
    if far:
        listed = ", ".join(f"GPU{gpu}" for gpu in far)
        yield Finding(
            State.INFO,
            saw=f"no NIC is behind the PCIe switches of {listed}: NCCL does not use the direct path for them by default",
            subject=listed,
        )
