"""The verb `preflight`: audits hosts, or evidence of them, and reports. Changes nothing on any host."""

from __future__ import annotations

import difflib
import math
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostsetup import checks
from orchestrate import audit as audits
from orchestrate import evidence as store
from orchestrate import site
from orchestrate.commands.explain import ids
from orchestrate.errors import UsageError
from orchestrate.files import obstacle
from orchestrate.inventory import read_target
from orchestrate.report import formats, progress, screen

if TYPE_CHECKING:
    from hostsetup.model import Evidence
    from orchestrate.inventory import Host

_EPILOG = """\b
TARGET is a hosts file (one host a line), a comma list (gpu01,gpu[02-08]) or
`local`; without it ./hosts.txt is read.

\b
Examples:
  orchestrate preflight hosts.txt
  orchestrate preflight gpu[01-08] --save before/      keep the raw answers
  orchestrate preflight --evidence before/ --json      judge them again, no network
  orchestrate preflight hosts.txt --active             load tests as well, in containers
  orchestrate preflight --skip 'numa.*' --accept net.hostname='names come later'

\b
Exit codes: 0 nothing wrong, 1 a check failed, 2 usage, 3 cannot tell.
"""


def _list(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


def _reasons(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, reason in pairs:
        if not (name.strip() and equals and reason.strip()):
            raise click.BadParameter(f"{name + equals + reason!r} is not ID=REASON; a reason is needed")
    return {name.strip(): reason.strip() for name, _, reason in pairs}


class _Named(click.Path):
    """A path that is no empty word: a variable that is not set must not mean the folder where somebody stands."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


@click.command(epilog=_EPILOG)
@click.argument("target", required=False)
@click.option(
    "--evidence", type=_Named(file_okay=False, path_type=Path), help="Judge saved evidence; touch no network."
)
@click.option("--save", type=_Named(file_okay=False, path_type=Path), help="Keep the raw answers: DIR/HOST/PROBE.txt.")
@click.option(
    "--scrub", is_flag=True, help="Replace names, addresses, UUIDs and serials, in what is saved and reported."
)
@click.option(
    "--only",
    multiple=True,
    metavar="ID[,ID]",
    callback=_list,
    shell_complete=ids,
    help="Judge these checks only; * is allowed.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="ID[,ID]",
    callback=_list,
    shell_complete=ids,
    help="Leave these checks out; * is allowed.",
)
@click.option(
    "--accept",
    multiple=True,
    metavar="ID=REASON",
    callback=_reasons,
    shell_complete=ids,
    help="Report these, but do not fail.",
)
@click.option(
    "--baseline",
    type=_Named(dir_okay=False, path_type=Path),
    help="What this site expects and accepts: a file that --save-baseline wrote, or was edited.",
)
@click.option(
    "--save-baseline",
    type=_Named(dir_okay=False, path_type=Path),
    help="Write what these hosts have in common as what is expected; refused when a check fails.",
)
@click.option(
    "--active", is_flag=True, help="Then put load on the hosts: copies and collectives in the trainer's image."
)
@click.option(
    "--image", metavar="REF", help="With --active: the image  [default: muster:cuda, muster:cpu without GPUs]"
)
@click.option("--busy-gpus", is_flag=True, help="With --active: test GPUs that other processes use, too.")
@click.option(
    "--pairs/--no-pairs", default=True, show_default=True, help="Let hosts try each other: ports, packets, names."
)
@click.option("--strict", is_flag=True, help="Warnings fail as well.")
@click.option("--format", "form", type=click.Choice(formats.FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", type=_Named(dir_okay=False, path_type=Path), help="Write the report to a file.")
@click.option("-v", "--verbose", is_flag=True, help="Text tells what passed or was skipped, too, and folds no list.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3600),
    default=90,
    show_default=True,
    help="Seconds for each host, and again for its way to its peers.",
)
def preflight(
    target: str | None,
    evidence: Path | None,
    save: Path | None,
    scrub: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    accept: dict[str, str],
    baseline: Path | None,
    save_baseline: Path | None,
    pairs: bool,
    active: bool,
    image: str | None,
    busy_gpus: bool,
    strict: bool,
    form: str,
    as_json: bool,
    output: Path | None,
    verbose: bool,
    timeout_s: float,
) -> int:
    """Audit every host of TARGET and report what is wrong; change nothing."""
    if evidence is not None and save is not None and not scrub:
        raise UsageError(
            "--save keeps what a live audit was told, and --evidence asks nobody",
            where="orchestrate preflight",
            next_step="leave one of them out, or add --scrub: that saves a copy without names",
        )
    if (active and evidence is not None) or ((image or busy_gpus) and not active):
        raise UsageError(
            "saved evidence cannot be put under load" if active else "only load tests use an image or GPUs",
            where="orchestrate preflight",
            next_step="leave --active out: what it measured is judged with the rest" if active else "add --active",
        )
    if math.isnan(timeout_s):
        raise UsageError(
            "--timeout nan is no time", where="orchestrate preflight", next_step="give seconds: --timeout 90"
        )
    if as_json and form not in {"text", "json"}:
        raise UsageError(
            f"--json is --format json, and --format {form} is not",
            where="orchestrate preflight",
            next_step="leave one of them out",
        )
    for pattern in (*only, *skip, *accept):
        _exists(pattern)
    if not checks.select(only or None, skip):
        raise UsageError(
            "no check is left of which anything could be told",
            where="orchestrate preflight",
            next_step="--skip takes away all that --only chose",
        )
    _can_be_written(output, save_baseline, save, scrub=scrub)
    choice = audits.Choice(
        only, skip, accept, site.load(baseline) if baseline else site.Site(), strict, save_baseline is not None
    )

    def gather() -> tuple[Evidence, ...]:
        if evidence is not None:
            found = audits.load(evidence, [one.name for one in read_target(target)] if target is not None else None)
        else:
            keep = None if scrub else save  # what may not be kept as it is, is kept when all of it is known
            hosts = read_target(target)  # once: it may be a pipe
            found = _live(hosts, keep, timeout_s, named=not scrub)
            found = _in_pairs(hosts, found, keep, choice, timeout_s) if pairs and audits.wants_pairs(choice) else found
            found = _under_load(hosts, found, keep, image or "", busy_gpus=busy_gpus) if active else found
        return audits.scrubbed(found, save) if scrub else found

    audit = audits.judge(gather(), choice)
    screen.out(formats.render(audit, "json" if as_json else form, verbose=verbose, to_file=output is not None), output)
    if save_baseline is not None:
        progress.say(audits.save_baseline(audit, save_baseline))
    return checks.EXIT_CODES[audit.verdict]  # type: ignore[index]


def _live(hosts: tuple[Host, ...], save: Path | None, timeout_s: float, *, named: bool) -> tuple[Evidence, ...]:
    """Ask every host; `named`: say at once, and with its name, which one was not reached."""
    from orchestrate.collect import collect

    with progress.awaiting([one.name for one in hosts]) as done:

        def keep(one: Evidence) -> None:
            if save is not None:
                store.save(one, save)
            visit = store.visit(one)
            done(one.host, f"{visit.state}: {visit.error}" if named and visit.state != "audited" else "")

        return store.in_order(collect(hosts, timeout_s=timeout_s, on_evidence=keep))


def _in_pairs(
    hosts: tuple[Host, ...], found: tuple[Evidence, ...], save: Path | None, choice: audits.Choice, timeout_s: float
) -> tuple[Evidence, ...]:
    from orchestrate.pairs import try_pairs

    trust = choice.site.expect.get("ssh.peer_trust.needed") is True
    with progress.awaiting([one.host for one in found], "done with their peers") as done:
        tried = try_pairs(hosts, found, timeout_s=timeout_s, trust=trust, on_host=done)
    for before, after in zip(found, tried, strict=True):
        if save is not None and after is not before:
            store.save(after, save)
    return tried


def _under_load(
    hosts: tuple[Host, ...], found: tuple[Evidence, ...], save: Path | None, image: str, *, busy_gpus: bool
) -> tuple[Evidence, ...]:
    from orchestrate.active import measure

    progress.say("passive audit done; load tests begin: they use the GPUs, the processors and the network of the hosts")
    with progress.awaiting([one.host for one in found]) as done:
        found = measure(hosts, found, image=image, busy_gpus=busy_gpus, done=done)
    if save is not None:
        for one in found:
            store.save(one, save)
    return found


def _can_be_written(output: Path | None, baseline: Path | None, save: Path | None, *, scrub: bool) -> None:
    """Refuse, before anybody is asked, what could not be written once all is known."""
    report, site_file, kept = (
        ("the report", "-o FILE"),
        ("the baseline", "--save-baseline FILE"),
        ("the evidence", "--save DIR"),
    )
    for (what, option), path in ((report, output), (site_file, baseline), (kept, save)):
        if path is not None and str(path) != "-" and (why := obstacle(path, folder=path is save)):
            raise UsageError(f"cannot write {what}: {why}", where=str(path), next_step=f"choose another {option}")
    if baseline is not None and baseline.exists() and baseline.stat().st_size:
        raise UsageError(
            "the file exists already: what somebody wrote into it would be lost",
            where=str(baseline),
            next_step="choose another --save-baseline FILE, or remove this one",
        )
    if scrub and save is not None and save.is_dir() and any(save.iterdir()):
        raise UsageError(
            "what lies in the folder already would be passed on with what is scrubbed",
            where=str(save),
            next_step="choose a new or an empty folder with --save DIR",
        )


def _exists(pattern: str) -> None:
    ids = [check.id for check in checks.catalogue()]
    if not any(fnmatchcase(name, pattern) for name in ids):
        close = difflib.get_close_matches(pattern, ids, n=3, cutoff=0.5)
        raise UsageError(
            f"there is no check {pattern!r}",
            where="orchestrate preflight",
            next_step=f"did you mean {' or '.join(close)}?" if close else "orchestrate explain lists the checks",
        )
