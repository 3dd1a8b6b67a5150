"""The findings of an audit as text for people: worst first, what is long folded. Judges nothing."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import click

from hostsetup.model import State
from orchestrate.report import fold
from orchestrate.report.findings import meaning
from orchestrate.report.screen import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostsetup.model import Finding, Remedy
    from orchestrate.report.findings import Audit
    from orchestrate.report.fold import Card, Entry

MOST_ALIKE = 3  # findings of one check in one state that are told in full
_MOST_COMMANDS = 20
_LONGEST_NAMES = 100
_MOST_SUBJECTS = 4
_MOST_CHECKS = 12
_NARROWEST = 48
_INDENT = 16
_COLOUR = {State.FAIL: "red", State.UNKNOWN: "magenta", State.WARN: "yellow", State.INFO: "cyan", State.PASS: "green"}


def as_text(audit: Audit, *, coloured: bool = False, width: int | None = None, verbose: bool = False) -> str:
    """Return the report: worst first, equal hosts folded, then counts and the verdict.

    Text is wrapped where a width is given. What passed or was skipped is counted, and the fourth finding of a check and
    its followers only named, unless `verbose`.
    """
    writer = _Writer(coloured, None if width is None else max(width, _NARROWEST), verbose)
    lines: list[str] = []
    for card in fold.cards(audit.findings):
        if card.state not in fold.QUIET:
            lines += writer.card(card)
        elif verbose:
            lines += writer.quiet(card)
    if lines and lines[-1]:
        lines.append("")
    if not verbose:
        lines += writer.counted(fold.by_check(audit.findings))
    lines += writer.partial(audit)
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join([*lines, "", counts(audit), f"verdict: {audit.verdict} - {meaning(audit)}"])


class _Writer:
    """How it is written: in colours or not, how wide, all or folded."""

    def __init__(self, coloured: bool, width: int | None, verbose: bool) -> None:
        self.coloured, self.width, self.verbose = coloured, width, verbose

    def card(self, card: Card) -> Iterator[str]:
        if len(card.checks) > 1:
            yield from self.head(card.state, f"{len(card.checks)} checks", card.entries[0])
            yield from self.field("saw", card.entries[0].finding.saw)
            most = len(card.checks) if self.verbose else _MOST_CHECKS
            more = f" and {len(card.checks) - most} more" if len(card.checks) > most else ""
            yield from self.field("checks", ", ".join(card.checks[:most]) + more)
            yield ""
            return
        shown = card.entries if self.verbose else card.entries[:MOST_ALIKE]
        wanted, remedy = "", None
        for entry in shown:
            f = entry.finding
            yield from self.head(card.state, f.check, entry)
            yield from self.field("saw", f.saw)
            if f.wanted and f.wanted != wanted and card.state is not State.INFO:
                yield from self.field("wanted", f.wanted)
            if f.remedy is not None and f.remedy != remedy:
                yield from self.remedy(f.remedy)
            wanted, remedy = f.wanted, f.remedy
        yield from self.rest(card.entries[len(shown) :], shown)
        if card.state is State.INFO:  # worth knowing: nothing to look up at once
            return
        yield from self.field("page", f"orchestrate explain {card.checks[0]}")
        yield ""

    def rest(self, entries: Sequence[Entry], shown: Sequence[Entry]) -> Iterator[str]:
        """Name what is not told in full, and give the commands that were not shown."""
        if not entries:
            return
        hosts = tuple(dict.fromkeys(host for entry in entries for host in entry.hosts))
        subjects = tuple(dict.fromkeys(subject for entry in entries for subject in entry.subjects))
        where = f" at {self.listed(subjects)}" if subjects else ""
        yield from self.field("more", f"{len(entries)} more like these on {self.names(hosts)}{where} (-v shows each)")
        before = {command for entry in shown for command in _commands(entry.finding)}
        commands = dict.fromkeys(c for entry in entries for c in _commands(entry.finding) if c not in before)
        if commands and len(hosts) == 1:  # on several hosts, nothing here says which command is whose
            yield from (f"{' ' * _INDENT}$ {one_line(command)}" for command in list(commands)[:_MOST_COMMANDS])
            if len(commands) > _MOST_COMMANDS:
                yield f"{' ' * _INDENT}... {len(commands) - _MOST_COMMANDS} more commands"

    def head(self, state: State, name: str, entry: Entry) -> Iterator[str]:
        where = self.names(entry.hosts)
        at = self.listed(entry.subjects)
        plain = f"{state:<7} {name}  {where}"
        fits = self.width is None or len(plain) + 2 + len(at) <= self.width
        bold = click.style(name, bold=True) if self.coloured else name
        yield f"{self.word(state, _COLOUR.get(state))} {bold}  {where}{f'  {at}' if at and fits else ''}"
        if at and not fits:
            yield from self.field("at", at)

    def quiet(self, card: Card) -> Iterator[str]:
        for entry in card.entries:
            finding = entry.finding
            subject = f"  {self.listed(entry.subjects)}" if entry.subjects else ""
            head = f"{self.word(card.state, _COLOUR.get(card.state))} {finding.check:<24}"
            yield f"{head}  {self.names(entry.hosts)}{subject}  {one_line(finding.saw)}"

    def counted(self, states: Mapping[str, Mapping[str, State]]) -> Iterator[str]:
        """Count what is quiet: the hosts with equal counts share a line."""
        told = False
        for state in (State.SKIP, State.PASS):
            alike: dict[int, list[str]] = {}
            for host, checks in states.items():
                alike.setdefault(sum(1 for one in checks.values() if one is state), []).append(host)
            for count in sorted((count for count in alike if count), reverse=True):
                told = True
                word = "check" if count == 1 else "checks"
                yield f"{self.word(state, _COLOUR.get(state))} {count} {word}  {self.names(tuple(alike[count]))}"
        if told:
            yield f"{' ' * 8}-v shows what each of them saw"

    def partial(self, audit: Audit) -> Iterator[str]:
        alike: dict[str, list[str]] = {}
        for visit in audit.visits:
            if visit.state == "partial":
                alike.setdefault(visit.error or "", []).append(visit.name)
        for error, hosts in alike.items():
            yield f"{self.word('partial', 'yellow')} {self.names(tuple(hosts))}: {one_line(error)}"

    def remedy(self, remedy: Remedy) -> Iterator[str]:
        yield from self.field("next", remedy.text + needs(remedy))
        yield from (f"{' ' * _INDENT}$ {one_line(command)}" for command in remedy.commands)

    def field(self, name: str, text: str) -> Iterator[str]:
        lines = harmless(text).splitlines() or [""]
        if self.width is not None:
            lines = [part for line in lines for part in _wrap(line, self.width - _INDENT)]
        yield f"{' ' * 8}{name:<7} {lines[0]}"
        yield from (f"{' ' * _INDENT}{line}" for line in lines[1:])

    def names(self, hosts: tuple[str, ...]) -> str:
        text = one_line(fold.names(hosts))
        if len(hosts) == 1:
            return text
        return f"{text if self.verbose else fold.shortened(text, _LONGEST_NAMES)} ({len(hosts)} hosts)"

    def listed(self, subjects: Sequence[str]) -> str:
        most = len(subjects) if self.verbose else _MOST_SUBJECTS
        more = f" and {len(subjects) - most} more" if len(subjects) > most else ""
        return ", ".join(one_line(subject) for subject in subjects[:most]) + more

    def word(self, word: str, colour: str | None) -> str:
        padded = f"{word:<7}"
        return click.style(padded, fg=colour, bold=True) if self.coloured and colour else padded


def _wrap(line: str, width: int) -> list[str]:
    # a word that is too long (a path, an address) stays whole: it is there to be copied
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]


def _commands(finding: Finding) -> tuple[str, ...]:
    return finding.remedy.commands if finding.remedy is not None else ()


def needs(remedy: Remedy) -> str:
    """Return what a remedy asks for, in brackets, or an empty string."""
    asked = {
        "root": remedy.needs_root,
        "a reboot": remedy.needs_reboot,
        "a firmware setting": remedy.needs_firmware,
    }
    told = ", ".join(name for name, needed in asked.items() if needed)
    return f" (needs {told})" if told else ""


def counts(audit: Audit) -> str:
    """Return how many hosts and findings there are, in each state."""
    visits = Counter(visit.state for visit in audit.visits)
    states = Counter(finding.state for finding in audit.findings)
    hosts = ", ".join(f"{visits[state]} {state}" for state in ("audited", "partial", "unreachable") if visits[state])
    found = ", ".join(f"{states[state]} {state}" for state in fold.WORST_FIRST if states[state]) or "none"
    return f"{len(audit.visits)} host{'' if len(audit.visits) == 1 else 's'}: {hosts}; findings: {found}"
