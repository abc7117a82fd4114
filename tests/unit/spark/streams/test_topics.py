"""Options and rows of topics in Spark, without a JVM."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

from quire.errors import UsageError
from quire.spark.options import reading_kind, writes_streams
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.plan import StreamSplit
from quire.spark.streams.reader import (
    BATCH_ROWS,
    QuireStreamPushdownReader,
    StreamBounds,
    StreamTasks,
    is_exact,
    narrowed,
    spark_schema,
)
from quire.spark.streams.row_partitions import row_partitions
from quire.spark.streams.write_options import StreamWriteOptions
from quire.streams import StreamSegment
from quire.streams.read.arrow import COLUMNS, KEYED_COLUMNS, Origin
from quire.streams.topics.partitioner import partition_of

URI = "sqlite:////nowhere/metadata.db"
PARTITION = ("partition",)


def read(**options: str) -> StreamReadOptions:
    return StreamReadOptions.parse({"metadata": URI, **options}, environ={})


def write(*, streaming: bool = False, **options: Any) -> StreamWriteOptions:
    given = {"metadata": URI, **options}
    return StreamWriteOptions.parse(given, streaming=streaming, environ={})


def test_a_topic_has_the_column_partition() -> None:
    found = read(topic="/clicks")
    assert (found.topic, found.partitions, found.streams) == ("clicks", None, ())
    assert found.columns == ("stream", "partition", *COLUMNS[1:])
    assert read(topic="t", envelope="true").columns[-3:] == KEYED_COLUMNS
    assert read(topic="t", columns="partition,value").columns == ("partition", "value")
    assert "partition" not in read(stream="s").columns
    with pytest.raises(UsageError, match="'partition' is not a column"):
        read(stream="s", columns="partition,value")
    schema = spark_schema(("partition",))
    assert schema.simpleString() == "struct<partition:bigint>"
    assert not schema.fields[0].nullable
    assert StreamTasks(read(topic="t"), schema).counts
    with pytest.raises(UsageError, match="which only the records of a topic have"):
        StreamTasks(read(stream="s"), schema)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([ds.EqualTo(PARTITION, 2)], {2}),
        ([ds.EqualNullSafe(PARTITION, 2)], {2}),
        ([ds.EqualTo(PARTITION, 9)], set()),
        ([ds.In(PARTITION, (0, 3, 9, None))], {0, 3}),
        ([ds.In(PARTITION, (0, 3)), ds.In(PARTITION, (3, 1))], {3}),
        ([ds.LessThan(PARTITION, 2)], {0, 1}),
        ([ds.LessThanOrEqual(PARTITION, 2)], {0, 1, 2}),
        ([ds.GreaterThan(PARTITION, 2)], {3}),
        ([ds.GreaterThanOrEqual(PARTITION, 2), ds.LessThan(PARTITION, 3)], {2}),
        ([ds.GreaterThanOrEqual(PARTITION, -5)], {0, 1, 2, 3}),
        ([ds.GreaterThan(PARTITION, 1), ds.In(PARTITION, (0, 2))], {2}),
    ],
)
def test_filters_on_the_partition_select_exactly_the_partitions(
    conditions: list[ds.Filter], expected: set[int]
) -> None:
    bounds = StreamBounds()
    for condition in conditions:
        assert is_exact(condition)
        bounds = narrowed(bounds, condition)
    assert {number for number in range(4) if bounds.has_partition(number)} == expected


@pytest.mark.parametrize(
    "condition",
    [
        ds.EqualTo(PARTITION, None),
        ds.EqualTo(PARTITION, "2"),
        ds.Not(ds.EqualTo(PARTITION, 2)),
        ds.IsNotNull(PARTITION),
        ds.EqualTo(("partition", "part"), 2),
        ds.EqualTo(("sequence",), 2),
    ],
)
def test_other_filters_are_left_to_spark(condition: ds.Filter) -> None:
    reader = QuireStreamPushdownReader(read(topic="t"), spark_schema(("partition", "sequence")))
    given = [ds.EqualTo(PARTITION, 1), condition]
    assert list(reader.pushFilters(given)) == [condition]
    assert narrowed(StreamBounds(), condition).has_partition(7)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", (0,)), ("3, 0-1", (0, 1, 3)), ("5-5,63", (5, 63))]
)
def test_the_partitions_option_is_parsed(text: str, numbers: tuple[int, ...]) -> None:
    assert read(topic="t", partitions=text).partitions == numbers


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1-", "3-2", "64", "0-64", "1,1", "0-2,2", "1-2-3"]
)
def test_invalid_partitions_options_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="option 'partitions'"):
        read(topic="t", partitions=text)


def test_options_that_exclude_each_other() -> None:
    for other in ({"stream": "s"}, {"streams": "s"}, {"streamPattern": "s"}):
        with pytest.raises(UsageError, match="and 'topic' exclude each other"):
            read(topic="t", **other)
    with pytest.raises(UsageError, match="'partitions' requires the option 'topic'"):
        read(stream="s", partitions="0")
    others: list[dict[str, Any]] = [
        {"stream": "s"}, {"streams": "s", "streamColumn": "c"}, {"streamColumn": "c"},
    ]  # fmt: skip
    for more in others:
        with pytest.raises(UsageError, match="option 'topic' and the options 'stream'"):
            write(topic="t", **more)
    with pytest.raises(UsageError, match="'createStream' cannot create a topic"):
        write(topic="t", createStream="true")
    with pytest.raises(UsageError, match="option 'topic'"):
        write(topic="a//b")


def test_a_topic_is_written_like_several_streams() -> None:
    found = write(topic="/t", keyColumn="k", writerId="w", streaming=True)
    assert (found.topic, found.streams, found.key_column) == ("t", (), "k")
    assert found.divides_rows
    assert write(streams="a,b", streamColumn="c").divides_rows
    assert not write(stream="s").divides_rows
    assert reading_kind({"TOPIC": "t"}) == "streams"
    assert writes_streams({"topic": "t"})


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_rows_are_assigned_to_partitions_by_key_or_value(kind: pa.DataType) -> None:
    keys = ["a", None, "b", "a", "", None]
    values = ["1", "2", "3", "4", "5", None]
    expected = [
        crc32((value or "").encode()) % 5 if key is None else partition_of(key.encode(), 5)
        for key, value in zip(keys, values)
    ]
    found = row_partitions(pa.array(keys, kind), pa.array(values, kind), 5)
    assert found.to_pylist() == expected
    without = row_partitions(None, pa.array(values, kind), 5)
    assert without.to_pylist() == [crc32((value or "").encode()) % 5 for value in values]
    none = row_partitions(pa.array([None, None], kind), pa.array(["1", "2"], kind), 5)
    assert none.to_pylist() == without.to_pylist()[:2]
    assert row_partitions(pa.array([], kind), pa.array([], kind), 5).to_pylist() == []


@pytest.mark.parametrize(
    "records", [0, 1, *(n * BATCH_ROWS + d for n in (1, 2) for d in (-1, 0, 1))]
)
@pytest.mark.parametrize("first", [0, 7])
def test_rows_from_metadata_are_those_of_the_records(first: int, records: int) -> None:
    """A task yields them in batches, and each row has the sequence id of its record."""
    columns = ("sequence", "stream", "partition", "segment", "ledger")
    tasks = StreamTasks(read(topic="t"), spark_schema(columns))
    segment = StreamSegment(5, 70, 1).completed(
        last_txid=9, record_count=records, last_entry_id=records - 1, last_slot_id=0,
        completion_time_ms=9, start_sequence_id=first,
    )  # fmt: skip
    split = StreamSplit(
        Origin("t/3", segment), 0, segment.last_entry_id, records=records, first_sequence=first
    )
    batches = list(tasks._counted(split, records))
    assert max((batch.num_rows for batch in batches), default=0) <= BATCH_ROWS
    rows = pa.Table.from_batches(batches, tasks._schema).to_pydict()
    assert rows == {
        "sequence": list(range(first, first + records)),
        "stream": ["t/3"] * records,
        "partition": [3] * records,
        "segment": [5] * records,
        "ledger": [70] * records,
    }
