"""Streaming queries on streams: the source by itself, and through Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from quire import blocking
from quire.blocking import Namespace, StreamWriter
from quire.errors import (
    NoSuchNamespaceError,
    NoSuchStreamError,
    ReadError,
    StreamGapError,
    UsageError,
)
from quire.spark import lag_listener, worker
from quire.spark.streams import query as stream_query
from quire.spark.streams.source import QuireStreamSource
from quire.spark.streams.view import StreamView
from quire.streams import DLSN
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import (
    NAMESPACE,
    append,
    batches,
    message_of,
    numbered,
    stream_reader,
)

pytestmark = pytest.mark.spark

LIMIT_S = 60.0
"""The longest wait for an event."""

Json = dict[str, Any]


@pytest.fixture
def uri(cluster: LocalCluster) -> str:
    return cluster.uri


class Query:
    """Simulates how Spark uses a source: triggers, checkpoints, restarts."""

    def __init__(self, uri: str, **options: Any) -> None:
        self._make = lambda: stream_reader(uri, columns="stream,value", **options)
        self.reader: QuireStreamSource = self._make()
        self.limit: ReadLimit = self.reader.getDefaultReadLimit()
        self.offset: Json = self.reader.initialOffset()
        self.sizes: list[int] = []
        self.found: dict[str, list[bytes]] = {}

    def trigger(self) -> int:
        """One micro-batch; how many records, 0 where there is none."""
        end = self.reader.latestOffset(self.offset, self.limit)
        if end == self.offset:
            return 0
        return self.run(self.offset, json.loads(json.dumps(end)))

    def run(self, start: Json, end: Json) -> int:
        count = 0
        for batch in batches(self.reader, self.reader.partitions(start, end)):
            for row in batch.to_pylist():
                self.found.setdefault(row["stream"], []).append(row["value"])
            count += batch.num_rows
        self.reader.commit(self.offset)
        self.offset = end
        self.sizes.append(count)
        return count

    def until(self, count: int) -> None:
        """Run triggers until this number of records was read in total."""
        deadline = time.monotonic() + LIMIT_S
        while sum(self.sizes) < count:
            self.trigger()
            assert time.monotonic() < deadline, self.sizes
        assert sum(self.sizes) == count

    def idle(self) -> None:
        """Triggers, until something is wrong."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self.trigger()

    def restart(self, uri: str | None = None, **options: Any) -> None:
        self.stop()
        self.reader = self._make() if uri is None else stream_reader(uri, **options)

    def stop(self) -> None:
        self.reader.stop()

    @property
    def followed(self) -> list[Any]:
        query = self.reader._query
        return [] if query is None else list(query._followed.values())

    @property
    def values(self) -> list[bytes]:
        (found,) = self.found.values()
        return found


@pytest.fixture
def query(uri: str) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def start(**options: Any) -> Query:
        made.append(Query(uri, **options))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source waits for news within one call, and not for long."""
    monkeypatch.setattr("quire.spark.streams.query.POLL_S", 0.05)
    monkeypatch.setattr("quire.spark.streams.source.IDLE_GAP_S", 60.0)


Start = Callable[..., Query]

# -- what is read -----------------------------------------------------------------------------


def test_a_query_follows_a_writer_over_rolls_and_restarts(
    streams: Namespace, name: str, query: Start
) -> None:
    streams.create_stream(name)
    running = query(stream=name)
    assert running.trigger() == 0
    with streams.open_writer(name) as writer:
        for at in range(0, 900, 100):
            writer.append_many(numbered(at, at + 100))
            running.until(at + 100)
            if at % 300 == 200:
                writer.roll()
            if at % 400 == 300:
                running.restart()
    assert running.trigger() == running.trigger() == 0
    assert running.values == numbered(0, 900)
    assert 0 not in running.sizes  # no trigger without records


def test_an_appended_record_wakes_the_query(
    streams: Namespace, name: str, query: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.spark.streams.query.POLL_S", LIMIT_S)
    with streams.open_writer(name, create=True) as writer:
        running = query(stream=name)
        assert running.reader.latestOffset(running.offset, running.limit) == running.offset
        later = threading.Timer(0.2, writer.append, (b"late",))
        later.start()
        assert running.trigger() == 1  # the second call waits
        later.join()
    assert running.values == [b"late"]


def test_an_idle_query_sends_no_requests(
    streams: Namespace, name: str, query: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = StreamView.frontier

    async def counted(self: StreamView, floor: DLSN | None = None) -> Any:
        looks.append(self.name)
        return await real(self, floor)

    monkeypatch.setattr(StreamView, "frontier", counted)
    with streams.open_writer(name, create=True) as writer:
        writer.append(b"one")
        running = query(stream=name)
        running.until(1)
        for _ in range(5):  # the end of the writer's silence may be news still
            running.trigger()
        before = len(looks)
        for _ in range(20):
            assert running.reader.latestOffset(running.offset, running.limit) is running.offset
            running.reader.reportLatestOffset()
        assert len(looks) <= before + 1


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("latest", 100), ("seq:40", 40), ("1:0:7", 7)]
)
def test_a_query_starts_at_the_requested_position(
    streams: Namespace, name: str, query: Start, start: str, first: int
) -> None:
    append(streams, name, numbered(0, 100))
    running = query(stream=name, start=start)
    append(streams, name, numbered(100, 150))
    running.restart()  # before the first trigger
    running.until(150 - first)
    assert running.values == numbered(first, 150)


def test_a_start_at_the_end_is_stored_before_the_first_read(
    streams: Namespace, name: str, query: Start
) -> None:
    """Spark asks for the beginning again if the query died before its first commit."""
    append(streams, name, numbered(0, 100))
    running = query(stream=name, start="latest")
    append(streams, name, numbered(100, 120))
    end = running.offset
    while end == running.offset:
        end = json.loads(json.dumps(running.reader.latestOffset(running.offset, running.limit)))
    append(streams, name, numbered(120, 150))
    running.restart()  # the checkpoint has the end of the first micro-batch, but no commit of it
    began_again = running.reader.initialOffset()
    assert began_again != running.offset
    assert running.run(began_again, end) == 0
    running.until(50)
    assert running.values == numbered(100, 150)


def test_a_query_follows_a_stream_to_its_end(streams: Namespace, name: str, query: Start) -> None:
    with streams.open_writer(name, create=True) as writer:
        writer.append_many(numbered(0, 10))
        writer.end_stream()
    running = query(stream=name)
    running.until(10)
    assert [running.trigger() for _ in range(3)] == [0, 0, 0]


# -- admission --------------------------------------------------------------------------------


def unequal(streams: Namespace, name: str) -> dict[str, list[bytes]]:
    """Three streams: entries and segments of several sizes, one open, one compressed."""
    content = {
        f"{name}/a": numbered(0, 700, 30), f"{name}/b": numbered(0, 250), f"{name}/c": [b"c"] * 3,
    }  # fmt: skip
    streams.create_stream(f"{name}/a", settings={"entry_bytes": 1024, "compression": "lz4"})
    streams.create_stream(f"{name}/b", settings={"entry_bytes": 1024})
    append(streams, f"{name}/a", content[f"{name}/a"], segments=3)
    append(streams, f"{name}/b", content[f"{name}/b"][:100], segments=1)
    append(streams, f"{name}/c", content[f"{name}/c"], segments=3)
    return content


@pytest.mark.parametrize("limit", [1, 7, 99, 100, 300, 5_000])
def test_records_in_a_trigger_are_limited(streams: Namespace, query: Start, limit: int) -> None:
    name = f"records-{limit}"
    content = unequal(streams, name)
    with streams.open_writer(f"{name}/b") as writer:
        writer.append_many(content[f"{name}/b"][100:])
        writer.append(b"tells")
        content[f"{name}/b"].append(b"tells")
        running = query(streamPattern=f"{name}/*", maxRecordsPerTrigger=limit)
        total = sum(map(len, content.values()))
        if limit == 1:
            total = 40  # enough
        while sum(running.sizes) < total - limit:
            assert running.trigger() == limit
            if len(running.sizes) % 7 == 3:
                running.restart()
    if limit > 1:
        running.until(sum(map(len, content.values())))
        assert running.found == content
        assert max(running.sizes) <= limit
    else:
        assert all(found == content[n][: len(found)] for n, found in running.found.items())


@pytest.mark.parametrize("limit", [1, 700, 3_000, 20_000])
def test_bytes_in_a_trigger_are_limited(
    streams: Namespace, client: blocking.Client, query: Start, limit: int
) -> None:
    name = f"bytes-{limit}"
    content = unequal(streams, name)
    total = sum(map(len, content.values()))
    entries: dict[tuple[str, int], list[int]] = {}
    """The sizes of the entries of each segment, up to its last record."""
    for stream in content:
        for segment in streams.segments(stream):
            with client.open_ledger(segment.ledger_id) as ledger:
                stored = [len(entry.payload) for entry in ledger.read()]
            entries[stream, segment.lssn] = stored[: segment.last_entry_id + 1]
    running = query(streamPattern=f"{name}/*", maxBytesPerTrigger=limit)
    left = total - 150  # of b only 100 were appended
    while sum(running.sizes) < left:
        start, end = running.offset, running.reader.latestOffset(running.offset, running.limit)
        read = [
            size
            for (stream, lssn), sizes in entries.items()
            for at, size in enumerate(sizes)
            if DLSN.parse(start["streams"].get(stream, "1:0:0"))
            <= DLSN(lssn, at, 0)
            < DLSN.parse(end["streams"][stream])
        ]
        assert sum(read) <= limit or len(read) == 1
        assert running.run(start, end) > 0
        if len(running.sizes) % 5 == 2:
            running.restart()
    assert running.found == {**content, f"{name}/b": content[f"{name}/b"][:100]}


def test_a_trigger_waits_for_the_minimum_of_records(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 50))
    held = query(stream=name, minRecordsPerTrigger=100, maxTriggerDelay="1h")
    assert [held.trigger() for _ in range(3)] == [0, 0, 0]
    assert held.reader.reportLatestOffset()["lag"][name]["records"] == 50  # type: ignore[index]
    assert (
        query(stream=name, minRecordsPerTrigger=100, maxTriggerDelay="1ms", maxRecordsPerTrigger=20)
        .reader.getDefaultReadLimit()
        .max_rows
        == 20
    )  # type: ignore[attr-defined]
    soon = query(stream=name, minRecordsPerTrigger=100, maxTriggerDelay="1ms")
    soon.until(50)
    append(streams, name, numbered(50, 120))
    held.until(120)
    assert held.sizes == [120]
    assert held.values == numbered(0, 120)


def test_a_read_limit_of_all_records_is_accepted(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 50))
    running = query(stream=name, maxRecordsPerTrigger=10)
    running.limit = ReadAllAvailable()
    assert running.trigger() == 50


def test_available_now_stops_where_the_streams_ended(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 100), segments=2)
    with streams.open_writer(name) as writer:
        writer.append_many(numbered(100, 130))
        writer.roll()
        running = query(stream=name, maxRecordsPerTrigger=40)
        running.reader.prepareForTriggerAvailableNow()
        running.trigger()
        writer.append_many(numbered(130, 500))
        while running.trigger():
            pass
        assert running.values == numbered(0, 130)
        assert running.sizes == [40, 40, 40, 10]
        running.restart()
        running.reader.prepareForTriggerAvailableNow()
        while running.trigger():
            pass
        writer.append(b"tells that all before it is acknowledged")
    assert running.values[:130] == numbered(0, 130)
    assert running.values == numbered(0, len(running.values))


# -- what is gone -----------------------------------------------------------------------------


def test_a_truncation_after_the_offset_is_a_gap_or_skipped(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 90), segments=3)
    running = query(stream=name, maxRecordsPerTrigger=10)
    running.until(10)
    streams.truncate(name, DLSN(2, 0, 0))
    with pytest.raises(
        StreamGapError,
        match=f"stream {name} lacks records: records from 1:0:10 to just before 2:0:0 are",
    ):
        running.trigger()
    careless = query(stream=name, start="1:0:10", failOnDataLoss="false")
    careless.until(60)
    assert careless.values == numbered(30, 90)


def test_records_that_were_read_may_be_truncated(
    streams: Namespace, name: str, query: Start
) -> None:
    """There is no false alarm, even if all read segments are gone and the query was down."""
    append(streams, name, numbered(0, 60), segments=2)
    with streams.open_writer(name) as writer:
        writer.append_many(numbered(60, 90))
        running = query(stream=name)
        running.until(90)
        running.stop()
        writer.roll()
        writer.append_many(numbered(90, 100))
        writer.roll()
        writer.append_many(numbered(100, 120))
        streams.truncate(name, DLSN(4, 0, 0))
        assert streams.segments(name)[0].lssn >= 3
        running.until(120)
        writer.roll()
        writer.append_many(numbered(120, 130))
        streams.truncate(name, DLSN(6, 0, 0))
        running.until(130)
    assert running.values == numbered(0, 130)


# -- checkpoints ------------------------------------------------------------------------------


def test_a_checkpoint_of_another_stream_is_refused(
    streams: Namespace, client: blocking.Client, uri: str, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 10))
    append(streams, f"{name}-2", numbered(0, 10))
    with client.namespace("/spark/others", create=True) as others:
        if not others.exists(name):
            append(others, name, numbered(0, 10))
    running = query(stream=name)
    running.until(10)
    remedy = "or another checkpoint location"
    for options, message in (
        (
            {"stream": f"{name}-2"},
            f"has positions in {name}, but the query does not read {name}",
        ),
        (
            {"stream": name, "namespace": "/spark/others"},
            "namespace /spark/tests, but the query reads namespace /spark/others",
        ),
    ):
        running.restart(uri, **options)
        with pytest.raises(UsageError, match=message) as caught:
            running.reader.latestOffset(running.offset, running.limit)
        assert remedy in str(caught.value)
        with pytest.raises(UsageError):
            running.reader.partitions(running.offset, running.offset) or running.trigger()
    running.restart()
    for offset, message in (
        ({"v": 7}, "it has format 7"),
        ({"topic": 3}, "written by another source"),
        ({**running.offset, "cluster": "x"}, "belongs to cluster x"),
    ):
        with pytest.raises(UsageError, match=message):
            running.reader.latestOffset(offset, running.limit)


def test_a_recreated_stream_is_an_error_or_read_from_its_beginning(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 30), segments=3)
    running = query(stream=name)
    running.until(30)
    streams.delete_stream(name)
    with pytest.raises(NoSuchStreamError):
        running.idle()
    append(streams, name, numbered(0, 30), segments=1)
    for _ in range(2):
        with pytest.raises(StreamGapError, match=f"{name} is not the one that was read up to"):
            running.idle()
        running.restart()


def test_streams_of_a_pattern_are_discovered_and_removed(
    streams: Namespace, name: str, query: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_query, "DISCOVERY_INTERVAL_S", 0.0)
    append(streams, f"{name}/a", numbered(0, 10))
    pattern = {"streamPattern": f"{name}/*", "start": "latest"}
    running, careless = query(**pattern), query(**pattern, failOnDataLoss="false")
    append(streams, f"{name}/b", numbered(0, 20))  # from its beginning
    for each in (running, careless):
        each.until(20)
        assert each.found == {f"{name}/b": numbered(0, 20)}
    streams.delete_stream(f"{name}/a")
    append(streams, f"{name}/b", numbered(20, 30))
    with pytest.raises(NoSuchStreamError, match=f"{name}/a"):
        running.idle()
    careless.until(30)
    assert f"{name}/a" not in careless.offset["streams"]


def test_missing_streams_are_an_error(streams: Namespace, name: str, query: Start) -> None:
    with pytest.raises(NoSuchStreamError, match="stream nowhere does not exist in namespace"):
        query(stream="nowhere")
    with pytest.raises(NoSuchNamespaceError, match="no namespace /no/where"):
        query(stream="x", namespace="/no/where")
    assert query(streamPattern=f"{name}-nothing*").trigger() == 0


# -- lag --------------------------------------------------------------------------------------


def test_the_lag_of_a_query_is_reported(
    streams: Namespace, client: blocking.Client, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 90, 20), segments=3)
    running = query(stream=name, maxRecordsPerTrigger=30)
    running.trigger()
    reported = running.reader.reportLatestOffset()
    assert reported is not None
    stored = [client.ledger_metadata(s.ledger_id).length for s in streams.segments(name)]
    lag = reported["lag"][name]
    assert (lag["records"], lag["bytes"]) == (60, sum(stored[1:]))
    assert lag["seconds"] >= 0
    assert reported["streams"] == {name: "4:0:0"}
    while running.trigger():
        pass
    reported = running.reader.reportLatestOffset()
    assert reported is not None
    assert reported["lag"] == {name: {"records": 0, "bytes": 0, "seconds": 0.0}}


def test_a_subscription_stores_the_position_of_a_query(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20))
    running = query(stream=name, subscription="spark", maxRecordsPerTrigger=10)
    running.until(20)
    assert running.trigger() == 0
    running.reader.commit(running.offset)
    assert streams.subscription(name, "spark").position() == DLSN(2, 0, 0)


# -- bookies that die -------------------------------------------------------------------------


def test_a_query_survives_the_death_of_one_bookie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query continues without one bookie. Without any, it waits and then fails with one
    error."""
    with LocalCluster(bookies=4, directory=tmp_path) as cluster:
        with (
            blocking.connect(cluster.uri) as client,
            client.namespace(NAMESPACE, create=True) as streams,
            streams.open_writer("orders", create=True) as writer,
        ):
            running = Query(cluster.uri, stream="orders")
            for at in range(0, 400, 100):
                writer.append_many(numbered(at, at + 100))
                running.until(at + 100)
                if at == 100:
                    cluster.bookies[0].kill()
            writer.append_many(numbered(400, 500))
        for bookie in cluster.bookies[1:]:
            bookie.kill()
        while not any(f.failing_since_s for f in running.followed):
            assert running.trigger() == 0
        for bookie in cluster.bookies:
            bookie.start()
        running.until(500)
        assert running.values == numbered(0, 500)
        with (
            blocking.connect(cluster.uri) as client,
            client.namespace(NAMESPACE) as streams,
        ):
            writer = streams.open_writer("orders")
            writer.append(b"in a segment that stays open")
            for bookie in cluster.bookies:
                bookie.kill()
            monkeypatch.setattr(stream_query, "PATIENCE_S", 0.5)
            with pytest.raises(ReadError, match=r"Start the.* bookies"):
                running.idle()
            writer.abandon()
        running.stop()
        worker.close_clients()


# -- through Spark ----------------------------------------------------------------------------


@pytest.fixture
def read_stream(spark: SparkSession, cluster: LocalCluster) -> Callable[..., DataStreamReader]:
    def prepared(**options: Any) -> DataStreamReader:
        given = {"metadata": cluster.uri, "namespace": NAMESPACE, **options}
        return spark.readStream.format("quire").options(**given)

    return prepared


class Collected:
    """A sink that keeps what it is given, once for each batch number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}

    def start(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = [bytes(row.value) for row in batch.collect()]

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    @property
    def values(self) -> list[bytes]:
        return [value for number in sorted(self.batches) for value in self.batches[number]]

    def wait(self, query: StreamingQuery, count: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(self.values) < count:
            assert time.monotonic() < deadline, {k: len(v) for k, v in self.batches.items()}
            assert query.exception() is None
            time.sleep(0.05)


Frames = Callable[..., DataStreamReader]


def test_a_query_continues_after_a_restart(
    streams: Namespace, name: str, read_stream: Frames, tmp_path: Path, spark: SparkSession
) -> None:
    """After rolls, a truncation and a restart nothing is missing or duplicated, and lag is
    reported.
    """
    sink, frame = Collected(), read_stream(columns="value", stream=name).load
    listener = lag_listener(spark)
    done = 0

    def write(writer: StreamWriter, count: int) -> None:
        nonlocal done
        writer.append_many(numbered(done, done + count))
        done += count

    try:
        with streams.open_writer(name, create=True) as writer:
            running = sink.start(frame(), tmp_path)
            for _ in range(3):
                write(writer, 500)
                writer.roll()
            write(writer, 500)
            sink.wait(running, done)
            streams.truncate(name, DLSN(3, 0, 0))
            write(writer, 500)
            sink.wait(running, done)
            running.stop()
            write(writer, 500)
            running = sink.start(frame(), tmp_path)
            sink.wait(running, done)
            running.processAllAvailable()
            running.stop()
        assert sink.values == numbered(0, done)
        (lag,) = listener.lags(str(running.id))
        assert (lag.stream, lag.records, lag.bytes, lag.seconds) == (name, 0, 0, 0.0)
    finally:
        spark.streams.removeListener(listener)


@pytest.mark.long
def test_available_now_respects_a_limit(
    streams: Namespace, name: str, read_stream: Frames, tmp_path: Path
) -> None:
    append(streams, name, numbered(0, 1_000), segments=3)
    sink = Collected()
    options = {"stream": name, "columns": "value", "maxRecordsPerTrigger": 300}
    for expected in (1_000, 1_450):
        query = sink.start(read_stream(**options).load(), tmp_path, availableNow=True)
        assert query.awaitTermination(int(LIMIT_S))
        assert sink.values == numbered(0, expected)
        append(streams, name, numbered(1_000, 1_450))
    assert [len(values) for values in sink.batches.values()] == [300, 300, 300, 100, 300, 150]


def test_one_clear_error_from_spark(
    streams: Namespace, name: str, read_stream: Frames, tmp_path: Path
) -> None:
    append(streams, name, numbered(0, 10))
    append(streams, f"{name}-2", numbered(0, 10))
    sink = Collected()
    query = sink.start(read_stream(stream=name).load(), tmp_path, availableNow=True)
    assert query.awaitTermination(int(LIMIT_S))

    def error_of(frame: DataFrame, checkpoint: Path) -> str:
        failed = sink.start(frame, checkpoint, availableNow=True)
        with pytest.raises(PySparkException) as caught:
            failed.awaitTermination(int(LIMIT_S))
        return message_of(caught.value)

    other = read_stream(stream=f"{name}-2").load()
    assert f"has positions in {name}, but the query does not read" in error_of(other, tmp_path)
    given = read_stream(stream=name, strat="latest").schema("value binary").load()
    assert "Did you mean 'start'?" in error_of(given, tmp_path / "2")
    with pytest.raises(PySparkException, match="unknown option 'strat' for reading streams"):
        read_stream(stream=name, strat="latest").load()
    missing = read_stream(stream="nowhere").load()
    assert "stream nowhere does not exist in namespace" in error_of(missing, tmp_path / "3")
