"""The runner alone says unknown and skip; the verdict never takes a gap for a pass."""

from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.checks import Check
from hostsetup.model import Evidence, Finding, Reply, State

OK = Reply(b'{"outcome": "ok"}')
DEAD = Reply(b'{"outcome": "timeout", "detail": "no answer"}')


# in the order of the areas: access, PCIe and boot line, CPU and memory, GPUs, containers, network, the rest of the host
PUBLIC = """
    ssh.reachable ssh.peer_trust priv.sudo tools.present host.identity host.virt host.uptime
    pcie.acs.redirect pcie.acs.other pcie.acs.readable pcie.acs.persist cmdline.acs_override cmdline.drift
    cmdline.acs_params iommu.mode host.lockdown pcie.link pcie.presence pcie.errors pcie.bar numa.nps
    numa.snc numa.l3 numa.gpu_affinity numa.memory numa.balancing cpu.governor cpu.cstates cpu.smt_online
    mem.thp mem.size_swap limits gpu.inventory gpu.driver.uniform gpu.driver.mismatch gpu.driver.cuda
    gpu.modules gpu.responsive gpu.topology gpu.p2p gpu.nvlink gpu.fabric gpu.imex gpu.persistence gpu.mig
    gpu.compute_mode gpu.ecc gpu.row_remap gpu.retired_pages gpu.xid gpu.sxid gpu.recovery_action gpu.power
    gpu.throttle gpu.clocks gpu.busy gpu.firmware gpu.active docker.daemon docker.version docker.storage
    docker.cgroup docker.toolkit docker.gpu_smoke docker.shm docker.ulimits docker.image docker.subnet
    docker.security net.hostname net.rendezvous net.iface net.reach net.ports net.firewall net.mtu
    net.latency net.link net.multihome rdma.port rdma.gid rdma.gdr rdma.health rdma.userspace net.nccl_conf
    time.skew time.sync os.uniform bios.uniform os.autoupdate os.dkms os.kernel_log disk.space storage.mounts
    os.users os.tenants os.leftovers
"""


def facts(**replies):
    return host.read(Evidence("h", {name.replace("_", "-"): Reply(text) for name, text in replies.items()}))


def with_checks(monkeypatch, *found):
    monkeypatch.setattr(checks, "catalogue", lambda: found)


def check(judge=None, **more):
    return Check("a.b", "A title.", "A title.", "https://example.org", judge, **more)


def test_the_id_of_every_check_is_its_file_name_and_its_page_is_whole():
    folder = Path(checks.__file__).parent
    ids = {one.id.replace(".", "_") for one in checks.catalogue()}
    assert ids == {path.stem for path in folder.glob("*.py")} - {"__init__"}
    parts = ("What it means", "Why it matters to training", "How we tell", "What to do", "How to undo", "Sources")
    for one in checks.catalogue():
        text = checks.page(one)
        assert text.startswith(one.id)
        assert [text.index(f"\n{part}\n") for part in parts] == sorted(text.index(f"\n{part}\n") for part in parts)
        assert one.title.endswith(".")
        assert one.source in text.replace("\n    ", "\n")
        assert one.judge or one.judge_fleet


def test_the_ids_that_scripts_of_others_rely_on_are_all_there():
    public = PUBLIC.split()
    assert len(public) == len(set(public)) == 97
    assert set(public) - {one.id for one in checks.catalogue()} == set()


def test_a_host_out_of_reach_fails_once_and_is_unknown_elsewhere_with_the_reason():
    fleet = {"up": host.read(Evidence("up", {"ssh": OK})), "down": host.read(Evidence("down", {"ssh": DEAD}))}
    findings = [finding for finding in checks.run(fleet) if finding.hosts == ("down",)]
    assert {f.check for f in findings if f.state is State.FAIL} == {"ssh.reachable"}
    rest = [f for f in findings if f.check != "ssh.reachable"]
    assert {f.state for f in rest} == {State.UNKNOWN}
    assert {f.saw for f in rest} == {"the host was not reached (timeout)"}
    assert len(findings) == len(checks.catalogue())


def test_a_judge_never_sees_a_gap(monkeypatch):
    def judge(cpu):
        raise AssertionError("called without the fact")

    with_checks(monkeypatch, check(judge))
    (finding,) = checks.run({"h": facts()})
    assert finding.state is State.UNKNOWN
    assert "lscpu" in finding.saw


def test_a_slot_with_a_default_may_be_unknown(monkeypatch):
    def judge(names, cpu=None):
        yield Finding(State.PASS, saw=f"{names.hostname} {cpu}")

    with_checks(monkeypatch, check(judge))
    (finding,) = checks.run({"h": facts(hostname=b"h", getent=b"10.0.0.1 STREAM h")})
    assert (finding.state, finding.saw) == (State.PASS, "h None")


def test_a_judge_that_trips_is_unknown_with_the_errors_name_and_the_audit_goes_on(monkeypatch):
    def judge(names):
        yield Finding(State.PASS, saw="so far")
        raise KeyError("hostile")

    def other(names):
        yield Finding(State.PASS, saw="fine")

    with_checks(monkeypatch, check(judge), check(other))
    first, second = checks.run({"h": facts(hostname=b"h", getent=b"10.0.0.1 STREAM h")})
    assert first.state is State.UNKNOWN
    assert "KeyError" in first.saw
    assert second.state is State.PASS


def test_silence_is_not_a_pass(monkeypatch):
    with_checks(monkeypatch, check(lambda names: ()))
    (finding,) = checks.run({"h": facts(hostname=b"h", getent=b"10.0.0.1 STREAM h")})
    assert finding.state is State.UNKNOWN


def test_skip_comes_before_unknown(monkeypatch):
    with_checks(monkeypatch, check(lambda cpu: (), skip=lambda names: "not for you"))
    (finding,) = checks.run({"h": facts(hostname=b"h", getent=b"10.0.0.1 STREAM h")})
    assert (finding.state, finding.saw) == (State.SKIP, "not for you")


def test_only_and_skip_take_patterns_and_refuse_what_matches_nothing():
    acs = {one.id for one in checks.select(["pcie.acs.*"])}
    assert acs >= {"pcie.acs.redirect", "pcie.acs.readable", "pcie.acs.other", "pcie.acs.persist"}
    assert all(name.startswith("pcie.acs.") for name in acs)
    assert {one.id for one in checks.select(["pcie.acs.*"], ["*.readable"])} == acs - {"pcie.acs.readable"}
    assert len(checks.select(None, ["numa.nps"])) == len(checks.catalogue()) - 1
    for arguments in ({"only": ["nope"]}, {"skip": ["nope*"]}, {"accept": {"nope": "x"}}):
        with pytest.raises(ValueError, match="nope"):
            checks.run({}, **arguments)


def test_accepted_findings_are_told_and_do_not_fail():
    fleet = {"h": facts(hostname=b"h", getent=b"127.0.1.1 STREAM h")}
    (failed,) = checks.run(fleet, only=["net.hostname"])
    assert failed.state is State.FAIL
    (finding,) = checks.run(fleet, only=["net.hostname"], accept={"net.hostname": "names come later"})
    assert finding.state is State.INFO
    assert failed.saw in finding.saw
    assert "was fail: names come later" in finding.saw
    assert checks.verdict([finding], {"h": "audited"}) == "pass"


def test_accept_does_not_hide_a_gap():
    (finding,) = checks.run({"h": facts()}, only=["numa.nps"], accept={"numa.nps": "we like it"})
    assert finding.state is State.UNKNOWN


def found(state, name="a.b"):
    return Finding(state, saw="", check=name)


@pytest.mark.parametrize(
    ("states", "hosts", "strict", "wanted"),
    [
        (["pass", "info", "warn", "skip"], {"h": "audited"}, False, "pass"),
        (["pass", "warn"], {"h": "audited"}, True, "fail"),
        (["fail", "unknown"], {"h": "audited"}, False, "fail"),
        (["pass", "unknown"], {"h": "audited"}, False, "incomplete"),
        (["pass"], {"h": "audited", "i": "unreachable"}, False, "incomplete"),
        (["pass"], {"h": "partial"}, False, "incomplete"),
        (["fail"], {"h": "unreachable"}, False, "fail"),
        ([], {}, False, "pass"),
    ],
)
def test_a_failure_outranks_a_gap_and_a_gap_a_pass(states, hosts, strict, wanted):
    assert checks.verdict([found(State(state)) for state in states], hosts, strict=strict) == wanted


def test_a_host_out_of_reach_alone_cannot_be_told():
    findings = [found(State.FAIL, "ssh.reachable"), found(State.PASS)]
    assert checks.verdict(findings, {"h": "unreachable"}) == "incomplete"
    assert checks.EXIT_CODES == {"pass": 0, "fail": 1, "incomplete": 3}


def test_flat_facts_carry_the_names_of_the_contract():
    machine = Path(__file__).parent.parent / "machines" / "hgx-h100"
    replies = {path.stem: Reply(path.read_bytes()) for path in machine.glob("*.txt")}
    told = host.flat(host.read(Evidence("hgx01", replies)))
    assert told["topology"]["gpus"] == 8
    assert told["topology"]["nics"] == 8
    assert told["topology"]["links"]["0-7"] == "NV18"
    assert told["topology"]["numa"]["5"] == "1"
    assert told["cpu"]["vendor"] == "GenuineIntel"
    assert (told["cpu"]["sockets"], told["cpu"]["numa_nodes"], told["cpu"]["nodes_per_socket"]) == (2, 2, 1)
    assert told["acs"] == {"ports": 35, "redirecting": 4, "source_validation_only": 2, "readable": True}
    assert "iommu=pt" in told["boot"]["args"]


def test_what_is_said_of_a_fleet_names_only_the_hosts_that_were_compared(monkeypatch):
    def judge_fleet(clock):
        yield Finding(State.PASS, saw=f"{len(clock)} clocks")

    with_checks(monkeypatch, check(judge_fleet=judge_fleet))
    sample = b"1790000000.1 1790000000.11 1790000000.12\n"
    found = checks.run({"a": facts(clock=sample), "b": facts(), "c": facts(clock=sample)})
    assert [(f.state, f.hosts) for f in found] == [(State.UNKNOWN, ("b",)), (State.PASS, ("a", "c"))]
