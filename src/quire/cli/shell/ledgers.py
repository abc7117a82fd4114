"""Verbs of `quire shell` for ledgers: their metadata and their entries."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire._runtime.names.suggest import did_you_mean
from quire._runtime.secret_files import PRIVATE_FILE_MODE
from quire._runtime.tasks import each, pages
from quire._runtime.units import counted, does, end_text
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import check_quorums
from quire.cli.common.progress import ProgressBar
from quire.cli.ledger.manage import check_owners, owners_told
from quire.cli.shell.session import LOOKUPS_IN_FLIGHT, Shell, agreed
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata_format import decode, encode
from quire.core.fragments import stored_by
from quire.core.replicas import Bad, Kind
from quire.errors import (
    LaterMetadataError,
    LedgerExistsError,
    MetadataError,
    NoSuchLedgerError,
    QuireError,
    UnreadableMetadataError,
    UsageError,
)

if TYPE_CHECKING:
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.metadata.ledgers.unreadable import Unread

TEST_PAYLOAD = b"\0" * 100
"""The payload of an entry of `simpletest`, which is as long as that of Apache's shell."""
TEST_PIECE_ENTRIES = 4_096
FILE_BYTES_MAX = 16 * 1024 * 1024
"""The largest file that can be the metadata of one ledger."""


def metadata_text(metadata: LedgerMetadata) -> str:
    """Return metadata in the format of Java's `toString`. The password is omitted."""
    fields = [
        f"formatVersion={metadata.format_version}",
        f"ensembleSize={metadata.ensemble_size}",
        f"writeQuorumSize={metadata.write_quorum}",
        f"ackQuorumSize={metadata.ack_quorum}",
        f"state={metadata.state.name}",
    ]
    if metadata.closed:
        fields += [f"length={metadata.length}", f"lastEntryId={metadata.last_entry_id}"]
    if metadata.digest is not None:
        fields += [f"digestType={metadata.digest.name}", "password=OMITTED"]
    ensembles = ", ".join(
        f"{segment.first_entry_id}=[{', '.join(segment.ensemble)}]" for segment in metadata.segments
    )
    custom = ", ".join(
        f"{key}=base64:{b64encode(data).decode()}" for key, data in metadata.custom.items()
    )
    fields += [f"ensembles={{{ensembles}}}", f"customMetadata={{{custom}}}"]
    return f"LedgerMetadata{{{', '.join(fields)}}}"


async def each_metadata(
    client: Client, unread: Unread
) -> AsyncIterator[tuple[int, LedgerMetadata]]:
    """Yield all ledgers with their metadata in ascending order, without those deleted meanwhile.

    Ledgers whose metadata cannot be read are recorded in `unread`. Raises MetadataError if the
    store does not answer.
    """
    from quire.metadata.ledgers.unreadable import read_or_skip

    async def look(ledger_id: int) -> tuple[int, LedgerMetadata] | None:
        found = await read_or_skip(client.metadata, ledger_id, unread)
        return None if found is None else (ledger_id, found.value)

    async for ids in pages(client.list_ledgers(), LOOKUPS_IN_FLIGHT):
        for found in await each(ids, look):
            if found is not None:
                yield found


# -- listed, shown, deleted -------------------------------------------------------------------


async def list_ledgers(shell: Shell, meta: bool, bookie: str | None) -> int:
    """List all ledgers.

    With -meta or -bookieid, the exit status is 1 if the metadata of a ledger cannot be read.
    """
    from quire.metadata.ledgers.unreadable import Unread

    unread = Unread()
    async with shell.client() as client:
        if not meta and bookie is None:
            async for ledger_id in client.list_ledgers():
                click.echo(f"ledgerID: {shell.ledger(ledger_id)}")
            return 0
        found = False
        async for ledger_id, metadata in each_metadata(client, unread):
            if bookie is None or any(bookie in one.ensemble for one in metadata.segments):
                found = True
                click.echo(f"ledgerID: {shell.ledger(ledger_id)}")
                if meta:
                    click.echo(metadata_text(metadata))
        if bookie is not None and not found:
            say(f"no ledger has entries on bookie {bookie}")
    return say_unread(unread)


def say_unread(unread: Unread) -> int:
    """Print the ledgers that a command skipped, if any, and return the command's exit status."""
    if not unread:
        return 0
    say(f"{unread} skipped, because the metadata cannot be read: {unread.why}")
    return EXIT_ERROR


async def ledger_metadata(
    shell: Shell, ledger_id: int, dump: str | None, restore: str | None, update: bool, dry_run: bool
) -> None:
    """Print the metadata of a ledger, save it to a file, or restore it from a file."""
    if dump is not None and restore is not None:
        raise click.UsageError(
            "-dumptofile and -restorefromfile exclude each other: give one of them"
        )
    if update and restore is None:
        raise click.UsageError("-update requires -restorefromfile")
    shell.cluster()
    wanted = None if restore is None else _read_metadata(restore)
    async with shell.client() as client:
        if wanted is not None:
            await _restore(shell, client, ledger_id, wanted, update, dry_run)
            return
        found = await client.ledger_metadata(ledger_id)
    click.echo(f"ledgerID: {shell.ledger(ledger_id)}")
    click.echo(metadata_text(found))
    if dump is not None:
        _save(dump, encode(found))


def _save(path: str, metadata: bytes) -> None:
    """Write metadata to a file. It contains the password, so a new file is not for others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(metadata)


def _read_metadata(file: str) -> LedgerMetadata:
    with Path(file).open("rb") as opened:
        data = opened.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(
            f"{file} is larger than {FILE_BYTES_MAX} bytes, so it cannot be the metadata of a "
            "ledger",
            remedy="Give a file that -dumptofile has written",
        )
    try:
        return decode(data)
    except LaterMetadataError as error:
        raise LaterMetadataError(f"{file} cannot be used: {error.args[0]}") from None
    except MetadataError as error:
        raise MetadataError(
            f"{file} is not the metadata of a ledger that can be used: {error}",
            remedy="Give a file that -dumptofile has written",
        ) from None


async def _restore(
    shell: Shell,
    client: Client,
    ledger_id: int,
    wanted: LedgerMetadata,
    update: bool,
    dry_run: bool,
) -> None:
    store, version = client.metadata, None
    try:
        version = (await store.read_ledger(ledger_id)).version
    except NoSuchLedgerError:
        pass
    except LaterMetadataError:
        raise  # -update replaces what is damaged, and this is not
    except UnreadableMetadataError as error:
        if error.version is None:
            raise
        version = error.version
    if version is not None and not update:
        raise LedgerExistsError(
            f"ledger {shell.ledger(ledger_id)} has metadata already; nothing was changed",
            remedy="-update replaces it. Check the list of bookies in the file first: a wrong one "
            "loses entries",
        )
    if not dry_run and version is None:
        await store.create_ledger(wanted, ledger_id)
    elif not dry_run and version is not None:
        await store.write_ledger(ledger_id, wanted, version)
    done = "would be restored" if dry_run else "was restored"
    click.echo(f"ledgerID: {shell.ledger(ledger_id)} {done}")
    click.echo(metadata_text(wanted))


async def delete_ledger(shell: Shell, ledger_id: int, force: bool, dry_run: bool) -> int:
    """Delete a ledger. The command succeeds if the ledger does not exist.

    Without -force, it does not delete a ledger that belongs to a stream, an object, a dataset or
    another application, or whose owner cannot be determined.
    """
    from quire.metadata.ledgers.creation import check_seen, see_ledger
    from quire.metadata.ledgers.deletions import note_deletion

    name = shell.ledger(ledger_id)

    async with shell.client() as client:
        try:
            seen = await see_ledger(client.metadata, ledger_id, unreadable=force)
        except NoSuchLedgerError:
            say(f"Ledger node does not exist: ledgerId={name}. Returning success.")
            return 0
        stored = seen.stored
        state = "its metadata cannot be read" if stored is None else stored.value.state.name
        owners = owners_told((await check_owners(client, [ledger_id], force=force))[ledger_id])
        if dry_run:
            click.echo(f"ledger {name} ({state}; {owners}) would be deleted")
            return 0
        if not force and not agreed(
            f"Delete ledger {name} ({owners})?",
            what=f"ledger {name} ({owners}) was not deleted",
            without="-force",
        ):
            return EXIT_ERROR
        if not force:
            # A dataset may have taken it since, while the command waited for an answer.
            await check_owners(client, [ledger_id], force=False)
        await check_seen(client.metadata, seen)
        how = f"quire shell deleteledger{' -force' if force else ''}"
        await note_deletion(client.metadata, ledger_id, client.clock.now_ms(), how)
        await client.delete_ledger(ledger_id)
    click.echo(f"ledger {name} deleted")
    return 0


# -- entries ----------------------------------------------------------------------------------


async def read_ledger(
    shell: Shell,
    ledger_id: int,
    first: int,
    last: int,
    message: bool,
    recover: bool,
    bookie: str | None,
) -> int:
    """Print the entries of a ledger, which is opened with the password in its metadata."""
    if 0 <= last < first:
        raise click.UsageError(f"-firstentryid {first} is greater than -lastentryid {last}")
    name = shell.ledger(ledger_id)

    def show(entry_id: int, length: int, payload: bytes) -> None:
        click.echo(f"--------- Lid={name}, Eid={entry_id}, EntrySize={length} ---------")
        if message:
            click.echo(shell.entry(payload))

    async with shell.client() as client:
        secret = (await client.ledger_metadata(ledger_id)).password or b""
        async with await client.open_ledger(ledger_id, password=secret, recover=recover) as reader:
            known = reader.last_add_confirmed
            end = last if last >= 0 else known
            if first > end:
                return 0
            if bookie is not None:
                if reader.ledger_closed and end > known:
                    end = _end_of_closed(name, first, known)
                return await _read_replica(
                    client, ledger_id, reader.metadata, secret, bookie, (first, end), known, show
                )
            async with aclosing(reader.read_runs(first, end)) as runs:
                async for run in runs:
                    for at, payload in enumerate(run.payloads()):
                        show(run.first + at, run.ledger_lengths[at], payload)
    return 0


def _end_of_closed(name: str, first: int, last: int) -> int:
    """Return the last entry to read of a closed ledger that ends at `last`, before the wanted end.

    The entries after it never existed, so no bookie lacks them. Raises UsageError if `first` is
    one of them.
    """
    ends = f"ledger {name} is closed and {end_text(last)}"
    if first > last:
        raise UsageError(f"{ends}, so it has no entry {first}")
    say(f"{ends}, so no later entry is read")
    return last


async def _read_replica(
    client: Client,
    ledger_id: int,
    metadata: LedgerMetadata,
    password: bytes,
    bookie: str,
    span: tuple[int, int],
    known: int,
    show: Callable[[int, int, bytes], None],
) -> int:
    """Show the entries of a ledger that one bookie has, and report those that it should have.

    `span` is the first and the last entry id to show. `known` is the last entry that is known to be
    acknowledged. After it, an open ledger may have no entries, so the first missing one is not
    reported, and ends the search. `show` receives the entry id, the cumulative length and the
    payload of each entry. Returns exit status 1 if the bookie lacks an entry or has a damaged one.
    Raises UsageError if the bookie should have none of the entries in `span`.
    """
    from quire.replication.repair.replica_reader import ReplicaReader

    members = dict.fromkeys(one for segment in metadata.segments for one in segment.ensemble)
    if bookie not in members:
        raise UsageError(
            f"bookie {bookie} stores no entry of ledger {ledger_id}: it is in no ensemble of the "
            "ledger",
            remedy=did_you_mean(bookie, members, f"Give one of {', '.join(members)}"),
        )
    codec = EntryCodec(ledger_id, metadata.digest or DigestType.CRC32, password)
    reader = ReplicaReader(client, ledger_id, metadata, codec, bookie)
    known = max(known, metadata.last_segment.first_entry_id - 1)
    status, asked, (first, last) = 0, False, span
    for segment in metadata.segments:
        start = max(first, segment.first_entry_id)
        end = min(last, metadata.segment_end(segment, last))
        if bookie not in segment.ensemble or start > end:
            continue
        parts = reader.parts(segment.ensemble.index(bookie), start, end)
        async with aclosing(parts):
            async for part in parts:
                asked = True
                if isinstance(part, Bad):
                    bad = part
                    if part.kind is Kind.MISSING and part.last > known:
                        if part.first > known:
                            break
                        bad = replace(part, last=known)
                    why = bad.kind.name.lower().replace("_", " ")
                    say(f"entries {bad.first}..{bad.last} on {bookie}: {why} {bad.detail}")
                    status = EXIT_ERROR
                    if bad is not part:
                        break
                    continue
                for entry_id, length, payload in zip(
                    part.ids, part.lengths, part.payloads, strict=True
                ):
                    show(entry_id, length, payload)
    if not asked:
        raise UsageError(
            f"bookie {bookie} should store none of the entries {first} to {last} of ledger "
            f"{ledger_id}",
            remedy=f"Give one of {', '.join(_storing(metadata, first, last))}",
        )
    return status


def _storing(metadata: LedgerMetadata, first: int, last: int) -> list[str]:
    """Return the bookies that should store entries from `first` to `last`, in no special order.

    If an ensemble is larger than the write quorum, each entry is on some of its bookies only.
    """
    found: dict[str, None] = {}
    for segment in metadata.segments:
        start = max(first, segment.first_entry_id)
        end = min(last, metadata.segment_end(segment, last))
        for index, bookie in enumerate(segment.ensemble):
            # After as many entries as the ensemble has bookies, each of them has been named.
            if stored_by(metadata, index, start, min(end, start + metadata.ensemble_size)):
                found[bookie] = None
    return list(found)


async def simple_test(
    shell: Shell, ensemble: int, write_quorum: int, ack_quorum: int, entries: int
) -> None:
    """Write a ledger with entries of 100 bytes, read it back, and delete it.

    All entries are read twice: before and after the ledger is closed.
    """
    check_quorums(ensemble, write_quorum, ack_quorum)
    async with shell.client() as client:
        writer = await client.create_ledger(
            ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        name = shell.ledger(writer.ledger_id)
        click.echo(f"Ledger ID: {name}")
        try:
            with ProgressBar("append", total=entries) as progress:
                for at in range(0, entries, TEST_PIECE_ENTRIES):
                    count = min(TEST_PIECE_ENTRIES, entries - at)
                    await writer.append_many([TEST_PAYLOAD] * count)
                    progress.advance(count, count * len(TEST_PAYLOAD))
            last = writer.last_add_pushed
            click.echo(f"{entries} entries written to ledger {name}. Last entry Id {last}")
            await _read_back(client, writer.ledger_id, entries, name, closed=False)
            await writer.close()
            await _read_back(client, writer.ledger_id, entries, name, closed=True)
        finally:
            await client.delete_ledger(writer.ledger_id)


async def _read_back(
    client: Client, ledger_id: int, entries: int, name: str, *, closed: bool
) -> None:
    """Read all entries that `simple_test` wrote. Raises QuireError if one has another payload."""
    async with await client.open_ledger(ledger_id) as reader:
        # Bookies need not know yet that the last entry of an open ledger is acknowledged.
        last = entries - 1
        read = reader.read(0, last) if closed else reader.read_unconfirmed(0, last)
        wrong = [entry.entry_id async for entry in read if entry.payload != TEST_PAYLOAD]
    if wrong:
        when = "after" if closed else "before"
        raise QuireError(
            f"the test read ledger {name} {when} it was closed, and "
            f"{counted(len(wrong), 'entry')} {does(len(wrong))} not have the payload that was "
            f"written. The first of them is entry {wrong[0]}",
            remedy="Check the disks and the memory of the bookies",
        )
