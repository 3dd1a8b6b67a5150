"""Programs that the audit asks are missing on the host.

What it means
    Commands that tell something no file of the kernel tells are not installed, or are busybox's, which print another
    format.

Why it matters to training
    Nothing is wrong with the host for that; but what such a program would have said stays unknown, and a fault with it.
    A GPU host without nvidia-smi most often has no driver at all.

How we tell
    The shell looks for each command, with the system folders (/usr/sbin, /sbin) added to the path: a login without a
    terminal often lacks them. A command is missed only where it matters: nvidia-smi and nvidia-ctk on hosts with NVIDIA
    GPUs, tools of RDMA on hosts with such NICs. What the audit reads from the kernel's own files instead is told, not
    judged. That a command is there says nothing of what it needs: nvidia-smi may stand there without a driver.

What to do
    Install the packages of your distribution: pciutils (lspci, setpci), util-linux (lscpu), iproute2 or iproute (ip, ss,
    rdma), ethtool, ibverbs-utils or libibverbs-utils (ibv_devinfo). nvidia-smi comes with the driver, nvidia-ctk with
    the container toolkit.

How to undo
    Remove the packages again.

Sources
    https://github.com/Azure/az-hop/issues/1796
    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import NVIDIA
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.programs import Programs

ID = "tools.present"
SOURCE = "https://github.com/Azure/az-hop/issues/1796"

# docker has a check of its own: docker.daemon
_ALWAYS = {"lscpu": "the processor's model", "ip": "addresses and routes"}
_NVIDIA = {"nvidia-smi": "everything the driver knows", "nvidia-ctk": "GPUs in containers"}
_RDMA = {"ibv_devinfo": "RDMA devices as programs see them"}
_INSTEAD = {
    "lspci": "names of devices (the tree itself is read from sysfs)",
    "setpci": "changing PCIe access control",
    "ethtool": "details of links",
    "ss": "listening ports (read from /proc)",
    "journalctl": "the whole kernel log (dmesg has the rest)",
    "timeout": "time limits of single commands",
}


def judge(programs: Programs, pci: Pci | None = None) -> Iterator[Finding]:
    """Warn of what is missed, tell of what is replaced."""
    nvidia = pci is not None and any(gpu.vendor == NVIDIA for gpu in pci.gpus)
    wanted = {**_ALWAYS, **(_NVIDIA if nvidia else {}), **(_RDMA if pci is not None and pci.rdma_nics else {})}
    missing = {name: what for name, what in wanted.items() if name in programs.missing}
    if missing:
        yield Finding(
            State.WARN,
            saw=f"missing: {_told(missing)}",
            wanted=f"{', '.join(missing)} installed",
            subject=", ".join(missing),
            remedy=Remedy("Install the packages that bring them; nvidia-smi comes with the driver.", needs_root=True),
            evidence=tuple(f"programs: tool {name} -" for name in missing),
        )
    replaced = {name: what for name, what in _INSTEAD.items() if name in programs.missing}
    if replaced:
        yield Finding(
            State.INFO, saw=f"missing, without loss for the audit: {_told(replaced)}", subject=", ".join(replaced)
        )
    if programs.busybox:
        names = ", ".join(sorted(programs.busybox))
        yield Finding(State.INFO, saw=f"busybox's own, with less to say: {names}", subject=f"busybox: {names}")
    if pci is None and "nvidia-smi" in programs.missing:
        saw = "nvidia-smi is missing, and whether the host has GPUs is not known"
        yield Finding(State.UNKNOWN, saw=saw, subject="nvidia-smi")
    elif not (missing or replaced or programs.busybox):
        yield Finding(State.PASS, saw=f"{len(programs.paths)} programs are there")


def _told(tools: dict[str, str]) -> str:
    return ", ".join(f"{name} ({what})" for name, what in tools.items())
