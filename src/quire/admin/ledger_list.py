"""`quire ledger list`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from quire.admin.options import LEDGER_ID_MAX, json_option, metadata_option, run_async
from quire.admin.output import ledger_as_json, print_json

if TYPE_CHECKING:
    from quire.client import Client

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
def list_ledgers(uri: str, first: int, as_json: bool) -> None:
    """List the ids of all ledgers, ascending, one a line."""
    run_async(_list(uri, first, as_json))


async def _list(uri: str, first: int, as_json: bool) -> None:
    import quire

    async with quire.connect(uri) as client:
        async for ids in _pieces(client, first):
            if not as_json:
                sys.stdout.write("".join(f"{ledger_id}\n" for ledger_id in ids))
                continue
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_described(client, ledger_id)) for ledger_id in ids]
            for task in tasks:
                if (described := task.result()) is not None:
                    print_json(described)
        sys.stdout.flush()


async def _pieces(client: Client, first: int) -> AsyncIterator[list[int]]:
    piece: list[int] = []
    async for ledger_id in client.list_ledgers(first):
        piece.append(ledger_id)
        if len(piece) == LOOKUPS_IN_FLIGHT:
            yield piece
            piece = []
    yield piece


async def _described(client: Client, ledger_id: int) -> dict[str, Any] | None:
    from quire.errors import NoSuchLedgerError

    try:
        return ledger_as_json(ledger_id, await client.ledger_metadata(ledger_id))
    except NoSuchLedgerError:
        return None  # deleted since it was listed
