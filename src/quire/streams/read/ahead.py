"""Reading ahead: small ledgers are opened and read while those before them are delivered.

A query of Spark leaves one small ledger for each micro-batch. If they are opened one after the
other, each costs the time of several requests. Large ledgers need this less, because the reader of
a ledger reads its entries ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire.client import LedgerReader
from quire.codec.entry.entry import EntryRun
from quire.errors import QuireError

AHEAD_LEDGERS = 16
"""The largest number of ledgers of a stream that are opened ahead."""
AHEAD_ENTRIES = 64
"""A segment with more entries is not opened ahead."""
AHEAD_BYTES = 64 * 1024
"""The largest size in bytes of a ledger whose entries are read ahead. A larger one is only opened.
"""


@dataclass(frozen=True, slots=True)
class OpenedAhead:
    """A closed ledger that was opened ahead, and its entries if it is small."""

    reader: LedgerReader
    runs: list[EntryRun] | None
    """The entries that were asked for, or None if they were not read yet."""


class ReadAhead:
    """The ledgers that are being opened and read ahead. It belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[OpenedAhead | None]] = {}

    def begin(
        self,
        ledger_id: int,
        opened: Callable[[], Awaitable[LedgerReader]],
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Open a ledger with `opened`, and read its entries from `first` to `last` if it is small.

        Without `last` they are read to the end. Nothing happens if that has begun already, or if
        `AHEAD_LEDGERS` are waiting.
        """
        if ledger_id not in self._tasks and len(self._tasks) < AHEAD_LEDGERS:
            self._tasks[ledger_id] = asyncio.ensure_future(_read(opened, first, last))

    async def take(self, ledger_id: int) -> OpenedAhead | None:
        """Return a ledger that the caller closes, or None if it was not opened ahead.

        An error counts as "not opened", because it may have passed.
        """
        task = self._tasks.pop(ledger_id, None)
        if task is None:
            return None
        try:
            return await task
        except BaseException:
            self._tasks[ledger_id] = task  # `close` ends it
            raise

    def close(self) -> None:
        """End all reads, and close the ledgers that nobody took.

        This does not wait, so that it may be called while a forgotten iteration is taken down.
        """
        tasks, self._tasks = [*self._tasks.values()], {}
        for task in tasks:
            if task.done():
                _close_reader(task)
            else:
                task.cancel()
                task.add_done_callback(_close_reader)


def _close_reader(task: asyncio.Task[OpenedAhead | None]) -> None:
    if not task.cancelled() and task.exception() is None:
        found = task.result()
        if found is not None:
            found.reader.close()


async def _read(
    opened: Callable[[], Awaitable[LedgerReader]], first: int, last: int | None
) -> OpenedAhead | None:
    try:
        reader = await opened()
    except QuireError:
        return None
    try:
        if not reader.ledger_closed or reader.metadata.length > AHEAD_BYTES:
            return OpenedAhead(reader, None)
        end = reader.last_add_confirmed if last is None else last
        runs = [run async for run in reader.read_runs(first, end)] if first <= end else []
        return OpenedAhead(reader, runs)
    except QuireError:
        reader.close()
        return None
    except BaseException:
        reader.close()
        raise
