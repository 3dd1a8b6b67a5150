"""The report as text: what is told, what is folded, how it is wrapped."""

import time

import pytest

from hostsetup.model import Finding, Remedy, State
from orchestrate.evidence import Visit
from orchestrate.report import fold
from orchestrate.report.findings import Audit
from orchestrate.report.text import as_text

SETPCI = Remedy("clear the bits", ("setpci -s 0000:42:00.0 ECAP_ACS+6.w=0:2c",), needs_root=True)


def one(state, check="net.mtu", hosts=("gpu01",), saw="MTU 1500", **more):
    return Finding(State(state), saw=saw, check=check, hosts=tuple(hosts), **more)


def audit(*findings, verdict="fail"):
    hosts = dict.fromkeys(host for finding in findings for host in finding.hosts)
    return Audit(verdict, [Visit(host, "audited", 1.0, None) for host in hosts], {}, findings)


def lines(*findings, **options):
    return as_text(audit(*findings), **options).splitlines()


def test_the_worst_comes_first_and_equal_hosts_are_one():
    found = lines(
        one("warn"), one("fail", "b.b"), *(one("fail", "a.a", [f"gpu{n:02}"], remedy=SETPCI) for n in range(1, 9))
    )
    heads = [line for line in found if line and not line.startswith(" ")]
    assert heads[:3] == ["fail    a.a  gpu[01-08] (8 hosts)", "fail    b.b  gpu01", "warn    net.mtu  gpu01"]
    assert found.count("                $ setpci -s 0000:42:00.0 ECAP_ACS+6.w=0:2c") == 1
    assert "        next    clear the bits (needs root)" in found


def test_findings_that_differ_only_in_their_subject_are_one_block():
    found = lines(*(one("fail", subject=f"GPU{n}", hosts=[host]) for host in ("a", "b") for n in range(6)))
    assert found[0] == "fail    net.mtu  a,b (2 hosts)  GPU0, GPU1, GPU2, GPU3 and 2 more"
    assert sum(line.strip().startswith("saw") for line in found) == 1
    assert "GPU4, GPU5" in "\n".join(lines(*(one("fail", subject=f"GPU{n}") for n in range(6)), verbose=True))


def test_after_three_findings_of_a_check_the_rest_is_named_and_no_command_is_lost():
    some = [
        one("fail", subject=f"GPU{n}", saw=f"at port {n}", remedy=Remedy("clear", (f"setpci {n}", "lspci")))
        for n in range(9)
    ]
    found = lines(*some)
    assert sum(line.startswith("fail") for line in found) == 3
    assert "        more    6 more like these on gpu01 at GPU3, GPU4, GPU5, GPU6 and 2 more (-v shows each)" in found
    assert [f"$ setpci {n}" for n in range(9)] == [line.strip() for line in found if "setpci" in line]
    assert sum(line.startswith("fail") for line in lines(*some, verbose=True)) == 9


def test_what_is_quiet_is_counted_by_host_and_told_when_asked():
    quiet = [one("pass", f"a.c{n}", ["gpu01", "gpu02"], saw="fine") for n in range(40)]
    quiet.append(one("skip", "b.b", ["gpu02"], saw="no NVLink"))
    found = lines(*quiet)
    assert found[:3] == [
        "skip    1 check  gpu02",
        "pass    40 checks  gpu[01-02] (2 hosts)",
        "        -v shows what each of them saw",
    ]
    assert len(lines(*quiet, verbose=True)) == 41 + 3
    assert any("no NVLink" in line for line in lines(*quiet, verbose=True))


def test_a_check_that_passes_and_fails_on_one_host_is_not_counted_as_passed():
    assert not any(line.startswith("pass") for line in lines(one("pass"), one("fail")))


def test_one_gap_that_silences_many_checks_is_told_once():
    found = lines(*(one("unknown", f"pcie.c{n}", saw="root was refused") for n in range(30)))
    assert found[0] == "unknown 30 checks  gpu01"
    assert sum("root was refused" in line for line in found) == 1


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_long_text_is_wrapped_to_the_terminal_and_commands_stay_whole(width):
    command = "echo " + "x" * 150
    found = lines(one("fail", saw="word " * 90, remedy=Remedy("do " * 60, (command,))), width=width)
    assert [line.strip() for line in found if "xxx" in line] == [f"$ {command}"]
    body = [line for line in found if line.startswith(" ") and "xxx" not in line]
    assert max(map(len, body)) <= max(width, 48)
    assert " ".join(" ".join(body).split()).count("word word") > 30


def test_without_a_terminal_nothing_is_wrapped():
    assert "        saw     " + ("word " * 90).rstrip() in [
        line.rstrip() for line in lines(one("fail", saw="word " * 90))
    ]


def test_a_long_list_of_names_that_do_not_fold_is_cut_and_counted():
    names = [f"{chr(97 + n % 26)}{'x' * (n % 7)}-{n * 7919}" for n in range(500)]
    head = lines(one("fail", hosts=names))[0]
    assert len(head) < 150
    assert head.endswith(",... (500 hosts)")
    assert len(lines(one("fail", hosts=names), verbose=True)[0]) > 3000


def test_no_byte_of_a_host_acts_on_the_terminal():
    evil = "\x1b[31m\u202e\u061c\x07\r\U000e0041"
    text = as_text(audit(one("fail", "a.a", [evil], saw=evil, subject=evil, wanted=evil, remedy=Remedy(evil, (evil,)))))
    assert not (set(evil) - set("[31m")) & set(text)
    assert r"\u202e" in text


def fleet(hosts):
    """97 checks on each host, a few of them bad, and every value another one."""
    found = []
    for c in range(97):
        for n in range(hosts):
            odd = (c * 31 + n * 17) % 101
            state = "fail" if odd == 0 else "warn" if odd == 1 else "skip" if odd < 8 else "pass"
            found.append(one(state, f"s{c % 12}.c{c}", [f"gpu{n:04}"], saw=f"value {c * n}"))
    return audit(*found)


def test_a_thousand_hosts_stay_readable_and_take_time_in_proportion():
    small, large = fleet(100), fleet(1000)
    start = time.monotonic()
    as_text(small)
    between = time.monotonic()
    text = as_text(large)
    end = time.monotonic()
    assert end - between < max(40 * (between - start), 2)  # ten times the hosts; quadratic would be a hundred times
    assert len(text.splitlines()) < 3000
    assert max(map(len, text.splitlines())) < 400


def test_folding_drops_no_host():
    every = fleet(30)
    told = {
        (card.state, check, host)
        for card in fold.cards(every.findings)
        for check in card.checks
        for entry in card.entries
        for host in entry.hosts
    }
    assert told == {(finding.state, finding.check, finding.hosts[0]) for finding in every.findings}


def test_a_pass_with_warnings_does_not_say_that_nothing_is_wrong():
    assert as_text(audit(one("warn"), one("warn", "a.a"), verdict="pass")).endswith("nothing failed; 2 warnings")
    assert as_text(audit(one("pass"), verdict="pass")).endswith("nothing was found that is wrong")
