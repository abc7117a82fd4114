"""The command `quire ledger write`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.input import LineSource, input_bytes, signals_to, unreadable
from quire.cli.common.options import (
    EXPLICIT_LAC_MAX_S,
    Duration,
    asynchronous,
    check_quorums,
    flag,
    json_option,
    key_values,
    metadata_option,
    password_option,
    placement_option,
    quorum_options,
)
from quire.cli.common.output import print_json
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import connect, tls_options
from quire.codec.entry.entry import max_payload_bytes
from quire.errors import EntryTooLargeError, QuireError

if TYPE_CHECKING:
    from quire.client import LedgerWriter

STDIN = 0
EXPLICIT_LAC_MS = 100
PIECE_ENTRIES = 4_096
"""The number of entries that are submitted before outstanding ones are counted again."""
OUTSTANDING_ENTRIES_MAX = 65_536
"""The largest number of unacknowledged entries. The client limits only their bytes, which short
lines do not reach."""


@click.command()
@metadata_option
@placement_option
@tls_options
@quorum_options
@password_option
@key_values("--custom", help_text="Custom metadata to store with the ledger. May be repeated.")
@flag(
    "--deferred-sync",
    "Let bookies acknowledge entries before they sync them to disk. All entries are synced before "
    "the ledger is closed.",
)
@click.option(
    "--explicit-lac",
    "explicit_lac_s",
    metavar="MS",
    type=Duration(0, EXPLICIT_LAC_MAX_S, plain="ms"),
    default=EXPLICIT_LAC_MS,
    show_default=True,
    help="If no line arrives for this many milliseconds, report the last acknowledged entry to the "
    "bookies, so that readers can see it. 0 means never.",
)
@json_option(
    "Instead of the id, print one JSON object at the end: ledger_id, state, entries, last_entry_id "
    "and length."
)
@asynchronous
async def write(
    uri: str, custom: dict[str, str], explicit_lac_s: float, as_json: bool, **ledger: Any
) -> int:
    """Append the lines of standard input to a new ledger.

    Each line becomes one entry; the newline is not part of it, and a line may contain any bytes.
    The ledger is closed at the end of the input. The command prints only the ledger id on standard
    output, as soon as the ledger exists. Exit status 0 means that every line is acknowledged and
    the ledger is closed. Ctrl-C and SIGTERM end the input and close the ledger.
    """
    import quire

    check_quorums(ledger["ensemble_size"], ledger["write_quorum"], ledger["ack_quorum"])
    stored = {key: os.fsencode(value) for key, value in custom.items()}
    async with connect(uri, explicit_lac_interval_s=explicit_lac_s) as client:
        writer = await client.create_ledger(custom=stored, **ledger)
        if not as_json:
            show_id(writer)
        if os.isatty(STDIN):
            say("type lines; each becomes one entry; Ctrl-D ends the input")
        limit = max_payload_bytes(quire.DigestType.parse(ledger["digest"]))
        with (
            closing(LineSource(STDIN, limit)) as source,
            signals_to(source) as caught,
            _reported(writer, as_json),
        ):
            try:
                closed, broken = await _append_and_close(writer, source)
            except quire.errors.EntryTooLargeError:
                raise
            except quire.QuireError as error:
                fail(f"{error}. {_left_open(writer)}")
                return EXIT_ERROR
            except asyncio.CancelledError:
                if not caught:
                    raise
                say(f"interrupted. {_left_open(writer)}")
                return 128 + caught[0]
            if broken is not None:
                fail(f"{unreadable(broken)}; {closed}")
                return EXIT_ERROR
            say(f"interrupted: {closed}" if caught else closed)
            return 128 + caught[0] if caught else 0


def show_id(writer: LedgerWriter) -> None:
    """Print the id of the new ledger.

    If that fails, print that the ledger was left open, and raise the OSError.
    """
    try:
        sys.stdout.write(f"{writer.ledger_id}\n")
        sys.stdout.flush()
    except OSError:
        say(f"standard output cannot be written. {_left_open(writer)}")
        raise


@contextmanager
def _reported(writer: LedgerWriter, as_json: bool) -> Iterator[None]:
    """With `as_json`, print what the ledger holds when the block ends, also after an error."""
    try:
        yield
    finally:
        if as_json:
            last, closed = writer.last_add_confirmed, writer.metadata.closed
            print_json(
                {
                    "ledger_id": writer.ledger_id,
                    "state": "CLOSED" if closed else "OPEN",
                    "entries": last + 1,
                    "last_entry_id": last,
                    # The writer's own figure also counts entries that are not acknowledged.
                    "length": writer.length if closed else None,
                }
            )


def _left_open(writer: LedgerWriter) -> str:
    last = writer.last_add_confirmed
    acked = "no entry is acknowledged" if last < 0 else f"entries are acknowledged up to {last}"
    return (
        f"Ledger {writer.ledger_id} was left open; {acked}. "
        f"`quire ledger recover {writer.ledger_id}` closes it"
    )


async def _append_and_close(writer: LedgerWriter, source: LineSource) -> tuple[str, OSError | None]:
    """Append the input and close the ledger.

    Returns what was done, and the error with which reading the input ended, or None. A line that is
    too large for an entry ends the input: EntryTooLargeError is raised once the ledger is closed.
    """
    too_large: EntryTooLargeError | None = None
    broken: OSError | None = None
    shown = not os.isatty(STDIN)  # a bar would mix with the typed lines
    with ProgressBar("append", total=input_bytes(STDIN), in_bytes=True, shown=shown) as progress:
        try:
            await _append(writer, source, progress)
        except EntryTooLargeError as error:
            too_large = error
        except QuireError:  # some are errors of Python as well, such as time-outs
            raise
        except OSError as error:
            broken = error
        last = await writer.close()
    held = f"{counted(last + 1, 'entry')}, {counted(writer.length, 'byte')}"
    closed = f"ledger {writer.ledger_id} closed: {held}"
    if too_large is not None:
        raise EntryTooLargeError(f"{too_large.args[0]}; {closed}", remedy=too_large.remedy)
    return closed, broken


async def _append(writer: LedgerWriter, source: LineSource, progress: ProgressBar) -> None:
    async for lines in source:
        for at in range(0, len(lines), PIECE_ENTRIES):
            piece = lines[at : at + PIECE_ENTRIES]
            before = writer.length
            for line in piece:
                writer.submit(line)
            progress.advance(len(piece), writer.length - before + len(piece))
            await writer.room()
            # Even below the limit, let the event loop run, so that submitted entries are sent at
            # once.
            behind = writer.last_add_pushed - OUTSTANDING_ENTRIES_MAX
            if behind > writer.last_add_confirmed:
                await writer.wait(behind)
            else:
                await asyncio.sleep(0)
