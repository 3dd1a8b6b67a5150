"""The report as JUnit XML: what Jenkins' schema (junit-10.xsd) allows, and what a suite says of a host."""

from xml.etree import ElementTree as ET

import pytest

from hostsetup.model import Finding, Remedy, State
from orchestrate.evidence import Visit
from orchestrate.report.findings import Audit
from orchestrate.report.junit import as_junit

SUITE = {"name", "tests", "failures", "errors", "skipped", "time", "hostname"}
ALLOWED = {
    "testsuites": ({"testsuite"}, {"name", "tests", "failures", "errors"}),
    "testsuite": ({"testcase"}, SUITE),
    "testcase": ({"failure", "error", "skipped", "system-out"}, {"name", "classname", "time"}),
    "failure": (set(), {"type", "message"}),
    "error": (set(), {"type", "message"}),
    "skipped": (set(), {"type", "message"}),
    "system-out": (set(), set()),
}


def one(state, check="net.mtu", hosts=("gpu01",), saw="MTU 1500", **more):
    return Finding(State(state), saw=saw, check=check, hosts=tuple(hosts), **more)


def written(*findings, visits=None, strict=False):
    hosts = dict.fromkeys(host for finding in findings for host in finding.hosts)
    visits = visits or [Visit(host, "audited", 1.25, None) for host in hosts]
    root = ET.fromstring(as_junit(Audit("fail", visits, {}, findings, strict=strict)).encode())
    conforms(root)
    return root


def conforms(element):
    children, attributes = ALLOWED[element.tag]
    assert {child.tag for child in element} <= children
    assert set(element.attrib) <= attributes
    if element.tag == "testsuite":
        assert set(element.attrib) == SUITE
        assert int(element.get("tests")) == len(element)
        for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(name)) == len(element.findall(f"testcase/{kind}"))
        names = [(case.get("classname"), case.get("name")) for case in element]
        assert len(set(names)) == len(names)
    for child in element:
        conforms(child)


def kinds(root):
    return {(s.get("name"), c.get("name")): [e.tag for e in c] for s in root for c in s}


def test_each_state_has_its_element():
    states = {"pass": [], "info": ["system-out"], "warn": ["system-out"], "fail": ["failure"]}
    states |= {"unknown": ["error"], "skip": ["skipped"]}
    root = written(*(one(state, f"a.{state}") for state in states))
    assert kinds(root) == {("gpu01", f"a.{state}"): tags for state, tags in states.items()}
    assert root[0].get("time") == "1.250"
    assert root.get("failures") == root.get("errors") == "1"


def test_under_strict_a_warning_fails():
    assert kinds(written(one("warn"), strict=True)) == {("gpu01", "net.mtu"): ["failure"]}


def test_a_check_has_one_case_a_host_and_the_worst_state_counts():
    remedy = Remedy("set it", ("ip link set mtu 9000",), needs_root=True)
    root = written(
        one("pass", saw="fine"),
        one("warn", saw="odd"),
        one("fail", saw="bad", remedy=remedy, wanted="9000", subject="ib0"),
        one("fail", saw="worse"),
    )
    (failure,) = root.iter("failure")
    assert failure.get("message") == "bad (and 1 more)"
    for words in (
        "fail: net.mtu ib0",
        "wanted: 9000",
        "$ ip link set mtu 9000",
        "saw: worse",
        "saw: odd",
        "needs root",
    ):
        assert words in failure.text
    assert "fine" not in failure.text


def test_what_is_said_of_several_hosts_is_in_the_suite_of_the_fleet():
    root = written(
        one("fail", "time.skew", ["a", "b", "c"], scope="cluster"),
        one("fail", "net.pair", ["a", "b"], scope="pair"),
        one("pass", "net.pair", ["b", "c"], scope="pair"),
        one("fail", "pcie.acs", ["a"], scope="pair", subject="x <-> y"),
    )
    assert kinds(root) == {
        ("fleet", "time.skew"): ["failure"],
        ("fleet", "net.pair a,b"): ["failure"],
        ("fleet", "net.pair b,c"): [],
        ("a", "pcie.acs"): ["failure"],
    }
    assert {suite.get("name") for suite in root} == {"a", "b", "c", "fleet"}


def test_a_host_called_fleet_keeps_its_suite():
    root = written(one("pass", hosts=["fleet"]), one("fail", "time.skew", ["fleet", "b"], scope="cluster"))
    assert kinds(root) == {("fleet", "net.mtu"): [], ("(fleet)", "time.skew"): ["failure"]}


def test_a_host_whose_answers_are_cut_is_not_all_green():
    root = written(
        one("pass"), visits=[Visit("gpu01", "partial", 90.0, "cut off"), Visit("gpu02", "unreachable", None, "x")]
    )
    assert kinds(root) == {("gpu01", "net.mtu"): [], ("gpu01", "visit"): ["error"]}
    assert [suite.get("time") for suite in root] == ["90.000", "0.000"]


@pytest.mark.parametrize(
    "evil",
    [
        "\x00\x08\x0b\x1b[2J",
        "\ufffe\uffff",
        "\ud800",
        "]]></failure><x/>",
        "\"'<&>",
        "\u202eevil\u061c",
        "é\U0001f600 日本",
        "\r\n\t",
    ],
)
def test_hostile_text_leaves_the_xml_whole(evil):
    remedy = Remedy(evil, (evil,))
    root = written(
        one(
            "fail",
            evil,
            [f"h{evil}"],
            saw=evil,
            wanted=evil,
            subject=evil,
            remedy=remedy,
            evidence=(evil,),
            source=evil,
        ),
        one("warn", "b.b", [f"h{evil}"], saw=evil),
        visits=[Visit(f"h{evil}", "partial", 1.0, evil)],
    )
    text = ET.tostring(root, encoding="unicode")
    assert not {"\x00", "\x08", "\x1b", "\ufffe", "\u202e", "\u061c"} & set(text)
    assert len(list(root.iter("failure"))) == 1


def test_the_bytes_are_ascii_whatever_the_locale():
    text = as_junit(Audit("fail", [Visit("é", "audited", 1.0, None)], {}, [one("fail", hosts=["é"], saw="日本")]))
    assert text.isascii()
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
