"""The commands `quire namespace create`, `list`, `show` and `set`."""

from __future__ import annotations

import sys

import click

from quire.cli.common.groups import say
from quire.cli.common.options import asynchronous, json_option, metadata_option
from quire.cli.common.output import print_json
from quire.cli.stream.options import (
    Values,
    change_arguments,
    changes,
    namespace,
    path_argument,
    set_option,
    settings_lines,
    sources,
)


@click.command()
@metadata_option
@path_argument
@set_option
@asynchronous
async def create(uri: str, path: str, values: Values) -> None:
    """Create a namespace for streams, for example /team/orders.

    If the namespace exists already, the settings are added to its own. In ZooKeeper, the namespace
    is bound to the cluster, so that DistributedLog's tools find it.
    """
    from quire.streams.namespace.binding import check_new_path

    check_new_path(path, uri)
    import quire
    from quire.errors import NoSuchNamespaceError
    from quire.streams.namespace.namespace import open_namespace

    async with quire.connect(uri) as client:
        try:
            await (await open_namespace(client, path)).close()
            added = "; the settings were added to its own" if values else ""
            done = f"exists already{added}"
        except NoSuchNamespaceError:
            done = "created"
        await (await open_namespace(client, path, settings=values, create=True)).close()
    say(f"namespace {path} {done}")


@click.command("list")
@metadata_option
@json_option("Print one JSON object per namespace: path.")
@asynchronous
async def list_namespaces(uri: str, as_json: bool) -> None:
    """List the paths of all namespaces, one per line."""
    import quire
    from quire.streams.namespace.tree_search import namespaces

    async with quire.connect(uri) as client:
        found = await namespaces(client)
    for path in found:
        if as_json:
            print_json({"path": path})
        else:
            sys.stdout.write(f"{path}\n")
    sys.stdout.flush()


@click.command()
@metadata_option
@path_argument
@json_option("Print one JSON object: path, streams (their number), settings.")
@asynchronous
async def show(uri: str, path: str, as_json: bool) -> None:
    """Show the settings of a namespace, and where each value comes from."""
    async with namespace(uri, path) as opened:
        own = await opened.own_settings()
        described: Values = {
            "path": path,
            "streams": len(await opened.streams()),
            "settings": sources(opened.settings.as_json(), own, opened.given_settings, "namespace"),
        }
    if as_json:
        print_json(described)
        return
    lines = [f"namespace  {path}", f"streams    {described['streams']}", "settings"]
    click.echo("\n".join(lines + settings_lines(described["settings"])))


@click.command("set")
@metadata_option
@path_argument
@change_arguments
@asynchronous
async def change(uri: str, path: str, values: Values, unset: tuple[str, ...]) -> None:
    """Change the settings that streams inherit from a namespace.

    Writers that are open keep the old settings. `quire namespace show` lists all settings.
    """

    values = changes(values, unset)
    async with namespace(uri, path) as opened:
        await opened.configure(values)
    say(f"namespace {path} changed")
