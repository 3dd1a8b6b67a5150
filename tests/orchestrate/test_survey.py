"""What hosts say of addresses, interfaces, devices and ports, sane and hostile."""

from __future__ import annotations

import json
import shutil
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate import survey
from orchestrate.errors import CannotTell, Refused
from orchestrate.inventory import Host, parse_hosts
from orchestrate.plan import NodeFacts
from orchestrate.shell import Completed, Local
from orchestrate.together import all_of

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
  10: 0100007F:A1B2 0100007F:733C 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0
"""


class Says:
    """A host that answers commands by the words in them."""

    def __init__(self, host, **answers):
        (self.host,) = parse_hosts(host)
        self.answers = answers

    def run(self, command, **_):
        for word, answer in self.answers.items():
            if word.replace("_", " ") in command:
                return Completed(0, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode(), b"")
        return Completed(127, b"", b"sh: 1: not found\nsecond line")


def route(source, dev="eth1"):
    return [{"dst": "x", "prefsrc": source, "dev": dev}]


def test_only_listening_ports_are_busy_in_both_families():
    assert survey.parse_listening(TCP) == {0x733C, 22, 8080}


@given(st.one_of(st.text(), st.from_regex(survey._LISTENER), st.text().map(lambda t: TCP.replace("733C", t))))
def test_any_port_table_is_read_without_an_error(text):
    assert all(0 <= port <= 65535 for port in survey.parse_listening(text))


def test_a_free_port_is_none_of_the_busy_ones_and_differs_between_runs():
    ports = {survey.free_port(f"run{n}", ()) for n in range(50)}
    assert len(ports) > 40
    assert ports <= set(survey.PORTS)
    assert survey.free_port("r", set(survey.PORTS) - {20123}) == 20123
    assert survey.free_port("r", {survey.free_port("r", ())}) == survey.free_port("r", ()) + 1
    with pytest.raises(Refused, match="no port between"):
        survey.free_port("r", survey.PORTS)


def test_a_port_that_is_in_use_here_is_refused_with_its_holder():
    shell = Local(parse_hosts("local")[0])
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert port in survey.listening(shell)
        with pytest.raises(Refused, match=f"port {port} is in use") as caught:
            survey.port_on(shell, "r", port)
    assert caught.value.where == "local"
    assert survey.port_on(shell, "r", port) == port


def test_the_holder_of_a_port_is_named():
    ss = 'LISTEN 0 5 127.0.0.1:29500 0.0.0.0:* users:(("tensor\x1bboard",pid=7,fd=3))\n'
    with pytest.raises(Refused, match="port 29500 is in use by tensor"):
        survey.port_on(Says("a", proc=TCP, ss=ss), "r", 29500)


def test_a_port_table_that_cannot_be_read_makes_no_port_free():
    with pytest.raises(CannotTell, match="not known"):
        survey.port_on(Says("a"), "r", None)


def test_devices_are_taken_from_the_tools_own_lines_alone():
    assert survey.gpus(Says("a", nvidia="GPU-1\nWARNING: x\nGPU-2 \n")) == ("GPU-1", "GPU-2")
    assert survey.gpus(Says("a")) == ()
    hostile = "/dev/infiniband/uverbs0\n/dev/sda\n/dev/infiniband/../sda\n/dev/infiniband/a b\n"
    assert survey.rdma_devices(Says("a", infiniband=hostile)) == ("/dev/infiniband/uverbs0",)


def test_the_addresses_are_those_on_the_route_between_the_hosts():
    a = Says("a", SSH="1.1.1.1 5 192.168.0.1 22", route=route("10.0.0.1"))
    b = Says("b", route=route("10.0.0.2", "ens1f0"))
    assert survey.routes([a, b], all_of) == {"a": NodeFacts("10.0.0.1", "eth1"), "b": NodeFacts("10.0.0.2", "ens1f0")}


def test_one_host_talks_to_itself_and_is_asked_nothing():
    assert survey.routes([Says("a")], all_of) == {"a": NodeFacts("127.0.0.1", "lo")}


def test_what_hosts_txt_says_of_an_address_or_an_interface_is_kept():
    table = [
        {"ifname": "eth1", "addr_info": [{"local": "fd00::1"}, {"local": "10.0.0.1"}, {"local": "fe80::1", "scope": "link"}]},
        {"ifname": "ib0", "addr_info": [{"local": "10.9.0.1"}]},
    ]  # fmt: skip
    a = Says("a addr=10.9.0.1", addr=table, route=route("10.0.0.1"))
    b = Says("b iface=eth1", addr=table, route=route("10.0.0.2"))
    assert survey.routes([a, b], all_of) == {"a": NodeFacts("10.9.0.1", "ib0"), "b": NodeFacts("10.0.0.1", "eth1")}


@pytest.mark.parametrize(
    ("host", "answers", "why"),
    [
        ("b addr=10.9.9.9", {"addr": [], "route": route("10.0.0.2")}, "no interface there has the address"),
        ("b iface=eth7", {"addr": [], "route": route("10.0.0.2")}, "interface eth7"),
        ("b iface=eth7", {"addr": "{", "route": route("10.0.0.2")}, "gives no list"),
        ("b", {}, "not found"),
        ("b", {"route": "[]"}, "no answer"),
        ("b", {"route": route("nonsense")}, "no answer"),
        ("b", {"route": "[" * 100_000}, "no answer"),
        ("b", {"route": route("10.0.0.2", "a b; rm -rf /")}, "names the interface"),
    ],
)
def test_an_address_that_is_not_known_names_the_host_and_what_to_write(host, answers, why):
    a = Says("a addr=10.0.0.1", addr=[{"ifname": "e", "addr_info": [{"local": "10.0.0.1"}]}], route=route("10.0.0.1"))
    with pytest.raises(CannotTell, match=why) as caught:
        survey.routes([a, Says(host, **answers)], all_of)
    assert caught.value.where == "b"
    assert "addr=" in caught.value.next_step


@pytest.mark.skipif(shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin") is None, reason="needs iproute2")
def test_the_real_ip_command_is_understood():
    address, iface = survey._source_towards(Local(parse_hosts("local")[0]), "127.0.0.1")
    assert (address, iface) == ("127.0.0.1", "lo")


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (18, "Failed to initialize NVML: Driver/library version mismatch\n", ""),
        (9, "", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"),
        (124, "", ""),
        (None, "", ""),
    ],
)
def test_a_driver_that_fails_is_not_a_host_without_gpus(code, out, err):
    shell = Said(Completed(code, out.encode(), err.encode()))
    with pytest.raises(CannotTell, match="nvidia-smi fails") as caught:
        survey.gpus(shell)
    assert caught.value.where == "gpu01"


@pytest.mark.parametrize(("code", "out"), [(127, ""), (6, "No devices were found\n"), (0, "")])
def test_a_host_without_gpus_has_none(code, out):
    assert survey.gpus(Said(Completed(code, out.encode(), b""))) == ()


class Said:
    """A shell that answers every command alike."""

    host = Host("gpu01", "gpu01")

    def __init__(self, answer):
        self.answer = answer

    def run(self, *_, **__):
        return self.answer


def test_routes_are_read_from_the_kernels_table_and_a_default_route_is_no_network(tmp_path):
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n"
        "vpn0\t0000C90A\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
        "bad\tzz\t0\t0\t0\t0\t0\t0000FFFF\nshort\n"
    )
    assert survey.routed(table) == ("10.201.0.0/255.255.0.0",)
    assert survey.routed(tmp_path / "none") == ()
