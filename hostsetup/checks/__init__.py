"""The catalogue of host checks, and the runner that asks each of them of each host.

The runner alone says `unknown` of a fact that is not known and `skip` of a check that does not apply; a check never sees
a gap.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from hostsetup.expect import Expect
from hostsetup.model import Finding, Known, State, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from hostsetup.expect import Value, Want
    from hostsetup.host import HostFacts

Verdict: TypeAlias = Literal["pass", "fail", "incomplete"]
EXIT_CODES: Mapping[Verdict, int] = {"pass": 0, "fail": 1, "incomplete": 3}

REACHABLE = "ssh.reachable"
_NO_SLOTS = frozenset({"expect", "everyone"})  # what a judge may ask for beside slots


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its id, the sentence that is true when it fails, its page, and its rules.

    `judge` looks at one host, `judge_fleet` at all hosts where its slot is known; `skip` returns why the check does not
    apply to a host, or an empty string. Parameters are names of HostFacts slots; one with a default may be unknown.
    `judge_fleet` gets each slot as a mapping of host to value: of the hosts where all slots without a default are known.
    A parameter `expect` is what is expected of the host (of the fleet: by the site), `everyone` the names of all hosts,
    those of which too little is known among them. `expects`: what can be expected, by
    a name that begins with the check's id. `baseline` returns what a good host has, under these names.
    """

    id: str
    title: str
    page: str
    source: str
    judge: Callable[..., Iterable[Finding]] | None = None
    judge_fleet: Callable[..., Iterable[Finding]] | None = None
    skip: Callable[..., str] | None = None
    expects: Mapping[str, Want] = field(default_factory=dict)
    baseline: Callable[..., Mapping[str, Value]] | None = None


@cache
def catalogue() -> tuple[Check, ...]:
    """Return every check, by id: the modules of this folder."""
    found = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return tuple(sorted(map(_check, found), key=lambda check: check.id))


def _check(module: ModuleType) -> Check:
    page = inspect.getdoc(module) or ""
    return Check(
        id=module.ID,
        title=page.partition("\n")[0],
        page=page,
        source=module.SOURCE,
        judge=getattr(module, "judge", None),
        judge_fleet=getattr(module, "judge_fleet", None),
        skip=getattr(module, "skip", None),
        expects=getattr(module, "EXPECTS", {}),
        baseline=getattr(module, "baseline", None),
    )


def page(check: Check) -> str:
    """Return the page of a check as plain text."""
    title, _, body = check.page.partition("\n")
    told = "".join(f"    {name}: {want.means}{_default(want)}\n" for name, want in check.expects.items())
    expected = f"\nWhat can be expected (--baseline FILE)\n{told}" if told else ""
    return f"{check.id}\n{'=' * len(check.id)}\n\n{title}\n{body}\n{expected}"


def _default(want: Want) -> str:
    default = want.default
    if default is None:
        return ""
    return f"; {', '.join(map(str, default)) if isinstance(default, tuple) else default} unless told otherwise"


def select(only: Sequence[str] | None = None, skip: Sequence[str] | None = None) -> tuple[Check, ...]:
    """Return the checks whose id matches one of `only` (None: all) and none of `skip`; `*` stands for any letters.

    Raises ValueError when a pattern matches no check.
    """
    ids = [check.id for check in catalogue()]
    for pattern in (*(only or ()), *(skip or ())):
        if not any(fnmatchcase(name, pattern) for name in ids):
            raise ValueError(f"no check is called {pattern!r}; `orchestrate explain` lists them")
    return tuple(
        check
        for check in catalogue()
        if (only is None or _matches(check.id, only)) and not _matches(check.id, skip or ())
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def needs(check: Check) -> frozenset[str]:
    """Return the slots that a check asks for."""
    return frozenset(name for judge in (check.judge, check.judge_fleet) if judge for name, _ in _parameters(judge))


def wants() -> Mapping[str, Want]:
    """Return all that can be expected of a host, by name."""
    return {name: want for check in catalogue() for name, want in check.expects.items()}


def built_in() -> Expect:
    """Return what the checks expect where nobody says otherwise."""
    return Expect({name: want.default for name, want in wants().items() if want.default is not None})


def baseline(facts: HostFacts) -> dict[str, Value]:
    """Return what a host has of all that can be expected, as far as it is known; for a host that is known to be good."""
    told: dict[str, Value] = {}
    for check in catalogue():
        if check.baseline is None or isinstance(known := _known(check.baseline, facts, Expect()), Finding):
            continue
        try:
            told |= {name: check.expects[name].read(value) for name, value in check.baseline(**known).items()}
        except Exception:  # noqa: BLE001, S112 - what one check cannot tell of a host is left out, and the rest is told
            continue
    return told


def run(
    fleet: Mapping[str, HostFacts],
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    accept: Mapping[str, str] | None = None,
    expect: Callable[[HostFacts | None], Expect] | None = None,
    on_host: Callable[[str], None] = lambda _: None,
) -> tuple[Finding, ...]:
    """Return what every chosen check says of every host and of the fleet.

    `accept` maps ids (or patterns) to reasons: failures and warnings of these checks become `info` and say so. `expect`
    returns what is expected of a host, and for None of the fleet; without it what is built in. `on_host` is called with
    each host that is judged by itself: afterwards only the slots in `shared_slots` are asked for. Raises ValueError when
    a pattern of `only`, `skip` or `accept` matches no check.
    """
    accepted = accept or {}
    select(tuple(accepted))
    chosen = select(only, skip)
    found: dict[str, list[Finding]] = {check.id: [] for check in chosen}
    wanted = built_in()
    for host, facts in fleet.items():
        of_host = expect(facts) if expect else wanted
        for check in chosen:
            told = _on_host(check, facts, of_host, len(fleet))
            found[check.id] += (_filled(finding, check, (host,)) for finding in told)
        on_host(host)
    of_fleet = expect(None) if expect else wanted
    for check in chosen:
        if check.judge_fleet is not None:
            found[check.id] += (_filled(one, check, tuple(fleet)) for one in _on_fleet(check, fleet, of_fleet))
    return tuple(_accepted(finding, accepted) for findings in found.values() for finding in findings)


def shared_slots() -> frozenset[str]:
    """Return the slots that are compared between hosts, or decide whether they are."""
    rules = [rule for check in catalogue() if check.judge_fleet for rule in (check.judge_fleet, check.skip) if rule]
    return frozenset({"access", *(name for rule in rules for name, _ in _parameters(rule))}) - _NO_SLOTS


def _on_host(check: Check, facts: HostFacts, expect: Expect, hosts: int) -> Iterator[Finding]:
    if check.id != REACHABLE and (check.judge is not None or hosts > 1) and _out_of_reach(facts):
        yield Finding(State.UNKNOWN, saw=_why(facts, Unknown("")))
        return
    reason = _spared(check, facts, expect)
    if reason:
        yield Finding(State.SKIP, saw=reason)
    elif check.judge is not None:
        yield from _judged(check.judge, facts, expect)
    elif hosts > 1 and check.judge_fleet is not None:
        # on the fleet only what is missing is said of a single host
        gap = _known(check.judge_fleet, facts, expect)
        if isinstance(gap, Finding):
            yield gap


def _spared(check: Check, facts: HostFacts, expect: Expect) -> str:
    if check.skip is None:
        return ""
    known = _known(check.skip, facts, expect)
    if isinstance(known, Finding):
        return ""
    try:
        return check.skip(**known)
    except Exception:  # noqa: BLE001 - hostile data; the judge will meet it, too, and say so
        return ""


def _judged(judge: Callable[..., Iterable[Finding]], facts: HostFacts, expect: Expect) -> tuple[Finding, ...]:
    known = _known(judge, facts, expect)
    if isinstance(known, Finding):
        return (known,)
    return _guarded(judge, known) or (Finding(State.UNKNOWN, saw="the check came to no conclusion"),)


def _guarded(judge: Callable[..., Iterable[Finding]], arguments: Mapping[str, object]) -> tuple[Finding, ...]:
    try:
        return tuple(judge(**arguments))
    except Exception as error:  # noqa: BLE001 - one check that trips over one host must not end the audit
        return (Finding(State.UNKNOWN, saw=f"the check itself failed: {type(error).__name__}: {error}"[:300]),)


@cache
def _parameters(judge: Callable[..., object]) -> tuple[tuple[str, bool], ...]:
    """Return the names of what a judge asks for; True: it can do without."""
    parameters = inspect.signature(judge).parameters.values()
    return tuple((one.name, one.default is not inspect.Parameter.empty) for one in parameters)


def _known(judge: Callable[..., object], facts: HostFacts, expect: Expect) -> dict[str, object] | Finding:
    values: dict[str, object] = {}
    for name, optional in _parameters(judge):
        if name == "everyone":
            continue
        if name == "expect":
            values[name] = expect
            continue
        slot = getattr(facts, name)
        if isinstance(slot, Known):
            values[name] = slot.value
        elif not optional:
            return Finding(State.UNKNOWN, saw=_why(facts, slot))
    return values


def _out_of_reach(facts: HostFacts) -> bool:
    access = facts.access
    return isinstance(access, Known) and access.value.failed


def _why(facts: HostFacts, slot: Unknown) -> str:
    return f"the host was not reached ({facts.access.value.outcome})" if _out_of_reach(facts) else slot.reason  # type: ignore[union-attr]


def _on_fleet(check: Check, fleet: Mapping[str, HostFacts], expect: Expect) -> tuple[Finding, ...]:
    judge = check.judge_fleet
    if judge is None:
        return ()
    if len(fleet) < 2:
        return () if check.judge is not None else (Finding(State.SKIP, saw="one host: there is nothing to compare"),)
    known = {
        host: values
        for host, facts in fleet.items()
        if not _out_of_reach(facts)
        and not _spared(check, facts, expect)
        and not isinstance(values := _known(judge, facts, expect), Finding)
    }
    if len(known) < 2:
        return ()  # the single hosts say why
    arguments: dict[str, object] = {
        name: {host: values[name] for host, values in known.items() if name in values}
        for name, _ in _parameters(judge)
        if name not in _NO_SLOTS
    }
    given = {"expect": expect, "everyone": tuple(fleet)}
    arguments |= {name: given[name] for name, _ in _parameters(judge) if name in _NO_SLOTS}
    findings = _guarded(judge, arguments)
    if not findings and check.judge is None:  # where each host is judged, too, the fleet's part may stay silent
        findings = (Finding(State.UNKNOWN, saw="the check came to no conclusion"),)
    return tuple(
        replace(
            finding, scope="cluster" if finding.scope == "host" else finding.scope, hosts=finding.hosts or tuple(known)
        )
        for finding in findings
    )


def _filled(finding: Finding, check: Check, hosts: tuple[str, ...]) -> Finding:
    # dataclasses.replace costs ten times as much, and this is done for every finding of a thousand hosts
    f = finding
    told = (f.state, f.saw, f.wanted, f.subject, f.remedy, f.evidence)
    return Finding(*told, check.id, f.scope, f.hosts or hosts, f.source or check.source)


def _accepted(finding: Finding, accepted: Mapping[str, str]) -> Finding:
    reason = next((why for pattern, why in accepted.items() if fnmatchcase(finding.check, pattern)), None)
    if reason is None or finding.state not in {State.FAIL, State.WARN}:
        return finding
    return replace(finding, state=State.INFO, saw=f"{finding.saw} (accepted, was {finding.state}: {reason})")


def verdict(
    findings: Iterable[Finding], host_states: Mapping[str, str] | None = None, *, strict: bool = False
) -> Verdict:
    """Return `fail`, `incomplete` or `pass`; a failure outranks a gap.

    `host_states`: `audited`, `unreachable` or `partial` by host. A host out of reach leaves the audit incomplete: it is
    not known to be bad. `strict` counts warnings as failures.
    """
    bad = {State.FAIL, State.WARN} if strict else {State.FAIL}
    states = [(f.state, f.check) for f in findings]
    if any(state in bad and check != REACHABLE for state, check in states):
        return "fail"
    gap = any(state is State.UNKNOWN or (state is State.FAIL and check == REACHABLE) for state, check in states)
    if gap or any(state != "audited" for state in (host_states or {}).values()):
        return "incomplete"
    return "pass"
