"""A background search for ledgers that streams, objects and datasets name and that do not exist. It
runs while a client requests pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.client import Client
from quire.errors import MetadataError
from quire.http.watch.background import LOOK_WAIT_S, Background
from quire.streams.ownership.lost_ledgers import LostLedgers, lost_ledgers

LOOK_INTERVAL_S = 60.0
"""Seconds between two searches of the records of all streams, objects and datasets."""
LOOK_SHARE = 0.1
"""The share of the time that searches may take: after a long one the next waits longer."""
RECORDS_AT_ONCE = 64
"""The number of records after which the search yields to other requests."""
PAUSE_S = 0.005


class Lost(Background):
    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, LOOK_INTERVAL_S, wait_s)
        self.found: LostLedgers | None = None
        """The result of the first search so far, then that of the last complete search."""

    async def of(self, client: Client) -> LostLedgers | None:
        """Return what was found, or None if no search has begun."""
        await self.refresh(lambda: self._look(client))
        return self.found

    async def _look(self, client: Client) -> None:
        begun_s, first = self._monotonic(), self.found is None
        try:
            async for found in lost_ledgers(client):
                if first or found.whole:
                    self.found = found
                if found.records % RECORDS_AT_ONCE == 0:
                    await asyncio.sleep(PAUSE_S)
        except MetadataError:
            pass  # the pages themselves report that the store does not answer
        took_s = self._monotonic() - begun_s
        self.interval_s = max(LOOK_INTERVAL_S, took_s / LOOK_SHARE)
