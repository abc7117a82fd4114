"""`quire completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_QUIRE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete the commands and options of quire.

    bash: eval "$(quire completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc. fish: quire
    completion fish > ~/.config/fish/completions/quire.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "quire", COMPLETE_VARIABLE).source())
