"""Reads what sysfs and procfs show of network interfaces: kinds, speeds, errors, bonds, routes and switches.

Keeps no counter of bytes or packets beyond what the share of errors needs.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hostsetup.model import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROBE = Probe(
    "sysfs-net",
    r"""cd /sys/class/net || exit 1
echo net
ls -ld * */device */master 2>/dev/null | grep ' -> '
grep -sH '' */operstate */carrier */mtu */speed */duplex */type */iflink */ifindex */carrier_changes */uevent \
  */tun_flags */bonding/mode */bonding/slaves */bonding_slave/mii_status */bonding_slave/link_failure_count \
  */statistics/rx_errors */statistics/tx_errors */statistics/rx_packets */statistics/tx_packets
cd /proc/sys/net/ipv4 && grep -sH '' conf/*/rp_filter conf/*/arp_ignore conf/*/arp_announce
grep -sH '' /proc/uptime
head -c 50000 /proc/net/route
grep -s '^00000000000000000000000000000000 00 ' /proc/net/ipv6_route
ip rule 2>/dev/null | head -c 20000 | sed 's/^/rule /'
exit 0""",
)

MAX_LINES = 400_000
_LINK = re.compile(r".* ([^\s/]{1,32})(?:/(device|master))? -> (\S+)")
_VALUE = re.compile(r"([^\s/:]{1,32})/((?:bonding|bonding_slave|statistics)/\w{1,40}|\w{1,40}):(.*)", re.ASCII)
_SWITCH = re.compile(r"conf/([^/:]{1,32})/(\w{1,20}):(-?\d{1,6})", re.ASCII)
_ROUTE = re.compile(
    r"(\S{1,32})\t([0-9A-F]{8})\t[0-9A-F]{8}\t([0-9A-F]{4})\t\d+\t\d+\t(\d{1,10})\t([0-9A-F]{8})\t.*", re.ASCII
)
_ROUTE6 = re.compile(r"0{32} 00 .*\b([0-9a-f]{8}) [0-9a-f]{8} [0-9a-f]{8} ([0-9a-f]{8})\s+(\S{1,32})", re.ASCII)
_RULE = re.compile(r"rule \d+:\s+from (\S+) .*", re.ASCII)
_UPTIME = re.compile(r"/proc/uptime:(\d{1,12}(?:\.\d{1,4})?) .*", re.ASCII)
_UP = 0x1  # RTF_UP


@dataclass(frozen=True, slots=True)
class NetSysfs:
    """`values`: by interface and file. `places`, `devices`, `masters`: where the links of sysfs lead.

    `default`: the interface of the default route, empty without. `rules`: the sources that routing rules name.
    """

    values: Mapping[str, Mapping[str, str]]
    places: Mapping[str, str]
    devices: Mapping[str, str]
    masters: Mapping[str, str]
    switches: Mapping[str, Mapping[str, int]]
    default: str = ""
    uptime_s: float | None = None
    rules: tuple[str, ...] = field(default=())


def parse_net_sysfs(text: str) -> NetSysfs:
    """Read the answer of the probe; raise ValueError when it does not begin as the probe does."""
    lines = text.splitlines()[:MAX_LINES]
    if not lines or lines[0].strip() != "net":
        raise ValueError("not the network interfaces of sysfs")
    values: dict[str, dict[str, str]] = {}
    links: dict[str, dict[str, str]] = {"": {}, "device": {}, "master": {}}
    switches: dict[str, dict[str, int]] = {}
    uptime: float | None = None
    for line in lines[1:]:
        if found := _VALUE.fullmatch(line):
            _keep(values.setdefault(found[1], {}), found[2], found[3])
        elif found := _SWITCH.fullmatch(line):
            switches.setdefault(found[1], {})[found[2]] = int(found[3])
        elif found := _LINK.fullmatch(line):
            links[found[2] or ""][found[1]] = found[3]
        elif found := _UPTIME.fullmatch(line):
            uptime = float(found[1])
    routes = sorted(_default_routes(lines))  # IPv4 before IPv6, then the lowest metric
    rules = tuple(m[1] for line in lines if (m := _RULE.fullmatch(line)) and m[1] != "all" and _is_network(m[1]))
    default = routes[0][2] if routes else ""
    return NetSysfs(values, links[""], links["device"], links["master"], switches, default, uptime, rules)


def _default_routes(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    for line in lines:
        if found := _ROUTE.fullmatch(line):
            if found[2] == found[5] == "00000000" and int(found[3], 16) & _UP:
                yield 4, int(found[4]), found[1]
        elif (found := _ROUTE6.fullmatch(line)) and int(found[2], 16) & _UP and found[3] != "lo":
            yield 6, int(found[1], 16), found[3]


def _keep(files: dict[str, str], name: str, value: str) -> None:
    if name == "uevent":
        kind, _, what = value.partition("=")
        if kind == "DEVTYPE":
            files["devtype"] = what
    else:
        files[name] = value.strip()


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
