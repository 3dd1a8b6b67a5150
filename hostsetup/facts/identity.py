"""Knows by what a machine is told apart from every other: its ids, its boot, its GPUs. Reads no serial number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.machine import Machine
    from hostsetup.facts.names import Names
    from hostsetup.facts.virt import Virt

_MACHINE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}", re.ASCII)
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Identity:
    """Empty: not said. `boot_id` is one boot of one kernel, `pid_namespace` one container (or the host) on it."""

    hostname: str
    machine_id: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    gpu_uuids: tuple[str, ...] = ()
    container: bool = False


def read(
    machine: Machine | None = None, names: Names | None = None, virt: Virt | None = None
) -> Known[Identity] | Unknown:
    """Return what names the machine; the host name alone where nothing else was asked."""
    if machine is None:
        return Known(Identity(names.hostname)) if names is not None else Unknown("no answer names the machine")
    boot_id, machine_id = machine.first("/proc/sys/kernel/random/boot_id"), machine.first("/etc/machine-id")
    hostname = machine.first("/proc/sys/kernel/hostname") or (names.hostname if names is not None else "")
    identity = Identity(
        hostname=hostname,
        machine_id=machine_id if _MACHINE_ID.fullmatch(machine_id) else "",
        boot_id=boot_id if _BOOT_ID.fullmatch(boot_id) else "",
        pid_namespace=machine.pid_namespace,
        gpu_uuids=machine.gpu_uuids,
        container=virt is not None and bool(virt.container),
    )
    if not (identity.hostname or identity.boot_id):
        return Unknown("`machine-files`: neither a host name nor a boot id is in it")
    return Known(identity)


def tell(identity: Identity) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"boot_id": identity.boot_id, "machine_id": identity.machine_id, "gpu_uuids": list(identity.gpu_uuids)}
