"""One audit: the evidence of hosts, gathered or saved, judged under what a site chose and expects. Prints nothing."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostsetup import checks, host, profiles, scrub
from hostsetup.model import Evidence, State
from orchestrate import evidence as store
from orchestrate import site
from orchestrate.errors import Refused, UsageError
from orchestrate.inventory import format_hosts
from orchestrate.report.findings import Audit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hostsetup.expect import Expect, Value
    from hostsetup.host import HostFacts


@dataclass(frozen=True, slots=True)
class Choice:
    """Which checks are asked (`only`, `skip`: ids, `*` allowed), what is accepted and expected, and how strictly."""

    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    accept: Mapping[str, str] = field(default_factory=dict)
    site: site.Site = field(default_factory=site.Site)
    strict: bool = False
    baseline: bool = False  # whether what the hosts have is to be saved


def wants_pairs(choice: Choice) -> bool:
    """Return whether a chosen check asks what hosts found when they tried their peers."""
    return any("peers" in checks.needs(check) for check in checks.select(choice.only or None, choice.skip))


DRAWN = frozenset({"pci", "topology"})  # what reports look at beside the findings
KEPT_UP_TO = 64  # hosts of which everything is kept; more hosts share what memory there is


def judge(found: Sequence[Evidence], choice: Choice) -> Audit:
    """Return what the evidence shows. Of many hosts only what is compared or drawn is kept once a host is judged."""
    fleet = {one.host: host.read(one) for one in found}
    visits = [store.visit(one) for one in found]
    del found  # a caller that keeps none either lets a thousand hosts' answers go one by one
    built_in, kept = checks.built_in(), checks.shared_slots() | DRAWN
    facts: dict[str, dict[str, Any]] = {}
    baselines: list[dict[str, Value]] = []

    def expect(one: HostFacts | None) -> Expect:
        return profiles.expect_for(one, built_in).over(choice.site.expect, choice.site.name)

    def judged(name: str) -> None:
        facts[name] = host.flat(fleet[name])
        if choice.baseline:
            baselines.append(checks.baseline(fleet[name]))
        if len(fleet) > KEPT_UP_TO:
            fleet[name].keep(kept)

    accept = {**choice.site.accept, **choice.accept}
    only = choice.only or None
    findings = checks.run(fleet, only=only, skip=choice.skip, accept=accept, expect=expect, on_host=judged)
    verdict = checks.verdict(findings, {visit.name: visit.state for visit in visits}, strict=choice.strict)
    return Audit(verdict, visits, facts, findings, fleet, choice.strict, tuple(baselines))


def load(folder: Path, wanted: Sequence[str] | None) -> tuple[Evidence, ...]:
    """Return the evidence of a folder, or of the wanted hosts in it; of a host that it lacks nothing is known."""
    found = store.load(folder)
    if wanted is None:
        return found
    there = {one.host: one for one in found}
    if not set(wanted) & set(there):
        raise UsageError(
            f"the evidence holds none of {format_hosts(wanted)}; it holds {format_hosts(there)}",
            where=str(folder),
            next_step="leave TARGET out to judge all of it",
        )
    return store.in_order(there.get(name, Evidence(name)) for name in wanted)


def scrubbed(found: Sequence[Evidence], save: Path | None) -> tuple[Evidence, ...]:
    """Return the evidence without what names the site, saved below a folder where one is given."""
    told = store.in_order(scrub.scrub(found, secrets.token_bytes(32)))
    if save is not None:
        for one in told:
            store.save(one, save)
    return told


def save_baseline(audit: Audit, path: Path) -> str:
    """Write what the hosts have in common as what is expected; return a line that says what was written.

    Raise Refused when a check failed or a host was not reached: such hosts are no measure for others.
    """
    bad = sorted({finding.check for finding in audit.findings if finding.state is State.FAIL})
    if bad:
        raise Refused(
            f"no baseline was saved: {', '.join(bad[:5])} failed",
            where=str(path),
            next_step="put it right, leave the host out, or accept it: --accept ID=REASON",
        )
    if away := [visit.name for visit in audit.visits if visit.state == "unreachable"]:
        raise Refused(
            f"no baseline was saved: {format_hosts(away)} was not reached",
            where=str(path),
            next_step="leave out what is not reached: name the others as TARGET",
        )
    told = audit.baselines
    common = {name: value for name, value in told[0].items() if all(one.get(name) == value for one in told)}
    site.save(path, common, tuple(audit.fleet))
    left = sorted({name for one in told for name in one} - set(common))
    tail = f"; not alike, so left out: {', '.join(left)}" if left else ""
    return f"{path}: what {format_hosts(audit.fleet)} has: {len(common)} expectations{tail}"
