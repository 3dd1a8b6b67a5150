"""Who is sent to its peers: every host that answered in time, and no host twice to where it hung."""

import json

from hostsetup.model import Evidence, Reply
from orchestrate import pairs
from orchestrate.inventory import Host

IP = """
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 state UNKNOWN
    link/loopback 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: eth0: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP
    link/ether 02:00:00:00:00:0{0}
    inet 10.0.0.{0}/24 scope global eth0
"""


def found(number, **ssh):
    said = {"outcome": "ok", "elapsed_s": 1.5, **ssh}
    replies = {"ssh": Reply(json.dumps(said).encode())}
    if said["outcome"] == "ok":
        replies["ip-addr"] = Reply(IP.format(number).encode())
    return Evidence(f"gpu{number}", replies)


def test_a_host_that_used_its_time_up_is_tried_by_others_and_asked_no_second_time(monkeypatch):
    asked = []

    def fan_out(hosts, work, *, on_result, **_):
        for host in hosts:
            asked.append(host.name)
            on_result(host, Reply(b"own 10.0.0.1\n"))

    monkeypatch.setattr(pairs.remote, "fan_out", fan_out)
    before = (
        found(1),
        found(2, elapsed_s=20.003, error="the probes were cut off after 20 s"),
        found(3, outcome="refused"),
    )
    hosts = [Host(one.host, one.host) for one in before]
    done = []
    told = pairs.try_pairs(hosts, before, timeout_s=20, on_host=done.append)
    assert asked == ["gpu1"]
    assert sorted(done) == ["gpu1", "gpu2", "gpu3"]
    assert told[1].replies["peers"].exit_code == 124
    assert b"cut off" in told[1].replies["peers"].stderr
