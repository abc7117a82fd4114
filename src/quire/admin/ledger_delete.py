"""`quire ledger delete`."""

from __future__ import annotations

import sys

import click

from quire.admin.groups import EXIT_ERROR, say
from quire.admin.options import dry_run_option, ledger_argument, metadata_option, run_async
from quire.units import counted


@click.command()
@metadata_option
@ledger_argument
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@dry_run_option("Only say what would be deleted.")
def delete(uri: str, ledger_id: int, yes: bool, dry_run: bool) -> int:
    """Delete a ledger; bookies free its space at their next garbage collection.

    Asks first where standard input is a terminal.
    """
    return run_async(_delete(uri, ledger_id, ask=not yes and sys.stdin.isatty(), dry_run=dry_run))


async def _delete(uri: str, ledger_id: int, ask: bool, dry_run: bool) -> int:
    import quire

    async with quire.connect(uri) as client:
        found = await client.ledger_metadata(ledger_id)
        state = found.state.name.lower().replace("_", " ")
        held = f", {counted(found.last_entry_id + 1, 'entry')}" if found.closed else ""
        if dry_run:
            say(f"ledger {ledger_id} ({state}{held}) would be deleted")
            return 0
        if ask and not click.confirm(f"Delete ledger {ledger_id} ({state}{held})?", err=True):
            say("nothing was deleted")
            return EXIT_ERROR
        await client.delete_ledger(ledger_id)
    say(f"ledger {ledger_id} deleted")
    return 0
