"""A site's file says what is expected and accepted; what it cannot mean is refused with the place and the next step."""

import tomllib

import pytest

from hostsetup import checks
from hostsetup.checks import Check
from hostsetup.expect import Want
from hostsetup.model import Evidence, Finding, Reply, State
from orchestrate import audit, site
from orchestrate.errors import Refused, UsageError

WANTS = {
    "a.count": Want(int, "things a host has", 1),
    "a.kinds": Want(str, "kinds of them", many=True),
    "a.rate": Want(float, "how fast"),
    "a.on": Want(bool, "whether they are on", default=False),
}
HEAD = f'schema = "{site.SCHEMA}"\n'


def judge(names, expect):
    count = len(names.addresses)
    good = count == expect.whole("a.count")
    yield Finding(
        State.PASS if good else State.FAIL, f"{count}, wanted {expect.whole('a.count')} ({expect.origin('a.count')})"
    )


def baseline(names):
    return {"a.count": len(names.addresses), "a.kinds": ("x", names.hostname), "a.on": True}


@pytest.fixture(autouse=True)
def _one_check(monkeypatch):
    one = Check("a", "T.", "T.", "https://example.org", judge, expects=WANTS, baseline=baseline)
    monkeypatch.setattr(checks, "catalogue", lambda: (one,))


def host(name, *addresses):
    text = "".join(f"{address} STREAM x\n" for address in addresses)
    return Evidence(name, {"hostname": Reply(f"{name}\n".encode()), "getent": Reply(text.encode())})


def test_what_a_file_expects_outranks_what_is_built_in_and_the_message_says_who_did(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(f"{HEAD}[expect]\na.count = 2\n")
    found = [host("h1", "10.0.0.1", "10.0.0.2")]
    (plain,) = audit.judge(found, audit.Choice()).findings
    (told,) = audit.judge(found, audit.Choice(site=site.load(path))).findings
    assert (plain.state, told.state) == (State.FAIL, State.PASS)
    assert "(built-in)" in plain.saw
    assert "site.toml" in told.saw


def test_a_baseline_holds_what_good_hosts_have_in_common_and_reads_back(tmp_path):
    path = tmp_path / "site.toml"
    judged = audit.judge([host("h1", "10.0.0.1"), host("h2", "10.0.0.2")], audit.Choice(baseline=True))
    said = audit.save_baseline(judged, path)
    assert "h[1-2]" in said
    assert "a.kinds" in said
    assert tomllib.loads(path.read_text())["expect"] == {"a.count": 1, "a.on": True}
    assert site.load(path).expect == {"a.count": 1, "a.on": True}
    assert "# things a host has" in path.read_text()


def test_a_host_with_a_failure_is_no_measure(tmp_path):
    judged = audit.judge([host("h1", "10.0.0.1", "10.0.0.2")], audit.Choice())
    with pytest.raises(Refused, match="a failed"):
        audit.save_baseline(judged, tmp_path / "site.toml")
    assert not list(tmp_path.iterdir())


def test_a_host_that_was_not_reached_is_no_measure_even_where_nobody_asks_about_it(tmp_path):
    away = Evidence("h2", {"ssh": Reply(b'{"outcome": "timeout", "detail": "no answer"}')})
    judged = audit.judge([host("h1", "10.0.0.1"), away], audit.Choice(baseline=True))
    with pytest.raises(Refused, match="h2 was not reached"):
        audit.save_baseline(judged, tmp_path / "site.toml")
    assert not list(tmp_path.iterdir())


def test_every_value_survives_being_written_and_read(tmp_path):
    expect = {"a.count": 3, "a.kinds": ('q"uote\\', "é\n\x7f", "\U0001f600\x1b"), "a.rate": 2.5, "a.on": True}
    site.save(tmp_path / "s.toml", expect, ['h"1'])
    assert site.load(tmp_path / "s.toml").expect == expect


def test_what_a_file_accepts_is_reported_and_fails_no_more(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(f'{HEAD}[accept]\n"a" = "shipped so"\n')
    judged = audit.judge([host("h1", "10.0.0.1", "10.0.0.2")], audit.Choice(site=site.load(path)))
    assert (judged.verdict, judged.findings[0].state) == ("incomplete", State.INFO)
    assert "shipped so" in judged.findings[0].saw


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line schema"),
        ("schema = 3\n", "no line schema"),
        ("= broken", "not TOML"),
        (f"{HEAD}[expct]\n", "'expct'"),
        (f"{HEAD}expect = 3\n", "not a table"),
        (f"{HEAD}[expect]\na.cont = 2\n", "a.count"),
        (f"{HEAD}[expect]\na.count = true\n", "whole number"),
        (f'{HEAD}[expect]\na.count = "2"\n', "whole number"),
        (f"{HEAD}[expect]\na.kinds = [1]\n", "list of a text"),
        (f"{HEAD}[expect]\na.kinds = []\n", "list of a text"),
        (f"{HEAD}[expect]\na.on = 1\n", "true or false"),
        (f'{HEAD}[accept]\na = ""\n', "without a reason"),
        (f'{HEAD}[accept]\nb = "why"\n', "no check 'b'"),
        ("[" * 5000, "not TOML"),
        (f"{HEAD}[expect]\n{'a.' * 3000}b = 1\n", "deeper than any name"),
        (f"{HEAD}[{'.'.join(['expect'] * 3000)}]\nb = 1\n", "deeper than any name"),
        (f'{HEAD}[expect]\n"a.count" = 1\na.count = 2\n', "said twice"),
        (f"{HEAD}[expect]\na.rate = nan\n", "below 2^63"),
        (f"{HEAD}[expect]\na.rate = -inf\n", "below 2^63"),
        (f"{HEAD}[expect]\na.rate = {'9' * 400}\n", "below 2^63"),
        (f"{HEAD}[expect]\na.count = 0x{'f' * 9999}\n", "below 2^63"),
        (f'{HEAD}[expect]\n"{"x" * 9999}" = 2\n', "nothing is called"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path, text, words):
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        site.load(path)
    assert words in f"{caught.value.what} {caught.value.next_step}"
    assert caught.value.where == str(path)
    assert caught.value.next_step
    assert len(caught.value.what) < 400


def test_a_file_that_an_editor_saved_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(f"\ufeff{HEAD}[expect]\na.count = 2\n")
    assert site.load(path).expect == {"a.count": 2}


def test_a_file_that_is_missing_or_binary_is_refused(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path / "b", tmp_path):
        with pytest.raises(UsageError):
            site.load(path)


def test_a_check_that_cannot_tell_what_a_host_has_is_left_out_of_a_baseline(monkeypatch):
    one = Check("a", "T.", "T.", "https://example.org", judge, expects=WANTS, baseline=lambda names: {"a.kinds": ()})
    monkeypatch.setattr(checks, "catalogue", lambda: (one,))
    assert audit.judge([host("h1", "10.0.0.1")], audit.Choice(baseline=True)).baselines == ({},)
