"""Streams as the sink of streaming queries: each micro-batch once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from quire import blocking
from quire.blocking import Namespace
from quire.errors import QuireError
from quire.spark import sweep_orphans
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.faults import Faults
from tests.support.spark.streams import data_source, message_of

pytestmark = pytest.mark.spark

NAMESPACE = "/tests/sink"
SCHEMA = StructType().add("value", "string")
WAIT_S = 120

Run = Callable[..., None]


@pytest.fixture
def numbers(spark: SparkSession) -> Callable[..., DataFrame]:
    def read(total: int, per_batch: int = 100, partitions: int = 2) -> DataFrame:
        options = {"total": total, "perBatch": per_batch, "partitions": partitions}
        return spark.readStream.format("quire_numbers").options(**options).load()

    return read


@pytest.fixture
def run(cluster: LocalCluster, stream: str, tmp_path: Path) -> Run:
    """Write everything available into `stream`, with the checkpoint `at`."""

    def ran(
        frame: DataFrame, at: str = "checkpoint", format: str = "quire", mode: str = "append",
        **more: object,
    ) -> None:  # fmt: skip
        given = {"metadata": cluster.uri, "namespace": NAMESPACE}
        if "streams" not in more:
            given["stream"] = stream
        name = more.pop("name", None)
        writer = frame.writeStream.format(format).outputMode(mode).options(**{**given, **more})
        if name:
            writer = writer.queryName(str(name))
        query = writer.option("checkpointLocation", str(tmp_path / at)).trigger(availableNow=True)
        started = query.start()
        try:
            assert started.awaitTermination(WAIT_S)
        finally:
            started.stop()

    return ran


def read(streams: Namespace, name: str) -> list[int]:
    return [int(record.payload) for record in streams.open_reader(name)]


def only_its_ledgers(client: blocking.Client, streams: Namespace, name: str) -> None:
    left = {
        ledger_id
        for ledger_id in client.list_ledgers()
        if client.ledger_metadata(ledger_id).custom.get("stream") == f"{NAMESPACE}/{name}".encode()
    }
    assert left == {segment.ledger_id for segment in streams.segments(name)}


# -- what is written --------------------------------------------------------------------------


def test_a_query_continues_at_its_checkpoint(
    client: blocking.Client, streams: Namespace, stream: str, run: Run,
    numbers: Callable[..., DataFrame], tmp_path: Path,
) -> None:  # fmt: skip
    run(numbers(350))
    assert read(streams, stream) == list(range(350))
    assert len(streams.segments(stream)) == 4  # one for each micro-batch
    run(numbers(350))
    run(numbers(500))
    # The driver died after a commit, before Spark recorded it, so the batch comes again.
    for file in (tmp_path / "checkpoint" / "commits").glob("*5*"):
        file.unlink()
    run(numbers(500))
    run(numbers(600))
    assert read(streams, stream) == list(range(600))
    only_its_ledgers(client, streams, stream)


def test_rows_are_sorted_within_a_batch(
    streams: Namespace, stream: str, run: Run, numbers: Callable[..., DataFrame]
) -> None:
    frame = numbers(200, 100, 1).selectExpr("value", "int(value) % 2 AS odd")
    run(frame, orderBy="odd", valueColumn="value")
    assert read(streams, stream) == [
        n for batch in (0, 100) for odd in (0, 1) for n in range(batch, batch + 100) if n % 2 == odd
    ]


def test_a_column_selects_the_stream_of_a_row(
    streams: Namespace, stream: str, run: Run, numbers: Callable[..., DataFrame], tmp_path: Path
) -> None:
    frame = numbers(300).selectExpr(
        "value", f"concat('{stream}/', if(int(value) < 100, 'a', 'b')) AS place"
    )
    options = {
        "streams": f"{stream}/a,{stream}/b", "streamColumn": "place", "createStream": "true",
    }  # fmt: skip
    run(frame, **options)
    for file in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        file.unlink()
    run(frame, **options)
    assert read(streams, f"{stream}/a") == list(range(100))
    assert read(streams, f"{stream}/b") == list(range(100, 300))


# -- who writes -------------------------------------------------------------------------------


def test_another_query_of_the_same_writer_needs_the_takeover_option(
    client: blocking.Client, streams: Namespace, stream: str, run: Run,
    numbers: Callable[..., DataFrame],
) -> None:  # fmt: skip
    run(numbers(200), writerId="w")
    with pytest.raises(PySparkException, match=r"which has published up to batch 1.* takeover"):
        run(numbers(200), "another", writerId="w")
    assert read(streams, stream) == list(range(200))
    only_its_ledgers(client, streams, stream)
    run(numbers(100), "third", writerId="w", takeover="true")
    run(numbers(200), "third", writerId="w")
    assert read(streams, stream) == [*range(200), *range(200)]
    with pytest.raises(PySparkException, match="was replaced by query"):
        run(numbers(300), writerId="w", takeover="true")
    run(numbers(100), "fourth", writerId="v")  # Concurrently.
    assert read(streams, stream) == [*range(200), *range(200), *range(100)]


def test_the_writer_is_named_by_option_query_or_checkpoint(
    streams: Namespace, stream: str, run: Run, numbers: Callable[..., DataFrame], tmp_path: Path
) -> None:
    run(numbers(100), "a", name="orders")
    with pytest.raises(PySparkException, match="writer 'query:orders' belongs to query"):
        run(numbers(100), "b", name="orders")
    run(numbers(100), "c")
    shutil.copytree(tmp_path / "c", tmp_path / "moved")
    with pytest.raises(PySparkException, match="Use the writer id"):
        run(numbers(200), "moved")
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(PySparkException, match="which has published up to batch 0"):
        run(numbers(100), "c")
    assert read(streams, stream) == [*range(100), *range(100)]


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnId": 1}, "option 'txnId' cannot be used for writing streams from a query"),
        ({"writerid_": 1}, "unknown option 'writerid_' for writing streams from a query. Did you"),
        ({"stream": "nowhere"}, "The option 'createStream' creates it"),
        ({"namespace": "/nowhere"}, "there is no namespace /nowhere"),
        ({"valueColumn": "zzz"}, "no column 'zzz' to write"),
    ],
)
def test_a_sink_error_is_one_clear_message(
    cluster: LocalCluster, stream: str, options: dict[str, object], message: str
) -> None:
    """The test asks for the writer without Spark, and checks the error."""
    given = {
        "metadata": cluster.uri, "namespace": NAMESPACE, "stream": stream,
        "checkpointLocation": "/anywhere", **options,
    }  # fmt: skip
    with pytest.raises(QuireError) as caught:
        data_source(given).streamWriter(SCHEMA, overwrite=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    long_after(
        1,
        [
            ({"valueColumn": "zzz"}, "no column 'zzz' to write"),
            ({"mode": "complete"}, "a stream cannot be overwritten"),
            ({"token": "t"}, "does not have the fencing token 't'"),  # found by the tasks
        ],
    ),
)
def test_spark_shows_the_message(
    run: Run, numbers: Callable[..., DataFrame], options: dict[str, object], message: str
) -> None:
    frame = numbers(100)
    if "mode" in options:
        frame = frame.groupBy("value").count()
    with pytest.raises(PySparkException) as caught:
        run(frame, **options)
    assert message in message_of(caught.value)


# -- failures ---------------------------------------------------------------------------------


def test_a_retried_task_publishes_its_rows_once(
    client: blocking.Client, streams: Namespace, stream: str, run: Run,
    numbers: Callable[..., DataFrame], tmp_path: Path,
) -> None:  # fmt: skip
    faults = Faults(str(tmp_path))
    for name in ("task-raises.1.0", "worker-dies.2.1"):
        faults.make(name)
    run(numbers(800, 200), format="quire_faulty_streams", faults=str(tmp_path))
    assert len(list(tmp_path.glob("taken.*"))) == 2
    assert read(streams, stream) == list(range(800))
    only_its_ledgers(client, streams, stream)


@pytest.mark.parametrize(
    "step", long_after(1, ["after-merge", "before-merge", "after-transaction"])
)
def test_a_failed_commit_keeps_the_published_rows(
    client: blocking.Client, streams: Namespace, stream: str, run: Run,
    numbers: Callable[..., DataFrame], tmp_path: Path, step: str,
) -> None:  # fmt: skip
    """Spark calls `abort` with the same messages: what is published stays."""
    faults = Faults(str(tmp_path))
    faults.make(f"raise.{step}.1")
    options = {"format": "quire_faulty_streams", "faults": str(tmp_path)}
    with pytest.raises(PySparkException, match=f"injected: {step}"):
        run(numbers(300), **options)
    published = 200 if step == "after-transaction" else 100
    assert read(streams, stream) == list(range(published))
    run(numbers(300), **options)
    assert read(streams, stream) == list(range(300))
    sweep_orphans(client, 0, stream=f"{NAMESPACE}/{stream}")
    only_its_ledgers(client, streams, stream)


@pytest.mark.parametrize("fence", long_after(1, [False, True]))
def test_a_writer_that_opens_the_stream_during_a_batch_keeps_it(
    client: blocking.Client, streams: Namespace, stream: str, run: Run, cluster: LocalCluster,
    numbers: Callable[..., DataFrame], tmp_path: Path, fence: bool,
) -> None:  # fmt: skip
    """It keeps the stream, unless the query may fence writers."""
    uri, faults = cluster.uri, Faults(str(tmp_path))
    faults.make("writer-opens")

    def intrude(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column(0)[0].as_py() == "100" and faults.take("writer-opens"):
                with blocking.connect(uri) as other, other.namespace(NAMESPACE) as opened:
                    writer = opened.open_writer(stream)
                    writer.append(b"-1")
                    writer.abandon()
            yield batch

    frame = numbers(300)
    frame = frame.mapInArrow(intrude, frame.schema)
    if not fence:
        with pytest.raises(PySparkException) as caught:
            run(frame)
        message = message_of(caught.value)
        assert "StreamFencedError: batch 1 of writer" in message
        assert "a writer (session 0x" in message
        assert "set the option 'fenceWriters'" in message
        assert read(streams, stream) == [*range(100), -1]
    run(frame, **({"fenceWriters": "true"} if fence else {}))
    assert len(list(tmp_path.glob("taken.*"))) == 1
    assert read(streams, stream) == [*range(100), -1, *range(100, 300)]
    only_its_ledgers(client, streams, stream)
