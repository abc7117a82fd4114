"""An index of the ledgers that name each bookie, made while somebody looks at a bookie's page.

The metadata store has no such index, so all ledgers are read in the background, and less often if
there are many of them. The index has eight bytes for each bookie of each ledger.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quire._runtime.tasks import each, pages
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.http.watch.observations import (
    LOOK_SHARE,
    LOOK_WAIT_S,
    PAUSE_S,
    BackgroundObservation,
)
from quire.metadata.ledgers.unreadable import Unread, read_or_skip

INDEX_INTERVAL_S = 5.0
"""The least number of seconds between two readings of all ledgers."""
INDEX_LEDGERS_MAX = 1_000_000
"""The number of ledgers after which the index ends. Its counts are then lower bounds."""
PAGE_LEDGERS = 256
"""The number of ledgers whose metadata is in memory at the same time."""


@dataclass(frozen=True, slots=True)
class LedgerIndexState:
    """The index of ledgers by bookie, as far as it was made."""

    by_bookie: Mapping[str, array[int]] = field(default_factory=dict)
    """The ids of the ledgers that name each bookie, ascending."""
    ledgers: int = 0
    """The number of ledgers whose metadata was read."""
    skipped: int = 0
    """The number of ledgers whose metadata cannot be read."""
    whole: bool = False
    """Whether all ledgers were read."""

    def count(self, bookie: str) -> int:
        return len(self.by_bookie.get(bookie, ()))

    def newest(self, bookie: str, limit: int, below: int | None = None) -> list[int]:
        """Return the `limit` greatest ids of ledgers that name the bookie, in descending order.

        With `below`, only smaller ids are returned.
        """
        ids = self.by_bookie.get(bookie)
        if ids is None:
            return []
        end = len(ids) if below is None else bisect_left(ids, below)
        return list(ids[max(0, end - limit) : end])[::-1]


class LedgerIndex(BackgroundObservation):
    """The maker of the index, which makes it again from time to time while somebody asks for it."""

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, INDEX_INTERVAL_S, wait_s)
        self._found = LedgerIndexState()
        self._ended = False
        """Whether an index was ever completed, or reached `INDEX_LEDGERS_MAX` ledgers."""

    async def of(self, client: Client) -> LedgerIndexState:
        """Return the last complete index, or the first one as far as it was made."""
        await self.refresh(lambda: self._read(client))
        return self._found

    async def _read(self, client: Client) -> None:
        first = not self._ended
        by_bookie: dict[str, array[int]] = {}
        unread, ledgers = Unread(), 0

        async def look(ledger_id: int) -> LedgerMetadata | None:
            found = await read_or_skip(client.metadata, ledger_id, unread)
            return None if found is None else found.value

        async for page in pages(client.list_ledgers(), PAGE_LEDGERS):
            for ledger_id, metadata in zip(page, await each(page, look), strict=True):
                if metadata is None:
                    continue
                ledgers += 1
                for bookie in {one for part in metadata.segments for one in part.ensemble}:
                    by_bookie.setdefault(bookie, array("q")).append(ledger_id)
            if first:
                self._found = LedgerIndexState(by_bookie, ledgers, len(unread))
            if ledgers >= INDEX_LEDGERS_MAX:
                break
            await asyncio.sleep(PAUSE_S)
        whole = ledgers < INDEX_LEDGERS_MAX
        self._found = LedgerIndexState(by_bookie, ledgers, len(unread), whole)
        self._ended = True
