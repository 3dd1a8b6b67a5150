"""Knows the address that peers use for a host, and the interface that carries it. Tries no address.

It is what the inventory says; else the one that SSH came in on, as `orchestrate launch` takes it; else the one of the
default route's interface.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from hostsetup.facts.net import Endpoint, Net, training_address
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from hostsetup.facts.listed import Listed

PROBES = (Probe("ssh-connection", 'printf "%s\\n" "$SSH_CONNECTION"'),)


def parse_ssh_connection(text: str) -> str:
    """Return the host's own address from `CLIENT PORT SERVER PORT`."""
    words = text.split()
    if len(words) != 4:
        raise ValueError("not four words")
    return str(ipaddress.ip_address(words[2].partition("%")[0]))


def read(evidence: Evidence, net: Net, listed: Listed | None = None) -> Known[Endpoint] | Unknown:
    """Return the endpoint; unknown when no interface has an address that another host could reach."""
    if listed is not None and (listed.address or listed.iface):
        named = training_address(net, listed.address, listed.iface)
        wanted = f"addr={listed.address}" if listed.address else f"iface={listed.iface}"
        return Known(named) if named else Unknown(f"no interface has what the hosts file says: {wanted}")
    reply = evidence.answer("ssh-connection")
    login = None
    if not isinstance(reply, Unknown):
        try:
            login = parse_ssh_connection(reply.text)
        except ValueError:
            login = None  # this machine, or a connection that sshd says nothing of
    found = training_address(net, login) if login and not _lonely(login) else None
    found = found or training_address(net)
    return Known(found) if found else Unknown("no interface has an address that another host could reach")


def _lonely(address: str) -> bool:
    told = ipaddress.ip_address(address)
    return told.is_loopback or told.is_link_local
