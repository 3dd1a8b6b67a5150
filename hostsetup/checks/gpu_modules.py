"""The NVIDIA kernel modules or device nodes are not there, or another driver holds a GPU.

What it means
    A GPU is on the bus and CUDA cannot reach it: the module nvidia is not loaded, nouveau or a driver for passing devices
    to virtual machines has the GPU, the module for unified memory is missing, or the user may not open the device nodes.

Why it matters to training
    Nothing runs on that host: "couldn't communicate with the NVIDIA driver", "no CUDA-capable device", or, without
    nvidia_uvm, error 999 ("unknown error") inside containers only.

How we tell
    Modules are folders of /sys/module, and the driver of a GPU is the folder of /sys/bus/pci/drivers in which its address
    stands; `lspci -k` also lists modules that merely could drive a device, and those are not looked at. A GPU that nouveau,
    nova_core or vfio-pci holds, or none while nvidia is not loaded, fails. Without nvidia_uvm or /dev/nvidia-uvm it is a
    warning, for the first CUDA program of root loads it. Device nodes are tried as the user who asked: one that may not be
    opened fails. Where nvidia-smi lists GPUs and the kernel shows no module, as in WSL, that is only told. nouveau that is loaded beside nvidia and holds no GPU is only told, as is nvidia_peermem. Whether the
    libraries fit the module is asked by gpu.driver.mismatch. A host without NVIDIA GPUs is skipped.

What to do
    nouveau: keep it from loading, rebuild the initramfs (a boot parameter alone does not reach a module that lies in
    there), reboot. vfio-pci: take the GPU out of its binding (boot line, modprobe.d) and reboot, unless it is meant for a
    guest. Not loaded: `modprobe nvidia`; when that fails, read the kernel log: no module for this kernel (DKMS), or a
    signature that Secure Boot refuses. nvidia_uvm: `nvidia-modprobe -u -c 0`. Nodes: mode 0666 is the driver's default;
    NVreg_DeviceFileMode in modprobe.d changes it.

How to undo
    Remove the file in /etc/modprobe.d and rebuild the initramfs; `modprobe -r` unloads a module.

Sources
    https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.kernel.org/admin-guide/kernel-parameters.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.facts.gpu_modules import GpuModules
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.modules"
SOURCE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html"

WANTED = "nvidia and nvidia_uvm loaded, every GPU held by nvidia, device nodes that the user may open"
_REFUSED = re.compile(
    r"Key was rejected by service|module verification failed|unsigned module|nvidia: (?:version magic|disagrees)"
    r"|NVRM: (?:No NVIDIA GPU found|The NVIDIA probe routine|request_mem_region failed)|already bound to nouveau"
    r"|requires use of the NVIDIA open kernel modules|not supported by open nvidia\.ko",
    re.IGNORECASE,
)
_NOUVEAU = Remedy(
    "Keep the other driver from loading, rebuild the initramfs and reboot; then the NVIDIA driver gets the GPU.",
    (
        "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
        "if command -v update-initramfs; then sudo update-initramfs -u; else sudo dracut --force; fi",
    ),
    needs_root=True,
    needs_reboot=True,
)
_VFIO = Remedy(
    "Take the GPU out of the binding to vfio-pci (boot line, /etc/modprobe.d) and reboot, unless it is meant for a guest.",
    ("grep -rs vfio-pci /etc/modprobe.d /proc/cmdline",),
    needs_root=True,
    needs_reboot=True,
)
_LOAD = Remedy(
    "Load the module; when that fails read the kernel log: there is none for this kernel, or Secure Boot refuses its key.",
    ("sudo modprobe nvidia", "sudo journalctl -k -b --no-pager | grep -iE 'nvidia|NVRM'"),
    needs_root=True,
)
_UVM = Remedy(
    "Load nvidia_uvm and make its device node, now and at each boot.",
    ("sudo nvidia-modprobe -u -c 0",),
    needs_root=True,
)
_NODES = Remedy(
    "Give the user access: the driver's default is mode 0666; look for NVreg_DeviceFileMode, or add the user to the group.",
    ("ls -l /dev/nvidia*", "grep -rs NVreg_DeviceFile /etc/modprobe.d"),
    needs_root=True,
)


def skip(pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs."""
    return nvidia.absent(pci)


def judge(
    gpu_modules: GpuModules,
    pci: Pci | None = None,
    kernel_log: KernelLog | None = None,
    gpus: tuple[Gpu, ...] = (),
) -> Iterator[Finding]:
    """Fail where CUDA cannot reach a GPU, warn where containers may not, and tell what is loaded."""
    logged = tuple(f"dmesg: {line[:300]}" for line in (kernel_log.find(_REFUSED) if kernel_log else ())[-3:])
    if gpus and "nvidia" not in gpu_modules.loaded and gpu_modules.bound is not None:
        yield Finding(State.INFO, saw=f"nvidia-smi lists {len(gpus)} GPUs, and the kernel shows no module nvidia: WSL?")
        return
    if pci is None and gpu_modules == GpuModules():
        yield Finding(State.UNKNOWN, saw="no module of a GPU is loaded, and whether the host has a GPU is not shown")
        return
    held = list(_held(gpu_modules, pci))
    bad = [*held, *_missing(gpu_modules, logged, held=bool(held)), *_nodes(gpu_modules)]
    if bad:
        yield from bad
        return
    loaded = sorted(name for name in gpu_modules.loaded if name.startswith(("nvidia", "gdrdrv")))
    beside = "; nouveau is loaded, too, and holds no GPU" if "nouveau" in gpu_modules.loaded else ""
    if gpu_modules.bound is None:
        if "nouveau" in gpu_modules.loaded:
            beside = "; nouveau is loaded, too"
        yield Finding(State.INFO, saw=f"loaded: {', '.join(loaded)}{beside}; drivers and device nodes are not shown")
        return
    yield Finding(State.PASS, saw=f"loaded: {', '.join(loaded)}{beside}", wanted=WANTED)


def _held(modules: GpuModules, pci: Pci | None) -> Iterator[Finding]:
    if modules.bound is None:
        return
    ours = {gpu.address for gpu in pci.gpus if gpu.vendor == "10de"} if pci else set()
    for driver in sorted(set(modules.bound.values()) - {"nvidia"}):
        some = {address for address, name in modules.bound.items() if name == driver}
        # where the bus is not known, what nouveau holds is a GPU all the same
        held = sorted(some & ours if pci or driver == "vfio-pci" else some)
        if held:
            yield Finding(
                State.FAIL,
                saw=f"{driver} holds {len(held)} GPU{'s' * (len(held) > 1)}",
                wanted=WANTED,
                subject=", ".join(held[:8]),
                remedy=_VFIO if driver == "vfio-pci" else _NOUVEAU,
                evidence=tuple(f"gpu-modules: bound {driver} {address}" for address in held[:8]),
            )
    free = sorted(ours - set(modules.bound))
    if free and "nvidia" in modules.loaded:
        yield Finding(
            State.FAIL,
            saw=f"no driver holds {len(free)} of {len(ours)} GPUs",
            wanted=WANTED,
            subject=", ".join(free[:8]),
            remedy=_LOAD,
            evidence=(f"gpu-modules: no driver has {', '.join(free[:8])}",),
        )


def _missing(modules: GpuModules, logged: tuple[str, ...], *, held: bool) -> Iterator[Finding]:
    if "nvidia" not in modules.loaded:
        if not held:
            saw = "the kernel module nvidia is not loaded"
            loaded = f"{modules.source}: loaded: {', '.join(sorted(modules.loaded)) or 'none of the modules of GPUs'}"
            yield Finding(State.FAIL, saw, WANTED, "", _LOAD, (loaded, *logged))
        return
    node = modules.nodes is None or "/dev/nvidia-uvm" in modules.nodes
    if "nvidia_uvm" not in modules.loaded or not node:
        what = "nvidia_uvm is not loaded" if "nvidia_uvm" not in modules.loaded else "/dev/nvidia-uvm is missing"
        saw = f"{what}: CUDA fails in containers until a program of root has loaded it"
        yield Finding(State.WARN, saw, WANTED, "", _UVM, (f"{modules.source}: {what}",))


def _nodes(modules: GpuModules) -> Iterator[Finding]:
    closed = sorted(node for node, usable in (modules.nodes or {}).items() if not usable)
    if closed:
        yield Finding(
            State.FAIL,
            saw=f"the user may not open {', '.join(closed[:4])}{', ...' if len(closed) > 4 else ''}",
            wanted=WANTED,
            remedy=_NODES,
            evidence=tuple(f"gpu-modules: node {node} no" for node in closed[:8]),
        )
