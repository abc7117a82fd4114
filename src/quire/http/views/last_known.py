"""The last known state of the cluster, for pages while the metadata store does not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from quire.errors import MetadataUnavailableError
from quire.http.server.api import Call, Handler, Route
from quire.http.views.problems import metadata_lost, metadata_unsteady
from quire.http.watch.reachability import MetadataReachability

OLD = "old_since_ms"
"""The key of an answer that is the last known state. Its value is the Unix time of that state in
milliseconds, or None if the answer is current."""
PROBLEMS = "problems"


class LastKnown:
    """Keeps the last answer of routes without fields, and gives it while the store is away."""

    def __init__(self, reach: MetadataReachability, now_ms: Callable[[], int]) -> None:
        """Create it. `now_ms` returns the Unix time in milliseconds."""
        self._reach = reach
        self._now_ms = now_ms

    def of(self, route: Route) -> Route:
        """Return the route with a handler that falls back to its last answer.

        The answer then has the time of the last known state, and if it has problems, the lost store
        is the first of them. The error of the handler is raised if there is no last answer.
        """
        return replace(route, handler=self._falling_back(route.handler))

    def _falling_back(self, handler: Handler) -> Handler:
        last: tuple[int, dict[str, Any]] | None = None

        async def handle(call: Call) -> dict[str, Any]:
            nonlocal last
            try:
                found = await handler(call)
            except MetadataUnavailableError as error:
                if last is None:
                    raise
                at_ms, found = last
                return self._marked(found, at_ms, error)
            last = (self._now_ms(), found)
            return self._marked(found, None)

        return handle

    def _marked(
        self,
        found: dict[str, Any],
        at_ms: int | None,
        error: MetadataUnavailableError | None = None,
    ) -> dict[str, Any]:
        marked = {**found, OLD: at_ms}
        if PROBLEMS in found:
            now_ms = self._now_ms()
            if error is not None:
                since_ms = self._reach.since_ms or at_ms or now_ms
                first = [metadata_lost(self._reach.uri, since_ms, now_ms, error)]
            else:
                first = metadata_unsteady(self._reach.outages, now_ms)
            marked[PROBLEMS] = [*map(asdict, first), *found[PROBLEMS]]
        return marked
