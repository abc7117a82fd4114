"""The last known state of the cluster, for pages while the metadata store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from quire._runtime.event_log import EventLog
from quire.errors import MetadataUnavailableError, QuireError
from quire.http.server.api import Call, Handler, Route
from quire.http.views.problems.metadata_store import (
    METADATA_DISK,
    OUTAGES_NOTICED,
    SLOW,
    metadata_lost,
    metadata_unsteady,
    of_metadata_disk,
    unsteady,
)
from quire.http.views.problems.problem import SEVERITIES
from quire.http.watch.reachability import MetadataReachability
from quire.metadata.sqlite.disk_space import metadata_disk

OLD = "old_since_ms"
"""The key under which an answer says how old it is. The value is None if the answer is current. If
it is the last known state, the value is the Unix time of that state in milliseconds."""
AWAY = "metadata_away_since_ms"
"""The key under which an answer says since when the metadata store does not answer, as Unix time in
milliseconds. The value is None if the answer is current."""
PROBLEMS = "problems"
OUTAGES = "metadata_outages"
"""The key under which an answer with problems has the periods in which the metadata store did not
answer."""
KEEP_INTERVAL_S = 30.0
"""Seconds between two requests by which the server itself keeps the last known state current."""


KEPT_MAX = 64
"""The largest number of different requests of one route whose last answers are kept."""


class LastKnown:
    """The last answers of routes, which are given again while the metadata store is away."""

    def __init__(self, reach: MetadataReachability, now_ms: Callable[[], int]) -> None:
        """Create an object without answers. `now_ms` returns the Unix time in milliseconds."""
        self._reach = reach
        self._now_ms = now_ms
        self._answers: dict[str, dict[tuple[Any, ...], tuple[int, dict[str, Any]]]] = {}
        """The time and the content of the last answer to each request, by the path of the route."""

    def of(self, route: Route) -> Route:
        """Return the route with a handler that, while the store is away, gives its last answer.

        That answer has the time of the last known state. If the answer has problems, the lost store
        is the first of them. If there is no last answer to the same request, the error of the
        handler is raised.
        """
        return replace(route, handler=self._falling_back(route))

    async def keep(self, routes: Iterable[tuple[Route, dict[str, Any]]], log: EventLog) -> None:
        """Call the handlers of these routes every `KEEP_INTERVAL_S`, until cancelled.

        Each route has the query of the page that shows it.

        This keeps a last known state for somebody who opens the dashboard only after the metadata
        store has gone away. An unexpected error is logged as `last_known_failed`.
        """
        kept = list(routes)
        while True:
            for route, query in kept:
                try:
                    await route.handler(Call({}, dict(query), {}))
                except QuireError:
                    pass  # the pages themselves report that the store does not answer
                except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                    log("last_known_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(KEEP_INTERVAL_S)

    def problem_counts(self, path: str) -> dict[str, Any]:
        """Return the number of problems of each severity in the last answer of a route.

        `age_s` is the age of that answer. While the metadata store is away, the lost store is one
        of the problems, and `old_since_ms` is the time of the answer. All values are None if there
        was no answer yet and the store is not known to be away.
        """
        at_ms, found = self._answers.get(path, {}).get((), (None, {PROBLEMS: []}))
        away = self._reach.since_ms is not None
        if at_ms is None and not away:
            return {**dict.fromkeys((*SEVERITIES, "age_s")), OLD: None}
        marked = self._marked(found, at_ms, self._reach.error() if away else None)
        severities = [one["severity"] for one in marked[PROBLEMS]]
        return {
            **{severity: severities.count(severity) for severity in SEVERITIES},
            "age_s": None if at_ms is None else max(0, self._now_ms() - at_ms) / 1000,
            OLD: at_ms if away else None,
        }

    def _falling_back(self, route: Route) -> Handler:
        handler = route.handler
        last = self._answers.setdefault(route.path, {})

        async def handle(call: Call) -> dict[str, Any]:
            key = (*sorted(call.path.items()), *sorted(call.query.items()))
            try:
                found = await handler(call)
            except MetadataUnavailableError as error:
                if key not in last:
                    raise
                at_ms, found = last[key]
                return self._marked(found, at_ms, error)
            last.pop(key, None)
            last[key] = (self._now_ms(), found)  # the last in the order is the newest
            while len(last) > KEPT_MAX:
                del last[next(iter(last))]
            return self._marked(found, None)

        return handle

    def _marked(
        self,
        found: dict[str, Any],
        at_ms: int | None,
        error: MetadataUnavailableError | None = None,
    ) -> dict[str, Any]:
        marked = {**found, OLD: at_ms, AWAY: None if error is None else self._reach.since_ms}
        if PROBLEMS in found:
            now_ms = self._now_ms()
            known = found[PROBLEMS]
            if error is not None:
                since_ms = self._reach.since_ms or at_ms or now_ms
                # This process sees the disk now, so what it was at the last answer does not count.
                known = [one for one in known if not one.get("what", "").startswith(METADATA_DISK)]
                first = [
                    *of_metadata_disk(metadata_disk(self._reach.uri)),
                    metadata_lost(self._reach.uri, since_ms, error),
                ]
            elif unsteady(one["outages"] for one in found.get(OUTAGES_NOTICED, ())):
                first = []  # the same problem is among those of the cluster, with more servers
            else:
                first = metadata_unsteady(self._reach.uri, self._reach.outages, now_ms)
            if first:  # it says more about the same store than one slow answer
                known = [one for one in known if SLOW not in one.get("what", "")]
            marked[OUTAGES] = [asdict(one) for one in self._reach.outages]
            marked[PROBLEMS] = [*map(asdict, first), *known]
        return marked
