"""`quire cluster init`."""

from __future__ import annotations

import click

from quire.admin.options import metadata_option, run_async


@click.command()
@metadata_option
def init(uri: str) -> None:
    """Make a new, empty cluster and print its instance id.

    Where a cluster exists already this is an error, and nothing is changed.
    """
    click.echo(run_async(_init(uri)))


async def _init(uri: str) -> str:
    from quire.metadata import open_metadata

    store = await open_metadata(uri, create=True)
    try:
        return await store.initialise()
    finally:
        await store.close()
