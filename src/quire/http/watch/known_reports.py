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
from quire.http.watch.bookie_reports import REFUSALS
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
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(monotonic, KNOWN_INTERVAL_S, wait_s)
        self._fetch = fetch
        self._now_ms = now_ms or SystemClock().now_ms
        self._asked: frozenset[str] = frozenset()
        self._found: dict[str, dict[str, Any]] = {}
        self.refused: frozenset[str] = frozenset()
        """The bookies whose HTTP server did not accept this server's token at the last reading."""

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
        refused: set[str] = set()
        reports = await each(
            places, lambda place: self._read(place[0], place[1], refused), REPORTS_AT_ONCE
        )
        self.refused = frozenset(refused)
        for (name, _), report in zip(places, reports, strict=True):
            if report is not None:
                self._found.pop(name, None)  # the last in the order is the newest
                self._found[name] = report
        while len(self._found) > KNOWN_MAX:
            del self._found[next(iter(self._found))]

    async def _read(self, name: str, url: str, refused: set[str]) -> dict[str, Any] | None:
        """Return the report of a bookie, or None. Adds a bookie that refuses it to `refused`."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                asked_ms = self._now_ms()
                report = read_report(await self._fetch(url + PATH))
                here_ms = (asked_ms + self._now_ms()) // 2
                told_ms = report["now_ms"]
                report["clock_ahead_ms"] = None if told_ms is None else told_ms - here_ms
                return report
        except Exception as error:  # noqa: BLE001 - after any error, the last report remains
            if getattr(error, "status", None) in REFUSALS:
                refused.add(name)
            return None
