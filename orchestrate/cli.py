"""The command line: a table of verbs, loaded on use, and what every verb shares. Does no verb's work."""

from __future__ import annotations

import difflib
import errno
import getpass
import os
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from orchestrate.errors import Exit, OperatorError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "orchestrate"

EPILOG = """\b
Examples:
  orchestrate preflight hosts.txt              audit every host, change nothing
  orchestrate preflight local --json           this machine, for programs
  orchestrate explain pcie.acs.redirect        what a check looks at, and why
  orchestrate launch --hosts hosts.txt --nodes 2 -- -m trainer --task lm --steps 1000

\b
Exit codes: 0 yes, 1 no, 2 usage, 3 cannot tell, 130 interrupted.
"""


class Verb(NamedTuple):
    """Where a verb's command lies (`module:name`), and its line of help; the module is loaded when the verb is used."""

    place: str
    help: str
    hidden: bool = False


VERBS = {
    "preflight": Verb("orchestrate.commands.preflight:preflight", "Audit every host; change nothing."),
    "explain": Verb("orchestrate.commands.explain:explain", "The page of a check, or the catalogue."),
    "build": Verb("orchestrate.commands.build:build", "Build the image that every host will run."),
    "launch": Verb("orchestrate.commands.launch:launch", "Run a training program on the hosts."),
    "status": Verb("orchestrate.commands.status:status", "Show the runs that the hosts know of."),
    "logs": Verb("orchestrate.commands.logs:logs", "Show a run's output, by node and rank."),
    "stop": Verb("orchestrate.commands.stop:stop", "Stop a run on all its hosts."),
    "demo": Verb("orchestrate.commands.demo:demo", "Audit this machine and train on two nodes of it.", hidden=True),
    "completion": Verb("orchestrate.commands.completion:completion", "Print the completion script of a shell."),
}


class Verbs(click.Group):
    """The group of all verbs: it lists them from the table and loads the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - Click's signature
        """Return every verb, hidden ones included, in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:  # noqa: ARG002 - the same
        """Load the verb's module; a module that cannot be loaded is a bug, and is not hidden."""
        if cmd_name not in VERBS:
            close = difflib.get_close_matches(cmd_name, VERBS, n=1)
            hint = f"did you mean {PROGRAM} {close[0]}?" if close else f"see {PROGRAM} --help"
            raise UsageError(f"there is no verb {cmd_name!r}", where=PROGRAM, next_step=hint)
        module, _, name = VERBS[cmd_name].place.partition(":")
        command = getattr(import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{VERBS[cmd_name].place} is no Click command")
        command.hidden = VERBS[cmd_name].hidden
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the same
        """List the verbs without loading any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items() if not verb.hidden])


@click.group(
    name=PROGRAM,
    cls=Verbs,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--ssh-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this instead of ~/.ssh/config (or set MUSTER_SSH_CONFIG).",
)
@click.version_option(metadata.version("muster"), "-V", "--version", prog_name=PROGRAM)
@click.pass_context
def cli(ctx: click.Context, ssh_config: Path | None) -> int:
    """Reproducible multi-GPU, multi-node PyTorch training on the machines you already have: SSH, Docker, one command."""
    if ssh_config is not None:
        os.environ["MUSTER_SSH_CONFIG"] = str(ssh_config.absolute())
    if ctx.invoked_subcommand is None:
        from orchestrate.report import errors

        errors.usage(ctx.get_help())
        return Exit.USAGE
    return Exit.YES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and leave with its exit code."""
    sys.exit(run(arguments))


def _stand_in() -> None:
    """Give an account that no list names what a container would give it; much of what we use asks for a home and a name."""
    for ask, name, value in ((Path.home, "HOME", "/"), (getpass.getuser, "LOGNAME", str(os.getuid()))):
        try:
            ask()
        except (RuntimeError, KeyError, OSError):
            os.environ[name] = value


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: an operator's error is three lines, a bug is a file and one line."""
    from orchestrate.report import errors, screen

    screen.stand_in()
    _stand_in()
    try:
        code = cli.main(arguments, prog_name=PROGRAM, standalone_mode=False)
        return int(code or Exit.YES)
    except OperatorError as error:
        errors.show(error)
        return int(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else PROGRAM
        errors.show(UsageError(error.format_message(), where=path, next_step=f"see {path} --help"))
        return int(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        errors.interrupted()
        return int(Exit.INTERRUPTED)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
            errors.bug(error)
            return errors.BUG
        screen.give_up_output()
        errors.show(
            UsageError(
                f"cannot write: {error.strerror}",
                where=str(error.filename or "standard output"),
                next_step="make room, or write elsewhere",
            )
        )
        return int(Exit.USAGE)
    except Exception as error:  # noqa: BLE001 - the last resort: anything else is our bug
        errors.bug(error)
        return errors.BUG
