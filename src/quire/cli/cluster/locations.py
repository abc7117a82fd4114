"""`quire cluster locations`: the table of where bookies stand that is in the metadata store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.groups import LazyGroup, say
from quire.cli.common.options import (
    bookie_argument,
    checked,
    json_option,
    metadata_option,
    run_async,
)
from quire.cli.common.output import print_json

if TYPE_CHECKING:
    from quire.metadata.interface import MetadataStore

_COMMANDS = {
    "list": ("quire.cli.cluster.locations:list_locations", "List bookies and their locations."),
    "set": ("quire.cli.cluster.locations:set_location", "Say where a bookie stands."),
    "remove": ("quire.cli.cluster.locations:remove", "Forget where a bookie stands."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def locations() -> None:
    """Where bookies stand, for clients whose placement has `locations=metadata`.

    The table is the node /bookies in the format that Pulsar keeps there. Clients that run follow
    its changes.
    """


def _check_location(text: str) -> None:
    from quire.core.placement.values import parse_location

    parse_location(text)


def _check_node(path: str) -> None:
    from quire.metadata.common import check_path_below_root

    check_path_below_root(path)


def _node_option(command: Any) -> Any:
    return click.option(
        "--node",
        default="/bookies",
        show_default=True,
        metavar="PATH",
        callback=checked(_check_node),
        help="The node of the metadata store that holds the table.",
    )(command)


@click.command("list")
@metadata_option
@_node_option
@json_option("One JSON object a line.")
def list_locations(uri: str, node: str, as_json: bool) -> None:
    """List bookies and their locations: what the table says, and registered bookies that it does
    not name ('-')."""
    found, registered = run_async(_list(uri, node))
    for bookie in sorted({**found, **registered}):
        group, facts = found.get(bookie) or ("", {})
        if as_json:
            here = bookie in registered
            print_json({
                "id": bookie, "location": facts.get("rack"), "group": group or None,
                "hostname": facts.get("hostname"), "registered": here,
            })  # fmt: skip
        else:
            gone = "" if bookie in registered else " (not registered)"
            click.echo(f"{bookie} {facts.get('rack') or '-'}{gone}")
    if not found and not registered:
        say("no bookies are registered, and the table is empty")


@click.command("set")
@metadata_option
@_node_option
@bookie_argument()
@click.argument("location", metavar="LOCATION", callback=checked(_check_location))
@click.option("--group", default="", metavar="NAME", help="Pulsar's group of the bookie.")
@click.option("--hostname", default="", metavar="HOST", help="Its host, for Pulsar.")
def set_location(
    uri: str, node: str, bookie: str, location: str, group: str, hostname: str
) -> None:
    """Say where a bookie stands: /rack, /region/rack or /zone/upgrade-domain."""
    from quire.core.placement.tables import with_location

    run_async(
        _change(uri, node, lambda data: with_location(data, bookie, location, group, hostname))
    )


@click.command()
@metadata_option
@_node_option
@bookie_argument()
def remove(uri: str, node: str, bookie: str) -> None:
    """Forget where a bookie stands. One that is not in the table is success."""
    from quire.core.placement.tables import with_location

    run_async(_change(uri, node, lambda data: with_location(data, bookie, None)))


async def _list(
    uri: str, node: str
) -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, Any]]:
    from quire.core.placement.tables import read_groups
    from quire.errors import MetadataError, NoSuchKeyError, UsageError
    from quire.metadata import open_metadata

    store = await open_metadata(uri)
    try:
        bookies = await store.bookies()
        registered = {**bookies.readonly, **bookies.writable}
        try:
            data = (await store.tree.read(node)).value
        except NoSuchKeyError:
            data = b""
    finally:
        await store.close()
    try:
        groups = read_groups(data)
    except UsageError as error:
        raise MetadataError(
            f"the table of locations at {node} cannot be read: {error}",
            remedy="Write the node anew: {} for an empty table",
        ) from None
    found = {
        bookie: (group, facts)
        for group, members in groups.items()
        for bookie, facts in members.items()
    }
    return found, registered


async def _change(uri: str, node: str, change: Callable[[bytes], bytes]) -> None:
    from quire.metadata import open_metadata

    store = await open_metadata(uri)
    try:
        await store.instance_id()  # not into a store that nobody uses
        await _swap(store, node, change)
    finally:
        await store.close()


async def _swap(store: MetadataStore, node: str, change: Callable[[bytes], bytes]) -> None:
    from quire.client.swap import swap
    from quire.errors import NoSuchKeyError
    from quire.metadata.tree import Put

    async def attempt() -> None:
        try:
            found = await store.tree.read(node)
        except NoSuchKeyError:
            await store.tree.make_path(node)
            found = await store.tree.read(node)
        changed = change(found.value)
        if changed != found.value:
            await store.tree.commit(Put(node, changed, found.version))

    # The same change twice is the change.
    await swap(f"the node {node}", attempt, ask_again=True)
