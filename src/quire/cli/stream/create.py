"""`quire stream create`, `set` and `rename`."""

from __future__ import annotations

import click

from quire.cli.common.groups import say
from quire.cli.common.options import metadata_option, run_async
from quire.cli.stream.options import (
    Values,
    change_arguments,
    changes,
    name_argument,
    namespace,
    namespace_option,
    set_option,
)


@click.command()
@metadata_option
@namespace_option
@name_argument()
@set_option
def create(uri: str, path: str, name: str, values: Values) -> None:
    """Make a stream. What is not set here is inherited from the namespace.

    The default namespace, /streams, is made with its first stream; others are made by `quire
    namespace create`.
    """
    run_async(_create(uri, path, name, values))


async def _create(uri: str, path: str, name: str, values: Values) -> None:
    async with namespace(uri, path, make=True) as opened:
        await opened.create_stream(name, settings=values)
    say(f"stream {name} created")


@click.command("set")
@metadata_option
@namespace_option
@name_argument()
@change_arguments
def change(uri: str, path: str, name: str, values: Values, unset: tuple[str, ...]) -> None:
    """Change a stream's own settings. A writer that is open keeps what it has."""
    run_async(_change(uri, path, name, changes(values, unset)))


async def _change(uri: str, path: str, name: str, values: Values) -> None:
    async with namespace(uri, path) as opened:
        await opened.configure_stream(name, values)
    say(f"stream {name} changed")


@click.command()
@metadata_option
@namespace_option
@name_argument()
@name_argument("new_name", "NEW")
def rename(uri: str, path: str, name: str, new_name: str) -> None:
    """Give a stream another name in its namespace: with its settings, records and subscriptions.

    Whoever is writing it is fenced.
    """
    run_async(_rename(uri, path, name, new_name))


async def _rename(uri: str, path: str, name: str, new_name: str) -> None:
    async with namespace(uri, path) as opened:
        await opened.rename_stream(name, new_name)
    say(f"stream {name} is {new_name} now")
