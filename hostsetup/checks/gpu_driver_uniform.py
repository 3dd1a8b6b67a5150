"""The NVIDIA driver is not the same on every host, or not the one that was expected.

What it means
    Hosts of one run load the driver in different versions, or one has the open kernel modules and another the proprietary
    ones.

Why it matters to training
    NCCL, CUDA graphs and peer-to-peer behave a little differently in each driver. Hosts that differ give hangs and numbers
    that nobody can reproduce elsewhere, and a bug that is fixed in one version goes on in the others.

How we tell
    The kernel module tells its own version in /proc/driver/nvidia/version; where that cannot be read, nvidia-smi's field is
    taken. Other branches (the first number) among hosts fail, other releases of one branch warn, and so do other flavours.
    The flavour is in the same line, or in modinfo's licence when the module on disk is the one that is loaded. A site
    may expect one version (`gpu.driver.uniform.version`); a branch alone (`580`) is enough. One host alone is told.

What to do
    Install the same driver packages everywhere, hold them (`apt-mark hold`, `dnf versionlock`), and reboot the hosts that
    differ. GPUs before Turing need the proprietary modules, and data-centre GPUs since Blackwell need the open ones.

How to undo
    Install the former version again and reboot.

Sources
    https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html
    https://docs.nvidia.com/datacenter/tesla/drivers/index.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.driver import Driver
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.driver.uniform"
SOURCE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html"
VERSION = "gpu.driver.uniform.version"
EXPECTS = {VERSION: Want(str, "the driver's version on every host: whole (580.95.05) or its first numbers (580)")}

_REMEDY = Remedy(
    "Install the same driver packages on every host, hold them against upgrades, and reboot the hosts that differ.",
    needs_root=True,
    needs_reboot=True,
)


def skip(pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs."""
    return nvidia.absent(pci)


def judge(driver: Driver, expect: Expect) -> Iterator[Finding]:
    """Tell the version; fail where a site expects another."""
    if not driver.loaded:
        yield Finding(State.UNKNOWN, saw="no NVIDIA driver is loaded (see gpu.modules)")
        return
    told = f"driver {driver.loaded}{f' ({driver.flavour})' if driver.flavour else ''}"
    wanted = expect.text(VERSION)
    if wanted is not None and not f"{driver.loaded}.".startswith(f"{wanted}."):
        yield Finding(
            State.FAIL,
            saw=told,
            wanted=f"driver {wanted} ({expect.origin(VERSION)})",
            remedy=_REMEDY,
            evidence=(f"{driver.source}: {driver.loaded}",),
        )
        return
    yield Finding(State.PASS, saw=told)


def judge_fleet(driver: Mapping[str, Driver], expect: Expect) -> Iterator[Finding]:
    """Fail on other branches, warn on other releases or flavours."""
    loaded = {host: one for host, one in driver.items() if one.loaded}
    if len({one.loaded for one in loaded.values()}) > 1 and expect.text(VERSION) is None:
        state = State.FAIL if len({one.branch for one in loaded.values()}) > 1 else State.WARN
        versions = {host: one.loaded for host, one in loaded.items()}
        yield from uniform(versions, "driver version", remedy=_REMEDY, state=state, probe="nvidia-driver")
    flavours = {host: one.flavour for host, one in loaded.items() if one.flavour}
    if len(set(flavours.values())) > 1:
        yield from uniform(flavours, "flavour of the kernel modules", remedy=_REMEDY, probe="nvidia-driver")


def baseline(driver: Driver) -> Mapping[str, Value]:
    """Return what a good host has."""
    return {VERSION: driver.loaded} if driver.loaded else {}
