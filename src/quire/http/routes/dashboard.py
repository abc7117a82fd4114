"""The routes that only the dashboard uses. Each returns everything that one page shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quire._runtime.tasks import each
from quire.http.routes.answering import answering
from quire.http.routes.cluster import Connect
from quire.http.routes.jobs import Jobs
from quire.http.server.api import Call, Route
from quire.http.views.cluster_view import ClusterView
from quire.http.views.job_pace import jobs_with_pace, running_with_pace
from quire.replication.explain.status import why_not
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.pauses import Pauses
from quire.streams.namespace.tree_search import namespace_sizes

PREFIX = "/api/v1/quire"
LAST_KNOWN = tuple(
    f"{PREFIX}/{name}"
    for name in (
        "overview", "work", "topology", "settings", "bookies", "bookies/{bookie_id}",
        "bookies/{bookie_id}/ledgers",
    )
)  # fmt: skip
"""The routes that answer with their last known state while the metadata store is away."""
KEPT: dict[str, dict[str, Any]] = {
    f"{PREFIX}/overview": {},
    f"{PREFIX}/work": {},
    f"{PREFIX}/topology": {},
    f"{PREFIX}/bookies": {"severity": True, "gone": True, "limit": 1_000},
}
"""The routes whose last known state is refreshed regularly, even if nobody asks for them, with the
query that the dashboard sends."""
MARKED_SHOWN_MAX = 50
AWAY_SHOWN_MAX = 50
"""The largest number of bookies that are gone or do not answer, and are named beside the jobs."""
NAMESPACES_MAX = 1_000


class DashboardRoutes:
    """The routes of the dashboard."""

    def __init__(self, connect: Connect, jobs: Jobs, view: ClusterView, owner: str) -> None:
        """Create the routes. `owner` is the name of this process in the announcements of jobs."""
        self._owner = owner
        self._connect = connect
        self._jobs = jobs
        self._view = view

    def routes(self) -> list[Route]:
        problem = {
            "severity": "bad",
            "what": "…",
            "risk": "…",
            "doing": "…",
            "next": "quire …",
            "bookies": ["10.0.0.1:3181"],
            "since_ms": 1_780_000_000_000,
            "since_before": False,
        }
        return [
            Route("GET", f"{PREFIX}/overview",
                  "Return what is wrong, what to do, and what Quire does about it",
                  self.overview, example={"problems": [problem], "rates": {"adds_per_s": 7.0}}),
            Route("GET", f"{PREFIX}/work",
                  "Return the work of autorecovery and the jobs of this process",
                  self.work, example={"autorecovery": {"enabled": True}, "jobs": [],
                                       "elsewhere": [], "paused": [], "copies": [], "marked": [],
                                       "bookies_away": [{"id": "10.0.0.1:3181",
                                                         "state": "gone",
                                                         "severity": "bad"}]}),
            Route("GET", f"{PREFIX}/namespaces", f"List the first {NAMESPACES_MAX} "
                  "namespaces of streams",
                  self.namespaces, example={"namespaces": ["/streams"],
                                            "stream_counts": {"/streams": 12}, "more": False}),
        ]  # fmt: skip

    async def overview(self, call: Call) -> dict[str, Any]:
        async with answering(self._connect) as client:
            found = (await self._view.recent(client)).as_json()
        running = sum(job.state == "running" for job in self._jobs.all())
        return {**found, "jobs_running": running}

    async def work(self, call: Call) -> dict[str, Any]:
        async with answering(self._connect) as client:
            store = client.metadata
            state = await self._view.recent(client)
            recovery = state.autorecovery
            ids: list[int] = []
            async for ledger_id in ReplicationMarks(store).walk():
                ids.append(ledger_id)
                if len(ids) == MARKED_SHOWN_MAX:
                    break
            found = await each(ids, lambda one: why_not(store, one, clock=client.clock))
            paused = await Pauses(store).all()
            now_ms = client.clock.now_ms()
        away = [one for one in state.bookies if one["state"] == "gone" or one["answers"] is False]
        paces = self._view.paces
        return {
            "autorecovery": recovery,
            "repair": paces.repair(recovery["marked"], now_ms),
            "jobs": jobs_with_pace(self._jobs.all(), paces, now_ms),
            "elsewhere": running_with_pace(state.running, self._owner, paces),
            "paused": [asdict(one) for one in paused],
            "copies": state.copies,
            "marked": [{**asdict(one), "why": one.sentence()} for one in found if one],
            "bookies_away": [
                {name: one[name] for name in ("id", "state", "severity")}
                for one in away[:AWAY_SHOWN_MAX]
            ],
        }

    async def namespaces(self, call: Call) -> dict[str, Any]:
        async with answering(self._connect) as client:
            found = await namespace_sizes(client)
        listed = sorted(found)[:NAMESPACES_MAX]
        return {
            "namespaces": listed,
            "stream_counts": {path: found[path] for path in listed},
            "more": len(found) > NAMESPACES_MAX,
        }
