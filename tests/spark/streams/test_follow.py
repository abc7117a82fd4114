"""A query follows a writer for long, across rolled segments, a truncation and a restart.

Nothing is missing or duplicated, and the lag is reported and stays small. With the trigger
availableNow the query stops where it should, although the writer continues. QUIRE_FOLLOW_S is the
number of seconds in `make pipelines` (300 for the long run).
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from quire import blocking
from quire.blocking import Namespace
from quire.codec.distributedlog.segment import Truncation
from quire.spark import lag_listener
from quire.spark.streams.lag import LagListener, StreamLag
from quire.testing.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.long]

FOLLOW_S = float(os.environ.get("QUIRE_FOLLOW_S", "12"))
RATE_PER_S = 5_000
APPENDS_PER_S = 50
RECORD_BYTES = 100
SEGMENT_S = 2
TRIGGER_S = 30
"""The longest time of a trigger. After a restart there must be a lag to report."""
NAMESPACE = "/tests/follow"
SUBSCRIPTION = "follow"
LIMIT_S = 90.0
"""The longest wait for an expected event."""


class Writer:
    """Appends numbers at a steady rate until told to stop."""

    def __init__(self, streams: Namespace, name: str, rate_per_s: int) -> None:
        self.rate_per_s = rate_per_s
        self.written = 0
        """Acknowledged."""
        self.error: BaseException | None = None
        self._streams, self._name = streams, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._streams.open_writer(self._name) as writer:
                began, each = time.monotonic(), self.rate_per_s // APPENDS_PER_S
                while not self._stop.wait(
                    max(0.0, began + self.written / self.rate_per_s - time.monotonic())
                ):
                    numbers = range(self.written, self.written + each)
                    writer.append_many([(b"%d " % n).ljust(RECORD_BYTES, b".") for n in numbers])
                    self.written += each
        except BaseException as error:  # noqa: BLE001 - raised by `close`
            self.error = error

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


class Lags:
    """The lags that the listener reported, and the sink's real distance from the writer."""

    def __init__(self, listener: LagListener) -> None:
        self._listener = listener
        self.told: list[StreamLag] = []
        self.behind: list[int] = []
        """Records that were acknowledged, and not in the sink as far as the query's progress
        tells."""
        self._batches: dict[int, int] = {}

    def look(self, query: StreamingQuery, writer: Writer) -> None:
        for lag in self._listener.lags():
            if not self.told or lag != self.told[-1]:
                self.told.append(lag)
        written = writer.written
        for progress in query.recentProgress:
            self._batches[progress["batchId"]] = progress["numInputRows"]
        self.behind.append(written - sum(self._batches.values()))


@pytest.fixture
def streams(client: blocking.Client, name: str) -> Iterator[Namespace]:
    with client.namespace(NAMESPACE, create=True) as opened:
        roll_bytes = SEGMENT_S * RATE_PER_S * RECORD_BYTES
        opened.create_stream(name, settings={"roll_bytes": roll_bytes})
        yield opened


@pytest.fixture
def lags(spark: SparkSession) -> Iterator[Lags]:
    listener = lag_listener(spark)
    yield Lags(listener)
    spark.streams.removeListener(listener)


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, cluster: LocalCluster, name: str, tmp_path: Path) -> Iterator[Start]:
    """The query, begun or gone on with."""
    begun: list[StreamingQuery] = []

    def started(*, available_now: bool = False) -> StreamingQuery:
        rows = (
            spark.readStream.format("quire")
            .option("metadata", cluster.uri)
            .option("namespace", NAMESPACE)
            .option("stream", name)
            .option("subscription", SUBSCRIPTION)
            .option("maxRecordsPerTrigger", str(TRIGGER_S * RATE_PER_S))
            .load()
            .selectExpr("CAST(split(decode(value, 'US-ASCII'), ' ')[0] AS BIGINT) AS number")
        )
        writer = rows.coalesce(1).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.option("path", str(tmp_path / "found"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="0 seconds")
        begun.append(writer.start())
        return begun[-1]

    yield started
    for query in begun:
        query.stop()


def found(spark: SparkSession, tmp_path: Path) -> tuple[int, int, int | None]:
    """Return the number of rows, of different rows, and the highest one."""
    rows = spark.read.parquet(str(tmp_path / "found"))
    row = rows.selectExpr("count(*) n", "count(DISTINCT number) d", "max(number) m").collect()[0]
    return row.n, row.d, row.m


def watch(query: StreamingQuery, writer: Writer, lags: Lags, seconds: float) -> None:
    """Follow for so long; a query that fails raises."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert not query.awaitTermination(0.1)  # type: ignore[arg-type]
        lags.look(query, writer)


def catch_up(query: StreamingQuery, writer: Writer, lags: Lags) -> None:
    """Wait until the query has caught up. A query that falls behind for good never does."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        lags.look(query, writer)
        if lags.behind[-1] <= TRIGGER_S * writer.rate_per_s:
            return
        assert time.monotonic() < deadline, lags.behind[-20:]
        assert not query.awaitTermination(0.1)  # type: ignore[arg-type]


def truncate_what_is_done(streams: Namespace, name: str, query: StreamingQuery) -> int:
    """Truncate segments that the query has finished, and return their number."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        position = streams.subscription(name, SUBSCRIPTION).position()
        if position is not None and position.lssn > streams.segments(name)[0].lssn:
            streams.truncate(name, position)
            return sum(s.truncation is not Truncation.ACTIVE for s in streams.segments(name))
        assert time.monotonic() < deadline, "the query makes no progress"
        assert not query.awaitTermination(0.1)  # type: ignore[arg-type]


@pytest.fixture
def follow(
    spark: SparkSession,
    streams: Namespace,
    name: str,
    start: Start,
    lags: Lags,
    tmp_path: Path,
) -> Callable[[float], None]:
    def run(seconds: float) -> None:
        writer = Writer(streams, name, RATE_PER_S)
        follow_for(seconds, writer, spark, streams, name, start, lags, tmp_path)

    return run


def test_a_query_follows_a_writer(follow: Callable[[float], None]) -> None:
    follow(FOLLOW_S)


def follow_for(
    seconds: float,
    writer: Writer,
    spark: SparkSession,
    streams: Namespace,
    name: str,
    start: Start,
    lags: Lags,
    tmp_path: Path,
) -> None:
    try:
        query = start()
        watch(query, writer, lags, seconds * 0.4)
        catch_up(query, writer, lags)
        truncated = truncate_what_is_done(streams, name, query)
        watch(query, writer, lags, seconds * 0.3)
        query.stop()
        query = start()
        watch(query, writer, lags, seconds * 0.3)
        catch_up(query, writer, lags)
        query.stop()
        before = writer.written
        query = start(available_now=True)
        assert query.awaitTermination(LIMIT_S)  # type: ignore[arg-type]
        after = writer.written
    finally:
        writer.close()
    rows, different, highest = found(spark, tmp_path)
    assert rows == different, "some records are duplicated"
    assert highest is not None
    assert rows == highest + 1, "some records are missing"
    assert before <= rows <= after, "availableNow stops at the end that it found at its start"
    query = start(available_now=True)
    assert query.awaitTermination(LIMIT_S)  # type: ignore[arg-type]
    assert found(spark, tmp_path) == (writer.written, writer.written, writer.written - 1)

    behind_s = [records / writer.rate_per_s for records in lags.behind]
    rolled = streams.segments(name)[-1].lssn
    assert truncated
    assert rolled > 1
    assert lags.told, "no lag was reported"
    assert all(lag.seconds is not None for lag in lags.told)
    print(
        f"\n{writer.written} records in {rolled} segments, {truncated} of them truncated "
        f"meanwhile, 1 restart; the sink was behind by p50 {statistics.median(behind_s):.2f} s "
        f"({statistics.median(lags.behind):,.0f} records), at most {max(behind_s):.2f} s "
        f"({max(lags.behind):,}); left behind a trigger, as told: at most "
        f"{max(lag.records for lag in lags.told):,} records, "
        f"{max(lag.seconds or 0.0 for lag in lags.told):.2f} s, of {len(lags.told)} told"
    )
