"""Every check has its cases in tests/checks/<check>.toml: evidence in, states out."""

import tomllib
from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.model import Evidence, Reply, State

HERE = Path(__file__).parent
IDS = [check.id for check in checks.catalogue()]
NEEDED = ({"pass"}, {"fail", "warn"}, {"unknown"})
ONLY_UNKNOWN = {"pcie.acs.readable"}  # its worst answer is that nobody can tell


def cases_of(name):
    path = HERE / "checks" / f"{name.replace('.', '_')}.toml"
    return tomllib.loads(path.read_text())["case"] if path.exists() else []


def machine(name):
    folder = HERE / "machines" / name
    replies = {}
    for probe in {path.stem for path in folder.iterdir() if path.suffix in {".txt", ".rc", ".err"}}:
        parts = [folder / f"{probe}.{end}" for end in ("txt", "err", "rc")]
        out, err, rc = (part.read_bytes() if part.exists() else b"" for part in parts)
        replies[probe] = Reply(out, err, int(rc or 0))
    assert replies, f"no machine {name}"
    return replies


def reply(value):
    if isinstance(value, str):
        return Reply(value.encode())
    assert set(value) <= {"out", "err", "rc"}, value
    return Reply(value.get("out", "").encode(), value.get("err", "").encode(), value.get("rc", 0))


def evidence(name, told):
    """`machine` is the base; every other key is a probe's reply, an empty table takes one away."""
    replies = machine(told["machine"]) if "machine" in told else {}
    for probe, value in told.items():
        if probe == "machine":
            continue
        if value == {}:
            del replies[probe]
        else:
            replies[probe] = reply(value)
    return Evidence(name, replies)


CASES = [pytest.param(name, case, id=f"{name}: {case['name']}") for name in IDS for case in cases_of(name)]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_check_says_what_its_case_expects(name, case):
    assert set(case) <= {"name", "hosts", "states", "says", "never", "evidence_lines", "subjects"}, "unknown key"
    fleet = {one: host.read(evidence(one, told)) for one, told in case["hosts"].items()}
    findings = checks.run(fleet, only=[name])
    told = "\n".join(f"{f.saw} {f.subject} {f.remedy.text if f.remedy else ''} {f.hosts}" for f in findings)
    assert sorted({f.state.value for f in findings}) == sorted(case["states"]), told
    for words in case.get("says", []):
        assert words in told
    for words in case.get("never", []):
        assert words not in told
    for line in case.get("evidence_lines", []):
        assert any(line in shown for f in findings for shown in f.evidence)
    if "subjects" in case:
        assert sorted(f.subject for f in findings if f.subject) == sorted(case["subjects"])
    for finding in findings:
        assert finding.check == name
        assert finding.hosts
        assert finding.source.startswith("https://")
        assert "the check itself failed" not in finding.saw
        if finding.state in {State.FAIL, State.WARN}:
            assert finding.wanted
            assert finding.remedy is not None


@pytest.mark.parametrize("name", IDS)
def test_every_check_is_shown_to_pass_to_fail_and_not_to_know(name):
    shown = {state for case in cases_of(name) for state in case["states"]}
    needed = [wanted for wanted in NEEDED if name not in ONLY_UNKNOWN or "fail" not in wanted]
    assert all(shown & wanted for wanted in needed), f"tests/checks/{name.replace('.', '_')}.toml shows only {shown}"


def test_no_case_file_is_left_of_a_check_that_is_gone():
    assert {path.stem for path in (HERE / "checks").iterdir()} == {name.replace(".", "_") for name in IDS}


@pytest.mark.parametrize("folder", sorted(path.name for path in (HERE / "machines").iterdir()))
def test_every_machine_says_what_it_is_and_is_readable(folder):
    about = (HERE / "machines" / folder / "ABOUT.md").read_text()
    assert "Hand-made" in about or "Recorded" in about
    facts = host.read(Evidence(folder, machine(folder)))
    findings = checks.run({folder: facts})
    assert {finding.check for finding in findings} == set(IDS)
    assert not [finding for finding in findings if "the check itself failed" in finding.saw]
    assert host.flat(facts)["cpu"]["sockets"]
