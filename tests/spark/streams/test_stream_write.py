"""Writing streams in batch jobs: all of a job or nothing, once, in order."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from quire import blocking
from quire.blocking import Namespace
from quire.blocking.background import call
from quire.errors import QuireError
from quire.streams.namespace.job_plans import job_plans
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import data_source, message_of

pytestmark = pytest.mark.spark

NAMESPACE = "/tests/write"
SCHEMA = StructType().add("value", "string").add("other", "string")
"""Two columns. The tests name the second one with an option."""

Save = Callable[..., None]
Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture
def save(cluster: LocalCluster, stream: str) -> Save:
    def saved(
        frame: DataFrame, mode: str = "append", format: str = "quire", **more: object
    ) -> None:
        given = {"metadata": cluster.uri, "namespace": NAMESPACE}
        if "streams" not in more:
            given["stream"] = stream
        frame.write.format(format).mode(mode).options(**{**given, **more}).save()

    return saved


def numbers(spark: SparkSession, first: int, count: int, partitions: int) -> DataFrame:
    return spark.range(first, first + count, 1, partitions).selectExpr("cast(id AS string) value")


def read(streams: Namespace, name: str) -> list[int]:
    return [int(record.payload) for record in streams.open_reader(name)]


def appends(uri: str, stream: str) -> Step:
    """Return a step of a task that opens the stream, appends -1, and dies."""

    def intrude(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with blocking.connect(uri) as other, other.namespace(NAMESPACE) as opened:
            writer = opened.open_writer(stream)
            writer.append(b"-1")
            writer.abandon()
        yield from batches

    return intrude


def only_its_ledgers(client: blocking.Client, streams: Namespace, names: Sequence[str]) -> None:
    """Check that attempts left no other ledgers."""
    paths = [f"{NAMESPACE}/{name}".encode() for name in names]
    left = {
        ledger_id
        for ledger_id in client.list_ledgers()
        if client.ledger_metadata(ledger_id).custom.get("stream") in paths
    }
    assert left == {s.ledger_id for name in names for s in streams.segments(name)}


# -- what is written --------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 5])
def test_rows_keep_their_order(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save,
    partitions: int,
) -> None:  # fmt: skip
    save(numbers(spark, 0, 20_000, partitions))
    save(numbers(spark, 20_000, 100, partitions))
    assert read(streams, stream) == list(range(20_100))
    assert len(streams.segments(stream)) == 2  # small ones of a job become one
    only_its_ledgers(client, streams, [stream])


def test_large_partitions_become_segments_without_a_copy(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save
) -> None:
    frame = spark.range(0, 24_000, 1, 3).selectExpr(
        "cast(concat(id, repeat(' ', 1000)) AS binary) AS value"
    )
    save(frame)
    assert read(streams, stream) == list(range(24_000))
    assert [segment.record_count for segment in streams.segments(stream)] == [8_000] * 3
    only_its_ledgers(client, streams, [stream])


def test_a_stream_transaction_is_written_once(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save
) -> None:
    save(numbers(spark, 0, 100, 2), txnId="a")
    save(numbers(spark, 0, 100, 2), txnId="b")
    save(numbers(spark, 500, 100, 2), txnId="a")
    assert read(streams, stream) == [*range(100), *range(100)]
    only_its_ledgers(client, streams, [stream])


def test_a_job_without_rows_publishes_nothing(
    spark: SparkSession, streams: Namespace, stream: str, save: Save
) -> None:
    save(numbers(spark, 0, 0, 2), txnId="a")
    assert streams.segments(stream) == []
    save(numbers(spark, 0, 10, 2), txnId="a")  # done already
    assert read(streams, stream) == []


def test_a_missing_stream_is_created_on_request(
    spark: SparkSession, streams: Namespace, stream: str, save: Save
) -> None:
    save(numbers(spark, 0, 10, 1), stream=f"{stream}-2", createStream="true")
    assert read(streams, f"{stream}-2") == list(range(10))


def test_given_txids_are_written(
    spark: SparkSession, streams: Namespace, stream: str, save: Save
) -> None:
    streams.configure_stream(stream, {"txids": "given"})
    frame = spark.range(0, 3_000, 1, 3).selectExpr("string(id) AS value", "id DIV 2 AS txid")
    save(frame)
    assert [r.txid for r in streams.open_reader(stream)] == [n // 2 for n in range(3_000)]
    later = spark.range(3_000, 3_010, 1, 2).selectExpr("string(id) AS value", "id AS number")
    save(later, txidColumn="number")
    assert [r.txid for r in streams.open_reader(stream)][-10:] == list(range(3_000, 3_010))
    with pytest.raises(PySparkException, match="txid 0 is less than txid 3009"):
        save(frame)
    with pytest.raises(
        PySparkException, match="the txids of the batch for a stream are not in order"
    ):
        save(spark.range(9_000, 8_000, -1, 1).selectExpr("string(id) AS value", "id AS txid"))
    with pytest.raises(PySparkException, match="but no column of the rows has txids"):
        save(numbers(spark, 0, 10, 1))
    assert len(read(streams, stream)) == 3_010


def test_the_time_is_the_default_txid(
    spark: SparkSession, streams: Namespace, stream: str, save: Save
) -> None:
    with streams.open_writer(stream) as writer:
        writer.append(b"-1")
    save(numbers(spark, 0, 10, 2))
    with streams.open_writer(stream) as writer:
        writer.append(b"10")
    assert read(streams, stream) == list(range(-1, 11))
    txids = [record.txid for record in streams.open_reader(stream)]
    assert txids == sorted(txids)
    frame = spark.range(5).selectExpr("string(id) AS value", "id AS txid")
    with pytest.raises(PySparkException, match="assigns txids by time"):
        save(frame, txidColumn="txid")


def test_the_sink_sorts_rows(
    spark: SparkSession, streams: Namespace, stream: str, save: Save
) -> None:
    frame = spark.range(0, 30_000, 1, 2).selectExpr("string(id) AS value", "id % 3 AS kind")
    save(frame, orderBy="kind", valueColumn="value")
    halves = [list(range(15_000)), list(range(15_000, 30_000))]
    assert read(streams, stream) == [
        number for half in halves for kind in range(3) for number in half if number % 3 == kind
    ]


def test_a_column_selects_the_stream_of_a_row(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save
) -> None:
    names = [f"{stream}/{name}" for name in ("a", "b", "c")]
    for name in names[:2]:
        streams.create_stream(name)
    frame = spark.range(0, 3_000, 1, 3).selectExpr(
        "string(id) AS value", f"concat('{stream}/', if(id % 3 = 0, 'a', 'c')) AS place"
    )
    options = {
        "streams": f"{stream}/?,{stream}/c", "streamColumn": "place", "createStream": "true",
    }  # fmt: skip
    save(frame, txnId="t", **options)
    expected = [[n for n in range(3_000) if n % 3 == 0], [], [n for n in range(3_000) if n % 3]]
    assert [read(streams, name) for name in names] == expected
    # Of a job that came half way, the rest is written by the next try.
    more = spark.range(0, 30, 1, 3).selectExpr("string(id) AS value", f"'{stream}/b' AS place")
    save(frame.union(more), txnId="t", **options)
    assert [read(streams, name) for name in names] == [expected[0], list(range(30)), expected[2]]
    only_its_ledgers(client, streams, names)
    with pytest.raises(PySparkException, match=r"a row is for stream '.*x'.*Did you mean"):
        save(more.selectExpr("value", "concat(place, 'x') AS place"), **options)


def test_a_job_leaves_no_plan_in_streams_that_it_did_not_write(
    cluster: LocalCluster, client: blocking.Client, streams: Namespace, stream: str
) -> None:
    """The test calls the writer as Spark does for a job without rows and for a failed one."""
    names = [f"{stream}/{name}" for name in ("a", "b")]
    for name in names:
        streams.create_stream(name)

    def plans() -> list[str]:
        tree = client.aio.metadata.tree
        roots = [streams.aio.metadata(name).paths.root for name in names]
        return [path for root in roots for path in call(job_plans(tree, root))]

    def writer(**more: str) -> DataSourceArrowWriter:
        given = {"metadata": cluster.uri, "namespace": NAMESPACE, "streams": ",".join(names)}
        made = data_source({**given, "streamColumn": "other", **more})
        return pickle.loads(pickle.dumps(made.writer(SCHEMA, overwrite=False)))

    job = writer()
    assert len(plans()) == 2
    rows = pa.RecordBatch.from_pydict({"value": ["x"], "other": [names[0]]})
    job.commit([job.write(iter([rows]))])
    assert plans() == []
    assert [record.payload for record in streams.open_reader(names[0])] == [b"x"]
    assert list(streams.open_reader(names[1])) == []
    job = writer()
    assert len(plans()) == 2
    job.abort([None, None])  # Each task failed.
    assert plans() == []
    with streams.open_writer(names[1]) as other:
        other.set_fencing_token("t")
    with pytest.raises(QuireError, match="does not have the fencing token"):
        writer()
    assert plans() == []


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"txnid_": 1},
            "unknown option 'txnid_' for writing streams in a batch. Did you mean 'txn",
        ),
        ({"writerId": 2}, "option 'writerId' cannot be used for writing streams in a batch"),
        ({"ensemble": 2}, "option 'ensemble' cannot be used for writing streams in a batch"),
        ({"dataset": 2}, "option 'dataset' cannot be used for writing streams in a batch"),
        ({"valueColumn": "zzz"}, "no column 'zzz' to write"),
        ({"orderBy": "valeu"}, "the rows have no column 'valeu'. Did you mean 'value'?"),
        ({"txidColumn": "value"}, "column 'value' has type string, but it must be a whole number"),
        ({"keyColumn": "value"}, "no option says what to do with column 'other'"),
        ({"streams": "a"}, "must be set together"),
        ({"streams": "zzz*", "streamColumn": "value"}, "select 0 streams"),
        ({"stream": "test_one_clear_messag"}, "The option 'createStream' creates it"),
        ({"stream": "a//b"}, "'a//b' cannot be the name of a stream"),
        ({"namespace": "/nowhere"}, "there is no namespace /nowhere"),
        ({"metadata": "sqlite:////nowhere/at/all.db"}, "/nowhere/at/all.db"),
        ({"token": "t"}, "does not have the fencing token 't'"),
        ({"createStream": "yes"}, "option 'createStream': 'yes' is neither true nor false"),
    ],
)
def test_one_clear_message(
    cluster: LocalCluster, stream: str, options: dict[str, object], message: str
) -> None:
    """The test asks for the writer without Spark, and checks the error."""
    given = {"metadata": cluster.uri, "namespace": NAMESPACE}
    if "streams" not in options:
        given |= {"stream": stream, "keyColumn": "other"}
    with pytest.raises(QuireError) as caught:
        data_source({**given, **options}).writer(SCHEMA, overwrite=False)
    assert message in str(caught.value)


def test_spark_shows_the_message(spark: SparkSession, save: Save) -> None:
    with pytest.raises(PySparkException) as caught:
        save(numbers(spark, 0, 10, 1), orderBy="valeu")
    assert "the rows have no column 'valeu'. Did you mean 'value'?" in message_of(caught.value)


def test_a_stream_is_not_overwritten(spark: SparkSession, save: Save) -> None:
    with pytest.raises(PySparkException, match="a stream cannot be overwritten"):
        save(numbers(spark, 0, 10, 1), "overwrite")


def test_a_null_is_refused(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save
) -> None:
    frame = spark.range(1000).selectExpr("if(id = 700, null, string(id)) AS value")
    with pytest.raises(PySparkException, match="has a null, but an entry must have a value"):
        save(frame)
    assert read(streams, stream) == []
    only_its_ledgers(client, streams, [stream])


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_job_whose_input_fails_once_publishes_its_rows_once(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save
) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for at, batch in enumerate(batches):
            if at == 2 and context.partitionId() in (1, 3) and context.attemptNumber() == 0:
                raise RuntimeError("injected")
            yield batch

    frame = numbers(spark, 0, 200_000, 4)
    save(frame.mapInArrow(fail_once, frame.schema))
    assert read(streams, stream) == list(range(200_000))
    only_its_ledgers(client, streams, [stream])


def test_a_writer_that_opens_the_stream_meanwhile_keeps_it(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save,
    cluster: LocalCluster,
) -> None:  # fmt: skip
    frame = numbers(spark, 0, 1_000, 1)
    appending = frame.mapInArrow(appends(cluster.uri, stream), frame.schema)
    with pytest.raises(PySparkException) as caught:
        save(appending)
    message = message_of(caught.value)
    assert re.search(
        r"StreamFencedError: job job:\w+ was not published to stream \S+: a writer \(session "
        r"0x[0-9a-f]+ of the metadata store\) took the stream over after the batch was planned",
        message,
    )
    assert "set the option 'fenceWriters'" in message
    assert read(streams, stream) == [-1]
    only_its_ledgers(client, streams, [stream])
    save(frame)
    assert read(streams, stream) == [-1, *range(1_000)]


def test_a_writer_that_opens_the_stream_meanwhile_is_fenced_with_permission(
    spark: SparkSession, client: blocking.Client, streams: Namespace, stream: str, save: Save,
    cluster: LocalCluster,
) -> None:  # fmt: skip
    """The segment of the writer is still open when the job commits."""
    frame = numbers(spark, 0, 1_000, 1)
    save(frame.mapInArrow(appends(cluster.uri, stream), frame.schema), fenceWriters="true")
    assert read(streams, stream) == [-1, *range(1_000)]
    assert not any(segment.in_progress for segment in streams.segments(stream))
    only_its_ledgers(client, streams, [stream])
