"""`orchestrate launch`: parses what is asked for and hands it on."""

from __future__ import annotations

import os
import re
import signal
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import click

from orchestrate.errors import Exit, UsageError

if TYPE_CHECKING:
    from orchestrate.launch import Request
    from orchestrate.plan import Mount

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(  # TOKENIZERS_PARALLELISM and MAX_TOKENS are none
    r"(TOKEN|SECRETS?|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)(?![A-Z])", re.IGNORECASE
)
_TORCHRUNS = {"-m", "--module", "--no-python", "--no_python"}  # options of torchrun that say what the program is
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(
    "launch",
    context_settings={"ignore_unknown_options": False},
    epilog="""\b
Examples:
  orchestrate launch --nodes 2                          # hosts.txt, or two containers or processes here
  orchestrate launch --nodes 2 --nproc-per-node 8 -- -m trainer --task lm --steps 1000
  orchestrate launch --hosts gpu[01-04] --nodes 4 --mount /srv/code:/code:ro -- /code/train.py --lr 3e-4
  orchestrate launch --nodes 2 --plan                   # show, start nothing
""",
)
@click.option(
    "--hosts",
    "target",
    metavar="TARGET",
    help="hosts file, comma list, or `local`  [default: ./hosts.txt if it exists]",
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="nodes to run on")
@click.option(
    "--nproc-per-node",
    default="auto",
    show_default=True,
    metavar="K|auto",
    help="ranks of each node; auto = slots, else GPUs, else 1",
)
@click.option(
    "--on",
    "on",
    type=click.Choice(["auto", "ssh", "local", "process"]),
    default="auto",
    show_default=True,
    help="ssh = the hosts; local = containers on this machine; process = plain processes here",
)
@click.option(
    "--image", metavar="REF", help="image to run  [default: muster:cuda where there are GPUs, else muster:cpu]"
)
@click.option("--preset", default="default", show_default=True, metavar="NAME", help="NCCL preset of the image")
@click.option(
    "--env", "env", multiple=True, metavar="K[=V]", help="set a variable, or pass this shell's on; repeatable"
)
@click.option(
    "--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", help="bind-mount a folder of every host; repeatable"
)
@click.option(
    "--master-port", type=click.IntRange(1, 65535), metavar="PORT", help="port on the master  [default: a free one]"
)
@click.option("--plan", "plan_only", is_flag=True, help="print the plan and start nothing")
@click.option(
    "-d", "--detach", is_flag=True, help="start and leave; `logs`, `status` and `stop` find the run on its hosts"
)
@click.option("--name", metavar="NAME", help="name of the run  [default: made from the time]")
@click.option("--json", "as_json", is_flag=True, help="events as JSON, one a line, on standard output")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def launch(**asked: Any) -> int:
    """Run a program under torchrun on N nodes: all of them start, or none.

    PROGRAM is what follows torchrun: `script.py args`, or `-m module args`; the default is `-m trainer`. Put `--` before it.
    Ctrl-C stops every node and leaves nothing behind.
    """
    from orchestrate.launch import Prepared, execute
    from orchestrate.report.launch import Events, Lines
    from orchestrate.runs import RunFolder

    request = _request(**asked)
    if not asked["plan_only"]:
        RunFolder(request.run).refuse_taken()
    view = Events(request.run) if asked["as_json"] else Lines()
    # a shell may have set any of them to ignored
    before = {number: signal.signal(number, _interrupt) for number in _ENDING}
    try:
        with Prepared(request) as prepared:
            view.plan(prepared.plan)
            if asked["plan_only"]:
                return int(Exit.YES)
            outcome = execute(prepared, view, detach=asked["detach"])
            if outcome is None:
                view.phase("detached", f"`orchestrate logs {request.run} -f`, `status`, `stop {request.run}` find it")
                return int(Exit.YES)
    finally:
        view.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return outcome.exit_code


def _interrupt(_number: int, _frame: object) -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of the run behind
    raise KeyboardInterrupt


def _request(
    *,
    target: str | None,
    nodes: int,
    nproc_per_node: str,
    on: str,
    image: str | None,
    preset: str,
    env: tuple[str, ...],
    mounts: tuple[str, ...],
    master_port: int | None,
    detach: bool,
    name: str | None,
    program: tuple[str, ...],
    **_: Any,
) -> Request:
    from orchestrate import plan, runs
    from orchestrate.inventory import read_target
    from orchestrate.launch import Request

    place = on if on != "auto" else _place(target)
    if place != "ssh" and target not in {None, "local"}:
        raise UsageError(
            f"--on {place} runs on this machine: hosts have no part in it",
            where="--hosts",
            next_step="leave one of the two out",
        )
    hosts = read_target(target) if place == "ssh" else ()
    if any(host.local for host in hosts):
        raise UsageError(
            "`local` is this machine, not a host behind SSH",
            where="--hosts",
            next_step="use --on local or --on process",
        )
    if detach and place == "process":
        raise UsageError(
            "plain processes end with this program: they cannot be detached",
            where="--detach",
            next_step="use --on local or --on ssh",
        )
    _refuse_options(program)
    if place != "process" and any(re.search("[\ud800-\udfff]", text) for text in (*program, *env)):
        raise UsageError(
            "an argument or variable is not UTF-8, and the Docker Engine would change it",
            where="PROGRAM",
            next_step="use names in UTF-8, or --on process",
        )
    return Request(
        run=runs.checked_name(name) if name is not None else runs.new_name(),
        on=place,
        nodes=nodes,
        hosts=hosts,
        nproc=_nproc(nproc_per_node),
        program=program or plan.DEFAULT_PROGRAM,
        image=image or "",
        preset=_preset(preset),
        environment=_environment(env),
        mounts=tuple(_mount(m) for m in mounts),
        port=master_port,
    )


def _refuse_options(program: tuple[str, ...]) -> None:
    """Refuse what would change the plan: torchrun would read options before the program as its own."""
    if program and program[0].startswith("-") and program[0] not in _TORCHRUNS:
        raise UsageError(
            f"{program[0]!r} would be an option of torchrun, and the plan decides these",
            where="PROGRAM",
            next_step="begin with a script, or with -m MODULE; --nodes and --nproc-per-node stand before --",
        )
    if program and program[0] in _TORCHRUNS and len(program) == 1:
        raise UsageError(f"{program[0]} names no program", where="PROGRAM", next_step="write -m MODULE ARGUMENTS")


def _place(target: str | None) -> str:
    """Return where `auto` runs: the hosts where there are any, else this machine's engine, else plain processes."""
    from pathlib import Path

    from orchestrate import engine
    from orchestrate.errors import OperatorError

    if target not in {None, "local"} or (target is None and Path("hosts.txt").is_file()):
        return "ssh"
    try:
        engine.local(timeout_s=5).close()
    except OperatorError:
        return "process"
    return "local"


def _preset(name: str) -> str:
    """Return the name of a preset that the image has; it is built from this same tree."""
    known = sorted(
        p.name.removesuffix(".env") for p in (files("trainer") / "presets").iterdir() if p.name.endswith(".env")
    )
    if name not in known:
        raise UsageError(f"there is no preset {name!r}", where="--preset", next_step=f"use one of: {', '.join(known)}")
    return name


def _nproc(text: str) -> int | None:
    if text == "auto":
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise UsageError(
            f"{text!r} is neither `auto` nor a number of ranks",
            where="--nproc-per-node",
            next_step="write auto, or a number from 1",
        )
    return int(text)


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, given, value = pair.partition("=")
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"{key!r} cannot name a variable",
                where="--env",
                next_step="write KEY=VALUE, or KEY to pass this shell's on",
            )
        if not given and key not in os.environ:
            raise UsageError(
                f"{key} is not set in this shell",
                where="--env",
                next_step=f"write --env {key}=VALUE, or export it first",
            )
        if _SECRET.search(key):
            raise UsageError(
                f"{key} looks like a secret: the value would be in the plan, the manifest and `docker inspect`",
                where="--env",
                next_step="mount a file that holds it (--mount FILE:/run/secrets/NAME:ro) and read it in the program",
            )
        found[key] = value if given else os.environ[key]
    return found


def _mount(text: str) -> Mount:
    from orchestrate.plan import OUT_DIR, Mount

    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not (source.startswith("/") and target.startswith("/")) or mode not in {"", "ro", "rw"}:
        raise UsageError(
            f"{text!r} is not SRC:DST[:ro] with two absolute paths",
            where="--mount",
            next_step="write --mount /on/every/host:/in/the/container:ro",
        )
    if target.rstrip("/") in {"", OUT_DIR}:
        raise UsageError(
            f"{target} inside the container is not free", where="--mount", next_step="mount to another path"
        )
    return Mount("bind", source, target, mode == "ro")
