"""`quire bookie init`."""

from __future__ import annotations

import secrets

import click

from quire.cli.bookie.identity import cookie_as_json, held, opened_metadata
from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json


@click.command()
@metadata_option
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    help="Where it will keep its entries: an empty directory, or a missing one, which is made.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=3181,
    show_default=True,
    help="For the id, where --bookie-id is not given.",
)
@click.option(
    "--advertise", metavar="HOST", default="127.0.0.1", show_default=True, help="The same."
)
@click.option(
    "--bookie-id",
    metavar="ID",
    default="",
    help="What ledgers will call it, for good. [default: HOST:PORT]",
)
@json_option("The cookie as one JSON object.")
def init(
    uri: str, directory: str, port: int, advertise: str, bookie_id: str, as_json: bool
) -> None:
    """Make a new bookie: its cookie in the directory and in the cluster. Prints its id.

    `quire bookie start` does the same with an empty directory whose id the cluster does not know.
    This only ever makes a new one: where the directory belongs to a bookie, or the cluster knows
    the id, it is an error and nothing is changed.
    """
    from quire.bookie.options import check_advertised, check_directories, check_new_id
    from quire.codec.metadata.registration import default_bookie_id

    wanted = bookie_id or default_bookie_id(advertise, port)
    check_directories((directory,))
    check_advertised(advertise)
    check_new_id(wanted)

    async def work() -> None:
        from quire._runtime.clock import SystemClock
        from quire.bookie.directories.identity import create_identity

        async with opened_metadata(uri) as store:
            with held(directory) as disk:
                cookie = await create_identity(
                    disk, store, wanted, secrets.token_bytes, SystemClock().now_ms()
                )
        if as_json:
            print_json(cookie_as_json(cookie) or {})
        else:
            click.echo(wanted)

    run_async(work())
