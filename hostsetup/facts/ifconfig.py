"""Reads `ifconfig`, of today and of old, and `ifconfig -s` or `netstat -i`: what people paste where others use `ip addr`.

Counts no packets.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hostsetup.facts.ip_addr import MAX_LINKS, Link

if TYPE_CHECKING:
    from collections.abc import Iterable

_NEW = re.compile(r"([^\s:]{1,32}(?::\d+)?): flags=\d+<([A-Z0-9_,-]*)>\s+mtu (\d{1,9})\b.*", re.ASCII)
_OLD = re.compile(r"([^\s:]{1,32}(?::\S+)?)\s+Link encap:(\S+).*", re.ASCII)
_OLD_FLAGS = re.compile(r"((?:[A-Z0-9]+ +)+) ?MTU:(\d{1,9})\b.*", re.ASCII)
_INET = re.compile(r"inet (?:addr:)?([\d.]+)\b.*?(?:netmask |Mask:)(0x[0-9a-f]{8}|[\d.]+)", re.ASCII)
_INET6 = re.compile(r"inet6 (?:addr: ?)?([0-9a-f:]+)(?:%\S+)?(?:/|\s+prefixlen )(\d{1,3})\b", re.ASCII)
_KIND = re.compile(r"(ether|infiniband|loop|sit|tunnel|unspec)\b", re.ASCII)
_TABLE = re.compile(r"Iface\s+MTU(\s+Met)?\s+RX-OK\b.*\bFlg", re.ASCII)
_LETTERS = {"B": "BROADCAST", "L": "LOOPBACK", "M": "MULTICAST", "R": "RUNNING", "U": "UP", "m": "MASTER", "s": "SLAVE"}


def parse_ifconfig(text: str) -> tuple[Link, ...]:
    """Return the links; raise ValueError on text that is neither listing nor table."""
    links: list[Link] = []
    table = False
    for line in map(str.strip, text.splitlines()):
        if len(links) >= MAX_LINKS:
            raise ValueError("more links than any host has")
        if _TABLE.fullmatch(line):
            table = True
        elif table:
            links += _row(line)
        elif found := _NEW.fullmatch(line):
            links.append(Link(found[1], _flags(found[2].split(",")), mtu=int(found[3])))
        elif found := _OLD.fullmatch(line):
            kind = "loopback" if found[2] == "Local" else "ether" if found[2] == "Ethernet" else found[2].lower()
            links.append(Link(found[1], link_type=kind[:32]))
        elif links:
            links[-1] = _told(links[-1], line)
    if not links:
        raise ValueError("no link: not the output of `ifconfig`")
    return tuple(links)


def _row(line: str) -> list[Link]:
    words = line.split()
    if len(words) < 4 or not re.fullmatch(r"\d{1,9}", words[1], re.ASCII) or not re.fullmatch(r"[A-Za-z]+", words[-1]):
        return []  # also a row that was cut off: without its letters nobody knows whether the link is up
    return [Link(words[0][:32], _flags(_LETTERS.get(letter, "") for letter in words[-1]), mtu=int(words[1]))]


def _flags(words: Iterable[str]) -> frozenset[str]:
    """Return the flags as `ip addr` calls them: a link that is up and does not run has no carrier."""
    flags = {word for word in words if word}
    return frozenset(flags if "RUNNING" in flags or "UP" not in flags else {*flags, "NO-CARRIER"})


def _told(link: Link, line: str) -> Link:
    if found := _INET.match(line):
        mask = str(ipaddress.IPv4Address(int(found[2], 16))) if found[2].startswith("0x") else found[2]
        return _with(link, f"{found[1]}/{mask}")
    if found := _INET6.match(line):
        return _with(link, f"{found[1]}/{found[2]}")
    if found := _OLD_FLAGS.fullmatch(line):
        return replace(link, flags=_flags(found[1].split()), mtu=int(found[2]))
    if found := _KIND.match(line):
        return replace(link, link_type="loopback" if found[1] == "loop" else found[1])
    return link


def _with(link: Link, address: str) -> Link:
    return replace(link, addresses=(*link.addresses[:1000], ipaddress.ip_interface(address)))
