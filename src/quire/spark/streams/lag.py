"""The lag of streaming queries behind the streams that they read."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from quire._runtime.units import counted

QUERIES_MAX = 1_000
"""The largest number of queries whose lags are kept. The oldest are forgotten first."""

logger = logging.getLogger("quire.spark")


@dataclass(frozen=True, slots=True)
class StreamLag:
    """The records of one stream that a query left for later when it planned a micro-batch."""

    query: str
    """The name of the query, or else its id."""
    batch: int
    """The number of the micro-batch."""
    stream: str
    """The name of the stream."""
    records: int
    """The number of records that are left for later triggers."""
    bytes: int
    """The stored bytes of the records that are left."""
    seconds: float | None
    """Seconds for which the oldest record that is left has been waiting, or None if unknown."""


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """A listener that keeps the newest lag of every query, and logs it (`quire.spark`, level INFO).

    It keeps the lags of the last 1,000 queries that reported one, including queries that have
    ended. The queries report their lag themselves, so the listener contacts neither bookies nor the
    metadata store.
    """

    def __init__(self) -> None:
        self._lags: dict[str, list[StreamLag]] = {}
        self._lock = threading.Lock()

    def lags(self, query: str | None = None) -> list[StreamLag]:
        """Return the newest lags of all queries, or of one query, even if it has ended.

        Args:
            query: The name of the query, or its id if it has no name.

        Returns:
            The lag of each stream of these queries, as of the last micro-batch that was planned.
            Empty if no query has reported a lag yet.
        """
        with self._lock:
            return [
                lag for name, lags in self._lags.items() if query in (None, name) for lag in lags
            ]

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Keep and log the lags of one micro-batch."""
        progress = event.progress
        name = progress.name or str(progress.id)
        lags = [
            lag
            for source in progress.sources
            for lag in lags_of(name, progress.batchId, source.latestOffset)
        ]
        if not lags:
            return
        with self._lock:
            self._lags.pop(name, None)
            self._lags[name] = lags
            while len(self._lags) > QUERIES_MAX:
                del self._lags[next(iter(self._lags))]
        for lag in lags:
            logger.info("query %s, batch %d: %s", name, lag.batch, _text(lag))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""


def _text(lag: StreamLag) -> str:
    waited = "" if lag.seconds is None else f", {lag.seconds:g} s"
    return (
        f"stream {lag.stream} is {counted(lag.records, 'record')}, {counted(lag.bytes, 'byte')}"
        f"{waited} behind"
    )


def lags_of(query: str, batch: int, latest_offset: str | None) -> list[StreamLag]:
    """Return the lags in the progress of a source, or none for a source of another format."""
    try:
        reported = json.loads(latest_offset or "null")
        return [
            StreamLag(query, batch, stream, lag["records"], lag["bytes"], lag["seconds"])
            for stream, lag in reported["lag"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def lag_listener(spark: SparkSession) -> LagListener:
    """Return a listener that is attached to the session.

    `spark.streams.removeListener` ends it.
    """
    listener = LagListener()
    spark.streams.addListener(listener)
    return listener
