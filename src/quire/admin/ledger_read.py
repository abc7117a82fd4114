"""`quire ledger read`."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from quire.admin.options import (
    ENTRY_ID_MAX,
    json_option,
    ledger_argument,
    metadata_option,
    password_option,
    run_async,
)
from quire.admin.output import OutputThread
from quire.admin.progress import Progress

if TYPE_CHECKING:
    from quire.codec.entry import EntryRun


@click.command()
@metadata_option
@ledger_argument
@click.option("--first", type=click.IntRange(0, ENTRY_ID_MAX), default=0, help="[default: 0]")
@click.option(
    "--last",
    type=click.IntRange(0, ENTRY_ID_MAX),
    help="Inclusive. [default: the last acknowledged entry]",
)
@password_option
@click.option(
    "--recover",
    is_flag=True,
    help="Fence the writer and close the ledger first, if it is not closed.",
)
@json_option("One JSON object a line: ledger_id, entry_id and value, the payload in base64.")
def read(
    uri: str,
    ledger_id: int,
    first: int,
    last: int | None,
    password: bytes,
    recover: bool,
    as_json: bool,
) -> None:
    """Print the payloads of a ledger, each with a newline behind it.

    A ledger that is still written is read up to what is known to be acknowledged; it is fenced
    only with --recover.
    """
    if last is not None and last < first:
        raise click.UsageError(f"--first {first} lies behind --last {last}")
    sys.stdout.flush()
    as_text = _as_json if as_json else _as_lines
    run_async(_read(uri, ledger_id, first, last, password, recover, as_text))


async def _read(
    uri: str,
    ledger_id: int,
    first: int,
    last: int | None,
    password: bytes,
    recover: bool,
    as_text: Callable[[EntryRun], bytes],
) -> None:
    import quire

    output = OutputThread(sys.stdout.fileno())
    try:
        async with (
            quire.connect(uri) as client,
            await client.open_ledger(ledger_id, password=password, recover=recover) as reader,
        ):
            end = reader.last_add_confirmed if last is None else last
            if last is None and first > end + 1:
                last = first  # beyond the end: the reader says so
            total = max(end - first + 1, 0)
            with Progress("read", total=total, shown=not sys.stdout.isatty()) as progress:
                async with aclosing(reader.read_runs(first, last)) as runs:
                    async for run in runs:
                        await output.write(as_text(run))
                        progress.advance(len(run), sum(run.ends) - sum(run.offsets))
    finally:
        output.close()


def _as_lines(run: EntryRun) -> bytes:
    return b"\n".join((*run.payloads(), b""))


def _as_json(run: EntryRun) -> bytes:
    lines = [
        json.dumps(
            {
                "ledger_id": run.ledger_id,
                "entry_id": entry_id,
                "value": b64encode(payload).decode(),
            }
        )
        for entry_id, payload in enumerate(run.payloads(), start=run.first)
    ]
    return ("\n".join(lines) + "\n").encode()
