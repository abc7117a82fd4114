"""`quire ledger write`."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.input import LineSource, input_bytes, signals_to
from quire.cli.common.options import (
    EXPLICIT_LAC_MAX_S,
    Duration,
    asynchronous,
    check_quorums,
    flag,
    key_values,
    metadata_option,
    password_option,
    placement_option,
    quorum_options,
)
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import connect, tls_options
from quire.codec.entry.entry import max_payload_bytes
from quire.errors import EntryTooLargeError

if TYPE_CHECKING:
    from quire.client import LedgerWriter

STDIN = 0
EXPLICIT_LAC_MS = 100
PIECE_ENTRIES = 4_096
"""Handed over between two looks at what is outstanding."""
OUTSTANDING_ENTRIES_MAX = 65_536
"""Bytes have the client's own bound; this is for short lines."""


@click.command()
@metadata_option
@placement_option
@tls_options
@quorum_options
@password_option
@key_values("--custom", help_text="Stored with the ledger's metadata. May be repeated.")
@flag(
    "--deferred-sync",
    "Let bookies acknowledge before they sync; everything is synced before the ledger is closed.",
)
@click.option(
    "--explicit-lac",
    "explicit_lac_s",
    metavar="MS",
    type=Duration(0, EXPLICIT_LAC_MAX_S, plain="ms"),
    default=EXPLICIT_LAC_MS,
    show_default=True,
    help="Where no line follows for so long, tell the bookies which is the last acknowledged one, "
    "so that readers see it. 0: never.",
)
@asynchronous
async def write(uri: str, custom: dict[str, str], explicit_lac_s: float, **ledger: Any) -> int:
    """Append the lines of standard input to a new ledger, one entry a line, and close it.

    Lines may hold any bytes; the newline is not part of the entry. Prints the ledger id, and
    nothing else, on standard output as soon as the ledger exists. Exit status 0 means that every
    line is acknowledged and the ledger closed. Ctrl-C and SIGTERM close it with what was read.
    """
    import quire

    check_quorums(ledger["ensemble_size"], ledger["write_quorum"], ledger["ack_quorum"])
    stored = {key: os.fsencode(value) for key, value in custom.items()}
    async with connect(uri, explicit_lac_interval_s=explicit_lac_s) as client:
        writer = await client.create_ledger(custom=stored, **ledger)
        sys.stdout.write(f"{writer.ledger_id}\n")
        sys.stdout.flush()
        if os.isatty(STDIN):
            say("type lines, one entry each; Ctrl-D ends")
        limit = max_payload_bytes(quire.DigestType.parse(ledger["digest"]))
        with closing(LineSource(STDIN, limit)) as source, signals_to(source) as caught:
            try:
                closed = await _append_and_close(writer, source)
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
            say(f"interrupted: {closed}" if caught else closed)
            return 128 + caught[0] if caught else 0


def _left_open(writer: LedgerWriter) -> str:
    return (
        f"Ledger {writer.ledger_id} was left open, acknowledged up to entry "
        f"{writer.last_add_confirmed}: `quire ledger recover {writer.ledger_id}` closes it"
    )


async def _append_and_close(writer: LedgerWriter, source: LineSource) -> str:
    """Append the input and close the ledger, also after a line that cannot be an entry. Return what
    was done."""
    too_large: EntryTooLargeError | None = None
    shown = not os.isatty(STDIN)  # a bar would run into what is typed
    with ProgressBar("append", total=input_bytes(STDIN), in_bytes=True, shown=shown) as progress:
        try:
            await _append(writer, source, progress)
        except EntryTooLargeError as error:
            too_large = error
        last = await writer.close()
    held = f"{counted(last + 1, 'entry')}, {writer.length} bytes"
    closed = f"ledger {writer.ledger_id} closed: {held}"
    if too_large is not None:
        raise EntryTooLargeError(f"{too_large.args[0]}; {closed}", remedy=too_large.remedy)
    return closed


async def _append(writer: LedgerWriter, source: LineSource, progress: ProgressBar) -> None:
    async for lines in source:
        for at in range(0, len(lines), PIECE_ENTRIES):
            piece = lines[at : at + PIECE_ENTRIES]
            before = writer.length
            for line in piece:
                writer.submit(line)
            progress.advance(len(piece), writer.length - before + len(piece))
            await writer.room()
            # Also sends what was handed over, where the bound is not reached: a line that was
            # typed is appended at once.
            behind = writer.last_add_pushed - OUTSTANDING_ENTRIES_MAX
            if behind > writer.last_add_confirmed:
                await writer.wait(behind)
            else:
                await asyncio.sleep(0)
