"""`quire ledger recover`."""

from __future__ import annotations

import click

from quire._runtime.units import counted
from quire.cli.common.groups import say
from quire.cli.common.options import (
    json_option,
    ledger_argument,
    liars_option,
    metadata_option,
    password_option,
    placement_option,
    run_async,
)
from quire.cli.common.output import ledger_as_json, print_json
from quire.cli.common.tls import connect, tls_options


@click.command()
@metadata_option
@placement_option
@tls_options
@ledger_argument
@password_option
@liars_option
@click.option(
    "--unverified-password",
    is_flag=True,
    help="Also recover a ledger whose password cannot be checked: an empty ledger whose metadata "
    "stores none (format 1).",
)
@json_option("Print what `show --json` says of the closed ledger.")
def recover(
    uri: str,
    ledger_id: int,
    password: bytes,
    assume_liars: int,
    unverified_password: bool,
    as_json: bool,
) -> None:
    """Fence the writer of a ledger, if there is one, and close the ledger.

    Every acknowledged entry is in it afterwards. A ledger that is closed already stays as it is.
    """
    run_async(_recover(uri, ledger_id, password, assume_liars, unverified_password, as_json))


async def _recover(
    uri: str,
    ledger_id: int,
    password: bytes,
    assume_liars: int,
    unverified_password: bool,
    as_json: bool,
) -> None:
    async with (
        connect(uri) as client,
        await client.open_ledger(
            ledger_id,
            password=password,
            recover=True,
            assume_liars=assume_liars,
            unverified_password=unverified_password,
        ) as reader,
    ):
        if as_json:
            print_json(ledger_as_json(ledger_id, reader.metadata))
        last, length = reader.last_add_confirmed, reader.length
        say(f"ledger {ledger_id} closed: {counted(last + 1, 'entry')}, {length} bytes")
