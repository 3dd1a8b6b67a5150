"""Interfaces, the endpoint of a host, and NCCL's grammar and choice."""

import subprocess
from pathlib import Path

import pytest

from hostsetup.facts import net, net_sysfs, rdma, rdma_sysfs
from hostsetup.facts.ip_addr import parse_ip_addr
from hostsetup.facts.nccl_names import matches, picks
from hostsetup.model import Evidence, Finding, Remedy, Reply, State
from hostsetup.uniform import lower

HGX = Path(__file__).parents[1] / "machines" / "hgx-h100"
TEXT = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000
    inet6 2001:db8::1/64 scope global tentative
    inet6 2001:db8::2/64 scope global
    inet 10.0.0.1/24 brd 10.0.0.255 scope global eno1
5: ens1.40@ens1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP
    inet 192.168.7.1/24 scope global ens1.40
9: veth1@if8: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 master br0 state UP
"""
JSON = """[{"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"mtu":65536,"operstate":"UNKNOWN","link_type":"loopback",
"addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8}]},{},
{"ifname":"eno1","flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],"mtu":1500,"operstate":"UP",
"addr_info":[{"local":"2001:db8::1","prefixlen":64,"tentative":true},{"local":"2001:db8::2","prefixlen":64},
{"local":"10.0.0.1","prefixlen":24}]},
{"ifname":"ens1.40","link":"ens1","flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],"mtu":9000,"operstate":"UP",
"addr_info":[{"local":"192.168.7.1","prefixlen":24}]},
{"ifname":"veth1","link_index":8,"flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],"mtu":1500,"operstate":"UP",
"master":"br0","addr_info":[]}]"""


def host_of(text, sysfs=None):
    replies = {"ip-addr": Reply(text.encode())} | ({"sysfs-net": Reply(sysfs.encode())} if sysfs else {})
    return net.read(Evidence("h", replies)).value


def test_text_and_json_say_the_same():
    ours = [(one.name, one.kind, one.mtu, one.running, one.addresses) for one in host_of(TEXT).interfaces]
    theirs = [(one.name, one.kind, one.mtu, one.running, one.addresses) for one in host_of(JSON).interfaces]
    assert ours == theirs
    assert [kind for _, kind, *_ in ours] == ["loopback", "physical", "vlan", "veth"]
    assert "2001:db8::1/64" not in [str(address) for address in ours[1][4]]  # it may not be used yet


# what people paste where others use `ip addr`: each tells of eno1 with 10.0.0.1/24, where it can with its MTU
OTHERS = {
    "one address": "inet 10.0.0.1/24 brd 10.0.0.255 scope global dynamic noprefixroute eno1\n",
    "grep inet": """user@gpu01:~$ ip addr | grep inet
    inet 127.0.0.1/8 scope host lo
    inet6 ::1/128 scope host
    inet 10.0.0.1/24 brd 10.0.0.255 scope global eno1:mgmt
    inet6 fe80::42/64 scope link noprefixroute
""",
    "ip -o": r"""1: lo    inet 127.0.0.1/8 scope host lo\       valid_lft forever preferred_lft forever
2: eno1    inet 10.0.0.1/24 brd 10.0.0.255 scope global eno1\       valid_lft forever preferred_lft forever
2: eno1    inet6 2001:db8::1/64 scope global tentative \       valid_lft forever preferred_lft forever
""",
    "ip -br": """lo               UNKNOWN        127.0.0.1/8 ::1/128
eno1             UP             10.0.0.1/24
ens1f1np1        DOWN
veth77@if3       UP
""",
    "ip -j after a prompt": """[root@gpu01 ~]# ip -j addr
[{"ifname":"eno1","flags":["UP","LOWER_UP"],"mtu":1500,"addr_info":[{"local":"10.0.0.1","prefixlen":24}]}]
[root@gpu01 ~]#""",
    "ifconfig": """eno1: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
        inet 10.0.0.1  netmask 255.255.255.0  broadcast 10.0.0.255
        ether 02:00:00:00:00:11  txqueuelen 1000  (Ethernet)
        RX packets 70  bytes 7000 (7.0 KB)

ens1f1np1: flags=4099<UP,BROADCAST,MULTICAST>  mtu 1500
        ether 02:00:00:00:00:12  txqueuelen 1000  (Ethernet)

lo: flags=73<UP,LOOPBACK,RUNNING>  mtu 65536
        inet 127.0.0.1  netmask 0xff000000
        inet6 ::1  prefixlen 128  scopeid 0x10<host>
""",
    "ifconfig of old": """eno1      Link encap:Ethernet  HWaddr 02:00:00:00:00:11
          inet addr:10.0.0.1  Bcast:10.0.0.255  Mask:255.255.255.0
          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1

lo        Link encap:Local Loopback
          inet addr:127.0.0.1  Mask:255.0.0.0
          inet6 addr: ::1/128 Scope:Host
          UP LOOPBACK RUNNING  MTU:65536  Metric:1
""",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_other_ways_to_list_addresses_say_the_same(text):
    there = host_of(text)
    eno1 = there.find("eno1")
    assert [str(address) for address in eno1.addresses] == ["10.0.0.1/24"]
    assert eno1.running
    assert eno1.mtu in {1500, None}
    assert {one.name for one in there.usable} == {"eno1"}
    assert {one.name for one in there.interfaces} <= {"lo", "eno1", "ens1f1np1", "veth77"}


def test_a_table_of_interfaces_tells_their_mtu_and_what_runs():
    there = host_of(
        "Kernel Interface table\n"
        "Iface             MTU    RX-OK RX-ERR RX-DRP RX-OVR    TX-OK TX-ERR TX-DRP TX-OVR Flg\n"
        "bond7            9000       12      0      0 0             9      0      0      0 BMmRU\n"
        "ens2f0np0        9000       12      0      0 0             9      0      0      0 BMsRU\n"
        "ens2f1np1        1500        0      0      0 0             0      0      0      0 BMU\n"
        "lo              65536       12      0      0 0            12      0      0      0 LRU\n"
        "ens9             1500       12      0      0\n"
    )
    told = [(one.name, one.kind, one.mtu, one.running) for one in there.interfaces]
    assert told == [
        ("bond7", "bond", 9000, True),
        ("ens2f0np0", "physical", 9000, True),
        ("ens2f1np1", "physical", 1500, False),
        ("lo", "loopback", 65536, True),
    ]


def test_the_endpoint_is_what_the_inventory_says_else_the_default_route():
    there = host_of(TEXT, "net\nens1.40/operstate:up\nens1.40\t00000000\t0107A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
    assert there.default == "ens1.40"
    assert net.training_address(there).address == "192.168.7.1"
    assert net.training_address(there, addr="10.0.0.1").interface.name == "eno1"
    assert net.training_address(there, iface="eno1").address == "10.0.0.1"
    assert net.training_address(there, addr="10.0.0.1", iface="ens1.40") is None
    assert net.training_address(there, addr="10.0.0.77") is None
    assert net.training_address(there, addr="not an address") is None
    assert net.training_address(there, iface="eth9") is None
    assert net.training_address(host_of(TEXT)).interface.name == "eno1"


def test_a_host_with_loopback_alone_has_no_endpoint():
    assert net.training_address(host_of("\n".join(TEXT.splitlines()[:3]))) is None


@pytest.mark.parametrize(
    ("wanted", "name", "is_chosen"),
    [
        ("eth", "eth0", True),
        ("eth", "ens1", False),
        ("=eth0", "eth01", False),
        ("=eth0,eth1", "eth1", True),
        ("^docker0", "lo", True),
        ("^docker0,lo", "lo", False),
        ("^=docker0", "docker01", True),
        ("mlx5_1", "mlx5_10", True),
        ("=mlx5_1:1", "mlx5_1", True),
        ("", "eth0", True),
    ],
)
def test_nccl_matches_by_prefix_unless_told_otherwise(wanted, name, is_chosen):
    assert matches(wanted, name) is is_chosen


def test_nccl_takes_ipv4_first_and_ignores_a_value_of_one_letter():
    there = host_of(TEXT)
    assert [str(pick.address.ip) for pick in picks(there)] == ["10.0.0.1", "192.168.7.1"]
    assert [str(pick.address.ip) for pick in picks(there, family="AF_INET6")] == ["2001:db8::2"]
    assert picks(there, "x") == picks(there)
    assert picks(there, "=eno") == ()


def test_the_slower_hosts_are_named_and_the_faster_are_not():
    remedy = Remedy("x")
    (found,) = lower({"a": 25.0, "b": 10.0, "c": 25.0, "d": 100.0, "e": 25.0}, "speed", "Gb/s", remedy=remedy)
    assert isinstance(found, Finding)
    assert (found.state, found.hosts) == (State.FAIL, ("b",))
    (found,) = lower({"a": 25.0, "b": 10.0}, "speed", "Gb/s", remedy=remedy)
    assert (found.state, found.hosts, found.wanted) == (State.WARN, ("b",), "the same speed on every host")
    assert not list(lower({"a": 25.0, "b": 25.0}, "speed", "Gb/s", remedy=remedy))
    assert not list(lower({}, "speed", "Gb/s", remedy=remedy))


def test_the_probes_run_here_and_are_understood():
    for probe, parse in ((net_sysfs.PROBE, net_sysfs.parse_net_sysfs), (rdma_sysfs.PROBE, rdma_sysfs.parse_rdma_sysfs)):
        ran = subprocess.run(["sh", "-c", probe.command], capture_output=True, check=False, timeout=20)
        assert ran.returncode == 0
        assert parse(ran.stdout.decode())


def test_counters_of_inactive_ports_are_never_asked(tmp_path):
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", "4: ACTIVE")):
        port = tmp_path / "sys/class/infiniband" / name / "ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text("InfiniBand\n")
        for counter in ("link_downed", "symbol_error"):
            (port / "counters" / counter).write_text("3\n")
    (tmp_path / "sys/class/infiniband/mlx5_2/ports/1/counters/link_downed").unlink()  # it refuses
    command = rdma_sysfs.PROBE.command.replace("/sys/", f"{tmp_path}/sys/")
    ran = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=20)
    ports = rdma_sysfs.parse_rdma_sysfs(ran.stdout.decode()).ports
    assert [port.counters for port in ports] == [{"link_downed": 3, "symbol_error": 3}, None, None]


def test_the_hgx_machine_is_told_alike_by_sysfs_and_by_the_tools():
    replies = {name: Reply((HGX / f"{name}.txt").read_bytes()) for name in ("sysfs-rdma", "ibv-devinfo", "rdma-link")}
    whole = rdma.read(Evidence("h", replies)).value
    for name in ("ibv-devinfo", "rdma-link"):
        part = rdma.read(Evidence("h", {name: replies[name]})).value
        assert [(p.name, p.state, p.layer, p.lid) for p in part.ports] == [
            (p.name, p.state, p.layer, p.lid) for p in whole.ports
        ]
    assert {port.active_mtu for port in whole.ports} == {4096}


def test_a_host_without_addresses_is_no_output_of_ip():
    with pytest.raises(ValueError, match="no link"):
        parse_ip_addr("sh: ip: not found\n")
