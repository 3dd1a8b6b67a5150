"""Knows whether a host is a machine, a virtual one or a container. Does not take silence about it for bare metal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.facts.machine import DMI
from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.machine import Machine

# what the firmware of virtual machines calls itself; AWS and Google give their metal instances other product names
_PRODUCTS = (
    (re.compile(r"QEMU|KVM|Standard PC|RHEV|OpenStack", re.IGNORECASE), "kvm"),
    (re.compile(r"VMware", re.IGNORECASE), "vmware"),
    (re.compile(r"VirtualBox|innotek", re.IGNORECASE), "oracle"),
    (re.compile(r"Xen|HVM domU", re.IGNORECASE), "xen"),
    (re.compile(r"Microsoft Corporation Virtual Machine", re.IGNORECASE), "microsoft"),
    (re.compile(r"Amazon EC2 (?!.*metal)", re.IGNORECASE), "amazon"),
    (re.compile(r"Google Compute Engine", re.IGNORECASE), "google"),
)


@dataclass(frozen=True, slots=True)
class Virt:
    """`vm`, `container`: whose, or empty: none. `source`: the probe that says so, `said`: in which words."""

    vm: str
    container: str
    source: str
    said: str


def read(machine: Machine | None = None, cpu: Cpu | None = None) -> Known[Virt] | Unknown:
    """Return what the host is, by systemd's word, by a container's marks, else by the CPU's flag and the firmware's name."""
    if machine is None and cpu is None:
        return Unknown("neither `machine-files` nor `lscpu` says whether this is a virtual machine or a container")
    if machine is None:
        hypervisor = cpu.hypervisor if cpu is not None else None
        if hypervisor is None and cpu is not None and cpu.excerpt:
            return Unknown("`lscpu`: the lines that would name a hypervisor are not shown")
        return Known(Virt(hypervisor or "", "", "lscpu", f"Hypervisor vendor: {hypervisor or 'none'}"))
    container, told = _container(machine)
    if machine.vm:
        vm = "" if machine.vm == "none" else machine.vm
        return Known(Virt(vm, container, "machine-files", told or f"vm {machine.vm}"))
    product = f"{machine.first(f'{DMI}/sys_vendor')} {machine.first(f'{DMI}/product_name')}".strip()
    named = next((name for pattern, name in _PRODUCTS if pattern.search(product)), "")
    xen = machine.first("/sys/hypervisor/type")
    if cpu is not None and cpu.hypervisor:
        named = named if named and cpu.hypervisor == "unnamed" else cpu.hypervisor
    elif cpu is not None:
        named = xen  # the processor's flag is missing: a machine, whatever its firmware is called
    elif not product and not container:
        return Unknown("systemd-detect-virt is missing, and neither lscpu nor the firmware says what this is")
    return Known(Virt(named or xen, container, "machine-files", told or f"{DMI}/product_name:{product}"))


def _container(machine: Machine) -> tuple[str, str]:
    if machine.container not in {"", "none"}:
        return machine.container, f"container {machine.container}"
    if inside := machine.first("/run/systemd/container"):
        return inside, f"/run/systemd/container:{inside}"
    for mark in machine.marks:
        return ("podman" if "containerenv" in mark else "docker"), f"there {mark}"
    return "", ""


def tell(virt: Virt) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"vm": virt.vm or None, "container": virt.container or None}
