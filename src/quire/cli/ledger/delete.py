"""`quire ledger delete`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import LEDGER_ID_MAX, dry_run_option, metadata_option, run_async
from quire.cli.common.progress import Progress

if TYPE_CHECKING:
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata


@click.command()
@metadata_option
@click.argument(
    "ledger_ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(0, LEDGER_ID_MAX)
)
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@click.option(
    "--force",
    is_flag=True,
    help="Also delete ledgers that a stream, an object, a dataset or another application needs, "
    "which loses their data.",
)
@dry_run_option("Only say what would be deleted.")
def delete(uri: str, ledger_ids: tuple[int, ...], yes: bool, force: bool, dry_run: bool) -> int:
    """Delete ledgers; bookies free their space at their next garbage collection.

    The command asks for confirmation once for all ledgers if standard input is a terminal. If one
    of the ledgers does not exist, none is deleted. Without --force none is deleted if one of them
    belongs to a stream, an object, a dataset or another application, or if its owner cannot be
    determined.
    """
    ask = not yes and sys.stdin.isatty()
    return run_async(_delete(uri, list(dict.fromkeys(ledger_ids)), ask, force, dry_run))


async def _delete(uri: str, ledger_ids: list[int], ask: bool, force: bool, dry_run: bool) -> int:
    import quire

    async with quire.connect(uri) as client:
        found = {one: await _found(client, one, force) for one in ledger_ids}
        await check_owners(client, ledger_ids, force=force)
        if dry_run:
            for ledger_id, what in found.items():
                say(f"ledger {ledger_id} ({what}) would be deleted")
            return 0
        if ask:
            listed = ", ".join(f"{ledger_id} ({what})" for ledger_id, what in found.items())
            if not click.confirm(f"Delete ledger{'s' * (len(found) > 1)} {listed}?", err=True):
                say("nothing was deleted")
                return EXIT_ERROR
        for ledger_id in found:
            await client.delete_ledger(ledger_id)
            say(f"ledger {ledger_id} deleted")
    return 0


async def check_owners(client: Client, ledger_ids: Sequence[int], *, force: bool) -> None:
    """Raise LedgerOwnedError if one of these ledgers has an owner. With `force`, print the owners
    instead."""
    from quire.streams.ownership.owners import find_claims, refuse_owned

    if force:
        for ledger_id, claims in (await find_claims(client, ledger_ids, scan=False)).items():
            for claim in claims:
                say(f"warning: ledger {ledger_id} belongs to {claim}")
        return
    with Progress("look for owners", counted="records") as progress:
        await refuse_owned(client, ledger_ids, looked_at=lambda count: progress.advance(count, 0))


async def _found(client: Client, ledger_id: int, force: bool) -> str:
    from quire.errors import UnreadableMetadataError

    try:
        return _described(await client.ledger_metadata(ledger_id))
    except UnreadableMetadataError:
        if not force:
            raise
        return "its metadata cannot be understood"


def _described(metadata: LedgerMetadata) -> str:
    state = metadata.state.name.lower().replace("_", " ")
    held = f", {counted(metadata.last_entry_id + 1, 'entry')}" if metadata.closed else ""
    return f"{state}{held}"
