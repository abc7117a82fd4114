"""Verbs of `quire shell` that change the id of a bookie in the metadata of ledgers."""

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
    """Replace the id of a bookie in the metadata of all ledgers.

    Use this for a bookie whose id has changed, but not its data. (A Quire bookie keeps its id on
    every host, so it never needs this.) The source bookie must be stopped. If the destination
    bookie is running, it is asked for each ledger, open ones included: a ledger of which it has no
    entries is not changed, and the exit status is 1. Closed ledgers without entries are changed.
    """
    return await _rename(shell, source, target, **how)


async def update_ledgers(shell: Shell, form: str, **how: Any) -> int:
    """Replace the local bookie's id by its address or its host name in all ledgers.

    Use this only for Apache's bookies, whose id changes with useHostNameAsBookieID.
    """
    host, _, port = shell.own_id().rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError(
            f"the id of the bookie, {shell.own_id()}, is not of the form HOST:PORT, so it does "
            "not depend on the host's name and nothing needs to be renamed"
        )
    try:
        address = socket.gethostbyname(host)
        name = socket.gethostbyaddr(address)[0] if address == host else host
    except OSError as error:
        raise click.UsageError(
            f"{host} cannot be looked up: {error}. Check DNS or /etc/hosts; nothing was changed"
        ) from None
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
            raise UsageError(
                f"the source bookie {source} is still registered, or it is also the destination; "
                "nothing was changed",
                remedy="Stop the source bookie first, or name another destination",
            )
        runs = bookies.find(target) is not None
        async for ledger_id, metadata in each_metadata(client, unread):
            if limit is not None and issued == limit:
                break
            if change(metadata) is None:
                continue
            issued += 1
            name = shell.ledger(ledger_id)
            if any(source in one.ensemble and target in one.ensemble for one in metadata.segments):
                say(f"ledger {name} is not changed: it has both {target} and {source}")
                continue
            try:
                # The metadata of an open ledger does not say whether it has entries.
                empty = metadata.closed and metadata.last_entry_id < 0
                if runs and not empty and await _lacks(client, target, ledger_id):
                    say(f"ledger {name} is not changed: {target} has no entries of it")
                    if not metadata.closed:
                        say(
                            f"ledger {name} is open: if it has no entries, recover it with "
                            f"`quire ledger recover {ledger_id}`, and repeat the command"
                        )
                    continue
                if not dry_run:
                    stored = await client.metadata.read_ledger(ledger_id)
                    await update_ledger(client.metadata, ledger_id, stored, change)
                    await asyncio.sleep(1 / per_s)
            except QuireError as error:
                say(f"ledger {name} is not changed: {error}")
                continue
            updated += 1
            if verbose or dry_run:
                click.echo(f"ledger {name} {'would be' if dry_run else 'was'} updated")
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
