"""Every check has its cases in tests/checks/<check>.toml: evidence in, states out."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.model import Evidence, Reply, State

HERE = Path(__file__).parent
IDS = [check.id for check in checks.catalogue()]


def told_of(name):
    path = HERE / "checks" / f"{name.replace('.', '_')}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def cases_of(name):
    return told_of(name).get("case", [])


def needed(name):
    """A check is shown to pass, to fail or warn, and not to know; one with a milder worst answer says so: `worst`."""
    worst = told_of(name).get("worst", "fail")
    assert worst in {"fail", "info", "unknown"}
    return ({"pass", "info"}, {"unknown"}, *({"fail": [{"fail", "warn"}], "info": [{"info"}]}.get(worst, [])))


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


def wants(values):
    known = {key: want for check in checks.catalogue() for key, want in check.expects.items()}
    return {key: known[key].read(value) for key, value in values.items()}


AS_ROOT = re.compile(
    r"(usermod|hostnamectl|loginctl|u?mount|modprobe|setpci|dkms|apt-mark|firewall-cmd|swapoff|dmidecode|grubby|kernelstub"
    r"|visudo|cpupower|tee|rm|sysctl -w|ip link set|timedatectl set-\w+|nvidia-ctk|systemctl (start|stop|restart|enable|disable)"
    r"|nvidia-smi (-i \d+ )?-(-gpu-reset|pm|pl|c|e|mig|rac|rgc)|dmesg|mlx\w+|perfquery|sminfo|fuser)\b"
)
UNSAFE = re.compile(r"[`<]|\$\(|(^|sudo |systemctl )reboot|>(?!/dev/null)")


def is_safe_to_paste(remedy):
    """What needs root says so, with `sudo` and the flag; nothing reboots, expands a command or writes by redirection."""
    assert not remedy.needs_reboot or remedy.needs_root or remedy.needs_firmware
    for command in remedy.commands:
        assert shlex.split(command)
        bare = re.sub(r"'[^']*'", "''", command)
        assert not UNSAFE.search(bare), command
        for part in map(str.strip, re.split(r"[|;&]+", bare)):
            assert not AS_ROOT.match(part), command
            assert not part.startswith("sudo ") or remedy.needs_root, command


CASES = [pytest.param(name, case, id=f"{name}: {case['name']}") for name in IDS for case in cases_of(name)]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_check_says_what_its_case_expects(name, case):
    assert set(case) <= {"name", "hosts", "states", "says", "never", "evidence_lines", "subjects", "expect"}, (
        "unknown key"
    )
    fleet = {one: host.read(evidence(one, told)) for one, told in case["hosts"].items()}
    wanted = checks.built_in().over(wants(case.get("expect", {})), "site.toml")
    findings = checks.run(fleet, only=[name], expect=lambda _: wanted)
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
        if finding.remedy is not None:
            is_safe_to_paste(finding.remedy)


@pytest.mark.parametrize("name", IDS)
def test_every_check_is_shown_to_pass_to_fail_and_not_to_know(name):
    shown = {state for case in cases_of(name) for state in case["states"]}
    assert all(shown & wanted for wanted in needed(name)), (
        f"tests/checks/{name.replace('.', '_')}.toml shows only {shown}"
    )


@pytest.mark.parametrize("name", IDS)
def test_what_can_be_expected_of_a_check_begins_with_its_id_and_fits_its_kind(name):
    (check,) = checks.select([name])
    for key, want in check.expects.items():
        assert key == name or key.startswith(f"{name}.")
        assert want.means
        assert want.default is None or want.read(want.default) == want.default


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
