"""Scrubbed evidence names nobody and is judged as before."""

import ipaddress
import json
import re
import time
from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup import scrub as scrubbing
from hostsetup.model import Evidence, Reply
from hostsetup.scrub import scrub

KEY = b"k" * 32
MACHINES = Path(__file__).parents[1] / "machines"


def evidence(name, **replies):
    return Evidence(name, {probe.replace("_", "-"): Reply(text.encode()) for probe, text in replies.items()})


def text_of(one):
    return one.host + "\n" + "\n".join(reply.text + reply.error_text for reply in one.replies.values())


def machine(folder):
    replies = {}
    for path in folder.glob("*.txt"):
        code = path.with_suffix(".rc")
        error = path.with_suffix(".err")
        replies[path.stem] = Reply(
            path.read_bytes(),
            error.read_bytes() if error.exists() else b"",
            int(code.read_text()) if code.exists() else 0,
        )
    return Evidence(folder.name, replies)


def states(found):
    findings = checks.run({one.host: host.read(one) for one in found})
    return sorted((finding.check, finding.state.value, bool(finding.subject)) for finding in findings)


@pytest.mark.parametrize("folder", sorted(MACHINES.iterdir()), ids=lambda path: path.name)
def test_a_machine_is_judged_as_before(folder):
    before = [machine(folder)]
    after = scrub(before, KEY)
    assert states(after) == states(before)


SITE = [
    evidence(
        "ada@gpu01:2222",
        hostname="gpu01.corp.example.com\n",
        id="1000\nada\nuid=1000(ada) gid=1000(ada) groups=1000(ada),998(docker)\n",
        getent="10.20.30.41 STREAM gpu01.corp.example.com\n2001:db8:1::41 STREAM\n",
        etc_hosts="127.0.0.1 localhost\n10.20.30.41 gpu01.corp.example.com gpu01\n10.20.30.42 gpu02\n",
        dmesg="[ 1.0] eth0: 0c:42:a1:00:00:41 up\n[ 2.0] NVRM: GPU-11111111-2222-3333-4444-555555555555 Xid 79 on 0000:41:00.0\n",
        lspci_vvv="Capabilities: [148 v1] Device Serial Number 48-b0-2d-ff-ff-12-34-56\n",
        ssh=json.dumps({"outcome": "ok", "detail": "", "next": "ssh ada@gpu01", "elapsed_s": 1.5}),
        docker_info='{"OperatingSystem":"Debian","HttpProxy":"http://ada:secret@proxy.corp.example.com:3128","Name":"gpu01"}',
        mounts="nas.corp.example.com:/export/home /home nfs4 rw,addr=10.20.30.9 0 0\n",
        keys="SHA256:abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG /home/ada/.ssh/id_ed25519\n",
    ),
    evidence(
        "gpu02", hostname="gpu02\n", getent="10.20.30.42 STREAM gpu02\n", note="gpu01 and GPU02, not gpu012 or xgpu02\n"
    ),
]


def test_nothing_that_names_the_site_is_left():
    told = "\n".join(map(text_of, scrub(SITE, KEY)))
    for word in (
        *("gpu01", "GPU02", "ada", "corp", "example.com", "secret", "proxy", "nas", "/export", "10.20.", "2001:db8"),
        *("0c:42:a1", "11111111", "2222-3333", "12-34-56", "abcdefghij"),
    ):
        assert not re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", told), word
    for word in (
        "127.0.0.1 localhost",
        "docker",
        "Xid 79 on 0000:41:00.0",
        "nfs4",
        '"elapsed_s": 1.5',
        "gpu012",
        "xgpu02",
    ):
        assert word in told


def test_the_same_thing_is_replaced_by_the_same_thing_on_every_host():
    first, second = scrub(SITE, KEY)
    name = second.replies["hostname"].text.strip()
    assert second.host == name
    assert name in first.replies["etc-hosts"].text
    assert second.replies["getent"].text.split()[0] in first.replies["etc-hosts"].text
    assert first.replies["hostname"].text.split(".")[0] in second.replies["note"].text


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [("10.1.2.3", "10.1.2.200", 24), ("192.168.7.1", "192.168.8.1", 20), ("fd12::1", "fd12::ffff", 112)],
)
def test_addresses_keep_their_kind_and_the_prefix_that_they_share(a, b, shared):
    (told,) = scrub([evidence("h", x=f"{a}\n{b}\n")], KEY)
    one, two = map(ipaddress.ip_address, told.replies["x"].text.split())
    width = one.max_prefixlen
    assert (int(one) ^ int(two)) >> (width - shared) == 0
    assert (int(one) ^ int(two)) >> (width - shared - 1) in {0, 1}
    assert one.is_private == ipaddress.ip_address(a).is_private
    assert str(one) != a


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1", "127.0.1.1", "0.0.0.0", "255.255.255.0", "::1", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "12:34:56"],
)
def test_what_names_nobody_stays(text):
    assert scrub([evidence("h", x=f"{text}\n")], KEY)[0].replies["x"].text == f"{text}\n"


def test_a_name_that_is_a_word_of_the_tools_is_replaced_only_where_names_stand():
    found = [
        evidence("node0", hostname="node0\n", numa="node0 cpus 0-3\n"),
        evidence("energy1", dmesg="energy1 ens1f0np0\n", etc_hosts="10.0.0.1 ens1f0np0\n"),
    ]
    told, other = scrub(found, KEY)
    assert told.replies["numa"].text == "node0 cpus 0-3\n"
    assert "node0" not in told.replies["hostname"].text + told.host
    assert other.replies["dmesg"].text == f"{other.host} ens1f0np0\n"


def test_two_keys_give_two_replacements_and_bytes_that_are_no_text_stay():
    found = [Evidence("h", {"x": Reply(b"10.1.2.3 \xff\x00\n", b"10.1.2.3", 3)})]
    one, two = scrub(found, KEY)[0].replies["x"], scrub(found, b"other")[0].replies["x"]
    assert one.stdout != two.stdout
    assert one.stdout.endswith(b" \xff\x00\n")
    assert one.exit_code == 3


def test_a_full_name_and_whatever_lies_in_its_domain_is_replaced_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(scrubbing, "_PRODUCTS", frozenset({"product.test"}))
    found = evidence(
        "node1",
        hostname="node1\n",
        fqdn="node1.lab.corp.test\n10.1.2.3 STREAM node1.lab.corp.test\n",
        getent="10.1.2.3 STREAM node1.lab.corp.test\n",
        dmesg="systemd[1]: Hostname set to <node1.lab.corp.test>.\n",
        docker_info='{"NoProxy": "localhost,.corp.test"}',
        docker_objects="image registry.corp.test:5000/vision/net latest\nimage product.test/cuda 12\n",
        active='{"subject": "node1 <-> node2", "hosts": ["node1", "node2"]}\n',
        mounts="//x/y /data cifs rw,username=ada,domain=CORP,cache=strict 0 0\n",
    )
    other = evidence("node2", hostname="node2.product.test\n")
    one, two = scrub([found, other], KEY)
    told = text_of(one)
    assert not re.search(r"corp|ada\b|node[12]|<node", told, re.IGNORECASE)
    assert "product.test/cuda 12" in told
    assert f"{one.host} <-> {two.host}" in told
    assert one.replies["fqdn"].text.split(".")[0] == one.host
    assert "cache=strict" in told


def test_names_of_a_thousand_hosts_take_no_longer_than_their_text():
    hosts = [evidence(f"alpha{at:04}", hostname=f"alpha{at:04}\n") for at in range(1000)]
    hosts.append(evidence("omega", dmesg="alphabet of things alpha0999 " * 20_000))
    began = time.process_time()
    told = scrub(hosts, KEY)[-1]
    assert "alpha0999" not in told.replies["dmesg"].text
    assert time.process_time() - began < 10
