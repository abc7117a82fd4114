"""`quire cluster init`."""

from __future__ import annotations

import click

from quire.cli.common.options import json_option, ledger_manager_option, metadata_option, run_async
from quire.cli.common.output import print_json


@click.command()
@metadata_option
@ledger_manager_option
@json_option("One JSON object: instance_id.")
def init(uri: str, ledger_manager: str | None, as_json: bool) -> None:
    """Make a new, empty cluster and print its instance id.

    Where a cluster exists already this is an error, and nothing is changed.
    """
    _check_manager(uri, ledger_manager)
    made = run_async(_init(uri, ledger_manager))
    if as_json:
        print_json({"instance_id": made})
    else:
        click.echo(made)


def _check_manager(uri: str, ledger_manager: str | None) -> None:
    """Refuse --ledger-manager for a store that has no ledger managers, before the store is
    created."""
    from quire.metadata.uri import Driver, parse_uri

    if ledger_manager is not None and parse_uri(uri).driver is not Driver.ZOOKEEPER:
        raise click.UsageError(
            f"--ledger-manager {ledger_manager} only applies to ZooKeeper, not to {uri}: "
            "leave it out"
        )


async def _init(uri: str, ledger_manager: str | None) -> str:
    from quire.metadata import open_metadata

    store = await open_metadata(uri, create=True)
    try:
        return await store.initialise(ledger_manager)
    finally:
        await store.close()
