"""Knows a host's RDMA devices, from sysfs, or else from ibv_devinfo and `rdma link`. Changes no port."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostsetup.facts.pci_tree import full_address
from hostsetup.facts.rdma_port import Port, Rdma
from hostsetup.facts.rdma_sysfs import PROBE as SYSFS
from hostsetup.facts.rdma_sysfs import parse_rdma_sysfs
from hostsetup.facts.rdma_tools import GIDS, IBSTAT, parse_ibstat, parse_ibv_devinfo, parse_rdma_link, parse_show_gids
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_THERE = "[ -d /sys/class/infiniband ] || exit 0"
PROBES = (
    SYSFS,
    Probe("ibv-devinfo", f"{_THERE}; ibv_devinfo", timeout_s=15),
    Probe("rdma-link", f"{_THERE}; command -v rdma >/dev/null || exit 127; rdma link; rdma system"),
)
_HEAD = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", re.ASCII)


def read(evidence: Evidence) -> Known[Rdma] | Unknown:
    """Return the devices and ports: sysfs says most, ibv_devinfo the MTU, `rdma` the namespaces, show_gids only GIDs."""
    tree = _from(evidence, "sysfs-rdma", parse_rdma_sysfs)
    devinfo = _from(evidence, "ibv-devinfo", parse_ibv_devinfo)
    links = _from(evidence, "rdma-link", parse_rdma_link)
    # never asked, for sysfs has it all
    pasted = (_from(evidence, IBSTAT, parse_ibstat), _from(evidence, GIDS, parse_show_gids))
    found = [one for one in (tree, devinfo, links, *pasted) if isinstance(one, Rdma)]
    if not found:
        gaps = [one for one in (devinfo, links, tree) if isinstance(one, Unknown)]
        return next((gap for gap in gaps if "lost" not in gap.reason), gaps[-1])
    best = found[0]
    managed = _switch_managers(evidence)
    devices = {name: replace(device, managed=device.pci in managed) for name, device in best.devices.items()}
    return Known(
        replace(
            best,
            devices=devices,
            ports=tuple(_merged(port, found[1:]) for port in best.ports),
            netns=links.netns if isinstance(links, Rdma) else "",
            tool_found=frozenset(devinfo.devices) if isinstance(devinfo, Rdma) else None,
        )
    )


def _from(evidence: Evidence, probe: str, parse: Callable[[str], Rdma]) -> Rdma | Unknown:
    reply = evidence.answer(probe)
    if isinstance(reply, Unknown):
        return reply
    text = reply.text if reply.text.strip() else reply.error_text
    if not text.strip():
        return Unknown(f"`{probe}` printed nothing")
    try:
        return parse(text)
    except ValueError as error:
        return Unknown(f"`{probe}`: {error}")


def _merged(port: Port, others: Iterable[Rdma]) -> Port:
    same = [p for other in others for p in other.ports if (p.device, p.number) == (port.device, port.number)]
    for other in same:
        port = replace(
            port,
            active_mtu=port.active_mtu or other.active_mtu,
            phys=port.phys or other.phys,
            layer=port.layer or other.layer,
            netdev=port.netdev or other.netdev,
            gids=port.gids if port.gids is not None else other.gids,
        )
    return port


def _switch_managers(evidence: Evidence) -> frozenset[str]:
    """Return the functions whose product data say that software manages NVSwitches through them (HGX B200 and later)."""
    reply = evidence.answer("lspci-vvv")
    if isinstance(reply, Unknown) or "SW_MNG" not in reply.text:
        return frozenset()
    address, found = "", set[str]()
    for line in reply.text.splitlines():
        if head := _HEAD.match(line):
            address = full_address(head[1])
        elif "SW_MNG" in line and address:
            found.add(address)
    return frozenset(found)


def tell(rdma: Rdma) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        port.name: {"state": port.state, "rate_gbps": port.rate_gbps, "layer": port.layer, "netdev": port.netdev}
        for port in rdma.ports
    }
