"""Reads RDMA devices as sysfs shows them. Asks for no counter of a port that is not active.

Each read of a counter is a command to the card's firmware; restricted functions of ConnectX-7 refuse it and the kernel
logs every refusal, so a port whose first counter cannot be read is asked for no second one.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from hostsetup.facts.rdma_port import MAX_PORTS, Device, Gid, Port, Rdma
from hostsetup.model import Probe

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBE = Probe(
    "sysfs-rdma",
    r"""cd /sys/class/infiniband 2>/dev/null || { [ -d /sys/class/net ] && echo rdma; exit; }
echo rdma
ls -ld */device */device/physfn 2>/dev/null | grep ' -> '
for n in */device/net/*; do [ -e "$n" ] && echo "netdev $n"; done
grep -sH '' */fw_ver */board_id */node_guid */device/numa_node \
  */ports/*/state */ports/*/phys_state */ports/*/rate */ports/*/link_layer */ports/*/lid
for p in */ports/*; do
  s= l= x=
  read -r s 2>/dev/null <"$p/state"; read -r l 2>/dev/null <"$p/link_layer"
  [ "$s" = '4: ACTIVE' ] || continue
  if [ "$l" = Ethernet ]; then
    grep -sHv '^[0:]*$' "$p"/gids/*
    grep -sH . "$p"/gid_attrs/types/* "$p"/gid_attrs/ndevs/*
  fi
  read -r x 2>/dev/null <"$p/counters/link_downed" || continue
  for c in link_downed link_error_recovery symbol_error excessive_buffer_overrun_errors local_link_integrity_errors port_rcv_errors; do
    set -- "$@" "$p/counters/$c"
  done
  for c in rnr_nak_retry_err local_ack_timeout_err out_of_sequence; do set -- "$@" "$p/hw_counters/$c"; done
done
[ $# = 0 ] || grep -sH '' "$@"
grep -sH '' ../infiniband_verbs/*/ibdev /proc/uptime
echo nodes
for n in /dev/infiniband/*; do
  [ -e "$n" ] || continue
  a=; [ -r "$n" ] && a=r; [ -w "$n" ] && a=${a}w
  echo "node ${n##*/} ${a:--}"
done
exit 0""",
    timeout_s=20,
)

_LINK = re.compile(r".* ([^\s/]{1,64})/device(/physfn)? -> (\S+)")
_DEVICE = re.compile(r"([^\s/:]{1,64})/(fw_ver|board_id|node_guid|device/numa_node):(.*)")
_PORT = re.compile(r"([^\s/:]{1,64})/ports/(\d{1,3})/([\w/]{1,80}):(.*)", re.ASCII)
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) Gb/sec.*", re.ASCII)
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_KINDS = {"IB/RoCE v1": "RoCE v1", "RoCE v1": "RoCE v1", "RoCE v2": "RoCE v2"}


def parse_rdma_sysfs(text: str) -> Rdma:
    """Read the answer of the probe; raise ValueError when it does not begin as the probe does."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "rdma":
        raise ValueError("not the RDMA devices of sysfs")
    devices: dict[str, dict[str, str]] = {}
    ports: dict[tuple[str, int], dict[str, str]] = {}
    verbs: dict[str, str] = {}
    nodes: dict[str, str] = {}
    uptime: float | None = None
    for line in lines[1:]:
        if (found := _PORT.fullmatch(line)) and (len(ports) < MAX_PORTS or (found[1], int(found[2])) in ports):
            ports.setdefault((found[1], int(found[2])), {})[found[3]] = found[4].strip()
        elif (found := _DEVICE.fullmatch(line)) or (found := re.fullmatch(r"netdev (\S+)/device/(net)/(\S+)", line)):
            devices.setdefault(found[1], {})[found[2]] = found[3].strip()
        elif found := _LINK.fullmatch(line):
            devices.setdefault(found[1], {})[found[2] or "pci"] = found[3]
        elif found := re.fullmatch(r"\S*/(uverbs\d+)/ibdev:(\S+)", line, re.ASCII):
            verbs[found[1]] = found[2]
        elif found := re.fullmatch(r"node ([\w.-]{1,64}) (rw|r|w|-)", line, re.ASCII):
            nodes[found[1]] = found[2]
        elif found := re.fullmatch(r"/proc/uptime:(\d{1,12}(?:\.\d{1,4})?) .*", line, re.ASCII):
            uptime = float(found[1])
    whole = "nodes" in lines
    return Rdma(
        {name: _device(name, said) for name, said in devices.items()},
        tuple(_port(*key, said, devices.get(key[0], {}).get("net", "")) for key, said in sorted(ports.items())),
        verbs if whole else None,
        nodes if whole else None,
        uptime_s=uptime,
    )


def _device(name: str, said: Mapping[str, str]) -> Device:
    functions = _PCI.findall(said.get("pci", ""))
    numa = said.get("device/numa_node", "")
    return Device(
        name,
        said.get("fw_ver", ""),
        said.get("board_id", ""),
        functions[-1] if functions else "",
        int(numa) if re.fullmatch(r"\d{1,4}", numa, re.ASCII) else None,
        said.get("node_guid", ""),
        virtual_function="/physfn" in said,
    )


def _port(device: str, number: int, said: Mapping[str, str], netdev: str) -> Port:
    rate = _RATE.fullmatch(said.get("rate", ""))
    layer = said.get("link_layer", "")
    state = said.get("state", "").partition(": ")[2]
    lid = said.get("lid", "")
    return Port(
        device,
        number,
        state,
        said.get("phys_state", "").partition(": ")[2].upper(),
        float(rate[1]) if rate else None,
        said.get("rate", ""),
        layer if layer in {"InfiniBand", "Ethernet"} else "",
        said.get("gid_attrs/ndevs/0", netdev),
        lid=int(lid, 16) if re.fullmatch(r"0x[0-9a-f]{1,8}", lid, re.ASCII) else None,
        gids=_gids(said) if state == "ACTIVE" and layer == "Ethernet" else None,
        counters=_counters(said) or None,
    )


def _gids(said: Mapping[str, str]) -> tuple[Gid, ...]:
    rows = []
    for name, value in said.items():
        if found := re.fullmatch(r"gids/(\d{1,4})", name, re.ASCII):
            kind = _KINDS.get(said.get(f"gid_attrs/types/{found[1]}", ""), "")
            netdev = said.get(f"gid_attrs/ndevs/{found[1]}", "")
            rows.append(Gid(int(found[1]), ipaddress.IPv6Address(value), kind, netdev))
    return tuple(sorted(rows, key=lambda gid: gid.index))


def _counters(said: Mapping[str, str]) -> dict[str, int]:
    every = ((name.rpartition("/")[2], value) for name, value in said.items() if "counters/" in name)
    return {name: int(value) for name, value in every if re.fullmatch(r"\d{1,20}", value, re.ASCII)}
