"""`quire namespace show` and `quire namespace set`."""

from __future__ import annotations

import click

from quire.cli.common.groups import say
from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.stream.options import (
    Values,
    change_arguments,
    changes,
    namespace,
    path_argument,
    settings_lines,
    sources,
)


@click.command()
@metadata_option
@path_argument
@json_option("One JSON object: path, streams (how many), settings.")
def show(uri: str, path: str, as_json: bool) -> None:
    """Show the settings of a namespace, and where each comes from."""
    described = run_async(_described(uri, path))
    if as_json:
        print_json(described)
        return
    lines = [f"namespace  {path}", f"streams    {described['streams']}", "settings"]
    click.echo("\n".join(lines + settings_lines(described["settings"])))


async def _described(uri: str, path: str) -> Values:
    async with namespace(uri, path) as opened:
        own = await opened.own_settings()
        given = opened.given_settings
        return {
            "path": path,
            "streams": len(await opened.streams()),
            "settings": sources(opened.settings.as_json(), own, given, "namespace"),
        }


@click.command("set")
@metadata_option
@path_argument
@change_arguments
def change(uri: str, path: str, values: Values, unset: tuple[str, ...]) -> None:
    """Change settings of a namespace, which its streams inherit.

    Writers that are open keep what they have.
    """
    run_async(_change(uri, path, changes(values, unset)))


async def _change(uri: str, path: str, values: Values) -> None:
    async with namespace(uri, path) as opened:
        await opened.configure(values)
    say(f"namespace {path} changed")
