"""Peers find a host where its inventory says, else where SSH came in, else on the default route's interface."""

import json

import pytest

from hostsetup import host
from hostsetup.model import Evidence, Known, Reply

IP = """
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 state UNKNOWN
    link/loopback 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: eth0: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP
    link/ether 02:00:00:00:00:01
    inet 10.0.0.5/24 scope global eth0
3: ib0: <BROADCAST,UP,LOWER_UP> mtu 2044 state UP
    link/infiniband 00
    inet 192.168.50.5/24 scope global ib0
"""


def endpoint(connection="", **listed):
    replies = {"ip-addr": Reply(IP.encode()), "ssh-connection": Reply(f"{connection}\n".encode())}
    if listed:
        replies["inventory"] = Reply(json.dumps(listed).encode())
    return host.read(Evidence("h", replies)).endpoint


@pytest.mark.parametrize(
    ("connection", "listed", "address"),
    [
        ("203.0.113.9 5000 10.0.0.5 22", {}, "10.0.0.5"),
        ("203.0.113.9 5000 10.0.0.5 22", {"addr": "192.168.50.5"}, "192.168.50.5"),
        ("203.0.113.9 5000 10.0.0.5 22", {"iface": "ib0"}, "192.168.50.5"),
        ("203.0.113.9 5000 192.168.50.5 22", {}, "192.168.50.5"),
        ("127.0.0.1 5000 127.0.0.1 22", {"slots": 8}, "10.0.0.5"),
        ("", {}, "10.0.0.5"),
        ("203.0.113.9 5000 198.51.100.7 22", {}, "10.0.0.5"),  # a translated address that no interface has
    ],
)
def test_the_address_of_a_host(connection, listed, address):
    found = endpoint(connection, **listed)
    assert isinstance(found, Known)
    assert found.value.address == address


@pytest.mark.parametrize("listed", [{"addr": "10.9.9.9"}, {"iface": "eth7"}])
def test_what_the_inventory_says_and_the_host_does_not_have_is_unknown_and_not_replaced(listed):
    found = endpoint("203.0.113.9 5000 10.0.0.5 22", **listed)
    assert not isinstance(found, Known)
    assert next(iter(listed.values())) in found.reason
