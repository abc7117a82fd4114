"""`quire ledger list`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import LEDGER_ID_MAX, json_option, metadata_option, run_async
from quire.cli.common.output import ledger_as_json, print_json

if TYPE_CHECKING:
    from quire.client import Client
    from quire.metadata.ledgers.unreadable import Unread

LOOKUPS_IN_FLIGHT = 64


@click.command("list")
@metadata_option
@click.option(
    "--first",
    type=click.IntRange(0, LEDGER_ID_MAX),
    default=0,
    help="Only ledgers from this id on.",
)
@json_option("One JSON object a line, with what `show --json` says of the ledger.")
def list_ledgers(uri: str, first: int, as_json: bool) -> int:
    """List the ids of all ledgers, ascending, one a line.

    With --json, a ledger whose metadata cannot be read is an object with `ledger_id` and `error`,
    and the exit status is 1.
    """
    return run_async(_list(uri, first, as_json))


async def _list(uri: str, first: int, as_json: bool) -> int:
    import quire
    from quire.metadata.ledgers.unreadable import Unread

    unread = Unread()
    async with quire.connect(uri) as client:
        async for ids in _pieces(client, first):
            if not as_json:
                sys.stdout.write("".join(f"{ledger_id}\n" for ledger_id in ids))
                continue
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_described(client, one, unread)) for one in ids]
            for task in tasks:
                if (described := task.result()) is not None:
                    print_json(described)
        sys.stdout.flush()
    if unread:
        say(f"the metadata of {unread} cannot be read: {unread.why}")
    return EXIT_ERROR if unread else 0


async def _pieces(client: Client, first: int) -> AsyncIterator[list[int]]:
    piece: list[int] = []
    async for ledger_id in client.list_ledgers(first):
        piece.append(ledger_id)
        if len(piece) == LOOKUPS_IN_FLIGHT:
            yield piece
            piece = []
    yield piece


async def _described(client: Client, ledger_id: int, unread: Unread) -> dict[str, Any] | None:
    """Return a ledger as JSON; None for one that was deleted since it was listed."""
    from quire.http.views.ledger_json import described_or_error

    return await described_or_error(client.metadata, ledger_id, ledger_as_json, unread)
