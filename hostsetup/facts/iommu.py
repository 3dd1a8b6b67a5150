"""Knows what the IOMMU does to a host's GPUs and RDMA NICs: nothing, pass them through, or translate. Guesses no default."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.pcie import Pcie

PROBES: tuple[Probe, ...] = ()  # the replies of facts/pcie.py, facts/cmdline.py and facts/kernel_log.py hold it

PASS, TRANSLATE, OFF = "passed through", "translated", "off"

_TYPES = {"identity": PASS, "DMA": TRANSLATE, "DMA-FQ": TRANSLATE}
_DEFAULT = re.compile(r"iommu: Default domain type: (Passthrough|Translated)", re.IGNORECASE)
_USED = re.compile(r"Using passthrough mode|Hardware identity mapping", re.IGNORECASE)
_FAULT = re.compile(r"IO_PAGE_FAULT|DMAR: \[DMA (?:Read|Write)|arm-smmu.*(?:F_TRANSLATION|Unhandled context fault)")
_INACTIVE = re.compile(r"DMAR: IOMMU disabled|AMD-Vi: (?:AMD )?IOMMU disabled", re.IGNORECASE)
_NAMES = frozenset({"iommu", "intel_iommu", "amd_iommu", "iommu.passthrough"})


@dataclass(frozen=True, slots=True)
class Iommu:
    """`devices`: what happens to each GPU and NIC, by address: PASS, TRANSLATE or OFF; absent: the kernel does not say.

    `active`: whether an IOMMU driver runs; None: not known. `default`: what the boot line or the kernel's log say of all
    devices together, empty: nothing. `asked`: the parameters of the boot line about it. `faults`: the log's lines of
    transfers that the IOMMU refused. `lines`: what showed it, by address. `units`: the IOMMUs by their names in sysfs.
    """

    active: bool | None
    devices: Mapping[str, str]
    default: str
    asked: tuple[str, ...]
    faults: tuple[str, ...]
    lines: Mapping[str, str]
    units: tuple[str, ...] = ()

    def of(self, address: str) -> str:
        """Return what happens to a device; empty: not known."""
        if self.active is False:
            return OFF
        return self.devices.get(address, self.default)


def read(
    pcie: Pcie | None = None, cmdline: Cmdline | None = None, kernel_log: KernelLog | None = None
) -> Known[Iommu] | Unknown:
    """Return the mode: sysfs by device, else what the boot line and the log say; unknown when none of them speaks."""
    running = cmdline.running if cmdline else None
    asked = tuple(word for word in running or () if word.partition("=")[0] in _NAMES)
    log = _default_lines(kernel_log)
    faults = kernel_log.find(_FAULT)[:20] if kernel_log else ()
    default = said(asked) or _logged(log, faults)
    lines = (
        {"": f"proc-cmdline: {' '.join(asked)}"}
        if said(asked)
        else {"": f"dmesg: {(*log, *faults)[0]}"}
        if default
        else {}
    )
    if pcie is None or pcie.iommus is None:
        if not default and cmdline is None:
            return Unknown("neither sysfs, nor the running boot line, nor the kernel's log tell what the IOMMU does")
        return Known(Iommu(False if default == OFF else None, {}, default, asked, faults, lines))
    devices: dict[str, str] = {}
    for address, port in pcie.ports.items():
        if port.group_type in _TYPES:
            devices[address] = _TYPES[port.group_type]
            lines[address] = f"sysfs-pcie: {address}/iommu_group/type:{port.group_type}"
        elif not port.grouped:
            devices[address] = OFF
    return Known(Iommu(bool(pcie.iommus), devices, default, asked, faults, lines, pcie.iommus))


def said(words: Iterable[str]) -> str:
    """Return what parameters alone decide: `iommu=off` and the like, or passthrough; the last of a kind wins."""
    told = dict(word.partition("=")[::2] for word in words)
    if "off" in told.get("iommu", "").split(",") or "off" in told.get("amd_iommu", "").split(","):
        return OFF
    if "off" in told.get("intel_iommu", "").split(","):
        return OFF
    if "pt" in told.get("iommu", "").split(",") or told.get("iommu.passthrough") in {"1", "y", "on"}:
        return PASS
    if "nopt" in told.get("iommu", "").split(",") or told.get("iommu.passthrough") in {"0", "n", "off"}:
        return TRANSLATE
    return ""


def _default_lines(kernel_log: KernelLog | None) -> tuple[str, ...]:
    return (*kernel_log.find(_DEFAULT), *kernel_log.find(_USED), *kernel_log.find(_INACTIVE)) if kernel_log else ()


def _logged(lines: tuple[str, ...], faults: tuple[str, ...]) -> str:
    if faults:
        return TRANSLATE  # what is passed through cannot fault
    for line in lines:
        if found := _DEFAULT.search(line):
            return PASS if found[1].lower() == "passthrough" else TRANSLATE
    if any(map(_USED.search, lines)):
        return PASS
    return OFF if any(map(_INACTIVE.search, lines)) else ""


def tell(iommu: Iommu) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "active": iommu.active,
        "default": iommu.default,
        "asked": list(iommu.asked),
        "devices": dict(iommu.devices),
    }
