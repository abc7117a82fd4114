"""The command `quire ledger read`."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import renamed, say
from quire.cli.common.options import (
    ENTRY_ID_MAX,
    asynchronous,
    flag,
    json_option,
    ledger_argument,
    liars_option,
    metadata_option,
    password_option,
)
from quire.cli.common.output import OutputThread
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import connect, tls_options

if TYPE_CHECKING:
    from quire.codec.entry.entry import EntryRun
    from quire.codec.metadata.ledger_metadata import LedgerState


@click.command()
@metadata_option
@tls_options
@ledger_argument
@click.option(
    "--first-entry",
    "first",
    metavar="ENTRY",
    type=click.IntRange(0, ENTRY_ID_MAX),
    default=0,
    help="The id of the first entry to print. [default: 0]",
)
@click.option(
    "--last-entry",
    "last",
    metavar="ENTRY",
    type=click.IntRange(0, ENTRY_ID_MAX),
    help="The id of the last entry to print. [default: the last acknowledged entry]",
)
@password_option
@liars_option
@flag("--recover", "If the ledger is not closed, first fence its writer and close it.")
@flag("--follow", "Wait for new entries until the ledger is closed, or --last-entry is reached.")
@json_option(
    "Print one JSON object per entry: ledger_id, entry_id and value, the payload in Base64."
)
@renamed(first="first-entry", last="last-entry")
@asynchronous
async def read(
    uri: str,
    ledger_id: int,
    first: int,
    last: int | None,
    password: bytes,
    assume_liars: int,
    recover: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the entries of a ledger, one per line.

    The payload of each entry is printed as it is, followed by a newline. A ledger that is still
    open is read up to the last entry that is known to be acknowledged; with --follow, it is read on
    as it grows. The writer is fenced only with --recover.
    """
    if last is not None and last < first:
        raise click.UsageError(f"--first-entry {first} is greater than --last-entry {last}")
    if follow and recover:
        raise click.UsageError(
            "--recover and --follow exclude each other, because a closed ledger does not grow: "
            "give one of them"
        )
    sys.stdout.flush()
    as_text = _as_json if as_json else _as_lines
    output = OutputThread(sys.stdout.fileno())
    try:
        async with (
            connect(uri) as client,
            await client.open_ledger(
                ledger_id, password=password, recover=recover, assume_liars=assume_liars
            ) as reader,
        ):
            if follow:
                async with aclosing(reader.tail_runs(first)) as runs:
                    async for run in runs:
                        await output.write(as_text(run if last is None else run.part(first, last)))
                        if last is not None and run.last >= last:
                            return
                return
            end = reader.last_add_confirmed if last is None else last
            if last is None and first > end + 1:
                last = first  # the reader raises the error for an entry beyond the end
            total = max(end - first + 1, 0)
            with ProgressBar("read", total=total, shown=not sys.stdout.isatty()) as progress:
                async with aclosing(reader.read_runs(first, last)) as runs:
                    async for run in runs:
                        await output.write(as_text(run))
                        progress.advance(len(run), sum(run.ends) - sum(run.offsets))
            if last is None and not reader.ledger_closed:
                say(_where_it_ends(reader.metadata.state, ledger_id, end))
    finally:
        output.close()


def _where_it_ends(state: LedgerState, ledger_id: int, end: int) -> str:
    """Return a note that an open ledger may have more entries than were printed."""
    if state.name == "OPEN":
        what = "open"
        more = "--follow waits for more entries; --recover fences its writer and closes it"
    else:
        what = "in recovery"
        more = f"`quire ledger recover {ledger_id}` completes the recovery"
    known = f"entry {end} is the last one" if end >= 0 else "no entry is"
    return f"ledger {ledger_id} is {what}: {known} known to be acknowledged. {more}"


def _as_lines(run: EntryRun) -> bytes:
    return b"\n".join((*run.payloads(), b""))


def _as_json(run: EntryRun) -> bytes:
    lines = [
        json.dumps(
            {"ledger_id": run.ledger_id, "entry_id": entry_id, "value": b64encode(payload).decode()}
        )
        for entry_id, payload in enumerate(run.payloads(), start=run.first)
    ]
    return ("\n".join(lines) + "\n").encode()
