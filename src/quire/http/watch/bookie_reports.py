"""The reports of bookies about themselves, read from their HTTP servers while somebody looks.

There is no report of a bookie without an HTTP server, of one whose token this server does not have,
and of one that runs another program, such as Apache's bookie. Then the answer says what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.http.views.bookie_report import PATH, read_report
from quire.http.watch.observations import BackgroundObservation
from quire.http.watch.rates import LOOK_TIMEOUT_S, Fetch, http_url
from quire.metadata.interface import BookieAddress

REPORT_INTERVAL_S = 1.0
"""The least number of seconds between two readings of a bookie's report."""
REPORT_WAIT_S = 0.15
"""Seconds that a caller waits for a new report. After that it gets the previous one."""
REPORTS_MAX = 64
"""The largest number of bookies whose last report is kept."""
REFUSALS = (401, 403)
"""The statuses of a bookie's HTTP server that does not accept the token of this server."""
GIVE_TOKEN = (
    "Start this server with --http-bookies-token-file FILE, and --tls-ca if the bookie is on "
    "another machine"
)
"""The remedy if a bookie's HTTP server needs a token that this server does not have."""


@dataclass(frozen=True, slots=True)
class SeenReport:
    """The last report of a bookie, or why there is none."""

    report: dict[str, Any] | None = None
    """The report (`views.bookie_report`), or None."""
    missing: str = ""
    """A sentence that says why there is no report. Empty if there is one."""
    remedy: str = ""
    """The action that leads to a report. Empty if there is one, or if no action helps."""


class BookieReports:
    """The reports of bookies. Call `close` at the end."""

    def __init__(
        self, monotonic: Callable[[], float], fetch: Fetch, wait_s: float = REPORT_WAIT_S
    ) -> None:
        self._monotonic = monotonic
        self._fetch = fetch
        self._wait_s = wait_s
        self._known: dict[str, _Report] = {}

    async def of(self, bookie_id: str, address: BookieAddress | None) -> SeenReport:
        """Return the last report of one bookie, and begin to read the next one if it is due.

        `address` is the registration of the bookie, or None if it is not registered.
        """
        if address is None:
            return SeenReport(None, "It is not registered, so it cannot be asked", "")
        url = http_url(address)
        if url is None:
            return SeenReport(
                None,
                "It has no HTTP server that could report its directories and why it is read-only",
                "Start it with --http HOST:PORT",
            )
        one = self._known.pop(bookie_id, None) or _Report(self._monotonic, self._wait_s)
        self._known[bookie_id] = one  # the last in the order is the one that was used last
        while len(self._known) > REPORTS_MAX:
            oldest = next(iter(self._known))
            await self._known.pop(oldest).close()
        return await one.of(url, self._fetch)

    async def close(self) -> None:
        for one in self._known.values():
            await one.close()


class _Report(BackgroundObservation):
    def __init__(self, monotonic: Callable[[], float], wait_s: float) -> None:
        super().__init__(monotonic, REPORT_INTERVAL_S, wait_s)
        self._found = SeenReport(None, "It was not asked yet", "")

    async def of(self, url: str, fetch: Fetch) -> SeenReport:
        await self.refresh(lambda: self._read(url, fetch))
        return self._found

    async def _read(self, url: str, fetch: Fetch) -> None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                text = await fetch(url + PATH)
            self._found = SeenReport(read_report(text))
        except Exception as error:  # noqa: BLE001 - whatever happened, there is no report
            self._found = SeenReport(None, *why_not(url, error))


def why_not(url: str, error: Exception) -> tuple[str, str]:
    """Return why a bookie's HTTP server gave no answer that can be used, and what to do."""
    if isinstance(error, TimeoutError):
        return (
            f"Its HTTP server at {url} did not answer within {LOOK_TIMEOUT_S:g} s",
            "Check that the bookie runs, and the network to it",
        )
    status = getattr(error, "status", None)
    if status in REFUSALS:
        return (
            f"Its HTTP server at {url} refuses this server (status {status})",
            GIVE_TOKEN,
        )
    if status in (404, 501):
        return (
            f"Its HTTP server at {url} does not have this route",
            "Bookies of Apache and of earlier versions of Quire do not have it",
        )
    said = str(error) or type(error).__name__
    return (
        f"Its HTTP server at {url} gave no usable answer: {said[:200]}",
        "Check that the bookie runs, and the network to it",
    )
