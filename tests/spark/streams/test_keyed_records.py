"""Keys, headers and event times in Spark: read, written, compacted and offloaded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from quire.blocking import Namespace
from quire.errors import UsageError
from quire.spark.jobs import ClusterOptions, compact, history, offload
from quire.spark.jobs.archive.manifest import OffloadHistory
from quire.spark.jobs.archive.parquet_files import read_file, verify_file
from quire.spark.jobs.compact import RecordKey, compacted
from quire.streams import Record
from quire.streams.read.arrow import ALL_COLUMNS, COLUMNS
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark

NAMESPACE = "/spark/keyed"
NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
SECOND_US = 1_000_000

Parts = tuple[bytes, bytes | None, dict[str, bytes], datetime | None]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def options(cluster: LocalCluster) -> ClusterOptions:
    return ClusterOptions(cluster.uri)


def parts(streams: Namespace, name: str) -> list[Parts]:
    def of(record: Record) -> Parts:
        return record.value, record.key, dict(record.headers), record.event_time

    return [of(record) for record in streams.open_reader(name)]


def written(streams: Namespace, name: str, count: int = 60) -> list[Parts]:
    """Append records, a third of which are plain, and return them."""
    with streams.open_writer(name, create=True) as writer:
        for n in range(count):
            if n % 3 == 0:
                writer.append(b"plain-%d" % n)
                continue
            when = datetime.fromtimestamp(1_700_000_000 + n, UTC) if n % 3 == 1 else None
            writer.append(b"%d" % n, key=b"k%d" % (n % 7), headers={"n": str(n)}, event_time=when)
    return parts(streams, name)


def parts_of_rows(frame: DataFrame) -> list[Parts]:
    """Return rows of the source, in the order of the stream."""
    rows = frame.withColumn("us", f.unix_micros("event_time")).orderBy("sequence").collect()
    return [
        (
            bytes(row.value),
            None if row.key is None else bytes(row.key),
            {name: bytes(value) for name, value in (row.headers or {}).items()},
            None if row.us is None else datetime.fromtimestamp(row.us // SECOND_US, UTC).replace(
                microsecond=row.us % SECOND_US
            ),
        )
        for row in rows
    ]  # fmt: skip


def test_rows_have_keys_headers_and_event_times(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, stream: str,
    read: Callable[..., Any], tmp_path: Path,
) -> None:  # fmt: skip
    """A batch is read and written back, and a query copies the stream: all records are equal."""
    expected = written(streams, stream)
    given = {"namespace": NAMESPACE, "stream": stream}
    assert read(**given).load().columns == list(COLUMNS), "the default has the former columns"
    assert [bytes(row.value) for row in read(**given).load().orderBy("sequence").collect()] == [
        value for value, *_ in expected
    ]
    frame = read(**given, envelope="true").load()
    assert frame.columns == list(ALL_COLUMNS)
    assert frame.select("key", "headers", "event_time").schema.simpleString() == (
        "struct<key:binary,headers:map<string,binary>,event_time:timestamp>"
    )
    assert parts_of_rows(frame) == expected
    few = read(**given, columns="key,sequence").load().where("key IS NOT NULL")
    assert few.count() == sum(key is not None for _, key, *_ in expected)

    columns = {"keyColumn": "key", "headersColumn": "headers", "timeColumn": "event_time"}
    target = {"metadata": cluster.uri, "namespace": NAMESPACE, "createStream": "true"}
    sorted_frame = frame.coalesce(1).sortWithinPartitions("sequence").drop("txid")
    sorted_frame.write.format("quire").mode("append").options(
        **target, **columns, stream=f"{stream}-batch"
    ).save()
    assert parts(streams, f"{stream}-batch") == expected

    loaded = (
        spark.readStream.format("quire")
        .options(metadata=cluster.uri, **given, envelope="true")
        .load()
    )
    query = (
        loaded.drop("txid").writeStream.format("quire")
        .options(**target, **columns, stream=f"{stream}-query", orderBy="sequence")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert parts(streams, f"{stream}-query") == expected


def test_rows_of_other_sources_can_be_written(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, stream: str
) -> None:
    """Text keys, and headers as Kafka's source has them; nulls make plain records."""
    given = {"metadata": cluster.uri, "namespace": NAMESPACE, "stream": stream}

    def save(frame: DataFrame, **more: str) -> None:
        frame.write.format("quire").mode("append").options(**given, **more).save()

    array = "array(named_struct('key', 'a', 'value', binary('1')))"
    save(
        spark.sql(f"SELECT 'v' AS value, 'k' AS id, {array} AS h"),
        keyColumn="id", headersColumn="h",
    )  # fmt: skip
    save(
        spark.sql("SELECT 'v' AS value, string(NULL) AS id, map('b', '2') AS h"),
        keyColumn="id", headersColumn="h",
    )  # fmt: skip
    save(
        spark.sql("SELECT 'v' AS value, string(NULL) AS id, timestamp(NULL) AS t"),
        keyColumn="id", timeColumn="t",
    )  # fmt: skip
    assert parts(streams, stream) == [
        (b"v", b"k", {"a": b"1"}, None),
        (b"v", None, {"b": b"2"}, None),
        (b"v", None, {}, None),
    ]
    twice = array.replace("'1'))", "'1')), named_struct('key', 'a', 'value', binary('2'))")
    for sql, more, message in (
        ("7 AS k", {"keyColumn": "k"}, "column 'k' has type int, but it must be binary or string"),
        ("7 AS k", {"keyColumn": "kk"}, "the rows have no column 'kk'. Did you mean 'k'"),
        ("'t' AS t", {"timeColumn": "t"}, "has type string, but it must be timestamp"),
        ("array(1) AS h", {"headersColumn": "h"}, r"must be map<string, binary> or array<struct"),
        (f"{twice} AS h", {"headersColumn": "h"}, "two headers with the name 'a'"),
        ("map('a', string(NULL)) AS h", {"headersColumn": "h"}, "a header of a row has no value"),
    ):
        with pytest.raises(PySparkException, match=message):
            save(spark.sql(f"SELECT 'v' AS value, {sql}"), **more)
    assert len(parts(streams, stream)) == 3


# -- compact ----------------------------------------------------------------------------------


def test_a_compaction_keeps_the_latest_record_of_each_key(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, stream: str, tmp_path: Path,
    pipeline: Command,
) -> None:  # fmt: skip
    """Keys are bytes, an empty value removes its key, and a target stream keeps everything."""
    with streams.open_writer(stream) as writer:
        keys = [b"a", b"\xff", b"a", b"\xfe", b"\xff"]
        writer.append_many([b"1", b"2", b"3", b"4", b"5"], keys=keys, headers=[{"n": "1"}] * 5)
    own = RecordKey(own=True)
    table = str(tmp_path / "table")
    made = compact(spark, options, stream, own, to=table, namespace=NAMESPACE)
    assert (made.records, made.rows) == (5, 3)

    def rows() -> dict[bytes, bytes]:
        return {bytes(row.key): bytes(row.value) for row in compacted(spark, table).collect()}

    assert rows() == {b"a": b"3", b"\xff": b"5", b"\xfe": b"4"}
    with streams.open_writer(stream) as writer:
        writer.append_many([b"", b"6"], keys=[b"\xff", b"b"], event_times=[None, NOON])
    status, out, error = pipeline(
        "compact", stream, "--record-key", "--to", table, "--namespace", NAMESPACE
    )
    assert (status, error) == (0, "")
    assert "2 records" in out
    assert rows() == {b"a": b"3", b"\xfe": b"4", b"b": b"6"}
    assert compacted(spark, table).columns[-2:] == ["headers", "event_time"]
    with pytest.raises(UsageError, match="was compacted with key"):
        compact(spark, options, stream, RecordKey("id"), to=table, namespace=NAMESPACE)

    streams.create_stream(f"{stream}-to")
    compact(spark, options, stream, own, to_stream=f"{stream}-to", namespace=NAMESPACE)
    assert parts(streams, f"{stream}-to") == [
        (b"3", b"a", {"n": b"1"}, None),
        (b"4", b"\xfe", {"n": b"1"}, None),
        (b"", b"\xff", {}, None),
        (b"6", b"b", {}, NOON),
    ]
    by_header = RecordKey(sql="string(headers['n'])")
    found = compact(
        spark, options, stream, by_header, to=str(tmp_path / "by-header"), namespace=NAMESPACE,
        skip_keyless=True,
    )  # fmt: skip
    assert found.rows == 1

    append(streams, stream, [b"plain"])
    with pytest.raises(PySparkException, match=r"record \d+:\d+:\d+ has no key"):
        compact(spark, options, stream, own, to=table, namespace=NAMESPACE)


# -- offload ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of these libraries, about each other
@pytest.mark.parametrize("kind", long_after(1, ["delta", "iceberg"]))
def test_offloaded_records_keep_keys_headers_and_times(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, stream: str, tmp_path: Path,
    kind: str,
) -> None:  # fmt: skip
    """Files of plain records keep their columns, and tables get more when a record needs them."""
    target = str(tmp_path / "history")
    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    given: dict[str, Any] = {"format": kind, "wait_s": 0.0, "truncate": True}
    if kind == "iceberg":
        given |= {"table": "history.records", "catalog": catalog}

    def run() -> int:
        return offload(spark, options, NAMESPACE, stream, target, **given).records

    append(streams, stream, numbered(0, 50))
    expected = parts(streams, stream)
    assert run() == 50
    expected += written(streams, stream)
    assert run() == 60
    append(streams, stream, numbered(50, 60))
    assert run() == 10
    live = written(streams, stream)
    expected += [(b"%d" % n, None, {}, None) for n in range(50, 60)] + live

    archive = OffloadHistory(target, stream)
    manifest = archive.newest()
    assert manifest is not None
    assert [file.keyed for file in manifest.files] == [False, True, False]
    for file in manifest.files:
        verify_file(archive, file)
        assert ("keyed" in file.as_json()) == file.keyed
        [batch] = read_file(archive, file.name, ALL_COLUMNS)
        assert batch.schema.names == list(ALL_COLUMNS)
    frame = history(spark, options, NAMESPACE, stream, target, columns=ALL_COLUMNS)
    assert parts_of_rows(frame) == expected
    assert history(spark, options, NAMESPACE, stream, target).columns == list(COLUMNS)

    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(archive.store.uri).to_pyarrow_dataset().to_table()
    else:
        from pyiceberg.catalog import load_catalog

        found = load_catalog(None, **catalog).load_table("history.records").scan().to_arrow()
    rows = found.sort_by("sequence").to_pylist()
    assert [
        (row["value"], row["key"], dict(row["headers"] or ()), row["event_time"]) for row in rows
    ] == expected[: -len(live)]
