"""Reads `ip addr`, as plain text (long, -o or -br) or as JSON: links, their flags and addresses. Guesses no name and no prefix.

Lines of addresses that somebody cut out of it name their link themselves, at their end.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

Address: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

MAX_LINKS = 20_000
_HEAD = re.compile(r"(\d{1,10}): ([^\s:@]{1,32})(?:@([^\s:]{1,32}))?: <([A-Z0-9_,-]*)>(.*)", re.ASCII)
_INET = re.compile(r"inet6? (\S+)(.*)")
_ONE_LINE = re.compile(r"\d{1,10}: ([^\s:@]{1,32})(?:@([^\s:]{1,32}))?\s+(inet6? \S+ [^\\]*)", re.ASCII)
_BRIEF = re.compile(
    r"([^\s:@]{1,32})(?:@([^\s:]{1,32}))?\s+(UP|DOWN|UNKNOWN|DORMANT|LOWERLAYERDOWN|NOTPRESENT)(?:\s+(.*))?", re.ASCII
)
_LABEL = re.compile(r"scope (?:global|host|link|site) (?:\S+ )*?([^\s:]{1,32})(?::\S+)?", re.ASCII)
_JSON = re.compile(r"^[ \t]*(?=\[\s*[\[{\]]|\{)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Link:
    """One link. `state`: operational state in upper case, empty: not said. `parent`: what stands after `@`, or its `link`.

    `addresses`: in the kernel's order, without those that are tentative, failed or deprecated.
    """

    name: str
    flags: frozenset[str] = frozenset()
    state: str = ""
    mtu: int | None = None
    parent: str = ""
    master: str = ""
    link_type: str = ""
    addresses: tuple[Address, ...] = ()


def parse_ip_addr(text: str) -> tuple[Link, ...]:
    """Return the links in the order of the output; raise ValueError on text that is not of `ip addr`."""
    found = _JSON.search(text)
    links = _from_json(text[found.end() :]) if found else _from_text(text)
    if not links:
        raise ValueError("no link: not the output of `ip addr`")
    return links


def _from_text(text: str) -> tuple[Link, ...]:
    links: list[Link] = []
    headed = False  # whether links are told on lines of their own
    for whole in text.splitlines():
        line = whole.strip()
        if len(links) >= MAX_LINKS:
            raise ValueError("more links than any host has")
        if found := _HEAD.match(line):
            headed = True
            _, name, parent, flags, rest = found.groups()
            words = rest.split()
            said = dict(pairwise(words))
            links.append(
                Link(
                    name,
                    frozenset(filter(None, flags.split(","))),
                    said.get("state", ""),
                    _number(said.get("mtu", "")),
                    parent or "",
                    said.get("master", ""),
                )
            )
        elif headed and line.startswith("link/"):
            links[-1] = replace(links[-1], link_type=line.split()[0][5:][:32])
        elif headed and (found := _INET.match(line)):
            links[-1] = _with_line(links[-1], found)
        elif not headed:
            _without_head(links, line)
    return tuple(links)


def _with_line(link: Link, found: re.Match[str]) -> Link:
    # a peer address stands in the place of the prefix: `inet 10.0.0.1 peer 10.0.0.2/32`
    peer = re.match(r" peer \S+/(\d{1,3})\b", found[2], re.ASCII)
    local = found[1] if "/" in found[1] else f"{found[1]}/{peer[1] if peer else 32}"
    usable = not {"tentative", "dadfailed", "deprecated"} & set(found[2].split())
    return _with_address(link, local, usable=usable)


def _without_head(links: list[Link], line: str) -> None:
    """Note a line of -o or -br, or one address that ends with the name of its link."""
    if one := _ONE_LINE.match(line):
        name, parent, address = one[1], one[2] or "", one[3]
    elif brief := _BRIEF.fullmatch(line):
        link = Link(brief[1], state=brief[3], parent=brief[2] or "")
        for word in (brief[4] or "").split():
            if "/" in word:
                link = _with_address(link, word, usable=True)
        links.append(link)
        return
    elif label := _LABEL.fullmatch(line[at:]) if line.startswith("inet ") and (at := line.find("scope ")) > 0 else None:
        name, parent, address = label[1], "", line
    else:
        return
    if not links or links[-1].name != name:
        links.append(Link(name, parent=parent))
    if found := _INET.match(address.strip()):
        links[-1] = _with_line(links[-1], found)


def _from_json(text: str) -> tuple[Link, ...]:
    try:
        data: Any = json.JSONDecoder().raw_decode(text)[0]
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    rows = data if isinstance(data, list) else [data]
    links: list[Link] = []
    for row in rows[:MAX_LINKS]:
        if not isinstance(row, dict) or not row:
            continue  # `ip -j addr show dev X` of old releases pads with empty objects
        name, flags, infos = row.get("ifname"), row.get("flags"), row.get("addr_info")
        if not isinstance(name, str) or not name or len(name) > 32:
            raise ValueError("a link without a name")
        link = Link(
            name,
            frozenset(str(flag) for flag in flags) if isinstance(flags, list) else frozenset(),
            str(row.get("operstate") or "").upper(),
            mtu if isinstance(mtu := row.get("mtu"), int) else None,
            str(row.get("link") or (f"if{row['link_index']}" if "link_index" in row else "")),
            str(row.get("master") or ""),
            str(row.get("link_type") or ""),
        )
        for info in infos if isinstance(infos, list) else ():
            if isinstance(info, dict) and info.get("local"):
                usable = not any(info.get(flaw) for flaw in ("tentative", "dadfailed", "deprecated"))
                link = _with_address(link, f"{info['local']}/{info.get('prefixlen', '')}", usable=usable)
        links.append(link)
    return tuple(links)


def _with_address(link: Link, text: str, *, usable: bool) -> Link:
    address = ipaddress.ip_interface(text.partition("%")[0] if "%" in text else text)
    return replace(link, addresses=(*link.addresses, address)) if usable and len(link.addresses) < 1000 else link


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
