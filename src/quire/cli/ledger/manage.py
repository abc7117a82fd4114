"""The commands `quire ledger list`, `show`, `delete` and `recover`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.tasks import TaskGroup, each, pages
from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.logs import printable
from quire.cli.common.options import (
    LedgerId,
    asynchronous,
    confirmed,
    dry_run_option,
    flag,
    json_option,
    ledger_argument,
    liars_option,
    metadata_option,
    password_option,
    placement_option,
    yes_option,
)
from quire.cli.common.output import ledger_as_json, print_json
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import connect, tls_options

if TYPE_CHECKING:
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.metadata.ledgers.creation import SeenLedger
    from quire.metadata.ledgers.unreadable import Unread
    from quire.streams.ownership.owner_index import OwnerIndex
    from quire.streams.ownership.owners import OwnerClaim

LOOKUPS_IN_FLIGHT = 64
OWNERS_LIMIT_S = 5.0
"""Seconds to search for the owner of a ledger whose metadata does not name it."""


# -- list -------------------------------------------------------------------------------------


@click.command("list")
@metadata_option
@click.option(
    "--first",
    metavar="ID",
    type=LedgerId(),
    default=0,
    help="List only ledgers with this id or a higher one. [default: 0]",
)
@flag(
    "--open",
    "List only ledgers that are not closed. Each is being written, or lost its writer.",
    "only_open",
)
@flag(
    "-l --long",
    "Print a table with the state, the number of entries, the time of creation and the owner of "
    "each ledger. This is the default on a terminal.",
    "long",
)
@json_option("Print one JSON object per ledger, as `quire ledger show --json` does.")
@asynchronous
async def list_ledgers(uri: str, first: int, only_open: bool, long: bool, as_json: bool) -> int:
    """List all ledgers in ascending order.

    On a terminal, the command prints a table, with the stream, object, dataset, state machine or
    other application that owns each ledger. Otherwise it prints the ids, one per line.

    For a table, and with --open or --json, the metadata of every ledger is read. For the owners,
    the records of all streams, objects and datasets are read first. If the metadata of a ledger
    cannot be read, the exit status is 1. With --json, such a ledger is an object with `ledger_id`
    and `error`.
    """

    import quire
    from quire.metadata.ledgers.unreadable import Unread

    unread = Unread()
    table = not as_json and (long or sys.stdout.isatty())
    async with quire.connect(uri) as client:
        if not (as_json or table or only_open):
            async for ids in pages(client.list_ledgers(first), LOOKUPS_IN_FLIGHT):
                sys.stdout.write("".join(f"{ledger_id}\n" for ledger_id in ids))
            sys.stdout.flush()
            return 0
        index = await _owners(client) if as_json or table else None
        if table:
            click.echo(_row(*HEAD))
        async for ids in pages(client.list_ledgers(first), LOOKUPS_IN_FLIGHT):
            async with TaskGroup() as group:
                tasks = [group.create_task(_in_list(client, one, unread, index)) for one in ids]
            for task in tasks:
                described = task.result()
                if described is None or (only_open and described.get("state") == "CLOSED"):
                    continue
                if as_json:
                    print_json(described)
                elif table:
                    click.echo(_table_row(described))
                elif "error" not in described:
                    click.echo(described["ledger_id"])
        sys.stdout.flush()
    if unread:
        say(f"the metadata of {unread} cannot be read: {unread.why}")
    return EXIT_ERROR if unread else 0


HEAD = ("LEDGER", "STATE", "ENTRIES", "CREATED", "OWNER")


def _row(ledger: str, state: str, entries: str, created: str, owner: str) -> str:
    return f"{ledger:>8}  {state:<11}  {entries:>12}  {created:<20}  {owner}".rstrip()


def _table_row(described: dict[str, Any]) -> str:
    ledger_id, last = str(described["ledger_id"]), described.get("last_entry_id")
    if "error" in described:
        return _row(ledger_id, "unreadable", "-", "-", "unknown")
    created = described["ctime"]
    return _row(
        ledger_id,
        described["state"].lower().replace("_", " "),
        "-" if last is None else f"{last + 1:,}",
        "-" if created is None else f"{created[:19]}Z",
        _names(described["owners"]),
    )


def _names(owners: list[dict[str, Any]] | None) -> str:
    from quire.streams.ownership.owner_index import owners_in_words

    return owners_in_words(owners) or "-"


async def _owners(client: Client) -> OwnerIndex:
    """Read the records of all owners."""
    from quire.streams.ownership.named_ledgers import records
    from quire.streams.ownership.owner_index import OwnerIndex

    index = OwnerIndex(client.clock.now_ms())
    with ProgressBar("look for owners", counted="records") as progress:
        async for record in records(client):
            index.add(record)
            progress.advance(1, 0)
    index.whole = True
    return index


async def _in_list(
    client: Client, ledger_id: int, unread: Unread, index: OwnerIndex | None
) -> dict[str, Any] | None:
    """Return a ledger as JSON, or None if it was deleted since it was listed.

    With an index of owners, the ledger has them.
    """
    from quire.http.views.ledger_json import described_or_error
    from quire.streams.ownership.owner_index import owners_as_json

    def shape(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
        described = ledger_as_json(ledger_id, metadata)
        if index is not None:
            described["owners"] = owners_as_json(index.of(ledger_id, metadata))
        return described

    return await described_or_error(client.metadata, ledger_id, shape, unread)


# -- show -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@ledger_argument
@json_option("Print one JSON object.")
@asynchronous
async def show(uri: str, ledger_id: int, as_json: bool) -> None:
    """Show the metadata of a ledger: state, length, quorums, segments and bookies.

    The owner is the stream, object, dataset, state machine or other application that needs the
    ledger. `quire explain ledger` also asks the bookies for the replicas that they have.
    """
    import quire

    async with quire.connect(uri) as client:
        described = ledger_as_json(ledger_id, await client.ledger_metadata(ledger_id))
        claims = await owners_of(client, ledger_id)
    if as_json:
        from quire.streams.ownership.owner_index import owners_as_json

        print_json({**described, "owners": owners_as_json(claims)})
    else:
        click.echo("\n".join(_lines(described, claims)))


async def owners_of(client: Client, ledger_id: int) -> list[OwnerClaim]:
    """Return the owners of a ledger.

    If the search takes longer than `OWNERS_LIMIT_S`, the result says that the owner is not certain.
    Raises MetadataUnavailableError.
    """
    from quire.streams.ownership.owners import find_claims

    return (await find_claims(client, [ledger_id], limit_s=OWNERS_LIMIT_S))[ledger_id]


def _lines(described: dict[str, Any], claims: Sequence[OwnerClaim]) -> list[str]:
    def known(value: Any) -> Any:
        return "unknown" if value is None else value

    last_entry = described["last_entry_id"]
    lines = [
        f"ledger        {described['ledger_id']}",
        f"state         {described['state']}",
        f"last entry    {'none' if last_entry == -1 else known(last_entry)}",
        f"length        {known(described['length'])}",
        f"ensemble      {described['ensemble']}",
        f"write quorum  {described['write_quorum']}",
        f"ack quorum    {described['ack_quorum']}",
        f"digest        {known(described['digest'])}",
        f"created       {known(described['ctime'])}",
    ]
    lines += [f"owner         {claim}" for claim in claims] or ["owner         none"]
    for key, value in (described["custom"] | described.get("custom_base64", {})).items():
        lines.append(f"custom        {printable(f'{key}={value}')}")
    for segment in described["segments"]:
        last = segment["last_entry_id"]
        first = segment["first_entry_id"]
        empty = last is not None and last < first
        entries = f"{first}..{' (no entries)' if empty else '' if last is None else last}"
        lines.append(f"segment       {entries} {' '.join(segment['bookies'])}")
    return lines


# -- delete -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@click.argument("ledger_ids", metavar="ID...", nargs=-1, required=True, type=LedgerId())
@yes_option()
@flag(
    "--force",
    "Also delete ledgers that a stream, an object, a dataset or another application needs. These "
    "lose their data.",
)
@dry_run_option("Only print what would be deleted.")
@asynchronous
async def delete(
    uri: str, ledger_ids: tuple[int, ...], yes: bool, force: bool, dry_run: bool
) -> int:
    """Delete ledgers. Bookies free their space at their next garbage collection.

    The command asks for confirmation once for all ledgers if standard input is a terminal. If one
    of the ledgers does not exist, none is deleted. Without --force, none is deleted if one of them
    belongs to a stream, an object, a dataset or another application, or if its owner cannot be
    determined. The command notes in the metadata store who deleted each ledger and when.
    """
    import quire
    from quire.metadata.ledgers.creation import check_seen, see_ledger
    from quire.metadata.ledgers.deletions import note_deletion

    wanted = list(dict.fromkeys(ledger_ids))
    async with quire.connect(uri) as client:
        store = client.metadata
        found = {one: await see_ledger(store, one, unreadable=force) for one in wanted}
        owners = await check_owners(client, wanted, force=force)
        told = {one: f"{_summary(it)}; {owners_told(owners[one])}" for one, it in found.items()}
        if dry_run:
            for ledger_id, what in told.items():
                say(f"ledger {ledger_id} ({what}) would be deleted")
            return 0
        listed = ", ".join(f"{ledger_id} ({what})" for ledger_id, what in told.items())
        if not confirmed(f"Delete ledger{'s' * (len(found) > 1)} {listed}?", yes):
            return EXIT_ERROR
        if not force and not yes and sys.stdin.isatty():
            # A dataset may have taken one since, while the command waited for an answer.
            await check_owners(client, wanted, force=False)
        await each(found.values(), lambda seen: check_seen(store, seen))
        how = f"quire ledger delete{' --force' if force else ''}"
        for ledger_id in found:
            await note_deletion(store, ledger_id, client.clock.now_ms(), how)
            await client.delete_ledger(ledger_id)
            say(f"ledger {ledger_id} deleted")
    return 0


async def check_owners(
    client: Client, ledger_ids: Sequence[int], *, force: bool
) -> Mapping[int, Sequence[OwnerClaim]]:
    """Raise LedgerOwnedError if one of these ledgers has an owner, or may have one.

    With `force`, print and return the owners instead. The search for them then ends after
    `OWNERS_LIMIT_S` seconds. Raises MetadataError.
    """
    from quire.streams.ownership.owners import find_claims, refuse_owned

    with ProgressBar("look for owners", counted="records") as progress:

        def looked_at(count: int) -> None:
            progress.advance(count, 0)

        if not force:
            await refuse_owned(client, ledger_ids, looked_at=looked_at)
            return dict.fromkeys(ledger_ids, ())
        found = await find_claims(client, ledger_ids, limit_s=OWNERS_LIMIT_S, looked_at=looked_at)
    for ledger_id, claims in found.items():
        for claim in claims:
            say(f"warning: ledger {ledger_id} {claim.verdict}")
    return found


def owners_told(claims: Sequence[OwnerClaim]) -> str:
    """Return the text that names the owners of a ledger in questions and dry runs."""
    return "of " + " and of ".join(map(str, claims)) if claims else "no owner"


def _summary(seen: SeenLedger) -> str:
    if seen.stored is None:
        return "its metadata cannot be read"
    metadata = seen.stored.value
    state = metadata.state.name.lower().replace("_", " ")
    held = f", {counted(metadata.last_entry_id + 1, 'entry')}" if metadata.closed else ""
    return f"{state}{held}"


# -- recover ----------------------------------------------------------------------------------


@click.command()
@metadata_option
@placement_option
@tls_options
@ledger_argument
@password_option
@liars_option
@flag(
    "--unverified-password",
    "Also recover an empty ledger whose password cannot be checked, because its metadata (format "
    "1) does not store one.",
)
@click.option(
    "--like",
    metavar="LEDGER",
    type=LedgerId(),
    help="The ledger was deleted: first make its metadata again, from the entries that bookies "
    "still hold and with the quorums and the checksum of LEDGER, such as another ledger of the "
    "same stream. Garbage collection must be off.",
)
@json_option("Print the closed ledger as one JSON object, as `quire ledger show --json` does.")
@asynchronous
async def recover(
    uri: str,
    ledger_id: int,
    password: bytes,
    assume_liars: int,
    unverified_password: bool,
    like: int | None,
    as_json: bool,
) -> None:
    """Fence the writer of a ledger and close the ledger.

    The writer, if it is still alive, can no longer append. The closed ledger has every acknowledged
    entry, and may have entries that were in flight when the writer stopped. A ledger that is closed
    already is not changed. If the metadata of the ledger names its owner, the command prints it.
    """
    from quire.streams.ownership.owners import find_claims

    async with connect(uri) as client:
        if like is not None:
            from quire.replication.repair.deleted_ledger import recreate_metadata

            await recreate_metadata(client, ledger_id, like)
        async with await client.open_ledger(
            ledger_id,
            password=password,
            recover=True,
            assume_liars=assume_liars,
            unverified_password=unverified_password,
        ) as reader:
            if as_json:
                print_json(ledger_as_json(ledger_id, reader.metadata))
            last, length = reader.last_add_confirmed, reader.length
            entries = counted(last + 1, "entry")
            say(f"ledger {ledger_id} closed: {entries}, {counted(length, 'byte')}")
            for claim in (await find_claims(client, [ledger_id], scan=False))[ledger_id]:
                say(f"ledger {ledger_id} {claim.verdict}")
