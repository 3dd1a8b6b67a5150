"""One audit, from evidence to verdict: the same for few hosts, of which all is kept, and for many."""

from pathlib import Path

from orchestrate import audit
from orchestrate import evidence as store
from orchestrate.report import formats

MACHINES = Path(__file__).parent.parent / "machines"


def test_what_is_let_go_of_many_hosts_is_missed_by_no_check_and_no_report(monkeypatch):
    found = store.load(MACHINES)
    whole = audit.judge(found, audit.Choice())
    monkeypatch.setattr(audit, "KEPT_UP_TO", 1)
    fewer = audit.judge(found, audit.Choice())
    assert fewer.findings == whole.findings
    for form in formats.FORMATS:
        assert formats.render(fewer, form) == formats.render(whole, form)
