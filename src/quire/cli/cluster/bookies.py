"""The commands `quire cluster bookies` and `quire cluster locations ...`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.tasks import each
from quire._runtime.units import host_port, size_text
from quire.cli.bookie.identity import opened_metadata
from quire.cli.common.groups import LazyGroup, commands, say
from quire.cli.common.options import (
    asynchronous,
    bookie_argument,
    checked,
    flag,
    json_option,
    metadata_option,
)
from quire.cli.common.output import print_json
from quire.cli.common.tls import connect, tls_options
from quire.errors import MetadataError, NoSuchKeyError, UsageError, nothing_done

if TYPE_CHECKING:
    from quire.metadata.interface import Bookies, MetadataStore
    from quire.replication.explain.silence import Answer, Silence

SPACE_TIMEOUT_S = 2
"""Seconds that a bookie may take to report its disk space. After that, it is listed without it."""
PLACEHOLDER = "RACK"
"""The word that stands for a rack in the commands of findings."""
_LOCATIONS = commands(
    """
    list    bookies:list_locations  List bookies and their locations.
    set     bookies:set_location    Set the location of a bookie.
    remove  bookies:remove          Remove the location of a bookie.
    """,
    "cluster",
)


# -- bookies ----------------------------------------------------------------------------------


@click.command()
@metadata_option
@flag("--space", "Also ask each bookie for the free and total space of its disks.")
@tls_options
@json_option("Print one JSON object per bookie.")
@asynchronous
async def bookies(uri: str, space: bool, as_json: bool) -> None:
    """List the registered bookies, with their state (writable or read-only) and address.

    Bookies that are stopped are not registered. With --space, those that have a cookie in the
    cluster are listed as gone: their space is missing in the sums of the dashboard. With --json,
    `unwritable` says why a bookie does not accept all entries (null: its registration names no
    reason).
    """
    from quire.metadata.bookies.unwritable import from_properties
    from quire.replication.explain.silence import Answer

    found, spaces, gone = await _bookies(uri, space)
    for bookie_id in sorted({**found.writable, **found.readonly}):
        address = found.find(bookie_id)
        assert address is not None
        state = "writable" if bookie_id in found.writable else "read-only"
        answer = spaces.get(bookie_id)
        info = answer.info if isinstance(answer, Answer) else None
        if as_json:
            reasons = from_properties(address.properties)
            described: dict[str, Any] = {
                "id": bookie_id, "state": state, "host": address.host, "port": address.port,
                "unwritable": None if reasons is None else [asdict(one) for one in reasons],
            }  # fmt: skip
            if space:
                described["free_bytes"] = info.free_bytes if info else None
                described["total_bytes"] = info.total_bytes if info else None
            print_json(described)
        else:
            line = f"{bookie_id} {state} {host_port(address.host, address.port)}"
            click.echo(f"{line} {_space(answer)}" if answer is not None else line)
    for bookie_id in gone:
        if as_json:
            print_json({
                "id": bookie_id, "state": "gone", "host": None, "port": None, "unwritable": None,
                "free_bytes": None, "total_bytes": None,
            })  # fmt: skip
        else:
            click.echo(f"{bookie_id} gone: its space is not known")
    if not found.writable and not found.readonly:
        say("no bookies are registered")


def _space(answer: Answer | Silence) -> str:
    from quire.replication.explain.silence import Silence

    if isinstance(answer, Silence):
        return f"space unknown ({answer.why})"
    info = answer.info
    return f"{size_text(info.free_bytes)} free of {size_text(info.total_bytes)}"


async def _bookies(uri: str, space: bool) -> tuple[Bookies, dict[str, Answer | Silence], list[str]]:
    """Return the registered bookies, and with `space` their answers and those that are gone."""
    from quire.replication.explain.silence import ask_anew

    async with connect(uri) as client:
        # A cookie is older than the registration, so a bookie that just started is not gone.
        known = await client.metadata.list_cookies() if space else []
        found = await client.bookies()
        names = [*found.writable, *found.readonly] if space else []
        answers = await each(names, lambda one: ask_anew(client, one, SPACE_TIMEOUT_S))
        return found, dict(zip(names, answers, strict=True)), sorted({*known} - {*names})


# -- locations --------------------------------------------------------------------------------


@click.group(cls=LazyGroup, lazy=_LOCATIONS)
def locations() -> None:
    """Show and set the rack, region or zone of each bookie.

    Clients whose placement has locations=metadata use these locations to choose bookies. The table
    is stored in the metadata store, in the node /bookies, in Pulsar's format. Running clients pick
    up changes at once.
    """


def _check_location(text: str) -> None:
    from quire.core.placement.values import parse_location

    parse_location(text)
    if PLACEHOLDER in text.split("/"):
        # `quire explain` prints it, and all would look well with every bookie in this rack.
        raise UsageError(
            f"{text} is the placeholder that `quire explain` prints, not a rack",
            remedy="Give the rack in which the bookie is, such as /rack1",
        )


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
        help="The node of the metadata store that holds the table of locations.",
    )(command)


@click.command("list")
@metadata_option
@_node_option
@json_option("Print one JSON object per bookie.")
@asynchronous
async def list_locations(uri: str, node: str, as_json: bool) -> None:
    """List bookies and their locations.

    A registered bookie without a location is shown with '-'.
    """
    found, registered = await _list(uri, node)
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
@click.option(
    "--group",
    default="",
    metavar="NAME",
    help='The bookie group, which only Pulsar uses. [default: the present one, else "default"]',
)
@click.option(
    "--hostname",
    default="",
    metavar="HOST",
    help="The host name of the bookie, which only Pulsar uses. [default: the present one]",
)
@asynchronous
async def set_location(
    uri: str, node: str, bookie: str, location: str, group: str, hostname: str
) -> None:
    """Set the location of a bookie: /rack, /region/rack or /zone/upgrade-domain."""
    from quire.core.placement.tables import with_location
    from quire.core.placement.values import parse_location

    before = await _change(
        uri, node, lambda data: with_location(data, bookie, location, group, hostname), bookie
    )
    now = parse_location(location)
    was = f" (before: {before})" if before not in (None, now) else ""
    say(f"the location of {bookie} is {now}{was}")


@click.command()
@metadata_option
@_node_option
@bookie_argument()
@asynchronous
async def remove(uri: str, node: str, bookie: str) -> None:
    """Remove the location of a bookie. The command succeeds if the bookie has none."""
    from quire.core.placement.tables import with_location

    before = await _change(uri, node, lambda data: with_location(data, bookie, None), bookie)
    was = f"any more (before: {before})" if before is not None else "in the table"
    say(f"{bookie} has no location {was}")


async def _list(
    uri: str, node: str
) -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, Any]]:
    from quire.core.placement.tables import read_groups

    async with opened_metadata(uri) as store:
        bookies = await store.bookies()
        registered = {**bookies.readonly, **bookies.writable}
        try:
            data = (await store.tree.read(node)).value
        except NoSuchKeyError:
            data = b""
    try:
        groups = read_groups(data)
    except UsageError as error:
        raise _unreadable(node, str(error)) from None
    found = {
        bookie: (group, facts)
        for group, members in groups.items()
        for bookie, facts in members.items()
    }
    return found, registered


def _unreadable(node: str, why: str) -> MetadataError:
    return nothing_done(
        MetadataError(
            f"the table of locations at {node} cannot be read: {why}. Nothing was changed",
            remedy="Correct the JSON in this node, or write {} into it for an empty table",
        )
    )


async def _change(uri: str, node: str, change: Callable[[bytes], bytes], bookie: str) -> str | None:
    """Change the table of locations. Returns the location that the bookie had before."""
    from quire.client.compare_and_swap import swap
    from quire.core.placement.tables import read_groups
    from quire.metadata.tree import Put

    before: list[str | None] = []

    async def attempt(store: MetadataStore) -> None:
        try:
            found = await store.tree.read(node)
        except NoSuchKeyError:
            await store.tree.make_path(node)
            found = await store.tree.read(node)
        try:
            groups = read_groups(found.value).values()
            racks = (one[bookie].get("rack") for one in groups if bookie in one)
            # A repeated attempt may find what an earlier one has written.
            before.append(next((rack for rack in racks if isinstance(rack, str)), None))
            changed = change(found.value)
        except UsageError as error:
            raise _unreadable(node, str(error)) from None
        if changed != found.value:
            await store.tree.commit(Put(node, changed, found.version))

    async with opened_metadata(uri) as store:
        await store.instance_id()  # raises if there is no cluster
        # The change is idempotent, so it may be attempted again.
        await swap(f"the node {node}", partial(attempt, store), random.Random(), ask_again=True)
    return before[0]
