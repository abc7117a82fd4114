"""The maps of a Spark micro-batch in ARCHITECTURE.md match the calls that are made.

The source and the sink are used as by Spark, without a JVM. Bookies are separate processes, so
their calls are not seen.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from quire.blocking import Namespace
from quire.spark.streams import sink as sink_module
from quire.spark.streams import source as source_module
from quire.spark.streams import writer as writer_module
from quire.testing.cluster import LocalCluster
from tests.support.call_trace import CallTrace
from tests.support.maps import Map, files_of, out_of_order, read_map
from tests.support.spark.streams import NAMESPACE, append, data_source, stream_reader

pytestmark = pytest.mark.spark

ROOMS = ("spark/", "streams/")
SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture
def trace() -> Iterator[CallTrace]:
    """Follows this thread, those to come, and the one in which blocking clients run."""
    with CallTrace() as made:

        async def follow() -> None:
            made.follow_this_thread()

        source_module.call(follow())
        yield made


def check(calls: list[tuple[str, str]], map_: Map) -> None:
    wrong = out_of_order(map_.main, calls)
    assert not wrong, "\n".join(wrong)
    crossed = {file for file in files_of(calls) if file.startswith(ROOMS)}
    hidden = sorted(crossed - map_.files - map_.also_crossed)
    assert not hidden, f"called, but not named in ARCHITECTURE.md: {hidden}"


def test_the_map_of_the_source_matches_the_calls(
    trace: CallTrace, cluster: LocalCluster, streams: Namespace, stream: str
) -> None:
    append(streams, stream, [b"one", b"two"])
    first = stream_reader(cluster.uri, stream=stream)
    start = first.initialOffset()
    first.stop()
    with trace.recorded() as calls:  # a query that is started again, from its checkpoint
        source = stream_reader(cluster.uri, stream=stream)
        end = json.loads(json.dumps(source.latestOffset(start, source.getDefaultReadLimit())))
        tasks = source.partitions(start, end)
        rows = [row for task in tasks for batch in source.read(task) for row in batch.to_pylist()]
        source.commit(end)
    source.stop()
    assert [row["value"] for row in rows] == [b"one", b"two"]
    check(calls, read_map("Map of a Spark micro-batch: source"))


def test_the_map_of_the_sink_matches_the_calls(
    trace: CallTrace, cluster: LocalCluster, streams: Namespace, stream: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rows = pa.RecordBatch.from_arrays([pa.array([b"one", b"two"], pa.binary())], ["value"])
    monkeypatch.setattr(writer_module, "query_and_batch", lambda: ("query", 0))
    monkeypatch.setattr(sink_module, "task", lambda: (0, 0))
    options = {
        "metadata": cluster.uri, "namespace": NAMESPACE, "stream": stream, "writerId": "maps",
    }  # fmt: skip
    with trace.recorded() as calls:
        on_driver = data_source(options).streamWriter(SCHEMA, False)
        in_task = pickle.loads(pickle.dumps(on_driver))
        on_driver.commit([in_task.write(iter([rows]))], 0)
    assert [record.payload for record in streams.open_reader(stream)] == [b"one", b"two"]
    check(calls, read_map("Map of a Spark micro-batch: sink"))
