"""The NVLink fabric of a host is not up, or what runs it does not run.

What it means
    GPUs behind NVSwitches must be registered with the fabric before CUDA starts. The driver says that this was not done or
    failed, or the service that does it, the fabric manager, is not running or is of another version than the driver.

Why it matters to training
    CUDA does not start: error 802, "system not yet initialized". With a service that died later everything seems well until
    a link fails or a GPU is reset, and then the host is lost in the middle of a run.

How we tell
    nvidia-smi's fabric.state and fabric.status: Completed and Success are well, `N/A` and `Not Supported` mean that there is
    no fabric. "In Progress" within five minutes after the boot is unknown, later a failure; the minutes can be set
    (`gpu.fabric.boot_grace_s`). "Not Started", and another status than Success, fail.
    The fabric manager is asked for only where the driver runs NVSwitches, on B200 and B300 boards (whose switches are no
    devices of the driver), or where the states show a fabric and the unit is installed: PCIe cards and bridges need none,
    the compute trays of GB200 have their switches elsewhere, and in virtual machines it runs on the host. There it must be
    active, even when all GPUs look well, and of the driver's version, for it refuses to start with another. GPUs that look
    well beside a manager of which nothing is known leave the check unknown. Boards with NVLink 5 (B200 and later) need the
    module ib_umad and the subnet manager nvlsm beside it: a warning where either is missing.
    Where the manager runs in a container instead of a unit, accept the finding: `--accept gpu.fabric=REASON`.

What to do
    Install the fabric manager of exactly the driver's version, enable it and start it. When the state stays "In Progress",
    read its log (/var/log/fabricmanager.log) and the kernel's SXid lines; then reset the GPUs or reboot.

How to undo
    `systemctl disable --now nvidia-fabricmanager`.

Sources
    https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html
    https://github.com/NVIDIA/NVSentinel/issues/883
    https://github.com/spectrocloud/CanvOS/pull/700
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.driver import Driver
    from hostsetup.facts.fabric import Fabric
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.services import Services

ID = "gpu.fabric"
SOURCE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
GRACE = "gpu.fabric.boot_grace_s"
EXPECTS = {GRACE: Want(int, "seconds after the boot in which the fabric may still be coming up", 300)}

_UNIT = "nvidia-fabricmanager"
_NVLINK5 = re.compile(r"\bB[23]00\b")
_REMEDY = Remedy(
    "Install the fabric manager of exactly the driver's version and start it; when the state does not change, read its log "
    "and the kernel's SXid lines, then reset the GPUs or reboot.",
    (
        "sudo systemctl enable --now nvidia-fabricmanager",
        "sudo journalctl -u nvidia-fabricmanager -b --no-pager | tail -n 40",
        "sudo journalctl -k -b --no-pager | grep -i sxid",
    ),
    needs_root=True,
)
_NVLINK5_REMEDY = Remedy(
    "Load ib_umad now and at each boot, and install the subnet manager nvlsm.",
    ("sudo modprobe ib_umad", "echo ib_umad | sudo tee /etc/modules-load.d/ib_umad.conf"),
    needs_root=True,
)


def skip(pci: Pci | None = None, fabric: Fabric | None = None) -> str:
    """Spare hosts without NVIDIA GPUs, and those whose GPUs know of no fabric."""
    if pci is not None and (absent := nvidia.absent(pci)):
        return absent
    bare = fabric is not None and fabric.gpus is not None and not fabric.states and not _switches(fabric, pci)
    return "no GPU of this host is part of an NVLink fabric" if bare else ""


def judge(
    fabric: Fabric,
    expect: Expect,
    pci: Pci | None = None,
    services: Services | None = None,
    driver: Driver | None = None,
    gpus: tuple[Gpu, ...] = (),
) -> Iterator[Finding]:
    """Fail where a GPU has not joined, or where the fabric manager should run and does not."""
    nvlink5 = any(_NVLINK5.search(gpu.name) for gpu in gpus) and not (pci is not None and pci.virtual)
    switched = _switches(fabric, pci) or (nvlink5 and bool(fabric.states) and not fabric.domains)
    found = [*_states(fabric, expect), *_manager(fabric, services, driver, switched=switched)]
    if nvlink5 and switched:
        found += _nvlink5(fabric)
    if found:
        yield from found
    elif fabric.gpus is None:
        yield Finding(State.UNKNOWN, saw="what the driver says of the fabric is not known")
    elif not fabric.states:
        yield Finding(
            State.UNKNOWN, saw="NVSwitches, and no GPU that tells how far it is: the driver is too old to say"
        )
    else:
        well = f"{len(fabric.states)} GPU{'s' * (len(fabric.states) > 1)}: Completed, Success"
        manager = f"; fabric manager {fabric.manager_version} runs" if switched and fabric.manager_version else ""
        if switched and services is None:
            yield Finding(State.UNKNOWN, saw=f"{well}; whether {_UNIT} runs is not known")
        else:
            yield Finding(State.PASS, saw=f"{well}{manager}")


def _switches(fabric: Fabric, pci: Pci | None) -> bool:
    on_bus = pci is not None and any(one.is_nvswitch and one.driver != "vfio-pci" for one in pci.functions.values())
    return bool(fabric.switches) or (on_bus and fabric.switches is None)


def _states(fabric: Fabric, expect: Expect) -> Iterator[Finding]:
    grace = expect.whole(GRACE) or 0
    told: dict[tuple[str, str], list[int]] = {}
    for gpu, one in fabric.states.items():
        if (one.state.lower(), one.status.lower() or "success") != ("completed", "success"):
            told.setdefault((one.state, one.status), []).append(gpu)
    for (state, status), gpus in told.items():
        named = f"{len(gpus)} of {len(fabric.states)} GPUs: {state}{f', {status}' if status else ''}"
        evidence = tuple(f"nvidia-smi-fabric: {gpu}, {state}, {status}" for gpu in gpus[:8])
        subject = f"GPU {gpus[0]}" if len(gpus) == 1 else ""
        if state.lower() == "in progress" and (fabric.uptime_s is None or fabric.uptime_s < grace):
            up = (
                "the time since the boot is not known"
                if fabric.uptime_s is None
                else f"booted {fabric.uptime_s:.0f} s ago"
            )
            yield Finding(State.UNKNOWN, saw=f"{named}; {up}", subject=subject, evidence=evidence)
            continue
        yield Finding(
            State.FAIL,
            saw=f"{named}: CUDA does not start there (error 802, system not yet initialized)",
            wanted="Completed, Success",
            subject=subject,
            remedy=_REMEDY,
            evidence=evidence,
        )


def _manager(fabric: Fabric, services: Services | None, driver: Driver | None, *, switched: bool) -> Iterator[Finding]:
    if services is None or not (switched or (fabric.states and services.loaded(_UNIT) and not fabric.domains)):
        return
    loaded = driver.loaded if driver else ""
    if not services.active(_UNIT):
        there = "is installed and does not run" if services.loaded(_UNIT) else "is not installed as a service"
        # where no switch is seen, one may run elsewhere: the states of the GPUs decide
        yield Finding(
            State.FAIL if switched else State.WARN,
            saw=f"{len(fabric.switches or ()) or 'with'} NVSwitches, and {_UNIT} {there}"
            if switched
            else f"{_UNIT} {there}",
            wanted=f"{_UNIT} active",
            remedy=_REMEDY,
            evidence=(f"services: {_UNIT} is not active",),
        )
    elif fabric.manager_version and loaded and fabric.manager_version != loaded:
        yield Finding(
            State.FAIL,
            saw=f"fabric manager {fabric.manager_version}, driver {loaded}: it will not start again",
            wanted="both of one version",
            remedy=_REMEDY,
            evidence=(f"nvswitch: Fabric Manager version is : {fabric.manager_version}",),
        )


def _nvlink5(fabric: Fabric) -> Iterator[Finding]:
    missing = [name for name, there in (("ib_umad", fabric.has_umad), ("nvlsm", fabric.has_nvlsm)) if not there]
    if missing:
        yield Finding(
            State.WARN,
            saw=f"NVLink 5 without {' and '.join(missing)}: the fabric manager does not start",
            wanted="the module ib_umad loaded and nvlsm installed",
            remedy=_NVLINK5_REMEDY,
            evidence=(f"nvswitch: no {', no '.join(missing)}",),
        )
