"""What is missing of a host's evidence accuses nobody and clears nobody: every answer of recorded machines is taken away."""

from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.model import Evidence, Reply, State
from orchestrate import evidence as store

MACHINES = sorted((Path(__file__).parent.parent / "machines").iterdir())
LOST = Reply(b"", b"", 124)
# what says where the host is, or that a tool is absent, is an answer, and so is a tool that hangs
ANSWERS = {"net.hostname": {"ssh"}, "gpu.responsive": {"*"}}


def states(evidence):
    found = {}
    for finding in checks.run({evidence.host: host.read(evidence)}):
        found.setdefault(finding.check, set()).add(finding.state)
    return found


def gaps(evidence):
    """Give the evidence without one answer, with one that came too late, and cut off after each."""
    names = list(evidence.replies)
    order = [probe.name for probe in host.PROBES if probe.name in evidence.replies]
    others = {name: evidence.replies[name] for name in names if name not in order}
    for name in names:
        yield {name}, {key: reply for key, reply in evidence.replies.items() if key != name}
        yield {name}, {**evidence.replies, name: LOST}
    for at in range(len(order)):
        yield set(order[at:]), others | {name: evidence.replies[name] for name in order[:at]}
        yield set(order[:at]), others | {name: evidence.replies[name] for name in order[at:]}


def machines():
    found = {folder.name: store.load(folder)[0] for folder in MACHINES}
    yield from found.values()
    nic = b"0000:00:05.0 Ethernet controller [0200]: Intel Corporation 82574L [8086:10d3]\n"
    bare = {"lspci-vvv": Reply(nic), "gpu-modules": Reply(b"gpu-modules\n"), "docker-info": Reply(b"", b"", 127)}
    yield Evidence("no-gpu", {**found["epyc-nps4"].replies, **bare})


@pytest.mark.parametrize("evidence", list(machines()), ids=lambda one: one.host)
def test_what_is_missing_of_the_evidence_makes_no_failure_and_hides_none(evidence):
    whole = states(evidence)
    wrong = []
    for lost, replies in gaps(evidence):
        for check, found in states(Evidence(evidence.host, replies)).items():
            if lost & ANSWERS.get(check, set()) or "*" in ANSWERS.get(check, set()):
                continue
            before = whole[check]
            if State.FAIL in found and State.FAIL not in before:
                wrong.append(f"{check} fails without {sorted(lost)[:3]}")
            if State.FAIL in before and not found & {State.FAIL, State.UNKNOWN, State.WARN}:
                wrong.append(f"{check} fails no more without {sorted(lost)[:3]}")
            if before == {State.UNKNOWN} and State.PASS in found and State.UNKNOWN not in found:
                wrong.append(f"{check} passes without {sorted(lost)[:3]}")
    assert wrong == []
