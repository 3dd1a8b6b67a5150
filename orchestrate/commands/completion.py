"""The verb `completion`: the script that teaches a shell the verbs and options. Installs nothing."""

from __future__ import annotations

import click

from orchestrate.report import screen

_HOW = """\b
Put one of these where your shell reads it:
  bash   eval "$(orchestrate completion bash)"          in ~/.bashrc
  zsh    eval "$(orchestrate completion zsh)"           in ~/.zshrc
  fish   orchestrate completion fish >~/.config/fish/completions/orchestrate.fish
"""


@click.command(epilog=_HOW)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    root = ctx.find_root()
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - Click has all three
    screen.out(kind(root.command, {}, "orchestrate", "_ORCHESTRATE_COMPLETE").source())
