"""Topics in Spark: rows are divided by their keys, and read as one with their partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.streaming import StreamingQuery

from quire import blocking
from quire.blocking import Namespace, Topic
from quire.spark.streams.view import StreamView
from quire.testing.cluster import LocalCluster
from tests.support.spark.faults import Faults
from tests.support.spark.leftovers import check_only_published_ledgers_stay
from tests.support.spark.streams import batch_reader, batches

pytestmark = pytest.mark.spark

NAMESPACE = "/spark/topics"
PARTITIONS = 3
KEYS = 7


@pytest.fixture
def topic(streams: Namespace, request: pytest.FixtureRequest) -> Topic:
    """A topic of this test's own."""
    streams.create_topic(request.node.name, PARTITIONS)
    return streams.topic(request.node.name)


def test_a_batch_writes_and_reads_a_topic(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, topic: Topic,
    read: Callable[..., Any],
) -> None:  # fmt: skip
    given = {"metadata": cluster.uri, "namespace": NAMESPACE, "topic": topic.name}
    rows = spark.range(60, numPartitions=2).selectExpr(
        "string(id) AS value", f"IF(id % 5 = 0, NULL, concat('k', id % {KEYS})) AS id"
    )
    for _ in range(2):  # the second job has the same id, so it changes nothing
        rows.write.format("quire").mode("append").options(
            **given, keyColumn="id", txnId="once"
        ).save()
    with topic.open_writer() as writer:
        writer.append(b"ours", key="k1")
    records = list(topic.open_reader())
    assert sorted(r.value for r in records) == sorted([b"ours", *(b"%d" % n for n in range(60))])
    assert {r.partition for r in records} == {*range(PARTITIONS)}
    for record in records:
        if record.key is not None:
            assert record.partition == topic.partition_of(record.key)

    frame = read(**given, envelope="true").load()
    assert frame.columns[:2] == ["stream", "partition"]
    found = {
        (row.partition, row.stream, bytes(row.value), row.key and bytes(row.key))
        for row in frame.collect()
    }
    assert found == {(r.partition, topic.stream(r.partition), r.value, r.key) for r in records}
    some = read(**given, partitions="0,2", columns="partition,sequence").load()
    assert sorted(row.partition for row in some.collect()) == sorted(
        r.partition for r in records if r.partition != 1
    )
    with pytest.raises(PySparkException, match="has no partition 3"):
        read(**given, partitions="3").load().collect()
    with pytest.raises(PySparkException, match="there is no topic nothing"):
        read(**{**given, "topic": "nothing"}).load().collect()


def test_filters_on_the_partition_open_only_the_partitions_that_they_select(
    cluster: LocalCluster, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    whole = StreamView.open

    async def counted(self: StreamView) -> None:
        opened.append(self.name)
        await whole(self)

    monkeypatch.setattr(StreamView, "open", counted)
    with topic.open_writer() as writer:
        for number in range(2 * PARTITIONS):
            writer.append(b"%d" % number, partition=number % PARTITIONS)

    def found(*conditions: ds.Filter, **more: str) -> list[int]:
        opened.clear()
        reader = batch_reader(
            cluster.uri, namespace=NAMESPACE, topic=topic.name, columns="partition",
            pushdown="true", **more,
        )  # fmt: skip
        assert list(reader.pushFilters(list(conditions))) == []
        return sorted(row["partition"] for b in batches(reader, reader.partitions())
                      for row in b.to_pylist())  # fmt: skip

    column = ("partition",)
    assert found() == [0, 0, 1, 1, 2, 2]
    assert sorted(opened) == [topic.stream(number) for number in range(PARTITIONS)]
    assert found(ds.EqualTo(column, 1)) == [1, 1]
    assert opened == [topic.stream(1)]
    assert found(ds.In(column, (0, 2, 7))) == [0, 0, 2, 2]
    assert sorted(opened) == [topic.stream(0), topic.stream(2)]
    assert found(ds.GreaterThanOrEqual(column, 1), partitions="0-1") == [1, 1]
    assert opened == [topic.stream(1)]
    assert found(ds.LessThan(column, 0)) == []
    assert opened == []


def test_the_plan_shows_which_partitions_are_read(
    cluster: LocalCluster, topic: Topic, read: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with topic.open_writer() as writer:
        for number in range(2 * PARTITIONS):
            writer.append(b"%d" % number, partition=number % PARTITIONS)
    given = {"metadata": cluster.uri, "namespace": NAMESPACE, "topic": topic.name}
    for condition, pushed, expected in (
        ("partition = 1", "EqualTo(partition,1)", [1, 1]),
        ("partition IN (0, 2)", "In(partition, [0,2])", [0, 0, 2, 2]),
        ("partition < 1", "LessThan(partition,1)", [0, 0]),
        ("partition >= 1 AND sequence >= 1", "GreaterThanOrEqual(partition,1)", [1, 2]),
        ("partition <> 1", "", [0, 0, 2, 2]),
    ):
        frame = read(**given, pushdown="true").load().select("partition", "sequence")
        frame = frame.where(condition)
        frame.explain("formatted")
        shown = f"PushedFilters: [{pushed}]" if pushed else "PushedFilters"
        assert (shown in capfd.readouterr().out) == bool(pushed), condition
        assert sorted(row.partition for row in frame.collect()) == expected, condition


@pytest.mark.long
def test_a_query_that_dies_between_two_partitions_writes_each_record_once(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, streams: Namespace,
    topic: Topic, tmp_path: Path,
) -> None:  # fmt: skip
    """The process that commits is killed after some partitions of a micro-batch are published."""
    count = 120
    faults = Faults(str(tmp_path))
    faults.make("die.after-publication.0")  # the first partition is published, the others are not
    faults.make("die.after-transaction.0")  # in the next life: the second one is, too

    def start() -> StreamingQuery:
        rows = (
            spark.readStream.format("quire_numbers")
            .options(total=count, perBatch=count, partitions=1).load()
            .selectExpr("value", f"IF(value % 10 = 0, NULL, concat('k', value % {KEYS})) AS key")
        )  # fmt: skip
        writer = rows.writeStream.format("quire_faulty_streams").options(
            metadata=cluster.uri, namespace=NAMESPACE, topic=topic.name, keyColumn="key",
            writerId="topic", faults=str(tmp_path), checkpointLocation=str(tmp_path / "checkpoint"),
        )  # fmt: skip
        return writer.trigger(availableNow=True).start()

    published: list[set[int]] = []
    for _ in range(2):
        with pytest.raises(PySparkException):
            start().awaitTermination(120)
        published.append({record.partition for record in topic.open_reader()})
    assert published == [{0}, {0, 1}], "the query died between two partitions"
    assert start().awaitTermination(120)
    assert len(list(tmp_path.glob("taken.die.*"))) == 2

    records = list(topic.open_reader())
    assert sorted(int(record.value) for record in records) == list(range(count))
    for key in {record.key for record in records if record.key is not None}:
        mine = [record for record in records if record.key == key]
        assert {record.partition for record in mine} == {topic.partition_of(key)}
        numbers = [int(record.value) for record in mine]
        assert numbers == sorted(numbers)
    for partition in range(PARTITIONS):
        check_only_published_ledgers_stay(client, streams, topic.stream(partition))


def test_a_query_reads_partitions_and_continues(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, topic: Topic, tmp_path: Path
) -> None:
    """The query copies records with their partition into a stream."""
    streams.create_stream("copy")
    given = {"metadata": cluster.uri, "namespace": NAMESPACE}

    def run(**more: str) -> list[bytes]:
        query = (
            spark.readStream.format("quire").options(**given, topic=topic.name, **more).load()
            .selectExpr("concat(partition, ':', string(value)) AS value")
            .writeStream.format("quire").options(**given, stream="copy", writerId="copy")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
        return sorted(record.value for record in streams.open_reader("copy"))

    with topic.open_writer() as writer:
        for number in range(9):
            writer.append(b"%d" % number, partition=number % PARTITIONS)
    expected = sorted(b"%d:%d" % (n % 3, n) for n in range(9) if n % 3)
    assert run(partitions="1-2", subscription="spark", maxRecordsPerTrigger="4") == expected
    assert set(topic.positions("spark")) == {1, 2}
    with topic.open_writer(assign=[2]) as writer:
        writer.append(b"9", partition=2)
    assert run(partitions="1-2") == sorted([*expected, b"2:9"])
    with pytest.raises(PySparkException, match=r"but the query does not read .*/1"):
        run(partitions="2")
