"""Which hosts try which peers: every ordered pair of a small fleet, a sample of a large one that reaches everybody."""

import ipaddress
import os
import subprocess

import pytest

from hostsetup import host as known_host
from hostsetup.facts.peers import Answer, parse_peers
from hostsetup.model import Evidence, Reply
from orchestrate import pairs as pairs_of_hosts
from orchestrate.pairing import EVERY_PAIR_UP_TO, PORTS, Place, pairs, probe


def names(count):
    return [f"gpu{n:04}" for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, EVERY_PAIR_UP_TO])
def test_every_ordered_pair_of_a_small_fleet_is_tried(count):
    fleet = names(count)
    tried = {(source, peer) for source, peers in pairs(fleet).items() for peer in peers}
    assert tried == {(one, other) for one in fleet for other in fleet if one != other}


@pytest.mark.parametrize("count", [EVERY_PAIR_UP_TO + 1, 33, 100, 1000])
def test_a_sample_of_a_large_fleet_is_small_tries_the_first_host_from_everywhere_and_leaves_nobody_out(count):
    fleet = names(count)
    tried = pairs(fleet)
    assert set(tried) == set(fleet)
    assert max(map(len, tried.values())) <= 8
    assert all(fleet[0] in peers for name, peers in tried.items() if name != fleet[0])
    for name in fleet:
        assert name not in tried[name]
        assert len(set(tried[name])) == len(tried[name])
        assert sum(name in peers for peers in tried.values()) >= 2


def test_more_than_the_static_port_is_tried():
    assert set(PORTS) >= {29400, 29500}


@pytest.mark.parametrize(
    ("ssh", "said"),
    [
        ("exit 0", "ok"),
        (
            "echo forged >&2; echo 'tcp 29400 0' >&2; echo 'Permission denied' >&2; exit 255",
            "Permission denied (exit 255)",
        ),
        ("yes ok | head -n 300000 >&2; echo 'exit 0'; exit 255", "ok (exit 255)"),
    ],
)
def test_what_a_peer_says_at_a_login_is_one_bounded_line_and_its_name_is_no_option(tmp_path, ssh, said):
    for name, body in {"ssh": f'echo "$@" >"{tmp_path}/argv"; {ssh}', "ping": "exit 1", "ip": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    own, peer = (Place(name, ipaddress.ip_address("127.0.0.1"), name) for name in ("gpu01", "gpu02"))
    asked = probe(own, [peer], {}, every=1, trust=True)
    told = subprocess.run(
        ["/bin/sh", "-c", asked.command],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert [line for line in told.stdout.splitlines() if line.startswith("trust")] == [f"trust {said}"]
    assert "forged" not in told.stdout
    assert (tmp_path / "argv").read_text().split()[-3:] == ["--", "gpu02", "true"]


def test_a_host_that_is_only_busy_hears_the_answer_and_accuses_no_firewall(tmp_path, silent_port):
    stubs = {"ping": "exit 1", "ip": "exit 1", "bash": 'sleep 4; exec /bin/bash "$@"'}
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    own, peer = (Place(name, ipaddress.ip_address("127.0.0.1")) for name in ("gpu01", "gpu02"))
    told = subprocess.run(
        ["/bin/sh", "-c", probe(own, [peer], {"gpu02": [silent_port]}, every=1, trust=False).command],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (found,) = parse_peers(told.stdout).peers
    assert found.ports == {29400: Answer.REFUSED, 29500: Answer.REFUSED, silent_port: Answer.OPEN}


def test_a_peer_is_tried_on_few_ports_that_nothing_listens_on():
    def ports(first, last, listening=""):
        told = f"  sl  local_address rem_address\n{listening}/proc/sys/net/ipv4/ip_local_port_range:{first}\t{last}\n"
        return pairs_of_hosts._ports(known_host.read(Evidence("gpu01", {"tcp-ports": Reply(told.encode())})))

    assert 1 <= len(ports(32768, 60999)) <= pairs_of_hosts.EXTRA_PORTS
    assert set(ports(40000, 40001)) <= {40000, 40001}
    listening = "   0: 00000000:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20311 1\n"
    assert set(ports(40000, 40001, listening)) <= {40001}
