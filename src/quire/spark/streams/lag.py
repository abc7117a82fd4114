"""How far streaming queries are behind the streams that they read."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

QUERIES_MAX = 1_000
"""That are remembered; the oldest are forgotten first."""

logger = logging.getLogger("quire.spark")


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Of one query and one stream, when a trigger had been planned: what is left for the next."""

    query: str
    """Its name, else its id."""
    batch: int
    stream: str
    records: int
    bytes: int
    """As stored."""
    seconds: float | None
    """How long the oldest record that is left has been waiting; None: nothing tells."""


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Keeps the newest lag of every query, and logs it (`quire.spark`, level INFO). It asks nobody:
    the queries report it themselves."""

    def __init__(self) -> None:
        self._lags: dict[str, list[StreamLag]] = {}
        self._lock = threading.Lock()

    def lags(self, query: str | None = None) -> list[StreamLag]:
        """The newest of all queries, or of the one with this name (or id)."""
        with self._lock:
            return [
                lag for name, lags in self._lags.items() if query in (None, name) for lag in lags
            ]

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
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
            logger.info(
                "query %s, batch %d: stream %s is %d records, %d bytes, %s s behind",
                name, lag.batch, lag.stream, lag.records, lag.bytes, lag.seconds,
            )  # fmt: skip

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def lags_of(query: str, batch: int, latest_offset: str | None) -> list[StreamLag]:
    """What the progress of a source tells; nothing of sources that are not ours."""
    try:
        reported = json.loads(latest_offset or "null")
        return [
            StreamLag(query, batch, stream, lag["records"], lag["bytes"], lag["seconds"])
            for stream, lag in reported["lag"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def lag_listener(spark: SparkSession) -> LagListener:
    """A listener that is attached to the session; `spark.streams.removeListener` ends it."""
    listener = LagListener()
    spark.streams.addListener(listener)
    return listener
