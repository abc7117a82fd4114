"""`quire cluster bookies`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import host_port
from quire.cli.common.groups import say
from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.common.tls import connect, tls_options

if TYPE_CHECKING:
    import quire
    from quire.metadata.interface import Bookies

SPACE_TIMEOUT_S = 2
"""A bookie that does not tell its space within this is listed without."""


@click.command()
@metadata_option
@click.option("--space", is_flag=True, help="Ask each for the free space of its disk.")
@tls_options
@json_option("One JSON object a line.")
def bookies(uri: str, space: bool, as_json: bool) -> None:
    """List the registered bookies: id, state (writable, read-only), address."""
    found, spaces = run_async(_bookies(uri, space))
    for bookie_id in sorted({**found.writable, **found.readonly}):
        address = found.find(bookie_id)
        assert address is not None
        state = "writable" if bookie_id in found.writable else "read-only"
        info = spaces.get(bookie_id)
        if as_json:
            described: dict[str, Any] = {
                "id": bookie_id, "state": state, "host": address.host, "port": address.port
            }  # fmt: skip
            if space:
                described["free_bytes"] = info.free_bytes if info else None
                described["total_bytes"] = info.total_bytes if info else None
            print_json(described)
        else:
            line = f"{bookie_id} {state} {host_port(address.host, address.port)}"
            click.echo(f"{line} {_space(info)}" if space else line)
    if not found.writable and not found.readonly:
        say("no bookies are registered")


def _space(info: quire.BookieInfo | None) -> str:
    if info is None:
        return "space unknown"
    return f"{info.free_bytes / 1e9:.1f} GB free of {info.total_bytes / 1e9:.1f} GB"


async def _bookies(uri: str, space: bool) -> tuple[Bookies, dict[str, quire.BookieInfo]]:
    from quire.errors import QuireError

    spaces: dict[str, quire.BookieInfo] = {}
    limits = {"connect_timeout_s": SPACE_TIMEOUT_S, "read_timeout_s": SPACE_TIMEOUT_S}
    async with connect(uri, **limits) as client:

        async def ask(bookie_id: str) -> None:
            try:
                spaces[bookie_id] = await client.bookie_info(bookie_id)
            except QuireError:
                pass

        found = await client.bookies()
        if space:
            async with asyncio.TaskGroup() as group:
                for bookie_id in {**found.writable, **found.readonly}:
                    group.create_task(ask(bookie_id))
        return found, spaces
