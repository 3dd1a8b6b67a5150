"""The report as one HTML file, read without a browser: nothing is loaded, nothing of a host becomes markup."""

import base64
import hashlib
import re
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.model import Finding, Known, Remedy, State, Unknown
from orchestrate import evidence as store
from orchestrate.evidence import Visit
from orchestrate.report.audit_page import as_html
from orchestrate.report.drawing import picture
from orchestrate.report.findings import Audit

MACHINES = Path(__file__).parents[1] / "machines"
EVIL = "<img src=x onerror=alert(1)>\"'`{{7*7}}</script></style>--><b>\u202egnp\u061c\x1b[2J\x00"
VOID = {"meta", "input", "br", "link", "img"}


def one(state, check="net.mtu", hosts=("gpu01",), saw="MTU 1500", **more):
    return Finding(State(state), saw=saw, check=check, hosts=tuple(hosts), **more)


def audit(*findings, verdict="fail", fleet=None, visits=None):
    hosts = dict.fromkeys(host for finding in findings for host in finding.hosts)
    return Audit(verdict, visits or [Visit(host, "audited", 1.0, None) for host in hosts], {}, findings, fleet or {})


@pytest.fixture(scope="module")
def machines():
    """The audit of every hand-made machine."""
    found = store.load(MACHINES)
    fleet = {one.host: host.read(one) for one in found}
    visits = [store.visit(one) for one in found]
    return Audit("fail", visits, {}, checks.run(fleet), fleet)


class Page(HTMLParser):
    """Tags and text of a page; fails where tags do not close."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open, self.ids = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_loads_nothing(machines):
    text = as_html(machines)
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    loading = {"src", "srcset", "data", "action", "background", "poster", "style"}
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form", "img"}
        assert not loading & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        if "href" in attributes:
            assert tag == "a"
            assert attributes["href"].startswith(("#", "https://"))
            if attributes["href"].startswith("#"):
                assert attributes["href"][1:] in page.ids
    assert "url(" not in text.partition("</style>")[0]
    assert text.isascii()


def test_the_policy_allows_the_two_inline_blocks_and_nothing_else(machines):
    text = as_html(machines)
    (policy,) = [a["content"] for _, a in Page(text).tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"


def test_everything_that_was_found_is_on_the_page(machines):
    text = "".join(Page(as_html(machines)).text)
    alike = Counter((finding.check, finding.state, finding.saw) for finding in machines.findings)
    for finding in machines.findings:
        assert finding.saw in text
        assert finding.check in text
        if finding.state not in {State.PASS, State.SKIP}:
            assert finding.wanted in text
            assert all(command in text for command in (finding.remedy.commands if finding.remedy else ()))
            if alike[finding.check, finding.state, finding.saw] == 1:  # of equal hosts, the first one's lines are shown
                assert all(line in text for line in finding.evidence)


@pytest.mark.parametrize("state", ["fail", "unknown", "warn", "info", "skip", "pass"])
def test_a_hostile_host_becomes_no_markup(state):
    clean = audit(one(state, remedy=Remedy("x", ("x",)), evidence=("x",), wanted="x", subject="x", source="x"))
    remedy = Remedy(EVIL, (EVIL,), needs_root=True)
    dirty = audit(
        one(state, hosts=[EVIL], saw=EVIL, wanted=EVIL, subject=EVIL, remedy=remedy, evidence=(EVIL,), source=EVIL),
        visits=[Visit(EVIL, "audited", 1.0, None)],
    )
    text = as_html(dirty)
    assert [tag for tag, _ in Page(text).tags] == [tag for tag, _ in Page(as_html(clean)).tags]
    plain = "".join(Page(text).text)
    assert not {"\u202e", "\u061c", "\x1b", "\x00"} & set(plain)
    assert "{{7*7}}" in plain
    assert r"\u202egnp\u061c\x1b[2J\x00" in plain


def test_hostile_names_of_devices_become_no_markup(machines):
    facts = machines.fleet["pcie-switch-4gpu"]
    functions = dict(facts.pci.value.functions)
    for address, function in functions.items():
        functions[address] = type(function)(
            **{f: getattr(function, f) for f in function.__dataclass_fields__} | {"name": EVIL}
        )
    evil = Stand(pci=Known(type(facts.pci.value)(functions)), topology=Unknown(EVIL))
    text = as_html(audit(one("fail", saw="ACS at 0000:42:00.0"), fleet={"gpu01": evil}))
    assert not {"img", "b"} & {tag for tag, _ in Page(text).tags}
    assert "\u202e" not in "".join(Page(text).text)


class Stand:
    """Facts with the two slots that are drawn."""

    def __init__(self, pci=None, topology=None):
        self.pci = pci or Unknown("no lspci")
        self.topology = topology or Unknown("no driver")


def test_a_source_that_is_no_web_address_is_no_link():
    page = Page(as_html(audit(one("fail", source="javascript:alert(1)"))))
    assert "javascript:alert(1)" in "".join(page.text)
    assert not any("javascript" in (a.get("href") or "") for _, a in page.tags)


def test_the_tree_marks_the_ports_that_a_finding_names(machines):
    found = [f for f in machines.findings if f.hosts == ("pcie-switch-4gpu",)]
    drawn = picture(machines.fleet["pcie-switch-4gpu"], found)
    ((bus, (root,)),) = drawn.roots
    assert bus == "0000:40"
    assert [node.address for node in root.path] == ["0000:40:01.1", "0000:41:00.0"]
    assert [[node.kind for node in child.path] for child in root.children] == [["bridge", "gpu"]] * 4
    marks = {node.address: node.mark for child in root.children for node in child.path if node.mark}
    assert sorted(marks) == [f"0000:42:0{n}.0" for n in range(4)]
    assert {(mark.state, mark.checks) for mark in marks.values()} == {(State.FAIL, ("pcie.acs.redirect",))}
    assert root.children[2].path[1].name == "GPU2 A10"


@pytest.mark.parametrize(
    ("saw", "subject", "marked"),
    [
        ("width x8 at 0000:43:00.0", "GPU 2", {"0000:43:00.0"}),
        ("width x8", "43:00.0", {"0000:43:00.0"}),
        ("width x8", "00000000:43:00.0", {"0000:43:00.0"}),
        ("width x8", "GPU 2", {"0000:45:00.0"}),
        ("width x8", "GPU9", set()),
        ("at 0000:43:00.01 and 10:43:00.0", "", set()),
        ("time 12:43:00.0", "", set()),
    ],
)
def test_a_mark_needs_a_function_of_this_host(machines, saw, subject, marked):
    drawn = picture(machines.fleet["pcie-switch-4gpu"], [one("warn", saw=saw, subject=subject)])
    nodes = [node for _, (root,) in drawn.roots for child in root.children for node in child.path]
    assert {node.address for node in nodes if node.mark} == marked


def test_what_is_right_marks_nothing(machines):
    for state in ("pass", "skip", "info"):
        assert picture(machines.fleet["pcie-switch-4gpu"], [one(state, saw="at 0000:42:00.0")]).worst is None


def test_the_matrix_is_the_one_of_the_driver(machines):
    matrix = picture(machines.fleet["hgx-h100"], ()).matrix
    assert matrix.columns[:9] == (*(f"GPU{n}" for n in range(8)), "mlx5_0")
    assert matrix.rows[3][3] == "X"
    assert {cell for row in matrix.rows for cell in row[:8]} == {"X", "NV18"}
    assert all(matrix.rows[a][b] == matrix.rows[b][a] for a in range(8) for b in range(8))


def test_what_is_not_known_is_not_drawn_and_says_why():
    text = "".join(Page(as_html(audit(one("pass"), verdict="pass", fleet={"gpu01": Stand()}))).text)
    assert "Not drawn: no lspci" in text
    assert "Not drawn: no driver" in text


@pytest.mark.parametrize("verdict", ["pass", "fail", "incomplete"])
def test_an_audit_of_nothing_is_a_page(verdict):
    assert verdict in "".join(Page(as_html(Audit(verdict, [], {}, []))).text)


def test_equal_hosts_are_drawn_once_and_a_thousand_fit(machines):
    plain, bad = (machines.fleet[name] for name in ("hgx-h100", "pcie-switch-4gpu"))
    names = [f"gpu{n:04}" for n in range(1000)]
    fleet = {name: bad if n % 50 == 7 else plain for n, name in enumerate(names)}
    redirects = [f for f in machines.findings if f.check == "pcie.acs.redirect" and f.state is State.FAIL]
    found = [
        one("pass" if (c + n) % 90 else "fail", f"s{c % 9}.c{c}", [name])
        for c in range(90)
        for n, name in enumerate(names)
    ]
    found += [
        one("fail", f.check, [name], f.saw, subject=f.subject)
        for name in names
        if fleet[name] is bad
        for f in redirects
    ]
    start = time.monotonic()
    text = as_html(audit(*found, fleet=fleet))
    assert time.monotonic() - start < 30
    assert len(text) < 6 << 20
    assert text.count("<h4>PCIe tree</h4>") == 2
    assert Page(text)
