"""The last report of every bookie, which is still known after the bookie died.

A report says when the certificates of the bookie expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from quire._runtime.clock import SystemClock
from quire._runtime.tasks import each
from quire.http.views.bookie_report import PATH, read_report
from quire.http.watch.observations import LOOK_SHARE, LOOK_WAIT_S, BackgroundObservation
from quire.http.watch.rates import LOOK_TIMEOUT_S, Fetch, http_url
from quire.metadata.interface import BookieAddress

KNOWN_INTERVAL_S = 10.0
"""The least number of seconds between two readings of all reports. `LOOK_SHARE` bounds the cost if
there are many bookies."""
KNOWN_MAX = 1_000
"""The largest number of bookies whose last report is kept."""
REPORTS_AT_ONCE = 4
"""The number of reports that are read at the same time. It is small, so that requests for pages do
not wait meanwhile."""

_CLOCK = SystemClock()


class KnownReports(BackgroundObservation):
    """The last reports of the bookies of a cluster.

    The report of a bookie that has registered again without an HTTP server is dropped, because
    nothing would ever correct it.
    """

    share = LOOK_SHARE

    def __init__(
        self,
        monotonic: Callable[[], float],
        fetch: Fetch,
        wait_s: float = LOOK_WAIT_S,
        *,
        now_ms: Callable[[], int] = _CLOCK.now_ms,
    ) -> None:
        super().__init__(monotonic, KNOWN_INTERVAL_S, wait_s)
        self._fetch = fetch
        self._now_ms = now_ms
        self._asked: frozenset[str] = frozenset()
        self._found: dict[str, dict[str, Any]] = {}

    async def of(self, bookies: Mapping[str, BookieAddress]) -> Mapping[str, dict[str, Any]]:
        """Return the last report of each bookie, also of those that are gone.

        A bookie that never gave a report is missing. `bookies` has the registered bookies. If a
        bookie has registered since the last reading, the reports of all are read again.
        `clock_ahead_ms` of a report says by how many milliseconds the clock of the bookie was ahead
        of the clock here, or is None if the bookie does not tell its time.
        """
        asked = frozenset(bookies)
        if not asked <= self._asked:
            self.forget()
        self._asked = asked
        await self.refresh(lambda: self._read_all(bookies))
        return self._found

    async def _read_all(self, bookies: Mapping[str, BookieAddress]) -> None:
        places = [(name, url) for name, one in bookies.items() if (url := http_url(one))]
        for name in bookies.keys() - {name for name, _ in places}:
            self._found.pop(name, None)
        reports = await each(places, lambda place: self._read(place[1]), REPORTS_AT_ONCE)
        for (name, _), report in zip(places, reports, strict=True):
            if report is not None:
                self._found.pop(name, None)  # the last in the order is the newest
                self._found[name] = report
        while len(self._found) > KNOWN_MAX:
            del self._found[next(iter(self._found))]

    async def _read(self, url: str) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                asked_ms = self._now_ms()
                report = read_report(await self._fetch(url + PATH))
                here_ms = (asked_ms + self._now_ms()) // 2
                told_ms = report["now_ms"]
                report["clock_ahead_ms"] = None if told_ms is None else told_ms - here_ms
                return report
        except Exception:  # noqa: BLE001 - after any error, the last report remains
            return None
