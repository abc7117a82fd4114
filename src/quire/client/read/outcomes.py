"""Entries with their outcomes: an entry that cannot be read does not end the reading.

People who look at a damaged ledger use this. Programs use `LedgerReader.read`, which stops at the
first entry that cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from quire._runtime.tasks import each
from quire.client.read.reader import LedgerReader
from quire.codec.entry.entry import Entry
from quire.errors import ReadError

ENTRIES_AT_ONCE = 8
"""The number of entries that are requested at a time. They are all in memory, and an entry may have
5 MB."""


async def outcomes(
    reader: LedgerReader, first: int, last: int
) -> AsyncGenerator[tuple[int, Entry | ReadError], None]:
    """Yield the entries from `first` to `last`, in order, each as itself or as its error.

    The range must end at `last_add_confirmed` at the latest. The causes of an error name what is
    wrong with each replica. Cancel-safe. Raises the errors of `LedgerReader.read` that are not
    about one entry.
    """

    async def outcome(entry_id: int) -> Entry | ReadError:
        try:
            return await reader.read_entry(entry_id)
        except ReadError as error:
            return error

    for begin in range(first, last + 1, ENTRIES_AT_ONCE):
        ids = range(begin, min(begin + ENTRIES_AT_ONCE, last + 1))
        for entry_id, found in zip(ids, await each(ids, outcome, ENTRIES_AT_ONCE)):
            yield entry_id, found
