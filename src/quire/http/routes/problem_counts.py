"""The route that returns how many problems the cluster has, for the frame of every page.

The numbers are those of the last answer of the overview, which the server keeps anyway. So the
route costs nothing beside that, and it also answers while the metadata store is away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.errors import QuireError
from quire.http.server.api import Call, Handler, Route
from quire.http.views.last_known import LastKnown
from quire.http.watch.observations import LOOK_SHARE, LOOK_WAIT_S, BackgroundObservation

PREFIX = "/api/v1/quire"
OVERVIEW = f"{PREFIX}/overview"
COUNTS_AGE_MAX_S = 45.0
"""The age in seconds of the last overview from which on a request for the numbers has a new one
made. It is more than `KEEP_INTERVAL_S`, so a server that keeps the overview anyway makes none."""


class ProblemCountRoutes(BackgroundObservation):
    """The route, and the overviews that it has made in the background. Call `close` at the end."""

    share = LOOK_SHARE

    def __init__(
        self,
        known: LastKnown,
        overview: Handler,
        monotonic: Callable[[], float],
        wait_s: float = LOOK_WAIT_S,
    ) -> None:
        """Create the route.

        Args:
            known: The last answers of the routes.
            overview: The handler of the overview, whose answers `known` keeps.
            monotonic: Returns the monotonic time in seconds.
            wait_s: Seconds that a request waits for a new overview.
        """
        super().__init__(monotonic, COUNTS_AGE_MAX_S, wait_s)
        self._known = known
        self._overview = overview

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{PREFIX}/problem_counts",
                  "Return the number of problems of each severity, and how old the numbers are",
                  self.counts, example={"bad": 1, "warn": 0, "note": 2, "age_s": 12.5,
                                        "old_since_ms": None}),
        ]  # fmt: skip

    async def counts(self, call: Call) -> dict[str, Any]:
        found = self._known.problem_counts(OVERVIEW)
        if found["age_s"] is None or found["age_s"] >= COUNTS_AGE_MAX_S:
            await self.refresh(self._look)
            found = self._known.problem_counts(OVERVIEW)
        return found

    async def _look(self) -> None:
        try:
            await self._overview(Call({}, {}, {}))
        except QuireError:
            pass  # the pages themselves report that the store does not answer
