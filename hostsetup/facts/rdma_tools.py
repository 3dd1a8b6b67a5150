"""Reads `ibv_devinfo` (plain or -v), `rdma link`, `ibstat` and `show_gids`, whole or in part. Takes a full MTU for no sign of an active port."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hostsetup.facts.rdma_port import ETHERNET, INFINIBAND, MAX_PORTS, Device, Gid, Port, Rdma

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELD = re.compile(r"([a-z_]+):\s+(.*)", re.ASCII)
_GID = re.compile(r"GID\[\s*(\d{1,4})\]:\s+([0-9a-fA-F:.]+)(?:,\s*(?:IB/)?(RoCE v[12]))?.*", re.ASCII)
_RDMA_LINK = re.compile(r"(?:link |\d+/\d+: )([^\s/]{1,64})/(\d{1,3}):? (.*)", re.ASCII)
_GID_ROW = re.compile(
    r"([^\s/]{1,64})\s+(\d{1,3})\s+(\d{1,4})\s+([0-9a-f:.]{3,45})\s+(?:[\d.]{7,15}\s+)?(?:RoCE )?v([12])(?:\s+(\S{1,32}))?",
    re.ASCII | re.IGNORECASE,
)
UNNAMED = "unnamed"
DEVINFO, LINK, GIDS, IBSTAT = "ibv-devinfo", "rdma-link", "show-gids", "ibstat"
_OF_PORT = {"state", "active_mtu", "link_layer", "active_width", "active_speed", "phys_state"}
_STATES = {"ACTIVE", "ACTIVE_DEFER", "ARMED", "DOWN", "INIT", "NOP"}
_CA = re.compile(r"CA '([^'\s]{1,64})'")
_STAT = re.compile(r"([A-Za-z][\w ]{1,40}):(.*)", re.ASCII)
_NETNS = re.compile(r"netns (shared|exclusive)\b.*", re.ASCII)


def parse_ibv_devinfo(text: str) -> Rdma:
    """Read `ibv_devinfo`: indented with tabs, with blanks or not at all. Text without hca_id is of a device unnamed.

    Raises ValueError when there is neither a port nor the sentence that there is no device.
    """
    devices: dict[str, Device] = {}
    ports: list[Port] = []
    device = Device(UNNAMED)
    for line in map(str.strip, text.splitlines()):
        if found := _GID.fullmatch(line):
            ports = ports or [Port(device.name, 1, layer=ETHERNET, source=DEVINFO)]
            gid = Gid(int(found[1]), ipaddress.IPv6Address(found[2]), found[3] or "")
            if len(ports[-1].gids or ()) < 1000:
                layer = ports[-1].layer or (ETHERNET if gid.kind else "")
                ports[-1] = replace(ports[-1], gids=(*(ports[-1].gids or ()), gid), layer=layer)
        elif found := _FIELD.fullmatch(line):
            name, value = found[1], found[2].strip()[:100]
            if name == "hca_id":
                device = Device(value)
            elif name == "port" and re.fullmatch(r"\d{1,3}", value, re.ASCII) and len(ports) < MAX_PORTS:
                ports.append(Port(device.name, int(value), source=DEVINFO))
            elif name in _OF_PORT and not ports and "hca_id" not in text:  # a paste that begins in the midst of a port
                ports.append(_told(Port(device.name, 1, source=DEVINFO), name, value))
            elif ports and ports[-1].device == device.name:
                ports[-1] = _told(ports[-1], name, value)
            else:
                device = _described(device, name, value)
            devices[device.name] = device
    if not ports and not re.search(r"No IB devices found", text):
        raise ValueError("no port: not the output of `ibv_devinfo`")
    named = {port.device for port in ports}
    return Rdma({name: one for name, one in devices.items() if name in named}, tuple(ports))


def _described(device: Device, name: str, value: str) -> Device:
    match name:
        case "fw_ver":
            return replace(device, firmware=value)
        case "board_id":
            return replace(device, board=value)
        case "node_guid":
            return replace(device, guid=value)
    return device


def _told(port: Port, name: str, value: str) -> Port:
    head = value.partition(" ")[0]
    match name:
        case "state":
            return replace(port, state=head.removeprefix("PORT_"))
        case "phys_state":
            return replace(port, phys=head.replace("_", ""))
        case "active_mtu" if re.fullmatch(r"\d{1,5}", head, re.ASCII):
            return replace(port, active_mtu=int(head))
        case "port_lid" | "port_id" if re.fullmatch(r"\d{1,8}", head, re.ASCII):
            return replace(port, lid=int(head))
        case "link_layer" if head in {"InfiniBand", "Ethernet"}:
            return replace(port, layer=head)
        case "active_width" if found := re.fullmatch(r"(\d{1,2})X", head, re.ASCII):
            return replace(port, rate=found[0])
        case "active_speed" if found := re.fullmatch(r"(\d{1,4}(?:\.\d)?) Gbps.*", value, re.ASCII):
            lanes = re.fullmatch(r"(\d+)X", port.rate, re.ASCII)
            return replace(port, rate_gbps=float(found[1]) * int(lanes[1])) if lanes else port
    return port


def parse_ibstat(text: str) -> Rdma:
    """Read `ibstat`; raise ValueError where it tells of no port."""
    devices: dict[str, Device] = {}
    ports: list[Port] = []
    for line in map(str.strip, text.splitlines()):
        if found := _CA.fullmatch(line):
            devices[found[1]] = Device(found[1])
        elif devices and (found := _STAT.fullmatch(line)):
            device = list(devices)[-1]
            name, value = found[1].lower(), found[2].strip()[:100]
            if name.startswith("port ") and name[5:].isdigit() and len(ports) < MAX_PORTS:
                ports.append(Port(device, int(name[5:]), source=IBSTAT))
            elif ports and ports[-1].device == device:
                ports[-1] = _stated(ports[-1], name, value)
            elif name == "firmware version":
                devices[device] = replace(devices[device], firmware=value)
    if not ports:
        raise ValueError("no port: not the output of `ibstat`")
    return Rdma(devices, tuple(ports))


def _stated(port: Port, name: str, value: str) -> Port:
    match name:
        case "state":
            return replace(port, state="INIT" if value.startswith("Init") else value.upper())
        case "physical state":
            return replace(port, phys=value.replace(" ", "").upper())
        case "rate" if re.fullmatch(r"\d{1,4}", value, re.ASCII):
            # a port that is down tells the least rate there is
            return replace(port, rate_gbps=float(value) if port.active else None)
        case "base lid" if re.fullmatch(r"\d{1,8}", value, re.ASCII):
            return replace(port, lid=int(value))
        case "link layer" if value in {INFINIBAND, ETHERNET}:
            return replace(port, layer=value)
    return port


def parse_show_gids(text: str) -> Rdma:
    """Read the rows of `show_gids`; they tell of RoCE ports that have addresses, and of no port's state."""
    ports: dict[tuple[str, int], Port] = {}
    for line in map(str.strip, text.splitlines()):
        found = _GID_ROW.fullmatch(line[:300])
        if found is None or len(ports) > MAX_PORTS:
            continue
        key, netdev = (found[1], int(found[2])), found[6] or ""
        gid = Gid(int(found[3]), ipaddress.IPv6Address(found[4]), f"RoCE v{found[5]}", netdev)
        port = ports.get(key) or Port(*key, layer=ETHERNET, netdev=netdev, gids=(), source=GIDS)
        ports[key] = replace(port, gids=(*(port.gids or ()), gid)) if len(port.gids or ()) < 1000 else port
    if not ports:
        raise ValueError("no row of `show_gids`")
    last = list(ports)[-1]
    if "n_gids_found" not in text and len(ports[last].gids or ()) < max(
        len(port.gids or ()) for port in ports.values()
    ):
        ports[last] = replace(ports[last], gids=None)  # the end of the table may be missing
    return Rdma({port.device: Device(port.device) for port in ports.values()}, tuple(ports.values()))


def parse_rdma_link(text: str) -> Rdma:
    """Read `rdma link` (and `rdma system`, for its network namespaces), as new and old releases print it."""
    ports: list[Port] = []
    netns = ""
    for line in _links(text):
        if (found := _RDMA_LINK.fullmatch(line)) and len(ports) < MAX_PORTS:
            words = found[3].split()
            said = dict(zip(words[::2], words[1::2], strict=False))
            layer = "InfiniBand" if "subnet_prefix" in said else "Ethernet" if "netdev" in said else ""
            lid = said.get("lid", "")
            ports.append(
                Port(
                    found[1],
                    int(found[2]),
                    said.get("state", ""),
                    said.get("physical_state", "").replace("_", ""),
                    layer=layer,
                    netdev=said.get("netdev", ""),
                    lid=int(lid) if re.fullmatch(r"\d{1,8}", lid, re.ASCII) else None,
                    source=LINK,
                )
            )
        elif found := _NETNS.fullmatch(line):
            netns = found[1]
    if not ports and not netns and text.strip():
        raise ValueError("no link: not the output of `rdma link`")
    return Rdma({port.device: Device(port.device) for port in ports}, tuple(ports), netns=netns)


def _links(text: str) -> Iterator[str]:
    """Yield the lines, each with what a narrow terminal wrapped to the next: between words, or within one."""
    held = ""
    for whole in [*text.splitlines(), ""]:
        line = whole.rstrip()
        wrapped = (
            held and line.strip() and not _RDMA_LINK.fullmatch(line.strip()) and not _NETNS.fullmatch(line.strip())
        )
        if wrapped and len(held) < 1000:
            near = f"{held}{whole}"  # a terminal parts words, and keeps the blanks
            held = near if _is_link(near) else f"{held} {line.strip()}"
            continue
        yield held.strip()
        held = whole
    yield held.strip()


def _is_link(line: str) -> bool:
    """Whether the words of a link come in pairs, its state one that there is."""
    found = _RDMA_LINK.fullmatch(line.strip())
    words = found[3].split() if found else []
    said = dict(zip(words[::2], words[1::2], strict=False))
    return len(words) % 2 == 0 and said.get("state") in _STATES
