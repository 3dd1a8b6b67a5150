"""Knows the address that peers use for a host where its inventory says nothing. Tries no address.

It is the one that SSH came in on, as `orchestrate launch` takes it; else the one of the default route's interface.
"""

from __future__ import annotations

import ipaddress

from hostsetup.facts.net import Endpoint, Net, training_address
from hostsetup.model import Evidence, Known, Probe, Unknown

PROBES = (Probe("ssh-connection", 'printf "%s\\n" "$SSH_CONNECTION"'),)


def parse_ssh_connection(text: str) -> str:
    """Return the host's own address from `CLIENT PORT SERVER PORT`."""
    words = text.split()
    if len(words) != 4:
        raise ValueError("not four words")
    return str(ipaddress.ip_address(words[2].partition("%")[0]))


def read(evidence: Evidence, net: Net) -> Known[Endpoint] | Unknown:
    """Return the endpoint; unknown when no interface has an address that another host could reach."""
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
