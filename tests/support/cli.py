"""All commands of `quire`, by the words that select them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from quire.cli.main import cli


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = dict(commands(cli))
