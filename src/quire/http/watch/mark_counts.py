"""How many ledgers are marked as lacking replicas, counted while somebody looks at a page, and
shared by all who look: the marks may be very many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.client import Client
from quire.errors import MetadataError
from quire.http.watch.background import LOOK_WAIT_S, Background
from quire.replication.explain.status import MarkCount, count_marks

COUNT_INTERVAL_S = 2.0
"""Between two counts."""
COUNT_SHARE = 0.1
"""Of the time at most: a count that took long is not repeated soon."""
PART_PAUSE_S = 0.005
"""Between two parts of a count, for whoever asks something else."""


class MarkCounts(Background):
    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, COUNT_INTERVAL_S, wait_s)
        self._found = MarkCount(whole=False)
        self._error: MetadataError | None = None

    async def of(self, client: Client) -> MarkCount:
        """As it was counted last; while it was never counted to the end, as far as that is.
        MetadataError, where the last count came to nothing."""
        await self.refresh(lambda: self._count(client))
        if self._error is not None:
            raise self._error
        return self._found

    async def _count(self, client: Client) -> None:
        begun_s, first = self._monotonic(), not self._found.whole
        try:
            async for found in count_marks(client.metadata, clock=client.clock):
                if first or found.whole:
                    self._found = found
                await asyncio.sleep(PART_PAUSE_S)
            self._error = None
        except MetadataError as error:
            self._error = error
        self.interval_s = max(COUNT_INTERVAL_S, (self._monotonic() - begun_s) / COUNT_SHARE)
