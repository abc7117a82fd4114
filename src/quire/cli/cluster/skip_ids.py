"""The command `quire cluster skip-ids`."""

from __future__ import annotations

import click

from quire.cli.bookie.identity import opened_metadata
from quire.cli.common.groups import say
from quire.cli.common.options import metadata_option, run_async


@click.command("skip-ids")
@metadata_option
@click.argument("last", type=click.IntRange(0, 2**63 - 2), metavar="ID")
def skip_ids(uri: str, last: int) -> None:
    """Give no new ledger an id up to ID.

    Use this after restoring the metadata store from an older backup. The store would otherwise
    reuse the ids of ledgers that were created after the backup, and bookies still hold their
    entries.
    """

    async def work() -> None:
        async with opened_metadata(uri) as store:
            await store.skip_ledger_ids(last)

    run_async(work())
    say(f"new ledgers get ids above {last}")
