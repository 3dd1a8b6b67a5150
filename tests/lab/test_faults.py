"""Faults planted in real hosts are found where they are, and a healthy host beside them stays clean.

The first host is healthy. The second's clock is 20 s ahead (a container has its machine's clock, so `date`, which is what
the audit asks, is wrapped), its own name leads to 127.0.1.1, and its engine claims another version (`docker` is wrapped).
The third drops what the second opens to it. The fourth has a smaller MTU, shows the PCI functions of the recorded machine
pcie-switch-4gpu (see recorded.py), and its nvidia-smi hangs and ignores every signal that can be ignored.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import lab as labs
import pytest
import recorded

pytestmark = [pytest.mark.lab, pytest.mark.slow]

TIMEOUT_S = 60  # of which the hanging nvidia-smi takes 30
BIN = "/usr/local/bin"
DATE = "exec /usr/bin/date -d '20 seconds' \"$@\""
DOCKER = 'if [ "$1" = info ]; then /usr/bin/docker "$@" | sed \'s/"ServerVersion":"[^"]*"/"ServerVersion":"19.99.9"/\'\nelse exec /usr/bin/docker "$@"; fi'
HANG = """trap '' TERM HUP INT QUIT PIPE
[ "$1" = child ] || "$0" child &
while :; do sleep 997; done"""


def put_program(lab, host, name, text):
    lab.run_on(
        host, ["sh", "-c", f"cat >{BIN}/{name} && chmod 755 {BIN}/{name}"], stdin=f"#!/bin/sh\n{text}\n".encode()
    )


def plant(lab):
    _, second, third, fourth = lab.hosts
    address = labs.docker("inspect", "--format", f'{{{{index .Config.Labels "{labs.LABEL}.address"}}}}', second)
    put_program(lab, second, "date", DATE)
    put_program(lab, second, "docker", DOCKER)
    # the engine has mounted the file, so it can be written, not replaced
    own = f"sed 's/^[0-9.]*\\t{second}$/127.0.1.1\\t{second}/' /etc/hosts >/run/hosts; cat /run/hosts >/etc/hosts"
    lab.run_on(second, ["sh", "-c", own])
    lab.run_on(third, ["iptables", "-I", "INPUT", "-s", address, "-p", "tcp", "--syn", "-j", "DROP"])
    lab.run_on(fourth, ["ip", "link", "set", "dev", "eth0", "mtu", "1400"])
    recorded.put(lab, fourth, "pcie-switch-4gpu")
    put_program(lab, fourth, "nvidia-smi", HANG)


class Audit:
    """An audit that runs beside others; `told` waits for it."""

    def __init__(self, lab, *words):
        argv = [sys.executable, "-m", "orchestrate", "preflight", *words, "--json", "--timeout", str(TIMEOUT_S)]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            argv, cwd=lab.folder, env=os.environ | {"MUSTER_SSH_CONFIG": str(lab.ssh_config), "PYTHONPATH": str(labs.ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self):
        self.out, self.err = self.process.communicate(timeout=2 * TIMEOUT_S)
        self.took_s = time.monotonic() - self.started
        self.code = self.process.returncode
        self.report = json.loads(self.out)
        return self

    def of(self, check, state=None):
        told = [finding for finding in self.report["findings"] if finding["check"] == check]
        return [finding for finding in told if state in {None, finding["state"]}]


def running(lab, host):
    """What runs on a host beside this question; threads of the kernel and of the engine aside."""
    text = lab.run_on(host, ["ps", "-eo", "pid=,sid=,args="])
    return sorted(line.split(None, 2)[2] for line in text.splitlines() if " ps -eo" not in line)


def left_behind(lab, host):
    text = lab.run_on(host, ["find", "/tmp", "/dev/shm", "/var/tmp", "/run", "-mindepth", "1"])
    return sorted(
        line
        for line in text.splitlines()
        if not line.startswith(("/run/docker", "/run/sudo", "/run/motd.dynamic", "/run/hosts"))
    )


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """Four hosts with faults, what was on them before, and the audits of them as root and as others, made at once."""
    labs.sweep()
    prefix, folder = f"{labs.TESTS}-faults-{os.getpid()}", tmp_path_factory.mktemp("faults")
    try:
        lab = labs.up(4, prefix=prefix, folder=folder)
        plant(lab)
        before = {host: (running(lab, host), left_behind(lab, host)) for host in lab.hosts}
        first, *_, fourth = lab.hosts
        root = Audit(lab, str(lab.hosts_file), "--save", "evidence")
        others = Audit(lab, f"{first}-ops,{fourth}-ops,{fourth}-guest", "--no-pairs")
        yield lab, before, root.end(), others.end()
    finally:
        labs.down(prefix=prefix, folder=folder)


@pytest.fixture(scope="module")
def audit(faults):
    return faults[2]


@pytest.fixture(scope="module")
def hosts(faults):
    return faults[0].hosts


def test_the_audit_ends_in_time_with_what_it_found(audit, hosts):
    assert audit.took_s < TIMEOUT_S + 10
    assert audit.code == 1, audit.err
    assert {host["name"]: host["state"] for host in audit.report["hosts"]} == dict.fromkeys(hosts, "audited")


def test_the_healthy_host_has_no_fault_and_nothing_unknown_without_a_reason(audit, hosts):
    own = [finding for finding in audit.report["findings"] if finding["hosts"] == [hosts[0]]]
    assert not [finding for finding in own if finding["state"] == "fail"]
    assert not [finding for finding in own if finding["state"] == "unknown" and len(finding["saw"]) < 10]


def test_every_host_has_the_faults_that_were_planted_in_it_and_no_others(audit, hosts):
    told = [finding for finding in audit.report["findings"] if finding["state"] == "fail"]
    own = {host: {finding["check"] for finding in told if finding["hosts"] == [host]} for host in hosts}
    assert [own[host] for host in hosts[:3]] == [set(), {"net.hostname"}, set()]
    # it shows GPUs and has neither their driver nor the toolkit, so there is more to tell
    assert own[hosts[3]] >= {"pcie.acs.redirect", "gpu.responsive"}
    several = {finding["check"] for finding in told if len(finding["hosts"]) > 1}
    assert several == {"time.skew", "net.firewall", "net.reach", "net.mtu"}


def test_a_clock_that_is_20_s_ahead(audit, hosts):
    (finding,) = audit.of("time.skew", "fail")
    assert hosts[1] in finding["hosts"]
    assert finding["saw"].startswith(("19.", "20."))


def test_a_name_that_leads_to_itself(audit, hosts):
    (finding,) = audit.of("net.hostname", "fail")
    assert finding["hosts"] == [hosts[1]]
    assert "127.0.1.1" in finding["saw"]


def test_an_engine_of_another_version(audit, hosts):
    told = [finding for finding in audit.of("docker.version") if finding["state"] in {"warn", "fail"}]
    assert told
    assert all(hosts[1] in finding["hosts"] for finding in told)


def test_a_filter_in_one_direction(audit, hosts):
    (finding,) = audit.of("net.firewall", "fail")
    assert (finding["subject"], finding["hosts"]) == (f"{hosts[1]} -> {hosts[2]}", [hosts[1], hosts[2]])
    assert {finding["subject"] for finding in audit.of("net.reach", "fail")} == {f"{hosts[1]} -> {hosts[2]}"}


def test_a_smaller_mtu(audit, hosts):
    told = audit.of("net.mtu", "fail")
    assert {finding["subject"] for finding in told} == {f"{host} -> {hosts[3]}" for host in hosts[:3]}
    (odd,) = audit.of("net.mtu", "warn")
    assert odd["hosts"] == [hosts[3]]


def test_ports_that_redirect(audit, hosts):
    told = audit.of("pcie.acs.redirect", "fail")
    assert len(told) == 6
    assert all(finding["hosts"] == [hosts[3]] and finding["scope"] == "pair" for finding in told)
    assert f"{'0000:43:00.0'} <-> {'0000:44:00.0'}" in {finding["subject"] for finding in told}
    # any host without GPUs is skipped, not passed
    assert {finding["state"] for finding in audit.of("pcie.acs.redirect") if finding["hosts"] != [hosts[3]]} == {"skip"}


def test_a_driver_that_hangs(audit, hosts):
    (finding,) = audit.of("gpu.responsive", "fail")
    assert finding["hosts"] == [hosts[3]]
    assert "no answer in time" in finding["saw"]


@pytest.mark.parametrize("at", range(4))
def test_nothing_of_the_audits_is_left_on_a_host(faults, at):
    lab, before, _, _ = faults
    host = lab.hosts[at]
    deadline = time.monotonic() + 5
    while (now := (running(lab, host), left_behind(lab, host))) != before[host] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert now == before[host]


def test_an_account_with_sudo_sees_what_root_sees(faults):
    lab, _, root, others = faults
    fourth = lab.hosts[3]
    seen = {finding["subject"] for finding in others.of("pcie.acs.redirect", "fail")}
    assert seen == {finding["subject"] for finding in root.of("pcie.acs.redirect", "fail")}
    assert all(finding["hosts"] == [f"{fourth}-ops"] for finding in others.of("pcie.acs.redirect", "fail"))


def test_an_account_without_rights_is_told_what_it_cannot_know(faults):
    lab, _, _, others = faults
    ops, guest = f"{lab.hosts[3]}-ops", f"{lab.hosts[3]}-guest"

    def of(account):
        told = [finding for finding in others.report["findings"] if finding["hosts"] == [account]]
        return {finding["check"]: finding["state"] for finding in told}

    for check in ("pcie.acs.redirect", "pcie.acs.readable", "os.kernel_log"):
        assert of(guest)[check] == "unknown", check
    assert not [check for check, state in of(guest).items() if state == "pass" and of(ops).get(check) != "pass"]


def test_what_a_finding_says_to_do_puts_it_right(faults):
    lab, _, root, _ = faults
    fourth = lab.hosts[3]
    commands = {
        command for finding in root.of("pcie.acs.redirect", "fail") for command in finding["remedy"]["commands"]
    }
    for command in sorted(commands):
        lab.run_on(fourth, ["sh", "-c", command])
    lab.run_on(fourth, ["rm", f"{BIN}/nvidia-smi"])
    after = Audit(lab, fourth, "--only", "pcie.acs.*").end()
    assert {finding["state"] for finding in after.of("pcie.acs.redirect")} == {"pass"}
