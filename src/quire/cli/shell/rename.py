"""Verbs of `quire shell` that name a bookie otherwise in the metadata of ledgers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.shell.ledgers import each_metadata, say_unread
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import NoSuchEntryError, QuireError, UsageError

if TYPE_CHECKING:
    from quire.cli.shell.session import Shell
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata


async def update_bookie(shell: Shell, source: str, target: str, **how: Any) -> int:
    """Name one bookie in the place of another in the metadata of all ledgers.

    For a bookie whose id has changed while its data has not. (A Quire bookie keeps its id wherever
    it goes: nothing has to be replaced.) SOURCE must not run. Where the other one runs it is asked
    for each ledger, and one of which it has nothing is left as it is, and is an error.
    """
    return await _rename(shell, source, target, **how)


async def update_ledgers(shell: Shell, form: str, **how: Any) -> int:
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
    return await _rename(shell, f"{source}:{port}", f"{target}:{port}", **how)


async def _rename(
    shell: Shell, source: str, target: str, *, limit: int | None, per_s: int, dry_run: bool,
    verbose: bool | None, reads: int | None, every_s: int | None,
) -> int:  # fmt: skip
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

    check_bookie_id(target)
    issued = updated = 0
    async with shell.client() as client:
        bookies = await client.bookies()
        if source == target or bookies.find(source) is not None:
            raise UsageError(f"Source bookie {source} can't be active: nothing was changed")
        runs = bookies.find(target) is not None
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
                if metadata.last_entry_id >= 0 and runs and await _lacks(client, target, ledger_id):
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


async def _lacks(client: Client, bookie: str, ledger_id: int) -> bool:
    try:
        await client.list_entries(bookie, ledger_id)
    except NoSuchEntryError:
        return True
    return False
