"""Verbs of `quire shell` that name a bookie otherwise in the metadata of ledgers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import run_async
from quire.cli.common.tls import connect
from quire.cli.shell.ledgers import LOOKUPS_IN_FLIGHT, each_metadata, say_unread
from quire.cli.shell.options import Shell, dry_run, pass_shell, value

if TYPE_CHECKING:
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata

UPDATES_PER_S = 5


def _rate_options(command: Callable[..., object]) -> Callable[..., object]:
    for option in (
        value("limit", "l", "limit", type=click.IntRange(min=1), help="At most so many ledgers."),
        value("per_s", "s", "updatespersec", type=click.IntRange(min=1), default=UPDATES_PER_S,
              help=f"Ledgers a second. [default: {UPDATES_PER_S}]"),
        value("reads", "r", "maxOutstandingReads", type=click.IntRange(min=1),
              help=f"Not needed: {LOOKUPS_IN_FLIGHT} are read at a time."),
        value("verbose", "v", "verbose", type=bool, help="Name each ledger."),
        value("every_s", "p", "printprogress", type=click.IntRange(min=1),
              help="Not needed: progress is shown on a terminal."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command("updateBookieInLedger")
@value("source", "sb", "srcBookie", metavar="ID", required=True, help="Who is named now.")
@value("target", "db", "destBookie", metavar="ID", required=True, help="Who is to be named.")
@_rate_options
@dry_run
@pass_shell
def update_bookie(
    shell: Shell,
    source: str,
    target: str,
    limit: int | None,
    per_s: int,
    reads: int | None,
    verbose: bool | None,
    every_s: int | None,
    dry_run: bool,
) -> int:
    """Name one bookie in the place of another in the metadata of all ledgers.

    For a bookie whose id has changed while its data has not. (A Quire bookie keeps its id wherever
    it goes: nothing has to be replaced.) SOURCE must not run. Where the other one runs it is asked
    for each ledger, and one of which it has nothing is left as it is, and is an error.
    """
    return _rename(shell.cluster(), shell, source, target, limit, per_s, bool(verbose), dry_run)


@click.command("updateledgers")
@value("form", "b", "bookieId", type=click.Choice(("ip", "hostname")), required=True,
       help="What the local bookie is called from now on.")  # fmt: skip
@_rate_options
@dry_run
@pass_shell
def update_ledgers(
    shell: Shell,
    form: str,
    limit: int | None,
    per_s: int,
    reads: int | None,
    verbose: bool | None,
    every_s: int | None,
    dry_run: bool,
) -> int:
    """Name the local bookie by its address or by its host's name in the metadata of all ledgers.

    Only for Apache's bookies, whose id changes with useHostNameAsBookieID.
    """
    host, _, port = shell.own_id().rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError(f"bookie {shell.own_id()} has a name of its own: it does not change")
    try:
        address = socket.gethostbyname(host)
        name = socket.gethostbyaddr(address)[0] if address == host else host
    except OSError as error:
        raise click.UsageError(f"{host} cannot be looked up: {error}") from None
    source, target = (name, address) if form == "ip" else (address, name)
    return _rename(
        shell.cluster(), shell, f"{source}:{port}", f"{target}:{port}", limit, per_s,
        bool(verbose), dry_run,
    )  # fmt: skip


def _rename(
    uri: str,
    shell: Shell,
    source: str,
    target: str,
    limit: int | None,
    per_s: int,
    verbose: bool,
    dry_run: bool,
) -> int:
    async def work() -> int:
        from quire.codec.metadata.registration import check_bookie_id
        from quire.errors import UsageError

        check_bookie_id(target)
        async with connect(uri) as client:
            bookies = await client.bookies()
            if source == target or bookies.find(source) is not None:
                raise UsageError(f"Source bookie {source} can't be active: nothing was changed")
            lacks = _lacks(client, target) if bookies.find(target) is not None else None
            return await _rename_all(
                client, shell, source, target, limit, per_s, verbose, dry_run, lacks
            )

    return run_async(work())


def _lacks(client: Client, target: str) -> Callable[[int], Awaitable[bool]]:
    async def asked(ledger_id: int) -> bool:
        from quire.errors import NoSuchEntryError

        try:
            await client.list_entries(target, ledger_id)
        except NoSuchEntryError:
            return True
        return False

    return asked


async def _rename_all(
    client: Client,
    shell: Shell,
    source: str,
    target: str,
    limit: int | None,
    per_s: int,
    verbose: bool,
    dry_run: bool,
    lacks: Callable[[int], Awaitable[bool]] | None,
) -> int:
    from quire.errors import QuireError
    from quire.metadata.ledgers.unreadable import Unread
    from quire.metadata.ledgers.update import update_ledger

    unread = Unread()

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if not any(source in one.ensemble for one in metadata.segments):
            return None
        return replace(metadata, segments=tuple(
            replace(one, ensemble=tuple(target if name == source else name
                                        for name in one.ensemble))
            for one in metadata.segments
        ))  # fmt: skip

    issued = updated = 0
    async for ledger_id, metadata in each_metadata(client, unread):
        if limit is not None and issued == limit:
            break
        if change(metadata) is None:
            continue
        issued += 1
        name = shell.ledger(ledger_id)
        if any(source in one.ensemble and target in one.ensemble for one in metadata.segments):
            say(f"ledger {name} is left as it is: {target} is a member beside {source}")
            continue
        try:
            if metadata.last_entry_id >= 0 and lacks is not None and await lacks(ledger_id):
                say(f"ledger {name} is left as it is: {target} has nothing of it")
                continue
            if not dry_run:
                stored = await client.metadata.read_ledger(ledger_id)
                await update_ledger(client.metadata, ledger_id, stored, change)
                await asyncio.sleep(1 / per_s)
        except QuireError as error:
            say(f"ledger {name} is left as it is: {error}")
            continue
        updated += 1
        if verbose or dry_run:
            click.echo(f"ledger {name} {'would be' if dry_run else 'is'} updated")
    done = "would be updated" if dry_run else "updated"
    click.echo(f"Total number of ledgers issued={issued} {done}={updated}")
    skipped = say_unread(unread)
    return skipped if updated == issued else EXIT_ERROR
