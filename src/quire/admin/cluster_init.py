"""`quire cluster init`."""

from __future__ import annotations

import click

from quire.admin.options import ledger_manager_option, metadata_option, run_async


@click.command()
@metadata_option
@ledger_manager_option
def init(uri: str, ledger_manager: str | None) -> None:
    """Make a new, empty cluster and print its instance id.

    Where a cluster exists already this is an error, and nothing is changed.
    """
    click.echo(run_async(_init(uri, ledger_manager)))


async def _init(uri: str, ledger_manager: str | None) -> str:
    from quire.metadata import open_metadata

    store = await open_metadata(uri, create=True)
    try:
        return await store.initialise(ledger_manager)
    finally:
        await store.close()
