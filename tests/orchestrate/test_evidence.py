"""Evidence on disk: what is saved reads back the same, and what is brought may be anything."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostsetup.host import PROBES
from hostsetup.model import Evidence, Reply
from orchestrate import evidence as store
from orchestrate.errors import UsageError

REPLIES = st.dictionaries(
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,10}", fullmatch=True),
    st.builds(Reply, st.binary(max_size=50), st.binary(max_size=50), st.none() | st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20) | st.sampled_from(
    ["..", ".", "a/b", "10.0.0.9:22", "[::1]:22", "fe80::1%eth0", "%2E", "-rf"]
)


def ssh(**said):
    return Reply(json.dumps({"outcome": "ok", "elapsed_s": 1.5, **said}).encode())


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES, replies=REPLIES)
def test_what_is_saved_reads_back_the_same_whatever_the_hosts_name(tmp_path_factory, name, replies):
    folder = tmp_path_factory.mktemp("evidence")
    store.save(Evidence(name, replies), folder)
    assert store.load(folder) == (Evidence(name, replies),)
    assert [path.parent for path in folder.rglob("*.txt")] == [next(folder.iterdir())] * len(replies)


def test_saving_again_leaves_no_answer_of_the_time_before(tmp_path):
    store.save(Evidence("a", {"lscpu": Reply(b"old", b"old", 1), "uname": Reply(b"old")}), tmp_path)
    store.save(Evidence("a", {"uname": Reply(b"new")}), tmp_path)
    assert store.load(tmp_path) == (Evidence("a", {"uname": Reply(b"new")}),)


def test_a_folder_with_only_some_files_is_fine_and_other_files_are_left_alone(tmp_path):
    host = tmp_path / "gpu01"
    host.mkdir()
    (host / "lscpu.txt").write_text("x")
    (host / "dmesg.err").write_text("denied")
    (host / "uname.rc").write_text("seven")
    (host / "ABOUT.md").write_text("about")
    (tmp_path / "notes.md").write_text("notes")
    (tmp_path / ".git").mkdir()
    (tmp_path / "empty").mkdir()
    assert store.load(tmp_path) == (
        Evidence(
            "gpu01",
            {"lscpu": Reply(b"x", b"", None), "dmesg": Reply(b"", b"denied", None), "uname": Reply(b"", b"", None)},
        ),
    )


def test_one_hosts_own_folder_is_evidence_of_that_host(tmp_path):
    (tmp_path / "gpu01").mkdir()
    (tmp_path / "gpu01" / "lscpu.txt").write_text("x")
    assert [one.host for one in store.load(tmp_path / "gpu01")] == ["gpu01"]


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "dmesg.txt")
    (tmp_path / "a" / "lscpu.txt").write_text("x")
    assert set(store.load(tmp_path)[0].replies) == {"lscpu"}


def test_a_folder_without_evidence_is_a_usage_error(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError) as caught:
            store.load(folder)
        assert caught.value.where == str(folder)
        assert caught.value.next_step


def test_hosts_are_ordered_as_people_count(tmp_path):
    for name in ("gpu10", "gpu9", "gpu1"):
        store.save(Evidence(name, {"uname": Reply(b"x")}), tmp_path)
    assert [one.host for one in store.load(tmp_path)] == ["gpu1", "gpu9", "gpu10"]


def test_a_visit_is_audited_partial_or_unreachable():
    whole = {probe.name: Reply() for probe in PROBES}
    first = PROBES[0].name
    lacking = {name: reply for name, reply in whole.items() if name != first}
    assert store.visit(Evidence("a", {"ssh": ssh(), **whole})) == store.Visit("a", "audited", 1.5, None)
    assert store.visit(Evidence("a", {"ssh": ssh(), **lacking})).state == "partial"
    assert store.visit(Evidence("a", {"ssh": ssh(error="cut off"), **whole})).error == "cut off"
    gone = store.visit(Evidence("a", {"ssh": ssh(outcome="auth", detail="no key")}))
    assert (gone.state, gone.error) == ("unreachable", "no key")
    assert store.visit(Evidence("a", whole)) == store.Visit("a", "audited", None, None)


@pytest.mark.parametrize("said", [b"", b"[]", b"{", b"[" * 100_000, b'"x"', b"\xff"])
def test_a_record_of_the_connection_that_cannot_be_read_is_no_good_news(said):
    assert store.visit(Evidence("a", {"ssh": Reply(said)})).state == "unreachable"


def test_a_folder_name_cannot_act_on_the_terminal_nor_forge_a_line(tmp_path, capsys):
    from orchestrate import cli

    for name in ("%00%1b[31m%0averdict: pass", "a\x1b[2J", "%C2%9B31m"):
        (tmp_path / "ev" / name).mkdir(parents=True)
        (tmp_path / "ev" / name / "uname.txt").write_text("Linux\n")
        (tmp_path / "ev" / name / "proc-cmdline.txt").write_text("ro quiet\n")
    cli.run(["preflight", "--evidence", str(tmp_path / "ev")])
    shown = capsys.readouterr().out
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []
    assert sum(line.startswith("verdict:") for line in shown.splitlines()) == 1


def test_two_folders_of_one_host_are_refused(tmp_path):
    for name in ("gpu01", "%67pu01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "uname.txt").write_text("Linux\n")
    with pytest.raises(UsageError, match="two folders hold evidence of 'gpu01'"):
        store.load(tmp_path)


def test_a_link_that_leads_nowhere_costs_its_own_reply_alone(tmp_path):
    (tmp_path / "gpu01").mkdir()
    (tmp_path / "gpu01" / "uname.txt").write_text("Linux\n")
    (tmp_path / "gpu01" / "lscpu.txt").symlink_to(tmp_path / "none")
    (tmp_path / "gpu01" / "dmesg.txt").symlink_to("dmesg.txt")
    (tmp_path / "loop").symlink_to("loop")
    (evidence,) = store.load(tmp_path)
    assert set(evidence.replies) == {"uname"}


def test_a_folder_whose_name_is_no_text_is_a_host_in_every_report(tmp_path, capsys):
    from orchestrate import cli

    folder = tmp_path / "ev" / os.fsdecode(b"\xff\xfe")
    folder.mkdir(parents=True)
    (folder / "uname.txt").write_text("Linux\n")
    (evidence,) = store.load(tmp_path / "ev")
    assert evidence.host == r"\xff\xfe"
    store.save(evidence, tmp_path / "copy")
    assert store.load(tmp_path / "copy") == (evidence,)
    for form in ("text", "json", "html", "junit"):
        cli.run(["preflight", "--evidence", str(tmp_path / "ev"), "--format", form])
        assert "xff" in capsys.readouterr().out.encode().decode()
