"""How many ledgers lack copies because of lost bookies, counted while somebody looks at a page and
a bookie is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from quire.client import Client
from quire.errors import MetadataError
from quire.http.watch.background import LOOK_WAIT_S, Background
from quire.replication.explain.at_risk import AtRisk, at_risk

COUNT_INTERVAL_S = 5.0
"""Between two counts of all ledgers."""
COUNT_SHARE = 0.1
"""Of the time at most: a count that took long is not repeated soon."""
PAGE_PAUSE_S = 0.005
"""Between two pages of ledgers, for whoever asks something else."""


class Risks(Background):
    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, COUNT_INTERVAL_S, wait_s)
        self.found: AtRisk | None = None
        """As far as it was counted; None: nothing was."""
        self._of: tuple[frozenset[str], frozenset[str]] | None = None

    async def of(
        self, client: Client, registered: Collection[str], groups: Mapping[str, Collection[str]]
    ) -> AtRisk | None:
        """What lost bookies, in these groups, mean for ledgers; None: nothing is lost, or nothing
        was counted yet."""
        of = (frozenset(registered), frozenset(groups))
        if of != self._of:
            # Others are lost than those that were counted for.
            await self.close()
            self._of, self.found = of, None
            self.forget()
        if not groups:
            return None
        await self.refresh(lambda: self._count(client, registered, groups))
        return self.found

    async def _count(
        self, client: Client, registered: Collection[str], groups: Mapping[str, Collection[str]]
    ) -> None:
        begun_s, first = self._monotonic(), self.found is None
        try:
            async for found in at_risk(client, registered, groups):
                if first or found.whole:
                    self.found = found
                await asyncio.sleep(PAGE_PAUSE_S)
            self.found = found
        except MetadataError:
            pass  # pages say by themselves that the store does not answer
        took_s = self._monotonic() - begun_s
        self.interval_s = max(COUNT_INTERVAL_S, took_s / COUNT_SHARE)
