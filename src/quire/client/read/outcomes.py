"""Reading of entries that goes on after an entry that cannot be read.

The commands that show entries of a damaged ledger use it. Programs use `LedgerReader.read`, which
stops at the first entry that cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.client.read.reader import LedgerReader
from quire.codec.entry.entry import Entry
from quire.errors import ReadError

STRIPED_AT_ONCE = 8
"""The number of entries that are requested at a time from a striped ledger. Each entry is a read of
its own without a limit in bytes, and may have 5 MB."""
BATCHED_AT_ONCE = 20
"""The number of entries that are requested at a time from a ledger that is not striped. An answer
is limited to twice `read_window_bytes`."""


async def outcomes(
    reader: LedgerReader, first: int, last: int, at_once: int = BATCHED_AT_ONCE
) -> AsyncGenerator[tuple[int, Entry | ReadError], None]:
    """Yield (entry id, entry or error) for each entry from `first` to `last`, in order.

    An entry that cannot be read has its ReadError instead, whose `causes` has the error of each
    replica. The range must end at `last_add_confirmed` at the latest. Raises the errors of
    `LedgerReader.read` that are not about one entry. Cancel-safe. `at_once` lowers the number of
    entries that are requested at a time, for a caller that may need only the first ones.
    """
    striped = reader.metadata.ensemble_size != reader.metadata.write_quorum
    size = min(at_once, STRIPED_AT_ONCE if striped else BATCHED_AT_ONCE)
    while first <= last:
        end = min(first + size - 1, last)
        try:
            async with aclosing(reader.read_runs(first, end)) as runs:
                async for run in runs:
                    for payload, length in zip(run.payloads(), run.ledger_lengths):
                        yield first, Entry(reader.ledger_id, first, length, payload)
                        first += 1
        except ReadError as error:
            # The entries before it were yielded, so this is about the next one.
            yield first, error
            first += 1
