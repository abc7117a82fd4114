"""Reading streams in batches: the data source by itself, and through Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as F

from quire import blocking
from quire.blocking import Namespace
from quire.errors import (
    NoSuchNamespaceError,
    NoSuchStreamError,
    QuireError,
    ReadError,
    StreamGapError,
)
from quire.spark import worker
from quire.spark.streams.plan import StreamPartition
from quire.streams import DLSN, AtSequence, AtTxid, Record
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import (
    NAMESPACE,
    append,
    batch_reader,
    message_of,
    numbered,
    rows,
    source,
    values,
)

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrameReader]


@pytest.fixture
def uri(cluster: LocalCluster) -> str:
    return cluster.uri


def records(streams: Namespace, name: str, **how: Any) -> list[Record]:
    return list(streams.open_reader(name, **how))


# -- what is read -----------------------------------------------------------------------------


def test_a_stream_is_read_with_all_columns(
    streams: Namespace, uri: str, name: str, read: Read
) -> None:
    append(streams, name, numbered(0, 500), segments=2)
    frame = read(namespace=NAMESPACE, stream=name).load()
    assert frame.schema.simpleString() == (
        "struct<stream:string,segment:bigint,ledger:bigint,entry:bigint,slot:bigint,txid:bigint,"
        "time:timestamp,sequence:bigint,size:bigint,value:binary>"
    )
    assert [field.name for field in frame.schema if field.nullable] == ["time"]
    ledgers = {s.lssn: s.ledger_id for s in streams.segments(name)}
    expected = [
        (
            name, r.position.lssn, ledgers[r.position.lssn], r.position.entry_id,
            r.position.slot_id, r.txid, r.sequence, len(r.payload), r.payload,
        )
        for r in records(streams, name)
    ]  # fmt: skip
    got = frame.drop("time").collect()
    assert [(*row[:-1], bytes(row.value)) for row in got] == expected
    assert {row.sequence for row in got} == set(range(500))
    by_time = frame.select((F.unix_millis("time") == F.col("txid")).alias("same")).distinct()
    assert [row.same for row in by_time.collect()] == [True]


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("txids", ["time", "given"])
def test_every_kind_of_stream_is_read(
    streams: Namespace, uri: str, name: str, compression: str, txids: str
) -> None:
    """Records of one size and of many, alone in their entries and with others, from producers."""
    chance = random.Random(7)
    streams.create_stream(
        name, settings={"compression": compression, "txids": txids, "entry_bytes": 8192}
    )
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    last = 0

    def numbers(count: int) -> list[int] | None:
        nonlocal last
        last += count
        return list(range(last - count, last)) if txids == "given" else None

    with streams.open_writer(name) as writer:
        for sizes in ([100] * 300, [chance.randrange(200) for _ in range(300)], [0] * 50, [5_000]):
            payloads = [chance.randbytes(size) for size in sizes]
            writer.append_many(payloads, txids=numbers(len(payloads)))
            writer.append_many([b"alone"], txids=numbers(1))
        producer = writer.producer("p-1")
        producer.append_many([b"produced"] * 40, 0, txids=numbers(40))
        writer.roll()
        writer.append_many([b"x" * 1_000] * 100, txids=numbers(100))
        writer.end_stream()
    expected = records(streams, name)
    for options in ({}, {"partitionBytes": "20k"}, {"minPartitions": 7}):
        found = rows(uri, stream=name, **options)
        assert [
            (r["value"], DLSN(r["segment"], r["entry"], r["slot"]), r["txid"], r["sequence"])
            for r in found
        ] == [tuple(record) for record in expected]
    times = [row["time"] for row in found]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= datetime.now(UTC)


def test_bounds_equal_those_of_the_stream_reader(streams: Namespace, uri: str, name: str) -> None:
    """Bounds mean the same as for the reader of streams, also within an entry."""
    streams.create_stream(name, settings={"txids": "given", "entry_bytes": 1024})
    with streams.open_writer(name) as writer:
        for first in range(0, 900, 300):
            for at in range(first, first + 300, 50):
                writer.append_many(
                    numbered(at, at + 50), txids=[10 * n for n in range(at, at + 50)]
                )
            if first < 600:
                writer.roll()
        everything = records(streams, name)
        assert len(everything) == 900
        inside = everything[417].position
        assert inside.slot_id > 0
        for start, end, expected in (
            ("earliest", "latest", range(900)),
            (str(inside), None, range(417, 900)),
            (None, str(inside), range(417)),
            (str(inside), str(everything[420].position), range(417, 420)),
            ("txid:1500", "txid:3001", range(150, 301)),
            ("seq:299", "seq:301", range(299, 301)),
            ("seq:5", "seq:5", range(0)),
            ("latest", None, range(0)),
            ("time:2000-01-01", "time:2001-01-01", range(0)),
            ("time:2000-01-01", "time:2101-01-01", range(900)),
            ("seq:880", "9:0:0", range(880, 900)),  # not there yet
            ("9:0:0", None, range(0)),
        ):
            bounds = {k: v for k, v in (("start", start), ("end", end)) if v is not None}
            found = [int(value) for value in values(uri, stream=name, **bounds)]
            assert found == list(expected), (start, end)
            few = values(uri, stream=name, partitionBytes=500, **bounds)
            assert [int(value) for value in few] == list(expected), (start, end)
        assert streams.find(name, AtTxid(1500)) == streams.find(name, AtSequence(150))


def test_several_streams_are_read(streams: Namespace, uri: str, name: str) -> None:
    for n in range(4):
        append(streams, f"{name}/s{n}", numbered(10 * n, 10 * n + 10), segments=2)
    append(streams, f"{name}/other", [b"other"])

    def found(**options: Any) -> dict[str, list[int]]:
        result: dict[str, list[int]] = {}
        for row in rows(uri, **options):
            result.setdefault(row["stream"].rpartition("/")[2], []).append(int(row["value"]))
        return result

    everything = {f"s{n}": list(range(10 * n, 10 * n + 10)) for n in range(4)}
    assert found(streamPattern=f"{name}/s*") == everything
    assert found(streamPattern=f"{name}/s*", partitionBytes=50) == everything
    named = f"{name}/s1,{name}/s3"
    assert found(streams=named) == {n: everything[n] for n in ("s1", "s3")}
    places = json.dumps({f"{name}/s1": "seq:8"})
    assert found(streams=named, start=places) == {"s1": [18, 19], "s3": everything["s3"]}
    assert found(streams=named, end=places) == {
        "s1": list(range(10, 18)), "s3": everything["s3"],
    }  # fmt: skip
    assert found(streamPattern=f"{name}/nothing*") == {}


def test_an_open_stream_is_read_up_to_its_last_acknowledged_record(
    streams: Namespace, uri: str, name: str
) -> None:
    with streams.open_writer(name, create=True) as writer:
        assert values(uri, stream=name) == []
        writer.append_many(numbered(0, 100))
        found = values(uri, stream=name)
        assert found == numbered(0, len(found))
        writer.append_many(numbered(100, 200))  # It was not fenced.
        reader = batch_reader(uri, stream=name, columns="value")
        partitions = reader.partitions()
        writer.append_many(numbered(200, 5_000))
        planned = sum(batch.num_rows for p in partitions for batch in reader.read(p))
        assert 100 <= planned <= 200  # as it was when it was planned
    assert values(uri, stream=name) == numbered(0, 5_000)


def test_a_stream_without_records_has_no_rows(
    streams: Namespace, uri: str, name: str, read: Read
) -> None:
    streams.create_stream(name)
    assert values(uri, stream=name, start="latest") == values(uri, stream=name) == []
    assert read(namespace=NAMESPACE, stream=name).load().count() == 0


def test_a_stream_is_read_in_many_tasks(streams: Namespace, name: str, read: Read) -> None:
    append(streams, name, numbered(0, 20_000, 100), segments=3)
    frame = read(namespace=NAMESPACE, stream=name, partitionBytes="300k").load()
    assert frame.rdd.getNumPartitions() > 5
    got = frame.select("sequence", "value").collect()
    assert [row.sequence for row in got] == list(range(20_000))  # tasks keep the order
    assert [bytes(row.value) for row in got] == numbered(0, 20_000, 100)
    assert frame.filter("sequence < 3").count() == 3


def test_sql_reads_a_stream(streams: Namespace, uri: str, name: str, spark: SparkSession) -> None:
    append(streams, name, numbered(0, 100))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING quire "
        f"OPTIONS (metadata '{uri}', namespace '{NAMESPACE}', stream '{name}', start 'seq:90')"
    )
    total = spark.sql("SELECT sum(cast(cast(value AS string) AS int)) AS t FROM orders").collect()
    assert total[0].t == sum(range(90, 100))


# -- columns and counts -----------------------------------------------------------------------


def test_columns_of_a_stream_can_be_selected(streams: Namespace, name: str, read: Read) -> None:
    append(streams, name, numbered(0, 10))
    frame = read(namespace=NAMESPACE, stream=name, columns="value,sequence").load()
    assert [(bytes(r.value), r.sequence) for r in frame.collect()] == [
        (b"%d" % n, n) for n in range(10)
    ]
    frame = read(namespace=NAMESPACE, stream=name).schema("Sequence long, size long").load()
    assert frame.columns == ["Sequence", "size"]
    assert [r.size for r in frame.collect()] == [1] * 10


def test_counting_needs_no_bookie(tmp_path: Path) -> None:
    with LocalCluster(bookies=1, directory=tmp_path) as cluster:
        settings = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        with blocking.connect(cluster.uri) as client:
            streams = client.namespace(NAMESPACE, settings=settings, create=True)
            append(streams, "orders", numbered(0, 40_000), segments=3)
            streams.close()
        cluster.bookies[0].kill()
        found = rows(cluster.uri, stream="orders", columns="sequence,stream")
        assert [row["sequence"] for row in found] == list(range(40_000))
        assert {row["stream"] for row in found} == {"orders"}
        reader = batch_reader(cluster.uri, stream="orders", columns="value")
        with pytest.raises(ReadError):
            list(reader.read(reader.partitions()[0]))
        worker.close_clients()


# -- filters ----------------------------------------------------------------------------------


def test_filters_select_the_records_that_are_read(
    streams: Namespace, name: str, read: Read
) -> None:
    """Fewer tasks, and what Spark leaves of all."""
    for n in range(2):
        append(streams, f"{name}-{n}", numbered(0, 1_000, 100), segments=4)
    options = {"namespace": NAMESPACE, "streamPattern": f"{name}-*", "partitionBytes": "15k"}
    plain = read(**options).load().drop("value")
    everything = plain.collect()
    tasks = plain.rdd.getNumPartitions()
    middle = everything[0].time
    for condition, fewer in (
        (f"stream = '{name}-1'", True),
        (f"stream IN ('{name}-0', 'x')", True),
        ("segment = 2", True),
        ("segment > 2 AND segment <= 3", True),
        ("sequence >= 900", True),
        ("sequence = 250", True),
        ("sequence < 10 OR sequence > 990", False),
        ("slot = 3", False),
        ("txid < 0", True),
        ("sequence < 10 AND size = 102", True),
        (f"time >= timestamp '{middle + timedelta(days=1)}'", True),
        (f"time < timestamp '{middle - timedelta(days=1)}'", True),
        (f"time >= timestamp '{middle}' AND sequence >= 0", False),
    ):
        # Load it again, because Spark keeps the filters of an earlier query on the same frame.
        filtered = read(**options, pushdown=True).load().drop("value").filter(condition)
        expected = plain.filter(condition).collect()
        assert sorted(filtered.collect()) == sorted(expected), condition
        if fewer:
            assert filtered.rdd.getNumPartitions() < tasks, condition
    assert len(everything) == 2_000


# -- what is gone -----------------------------------------------------------------------------


def test_a_truncated_stream_is_read_from_its_first_record(
    streams: Namespace, uri: str, name: str
) -> None:
    append(streams, name, numbered(0, 900), segments=3)
    everything = records(streams, name)
    cut = everything[417].position
    streams.truncate(name, cut)
    assert values(uri, stream=name) == numbered(417, 900)
    early = {"stream": name, "start": "1:0:0"}
    with pytest.raises(
        StreamGapError,
        match=f"stream {name} lacks records: records from 1:0:0 to just before",
    ):
        values(uri, **early)
    assert values(uri, **early, failOnDataLoss="false") == numbered(417, 900)
    with pytest.raises(StreamGapError, match=f"from 2:0:0 to just before {cut} are truncated"):
        values(uri, stream=name, start="2:0:0", end="3:0:0")


def test_a_truncation_during_a_read_is_a_gap_or_skipped(
    streams: Namespace, client: blocking.Client, uri: str, name: str
) -> None:
    append(streams, name, numbered(0, 900), segments=3)
    for options, error in (({}, True), ({"failOnDataLoss": "false"}, False)):
        reader = batch_reader(uri, stream=name, columns="value", **options)
        partitions = reader.partitions()
        if error:
            streams.truncate(name, DLSN(2, 0, 0))
            with pytest.raises(
                StreamGapError, match=r"of segment 1 .* are gone: the stream was truncated"
            ):
                [batch for p in partitions for batch in reader.read(p)]
        else:
            streams.truncate(name, DLSN(3, 0, 0))
            found = [v.as_py() for p in partitions for b in reader.read(p) for v in b.column(0)]
            assert found == numbered(600, 900)


def test_a_lost_ledger_is_a_gap_or_skipped(
    streams: Namespace, client: blocking.Client, uri: str, name: str, read: Read
) -> None:
    append(streams, name, numbered(0, 300), segments=3)
    client.delete_ledger(streams.segments(name)[1].ledger_id)
    with pytest.raises(
        StreamGapError,
        match=f"stream {name} lacks records: records from 2:0:0 to just before 3:0:0 are",
    ):
        values(uri, stream=name)
    assert values(uri, stream=name, end="2:0:0") == numbered(0, 100)


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"stream": "nowhere"}, NoSuchStreamError, "stream nowhere does not exist in namespace"),
        ({"stream": "x", "namespace": "/no/such"}, NoSuchNamespaceError, "no namespace /no/such"),
        ({"stream": "x", "metadata": "sqlite:////no/where.db"}, QuireError, "/no/where.db"),
        ({"stream": "x", "metadata": "ftp://x"}, QuireError, "ftp"),
    ],
)
def test_one_clear_error(
    streams: Namespace, uri: str, options: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        rows(uri, **options)


def test_one_clear_error_from_spark(streams: Namespace, read: Read) -> None:
    for options, message in (
        ({"stream": "nowhere"}, "stream nowhere does not exist in namespace /spark/tests"),
        ({"stream": "x", "strat": "latest"}, "unknown option 'strat' for reading streams. Did you"),
        ({"straem": "x"}, "unknown option 'straem' for reading. Did you mean 'stream'?"),
    ):
        with pytest.raises(PySparkException) as caught:
            read(
                **options, **({"namespace": NAMESPACE} if "stream" in options else {})
            ).load().collect()
        assert message in message_of(caught.value)
    with pytest.raises(PySparkException) as caught:
        read(namespace=NAMESPACE, stream="x").schema("value string").load().collect()
    assert "column 'value' has type binary, but the schema says string" in message_of(caught.value)


# -- bookies that die -------------------------------------------------------------------------


def test_reads_survive_the_death_of_one_bookie(tmp_path: Path) -> None:
    """Reads continue without one of three bookies. Without any there is one clear error."""
    with LocalCluster(bookies=3, directory=tmp_path) as cluster:
        with (
            blocking.connect(cluster.uri) as client,
            client.namespace(NAMESPACE, create=True) as streams,
        ):
            append(streams, "orders", numbered(0, 30_000, 1_000), segments=2)
        reader = batch_reader(cluster.uri, stream="orders", columns="value")
        (partition,) = reader.partitions()
        assert isinstance(partition, StreamPartition)
        found: list[pa.RecordBatch] = []
        for batch in reader.read(partition):
            if not found:
                cluster.bookies[0].kill()
                cluster.bookies[1].kill()
            found.append(batch)
        got = [value.as_py() for batch in found for value in batch.column(0)]
        assert got == numbered(0, 30_000, 1_000)
        cluster.bookies[2].kill()
        with pytest.raises(ReadError, match="could not be read from any replica"):
            list(reader.read(partition))
        worker.close_clients()


def test_the_schema_of_a_stream_needs_no_cluster() -> None:
    assert source("sqlite:////nowhere.db", {"stream": "x"}).schema().fieldNames()[0] == "stream"
