"""`quire cluster bookies`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quire.admin.groups import say
from quire.admin.options import json_option, metadata_option, run_async
from quire.admin.output import print_json

if TYPE_CHECKING:
    from quire.metadata.base import Bookies


@click.command()
@metadata_option
@json_option("One JSON object a line.")
def bookies(uri: str, as_json: bool) -> None:
    """List the registered bookies: id, state (writable, read-only), address."""
    found = run_async(_bookies(uri))
    for bookie_id in sorted({**found.writable, **found.readonly}):
        address = found.find(bookie_id)
        assert address is not None
        state = "writable" if bookie_id in found.writable else "read-only"
        if as_json:
            print_json(
                {"id": bookie_id, "state": state, "host": address.host, "port": address.port}
            )
        else:
            click.echo(f"{bookie_id} {state} {address.host}:{address.port}")
    if not found.writable and not found.readonly:
        say("no bookies are registered")


async def _bookies(uri: str) -> Bookies:
    import quire

    async with quire.connect(uri) as client:
        return await client.bookies()
