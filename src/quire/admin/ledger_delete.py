"""`quire ledger delete`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quire.admin.groups import EXIT_ERROR, say
from quire.admin.options import LEDGER_ID_MAX, dry_run_option, metadata_option, run_async
from quire.units import counted

if TYPE_CHECKING:
    from quire.codec.ledger_metadata import LedgerMetadata


@click.command()
@metadata_option
@click.argument(
    "ledger_ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(0, LEDGER_ID_MAX)
)
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@dry_run_option("Only say what would be deleted.")
def delete(uri: str, ledger_ids: tuple[int, ...], yes: bool, dry_run: bool) -> int:
    """Delete ledgers; bookies free their space at their next garbage collection.

    Asks first, once for all, where standard input is a terminal. Where one of them does not exist
    none is deleted.
    """
    ask = not yes and sys.stdin.isatty()
    return run_async(_delete(uri, list(dict.fromkeys(ledger_ids)), ask, dry_run))


async def _delete(uri: str, ledger_ids: list[int], ask: bool, dry_run: bool) -> int:
    import quire

    async with quire.connect(uri) as client:
        found = {one: _described(await client.ledger_metadata(one)) for one in ledger_ids}
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


def _described(metadata: LedgerMetadata) -> str:
    state = metadata.state.name.lower().replace("_", " ")
    held = f", {counted(metadata.last_entry_id + 1, 'entry')}" if metadata.closed else ""
    return f"{state}{held}"
