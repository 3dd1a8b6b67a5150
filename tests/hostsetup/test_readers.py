"""Bytes from hosts are hostile: a reader understands them, or raises ValueError."""

import contextlib
import importlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostsetup import checks, host, script
from hostsetup import facts as facts_folder
from hostsetup.facts import access, cpu, docker, lspci
from hostsetup.model import Evidence, Known, Probe, Reply, State, Unknown

FACTS = Path(facts_folder.__file__).parent


def readers():
    """Every `parse_x(text)` of a facts file."""
    for path in sorted(FACTS.glob("*.py")):
        module = importlib.import_module(f"hostsetup.facts.{path.stem}")
        for name, function in vars(module).items():
            if name.startswith("parse_") and function.__module__ == module.__name__:
                yield function


READERS = list(readers())
WORDS = r"""
00:01.0 10000:e1:00.0 PCI\tbridge:|3D\tcontroller:\tNVIDIA|\tBus:\tprimary=00,\tsecondary=01,\tsubordinate=09
ACSCtl:\tSrcValid+\tTransBlk-\tReqRedir+ Capabilities:\t[100\tv1] Capabilities:\t<access\tdenied> (rev\tff)
GPU0 GPU1 NIC0 X NV18 SYS PIX CPU\tAffinity NIC0:\tmlx5_0 Architecture:\tx86_64 CPU(s):\t8 Socket(s):\t0
NUMA\tnode(s):\t-1 NUMA\tnode99999\tCPU(s): {"lscpu": [ ] } {"field": "Model:", "data": null ServerErrors Server\tVersion:\t1
tree dev config rdma 0000:01:00.0 0x10de 0x060400 ../../devices/pci0000:00/0000:00:01.0 000000\t00\t01 * 001000 ffffff\t00
127.0.1.1 ::1 fe80::1%eth0 1790000000.1 1e999 NaN -1 %N " ' ; $x GRUB_CMDLINE_LINUX="a node0\tcpus\t0-3 package\t1\t0 l3\t0
"""  # a word a token; \t stands for a blank within one
MACHINES = Path(__file__).parents[1] / "machines"
SEEN = sorted({word for path in MACHINES.glob("*/*.txt") for word in path.read_text("utf-8").split()})
tokens = st.sampled_from([word.replace(r"\t", " ") for word in re.split(r"[ \n]+", WORDS.strip())] + SEEN)
texts = st.text() | st.lists(tokens | st.sampled_from(["\n", "\t", " ", "\n\t", "\x1b[4m"]) | st.text(max_size=3)).map(
    "".join
)


@pytest.mark.parametrize(
    "reader", READERS, ids=lambda reader: f"{reader.__module__.rpartition('.')[2]}.{reader.__name__}"
)
@given(text=texts)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_reader_raises_nothing_but_value_error(reader, text):
    with contextlib.suppress(ValueError):
        reader(text)


@pytest.mark.parametrize("reader", [access.parse_access, cpu.parse_lscpu, docker.parse_info])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"lscpu":' * 100_000, '{"a":' + "9" * 10_000 + "}"])
def test_json_that_is_deep_or_huge_is_refused(reader, text):
    with pytest.raises(ValueError, match=r"\w"):
        reader(text)


PROBES = [*(probe.name for probe in host.PROBES), "ssh", "clock"]


@given(st.dictionaries(st.sampled_from(PROBES), st.tuples(texts, st.sampled_from([0, 1, 2, 124, 127, None]))))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_evidence_is_read_judged_and_told(told):
    evidence = Evidence(
        "h", {name: Reply(text.encode("utf-8", "replace"), b"", code) for name, (text, code) in told.items()}
    )
    facts = host.read(evidence)
    findings = checks.run({"h": facts, "other": facts})
    assert {finding.check for finding in findings} == {check.id for check in checks.catalogue()}
    json.dumps(host.flat(facts))
    assert not [finding for finding in findings if "the check itself failed" in finding.saw]


MACHINES = {
    folder.name: {path.stem: path.read_bytes() for path in folder.glob("*.txt")}
    for folder in (Path(__file__).parent.parent / "machines").iterdir()
}


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_reply_with_a_hole_never_trips_a_check(data):
    replies = dict(MACHINES[data.draw(st.sampled_from(sorted(MACHINES)))])
    for name in data.draw(st.sets(st.sampled_from(sorted(replies)), min_size=1)):
        text = replies[name]
        start, end = (data.draw(st.integers(0, len(text))) for _ in range(2))
        replies[name] = text[:start] + data.draw(st.binary(max_size=5)) + text[end:]
    facts = host.read(Evidence("h", {name: Reply(text) for name, text in replies.items()}))
    findings = checks.run({"h": facts, "twin": facts})
    assert not [finding for finding in findings if "the check itself failed" in finding.saw]
    json.dumps(host.flat(facts))


@given(st.binary(), st.lists(st.binary(max_size=30)))
@settings(max_examples=100, deadline=None)
def test_any_stream_is_parsed(noise, parts):
    mark = b"0123456789abcdef"
    script.parse(noise, mark.decode())
    script.parse(mark.join(parts), mark.decode())


def test_a_missing_tool_a_hang_and_a_lost_answer_are_told_apart():
    replies = {"late": Reply(exit_code=124), "gone": Reply(exit_code=127), "fine": Reply(b"x")}
    evidence = Evidence("h", replies)
    assert "not installed" in evidence.answer("gone").reason
    assert "in time" in evidence.answer("late").reason
    assert "lost" in evidence.answer("never").reason
    assert evidence.answer("fine") == Reply(b"x")


def test_a_tree_of_devices_that_loops_or_is_endless_ends():
    loop = "00:00.0 PCI bridge: x\n\tBus: primary=00, secondary=01, subordinate=01\n"
    loop += "01:00.0 PCI bridge: x\n\tBus: primary=01, secondary=02, subordinate=02\n"
    loop += "02:00.0 PCI bridge: x\n\tBus: primary=02, secondary=01, subordinate=01\n"
    assert all(len(function.parents) < 4 for function in lspci.parse_lspci(loop).values())
    many = "".join(f"{n:04x}:00:00.0 3D controller: NVIDIA Corporation x\n" for n in range(3000))
    facts = host.read(Evidence("h", {"lspci-vvv": Reply(many.encode())}))
    (finding,) = checks.run({"h": facts}, only=["pcie.acs.redirect"])
    assert finding.state is State.UNKNOWN


def test_an_acs_line_that_is_not_whole_or_reads_all_ones_is_no_word():
    line = "ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
    assert lspci.parse_flags(line) == 0x1D
    assert lspci.parse_flags("ACSCtl: SrcValid+ TransBlk+ ReqRedir+") is None
    assert lspci.parse_flags(line.replace("-", "+")) is None


def test_a_reply_that_was_cut_leaves_other_subsystems_known():
    facts = host.read(Evidence("h", {"hostname": Reply(b"h\n"), "getent": Reply(b"10.0.0.1 STREAM h\n")}))
    assert isinstance(facts.names, Known)
    assert isinstance(facts.pci, Unknown)
    assert isinstance(facts.acs, Unknown)


def test_no_probe_writes_or_prompts():
    forbidden = re.compile(
        r"\b(setpci|rm|mv|cp|touch|mkdir|tee|modprobe|insmod|rmmod|kill|mount|umount|chmod|chown|dd|truncate|ip link set)\s"
        r"|\b(apt|apt-get|dnf|yum|pip|snap)\s+(install|remove|update|upgrade)"
        r"|nvidia-smi[^\n|;]*\s(-pm|-pl|-c|-e|-r|-mig|-lgc|-ac|--[a-z-]+-reset)\s"
        r"|systemctl\s+(start|stop|restart|reload|enable|disable|mask)|sysctl\s+-w|sudo\s+-S"
        r"|docker\s+(run|rm|stop|kill|pull|create|start|exec|load|build)|[^2&]>>?\s*[\"$/]?/(?!dev/null|dev/tcp)"
    )
    for probe in host.PROBES:
        assert isinstance(probe, Probe)
        assert not (found := forbidden.search(probe.command)), (probe.name, found)
        assert "sudo" not in probe.command or "sudo -n" in probe.command
