"""The route of the charts: values over time, of the cluster or of a bookie."""

from __future__ import annotations

from typing import Any

from quire._runtime.units import host_port
from quire.errors import UsageError
from quire.http.server.api import Call, Field, Route
from quire.http.server.error_responses import NotFoundError
from quire.http.watch.prometheus import RANGES_S, PrometheusHistory
from quire.http.watch.rates import ENDPOINT
from quire.http.watch.recorder import SeriesRecorder
from quire.http.watch.series import SPAN_S, STEP_S, Series

PATH = "/api/v1/quire/series"
RANGE_DEFAULT_S = 900
RANGE_MIN_S = 60


class SeriesRoutes:
    """The route that returns the series of values for the charts."""

    def __init__(self, recorder: SeriesRecorder, history: PrometheusHistory | None) -> None:
        """Create the route. `history` answers for ranges of more than an hour, if there is one."""
        self._recorder = recorder
        self._history = history

    def routes(self) -> list[Route]:
        bookie = Field("bookie", "string", "the id of a bookie (default: the whole cluster)")
        span = Field(
            "range", "seconds",
            f"how far to look back (default {RANGE_DEFAULT_S}); more than {SPAN_S} needs "
            "--prometheus",
            minimum=RANGE_MIN_S, maximum=max(RANGES_S),
        )  # fmt: skip
        return [
            Route("GET", PATH,
                  "Return rates, latencies, disk use and under-replicated ledgers over time",
                  self.series, query=(span, bookie),
                  example={"source": "memory", "bookie": None, "range_s": 900, "to_s": 1780000000,
                           "ranges_s": [900, 3600], "first_s": 1779999100, "step_s": STEP_S,
                           "series": {"adds_per_s": [7.0, None]}}),
        ]  # fmt: skip

    async def series(self, call: Call) -> dict[str, Any]:
        range_s, bookie = call.query.get("range", RANGE_DEFAULT_S), call.query.get("bookie")
        self._recorder.touch()
        if bookie is not None and not self._recorder.knows(bookie):
            raise NotFoundError(
                f"this server has no series of bookie {bookie!r}, because it does not know the "
                "bookie",
                remedy="GET /api/v1/quire/bookies lists the bookies",
            )
        if range_s <= SPAN_S:
            return self._answer(
                "memory", range_s, bookie, self._recorder.store.read(range_s, bookie)
            )
        if self._history is None:
            raise UsageError(
                f"this server keeps the series of the last hour, and {range_s} s were asked for",
                remedy="Start it with --prometheus URL for longer ranges",
            )
        if range_s not in RANGES_S:
            raise UsageError(
                f"the range {range_s} s is not offered",
                remedy=f"Use up to {SPAN_S} s, or one of {', '.join(map(str, RANGES_S))} s",
            )
        instance = None if bookie is None else self._instance(bookie)
        return self._answer(
            "prometheus", range_s, bookie, await self._history.read(range_s, instance)
        )

    def _instance(self, bookie: str) -> str:
        """Return HOST:PORT of a bookie's HTTP server, by which Prometheus knows the bookie.

        Raises NotFoundError if the bookie has no HTTP server, or is not registered.
        """
        address = self._recorder.endpoint(bookie)
        others = address.others if address is not None else ()
        found = next((one for one in others if one.id == ENDPOINT), None)
        if found is None:
            raise NotFoundError(
                f"bookie {bookie} has no HTTP address now, by which Prometheus could know it",
                remedy="Choose a range of up to an hour, or start the bookie with --http",
            )
        return host_port(found.host, found.port)

    def _answer(
        self, source: str, range_s: int, bookie: str | None, found: Series
    ) -> dict[str, Any]:
        longer = RANGES_S if self._history is not None else ()
        return {
            "source": source,
            "bookie": bookie,
            "range_s": range_s,
            "to_s": self._recorder.now_ms() // 1000,
            "ranges_s": [RANGE_DEFAULT_S, SPAN_S, *longer],
            "first_s": found.first_s,
            "step_s": found.step_s,
            "series": found.values,
        }
