"""Knows what a host calls itself and which addresses that name has on the host itself. Resolves nothing itself."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (
    Probe("hostname", "hostname || uname -n"),
    Probe("getent", 'getent ahosts "$(hostname || uname -n)"'),
    Probe("etc-hosts", "cat /etc/hosts"),
    # what elastic agents publish; asking a name server may take its time
    Probe("fqdn", 'f=$(hostname -f) && echo "$f" && getent ahosts "$f"', timeout_s=15),
)

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Names:
    """`addresses`: what `hostname` resolves to on the host; empty: nothing. `source`: the probe that says so.

    `hosts_lines`: the lines of /etc/hosts that hold the name. `fqdn`, `fqdn_addresses`: the full name, and what it
    resolves to; empty: not known.
    """

    hostname: str
    addresses: tuple[str, ...]
    source: str
    hosts_lines: tuple[str, ...] = ()
    fqdn: str = ""
    fqdn_addresses: tuple[str, ...] = ()

    @property
    def loopback(self) -> tuple[str, ...]:
        """Return those addresses that no other host can reach."""
        return tuple(address for address in self.addresses if ipaddress.ip_address(address).is_loopback)

    @property
    def fqdn_is_loopback(self) -> bool:
        """Whether the full name leads to the host itself alone."""
        told = [ipaddress.ip_address(address).is_loopback for address in self.fqdn_addresses]
        return bool(told) and all(told)


def parse_hostname(text: str) -> str:
    """Read the output of `hostname`: one name."""
    name = text.strip().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError("not a host name")
    return name


def parse_getent(text: str) -> tuple[str, ...]:
    """Read `getent ahosts NAME`: the distinct addresses, in order."""
    return tuple(dict.fromkeys(_address(line.split()[0]) for line in text.splitlines() if line.strip()))


def parse_fqdn(text: str) -> tuple[str, tuple[str, ...]]:
    """Read the full name on a line of its own, then `getent ahosts` of it."""
    name, _, rest = text.strip().partition("\n")
    return parse_hostname(name), parse_getent(rest)


def parse_hosts(text: str) -> Mapping[str, tuple[str, ...]]:
    """Read /etc/hosts: address to names, in the file's order; lines that begin with no address are not entries."""
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            address = _address(words[0])
        except ValueError:
            continue
        entries.setdefault(address, []).extend(words[1:])
    if text.strip() and not entries and not all(line.lstrip()[:1] in {"", "#"} for line in text.splitlines()):
        raise ValueError("not a hosts file: no line begins with an address")
    return {address: tuple(names) for address, names in entries.items()}


def _address(text: str) -> str:
    return str(ipaddress.ip_address(text.partition("%")[0]))


def read(evidence: Evidence) -> Known[Names] | Unknown:
    """Return the name and its addresses: as the resolver says, else as /etc/hosts does."""
    found = _read(evidence)
    reply = evidence.answer("fqdn")
    if isinstance(found, Unknown) or isinstance(reply, Unknown):
        return found
    try:
        fqdn, addresses = parse_fqdn(reply.text)
    except ValueError:
        return found
    return Known(replace(found.value, fqdn=fqdn, fqdn_addresses=addresses))


def _read(evidence: Evidence) -> Known[Names] | Unknown:
    hosts: Mapping[str, tuple[str, ...]] = {}
    answer = evidence.answer("etc-hosts")
    if not isinstance(answer, Unknown):
        try:
            hosts = parse_hosts(answer.text)
        except ValueError as error:
            answer = Unknown(f"`etc-hosts`: {error}")
    said, resolved = evidence.answer("hostname"), evidence.answer("getent")
    try:
        name = "" if isinstance(said, Unknown) else parse_hostname(said.text)
        if not isinstance(resolved, Unknown):
            addresses = parse_getent(resolved.text)
            # getent answers 2 when there is no such name; anything else that is empty is no answer
            if addresses or resolved.exit_code == 2:
                name = name or evidence.host
                return Known(Names(name, addresses, "getent", _lines(hosts, name)))
    except ValueError as error:
        return Unknown(f"the host's name or its addresses are not readable: {error}")
    if isinstance(answer, Unknown):
        return resolved if isinstance(resolved, Unknown) else answer
    name = name or _own_name(hosts, evidence.host)
    lines = _lines(hosts, name)
    if not lines:
        return Unknown("no answer of the resolver, and /etc/hosts does not hold the host's name")
    return Known(Names(name, tuple(line.split()[0] for line in lines), "etc-hosts", lines))


def _own_name(hosts: Mapping[str, tuple[str, ...]], fallback: str) -> str:
    # Debian's and Ubuntu's installers give the host's own name this address
    return next(filter(_NAME.fullmatch, hosts.get("127.0.1.1", ())), fallback)


def _lines(hosts: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    wanted = {name, name.partition(".")[0]}
    return tuple(f"{address} {' '.join(names)}" for address, names in hosts.items() if wanted & set(names))


def tell(names: Names) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"hostname": names.hostname, "addresses": list(names.addresses)}
