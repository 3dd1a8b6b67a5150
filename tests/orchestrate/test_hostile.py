"""Hosts that mean ill cost their own verdict and nothing else: not the others', not the launcher's, not the reader's screen."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hostsetup.host import PROBES
from hostsetup.model import Evidence, Reply
from orchestrate import audit as audits
from orchestrate import evidence as store
from orchestrate.report import formats

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_spec = importlib.util.spec_from_file_location("hostile", HERE / "hostile.py")
hostile = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hostile)

MOST_MIB, MOST_CPU_S = 700, 90
GOOD = ("good1", "good2")
MACHINE = {path.stem: Reply(path.read_bytes()) for path in (ROOT / "tests/machines/hgx-h100").glob("*.txt")}
ACTIVE = set(map(chr, (*range(9), *range(11, 32), *range(127, 160)))) | set("\u202e\u202c\u200b\ufeff")


class Audit:
    """What one audit of many printed, how it ended, and what it took."""

    def __init__(self, config, folder, *words):
        folder.mkdir()
        out, err = folder / "out", folder / "err"
        argv = [sys.executable, "-m", "orchestrate", "--ssh-config", config, "preflight", *map(str, words)]
        start = time.monotonic()
        with out.open("wb") as to, err.open("wb") as said:
            process = subprocess.Popen(
                argv, cwd=folder, stdout=to, stderr=said, env=os.environ | {"PYTHONPATH": str(ROOT)}
            )
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.code, self.wall_s = process.returncode, time.monotonic() - start
        self.cpu_s, self.peak_mib = used.ru_utime + used.ru_stime, used.ru_maxrss // 1024
        self.out, self.err = out.read_text("utf-8"), err.read_text("utf-8")

    @property
    def hosts(self):
        return {host["name"]: host for host in json.loads(self.out)["hosts"]}

    def of(self, host):
        """What is told of one host alone: check, state and subject."""
        told = json.loads(self.out)["findings"]
        return sorted(
            (f["check"], f["state"], f["subject"]) for f in told if f["hosts"] == [host] and f["scope"] == "host"
        )


@pytest.fixture(scope="module")
def fleet(lasting_sshd, tmp_path_factory):
    """Two honest hosts and one of every hostile kind behind one sshd, which tells them apart by their keys."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "banner").write_text(f"{hostile.ACTS}\n" * 20)
    server = lasting_sshd(Banner=folder / "banner", MaxStartups="200:30:400")
    more = []
    for name in (*GOOD, *hostile.KINDS):
        ill = f"{sys.executable} -S -E {HERE / 'hostile.py'} {name}"
        key = server.let_in(name, ill if name in hostile.KINDS else "")
        more.append(f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {key}\n")
    return server.config(more="".join(more)), folder


@pytest.fixture(scope="module")
def alone(fleet):
    """The honest hosts among themselves."""
    config, folder = fleet
    return Audit(config, folder / "alone", ",".join(GOOD), "--json")


@pytest.fixture(scope="module")
def timeout_s(alone):
    """As long as the honest hosts need when they share the machine with the others, however busy it is."""
    return max(15, 4 * int(alone.wall_s))


@pytest.fixture(scope="module")
def among(fleet, timeout_s):
    """The honest hosts among all the others."""
    config, folder = fleet
    target = ",".join((*GOOD, *hostile.KINDS))
    return Audit(config, folder / "among", target, "--json", "--timeout", timeout_s, "--save", folder / "evidence")


@pytest.mark.slow
def test_the_honest_are_judged_as_if_they_were_alone(alone, among):
    for host in GOOD:
        assert among.hosts[host]["state"] == "audited", among.hosts[host]
        assert among.of(host) == alone.of(host)


@pytest.mark.slow
def test_each_of_them_is_told_for_what_it_is(among):
    states = {name: host["state"] for name, host in among.hosts.items()}
    whole = {"banner", "escapes", "zeros", "forged", "latin", "newlines", "deep", "crowd", "clock"}
    assert {name for name, state in states.items() if state == "audited"} == {*whole, *GOOD}
    assert set(states.values()) == {"audited", "partial"}
    for name in set(states) - whole - set(GOOD):
        assert among.hosts[name]["error"], name
    errors = {name: host["error"] for name, host in among.hosts.items() if host["error"]}
    assert "32 MiB" in errors["endless"]
    assert "32 MiB" in errors["complaints"]
    assert "32 MiB" in errors["large"]
    assert "cut off after" in errors["silent"]


@pytest.mark.slow
def test_nothing_was_answered_that_was_not_asked(among, fleet):
    folder = fleet[1] / "evidence" / "forged"
    asked = {"ssh", "clock", "inventory", *(probe.name for probe in PROBES)}
    assert {path.stem for path in folder.glob("*.txt")} <= asked
    assert json.loads((folder / "ssh.txt").read_text())["local"] is False


@pytest.mark.slow
def test_time_and_memory_stay_within_bounds(among, timeout_s):
    assert among.wall_s < 3 * timeout_s + 30
    assert among.cpu_s < MOST_CPU_S
    assert among.peak_mib < MOST_MIB


@pytest.mark.slow
def test_the_verdict_is_that_of_the_worst(alone, among):
    told = json.loads(among.out)["findings"]
    failed = any(finding["state"] == "fail" for finding in told)
    assert (among.code, failed) in {(1, True), (3, False)}
    assert "Traceback" not in among.err
    assert alone.code in {0, 1, 3}


@pytest.fixture(scope="module")
def judged(among, fleet):
    """The same hosts, judged again from what was saved."""
    return audits.judge(store.load(fleet[1] / "evidence"), audits.Choice())


@pytest.mark.slow
@pytest.mark.parametrize("form", formats.FORMATS)
def test_no_byte_of_them_acts_on_a_screen(among, judged, form):
    text = formats.render(judged, form, verbose=True)
    for said in (text, among.out, among.err):
        assert not ACTIVE & set(said)
    if form == "json":
        assert json.loads(text) == json.loads(among.out)


SAID = {
    "blank lines": "\n",
    "blanks": " ",
    "one word": "a",
    "digits": "9",
    "colons": "a: b\n",
    "words": "a b c d e f\n",
    "numbers": "1 2 3 4 5 6 7\n",
    "deep": "[",
    "addresses": "0000:01:00.0 ",
    "equals": "A=B ",
    "quotes": "'\"",
    "escaped": "\\040",
    "grub": "grub",
    "blanks and tabs": " \t",
    "brackets": "[ [{ ",
    "slashes": "/a",
    "dots": "1.",
    "dashes": "a-",
}


SIZE = 200_000
NAMES = ("ssh", "clock", "inventory", "peers", "active", *(probe.name for probe in PROBES))
ACCUSATION = b"own 10.0.0.1\n" + b"".join(
    b"peer hgx 10.0.0.2\n" + b"tcp %d 124 x\n" % port * 3 + b"whole 9000 x\nname 10.0.0.3\n" for port in range(1, 3000)
)


def lots(kind, name):
    own = ACCUSATION if name == "peers" else MACHINE.get(name, Reply(b"x y: 1\n")).stdout
    unit = SAID[kind].encode() if kind in SAID else own
    return (unit * (SIZE // len(unit) + 1))[:SIZE]


class TooLate(BaseException):
    """No reader's and no runner's guard holds it back."""


@pytest.fixture
def soon():
    def late(*_):
        raise TooLate

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20)  # of its own time: others may be at work
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("kind", [*SAID, "its own"])
def test_whatever_every_probe_answers_takes_no_longer_than_its_length(kind, soon):
    ill = Evidence("ill", {name: Reply(lots(kind, name)) for name in NAMES})
    audit = audits.judge([ill, Evidence("hgx", MACHINE)], audits.Choice())
    assert not [finding.saw for finding in audit.findings if "itself failed" in finding.saw]
    for form in formats.FORMATS:
        assert not ACTIVE & set(formats.render(audit, form, verbose=True))
