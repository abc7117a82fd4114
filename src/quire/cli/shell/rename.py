"""Verbs of `quire shell` that change the id of a bookie in the metadata of ledgers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import ENTRY_ID_MAX
from quire.cli.shell.ledgers import each_metadata, say_unread
from quire.codec.metadata.registration import check_bookie_id
from quire.core.fragments import stored_by
from quire.core.ranges import touches
from quire.errors import NoSuchEntryError, QuireError, UsageError

if TYPE_CHECKING:
    from quire.cli.shell.session import Shell
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata


async def update_bookie(shell: Shell, source: str, target: str, **how: Any) -> int:
    """Replace the id of a bookie in the metadata of all ledgers.

    Use this for a bookie whose id has changed, but not its data. (A Quire bookie keeps its id on
    every host, so it never needs this.) The source bookie must be stopped. If the destination
    bookie is running, it is asked for each ledger, open ones included: a ledger is not changed if
    the destination has no entries of it, or none of a segment in which the source should have some.
    The exit status is then 1. Closed ledgers without entries are changed.
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

    def has_both(metadata: LedgerMetadata) -> bool:
        return any(source in one.ensemble and target in one.ensemble for one in metadata.segments)

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if not any(source in one.ensemble for one in metadata.segments) or has_both(metadata):
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
        if source == target:
            raise UsageError(
                f"bookie {source} was named as the source and as the destination; nothing was "
                "changed",
                remedy="Name another destination",
            )
        if bookies.find(source) is not None:
            raise UsageError(
                f"the source bookie {source} is still registered; nothing was changed",
                remedy="Stop it first. A bookie that was killed stays registered until its session "
                "with the metadata store times out",
            )
        runs = bookies.find(target) is not None
        async for ledger_id, metadata in each_metadata(client, unread):
            if limit is not None and issued == limit:
                break
            if not any(source in one.ensemble for one in metadata.segments):
                continue
            issued += 1
            name = shell.ledger(ledger_id)
            both = f"ledger {name} is not changed: it has both {target} and {source}"
            try:
                # Autorecovery may have changed it since it was listed.
                stored = await client.metadata.read_ledger(ledger_id)
                metadata = stored.value
                if has_both(metadata):
                    say(both)
                    continue
                # The metadata of an open ledger does not say whether it has entries.
                empty = metadata.closed and metadata.last_entry_id < 0
                lacking = ""
                if runs and not empty:
                    lacking = await _lacking(client, source, target, ledger_id, metadata)
                if lacking:
                    say(f"ledger {name} is not changed: {target} has {lacking}")
                    if not metadata.closed:
                        say(
                            f"ledger {name} is open: if it has no entries, recover it with "
                            f"`quire ledger recover {ledger_id}`, and repeat the command"
                        )
                    continue
                if not dry_run:
                    after = await update_ledger(client.metadata, ledger_id, stored, change)
                    if has_both(after.value):
                        say(both)
                        continue
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


async def _lacking(
    client: Client, source: str, target: str, ledger_id: int, metadata: LedgerMetadata
) -> str:
    """Return what the bookie `target` lacks of the source's entries of a ledger, or "".

    It may have entries of other segments of the ledger under its own id, so each segment counts.
    """
    try:
        there = await client.list_entries(target, ledger_id)
    except NoSuchEntryError:
        return "no entries of it"
    newest, sure = metadata.last_segment, False
    known = metadata.last_entry_id if metadata.closed else newest.first_entry_id - 1
    for segment in metadata.segments:
        first, end = segment.first_entry_id, metadata.segment_end(segment, known)
        if source not in segment.ensemble or first > end:
            continue
        # Of as many entries as the ensemble has bookies, each of them has one.
        some = min(end, first + metadata.ensemble_size)
        if not stored_by(metadata, segment.ensemble.index(source), first, some):
            continue
        if not touches(there, first, end):
            return f"none of its entries {first} to {end}"
        sure = True
    first = newest.first_entry_id
    if not sure and not metadata.closed and not touches(there, first, ENTRY_ID_MAX):
        return f"no entries of it from {first} on"
    return ""
