"""Spark on a stream one of whose ledgers was deleted."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import LessThan

from quire import blocking
from quire.blocking import Namespace
from quire.errors import StreamGapError
from quire.spark.jobs import ClusterOptions, preview_offload
from quire.spark.jobs.history import LiveTail
from quire.spark.streams import query as stream_query
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import NAMESPACE as NAMESPACE
from tests.support.spark.streams import (
    append,
    batch_reader,
    batches,
    make_copy,
    numbered,
    replace_ledger,
    rows,
    stream_reader,
    values,
)

pytestmark = pytest.mark.spark

LIMIT_S = 60.0
LOST = "records from 2:0:0 to just before 3:0:0 are lost"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.spark.streams.query.POLL_S", 0.05)
    monkeypatch.setattr("quire.spark.streams.source.IDLE_GAP_S", 60.0)
    monkeypatch.setattr("quire.spark.streams.view.LOOK_DELAY_S", 0.01)


def write(streams: Namespace, name: str, payloads: list[bytes], *, leave_open: bool) -> None:
    writer = streams.open_writer(name, create=True)
    writer.append_many(payloads)
    writer.roll() if not leave_open else None
    writer.abandon()


def lose(client: blocking.Client, streams: Namespace, name: str, lssn: int) -> None:
    (segment,) = [each for each in streams.segments(name) if each.lssn == lssn]
    client.delete_ledger(segment.ledger_id)


@pytest.fixture(params=["in progress", "completed"])
def lost(
    request: pytest.FixtureRequest, streams: Namespace, client: blocking.Client, name: str
) -> str:
    """A stream whose segment 2 has lost its ledger: while it was written, or later."""
    name = re.sub(r"\W+", "-", name).strip("-")
    append(streams, name, numbered(0, 10))
    write(streams, name, numbered(10, 20), leave_open=request.param == "in progress")
    lose(client, streams, name, 2)
    append(streams, name, numbered(20, 30))
    return name


def test_a_batch_over_a_lost_segment_is_an_error_or_skips_it(
    cluster: LocalCluster, lost: str
) -> None:
    with pytest.raises(StreamGapError, match=LOST):
        rows(cluster.uri, stream=lost)
    there = numbered(0, 10) + numbered(20, 30)
    assert values(cluster.uri, stream=lost, failOnDataLoss="false") == there
    assert values(cluster.uri, stream=lost, start="3:0:0") == numbered(20, 30)


@pytest.mark.parametrize("again", ["the same stream", "another stream"])
def test_a_copy_with_a_ledger_replaced_after_the_plan_is_read(
    cluster: LocalCluster,
    client: blocking.Client,
    streams: Namespace,
    name: str,
    again: str,
    tmp_path: Path,
) -> None:
    """Each run of `replicate` begins the ledger of the copy's segment in progress again."""
    name = re.sub(r"\W+", "-", name).strip("-")
    write(streams, name, numbered(0, 10), leave_open=True)
    make_copy(streams, name)
    reader = batch_reader(cluster.uri, stream=name, columns="value", failOnDataLoss="false")
    planned = reader.partitions()
    replace_ledger(client, streams, name)
    if again == "another stream":
        streams.delete_stream(name)
        write(streams, name, numbered(100, 110), leave_open=True)
    found = [row["value"] for b in batches(reader, planned) for row in b.to_pylist()]
    assert found == (numbered(0, 10) if again == "the same stream" else [])

    # The live part of a history is read in the same way.
    tail = LiveTail(ClusterOptions(cluster.uri), str(tmp_path), ("value",), namespace=NAMESPACE)
    [piece] = planned[0].splits
    if again == "another stream":
        with pytest.raises(StreamGapError, match="truncated or deleted while they were read"):
            list(tail.of_piece(client, piece))
        return
    found = [row["value"] for b in tail.of_piece(client, piece) for row in b.to_pylist()]
    assert found == numbered(0, 10)


def test_an_end_after_a_lost_segment_reports_the_loss(
    cluster: LocalCluster, streams: Namespace, lost: str
) -> None:
    """The end is the first record after the lost ones: these may have been before it."""
    end = streams.segments(lost)[2].first_sequence_id
    txid = rows(cluster.uri, stream=lost, start="3:0:0")[0]["txid"]
    for place in (f"seq:{end}", f"txid:{txid}"):
        with pytest.raises(StreamGapError, match=LOST):
            rows(cluster.uri, stream=lost, end=place)
        found = values(cluster.uri, stream=lost, end=place, failOnDataLoss="false")
        assert found == numbered(0, 10)
    assert values(cluster.uri, stream=lost, end="2:0:0") == numbered(0, 10)
    assert values(cluster.uri, stream=lost, end="seq:5") == numbered(0, 5)
    reader: Any = batch_reader(cluster.uri, stream=lost, pushdown="true")
    assert list(reader.pushFilters([LessThan(("sequence",), end)]))
    with pytest.raises(StreamGapError, match=LOST):
        reader.partitions()


def test_counts_exclude_the_sequence_numbers_of_a_lost_segment(
    cluster: LocalCluster, streams: Namespace, lost: str
) -> None:
    if streams.segments(lost)[1].lost:
        with pytest.raises(StreamGapError, match=LOST):
            rows(cluster.uri, stream=lost, columns="segment")
        found = rows(cluster.uri, stream=lost, columns="segment", failOnDataLoss="false")
        assert len(found) == 20


def drain(reader: Any, offset: Any, count: int) -> tuple[Any, list[bytes]]:
    """Run triggers until this number of records was read."""
    found: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count:
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        if end != offset:
            for batch in batches(reader, reader.partitions(offset, end)):
                found += batch.column("value").to_pylist()
            offset = json.loads(json.dumps(end))
        assert time.monotonic() < deadline, found
    assert len(found) == count
    return offset, found


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": 4}, {"maxBytesPerTrigger": "64"}])
def test_a_query_over_a_lost_segment_is_an_error_or_skips_it(
    cluster: LocalCluster, lost: str, limit: dict[str, Any]
) -> None:
    options = {"stream": lost, "columns": "value", **limit}
    careful = stream_reader(cluster.uri, **options)
    careless = stream_reader(cluster.uri, failOnDataLoss="false", **options)
    try:
        with pytest.raises(StreamGapError, match=f"stream {lost} lacks records.*: {LOST}"):
            drain(careful, careful.initialOffset(), 20)
        _, found = drain(careless, careless.initialOffset(), 20)
        assert found == numbered(0, 10) + numbered(20, 30)
    finally:
        careful.stop()
        careless.stop()


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": 4}, {"maxBytesPerTrigger": "64"}])
def test_a_limited_query_notices_a_ledger_deleted_ahead_of_it(
    cluster: LocalCluster,
    streams: Namespace,
    client: blocking.Client,
    name: str,
    limit: dict[str, Any],
) -> None:
    """The ledger is deleted while the query is behind. It knows the size of the ledger already."""
    name = re.sub(r"\W+", "-", name).strip("-")
    streams.create_stream(name, settings={"entry_bytes": 1_024})
    append(streams, name, numbered(0, 10))
    append(streams, name, numbered(10, 20, size=200))
    append(streams, name, numbered(20, 30))
    options = {"stream": name, "columns": "value", **limit}
    careful = stream_reader(cluster.uri, **options)
    careless = stream_reader(cluster.uri, failOnDataLoss="false", **options)
    try:
        begun = [(reader, reader.initialOffset()) for reader in (careful, careless)]
        limits = [reader.getDefaultReadLimit() for reader, _ in begun]
        ends = [one.latestOffset(at, limit) for (one, at), limit in zip(begun, limits)]
        lose(client, streams, name, 2)
        for reader in (careful, careless):  # Bookies may still have the entries, so forget them.
            assert reader._query is not None
            reader._query._followed[name].view.close()
        with pytest.raises(StreamGapError, match=r"are lost|are gone"):
            drain(careful, ends[0], 26)
        _, found = drain(careless, begun[1][1], 20)
        assert found == numbered(0, 10) + numbered(20, 30)
    finally:
        careful.stop()
        careless.stop()


def test_a_query_within_a_lost_segment_is_an_error_or_skips_it(
    cluster: LocalCluster, streams: Namespace, client: blocking.Client, name: str
) -> None:
    """The ledger is deleted after a part of it was read, and a new writer keeps the gap."""
    with streams.open_writer(name, create=True) as writer:
        writer.append_many(numbered(0, 10))
    writer = streams.open_writer(name)
    writer.append_many(numbered(10, 20))
    careful = stream_reader(cluster.uri, stream=name, columns="value")
    careless = stream_reader(cluster.uri, stream=name, columns="value", failOnDataLoss="false")
    try:
        offset, _ = drain(careful, careful.initialOffset(), 20)
        drain(careless, careless.initialOffset(), 20)
        assert offset["streams"] == {name: "2:1:0"}
        careful.stop()
        careless.stop()
        lose(client, streams, name, 2)
        writer.abandon()
        append(streams, name, numbered(20, 30))
        with pytest.raises(StreamGapError, match="from 2:1:0 to just before 3:0:0 are lost"):
            drain(careful, offset, 10)
        offset, found = drain(careless, offset, 10)
        assert found == numbered(20, 30)
        assert offset["streams"] == {name: "4:0:0"}
    finally:
        careful.stop()
        careless.stop()


def test_a_query_reports_a_lost_open_segment_after_a_while(
    cluster: LocalCluster,
    streams: Namespace,
    client: blocking.Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The query waits for a while, and then reports what is lost and what to do."""
    monkeypatch.setattr(stream_query, "PATIENCE_S", 0.2)
    write(streams, name, numbered(0, 10), leave_open=True)
    lose(client, streams, name, 1)
    reader = stream_reader(cluster.uri, stream=name, columns="value")
    message = (
        f"stream {name} cannot be read further, because the ledger of its last segment is gone"
    )
    try:
        with pytest.raises(StreamGapError, match=message) as caught:
            drain(reader, reader.initialOffset(), 10)
        assert "Open the stream for writing" in str(caught.value)
    finally:
        reader.stop()


def test_an_offload_of_a_lost_segment_is_refused(
    cluster: LocalCluster, lost: str, tmp_path: Path
) -> None:
    where = (ClusterOptions(cluster.uri), NAMESPACE, lost, str(tmp_path))
    with pytest.raises(StreamGapError, match=f"stream {lost} lacks records.*: {LOST}") as caught:
        preview_offload(*where)
    assert "--skip-lost" in str(caught.value)
    (found,) = preview_offload(*where, fail_on_data_loss=False)
    assert (found.segments, found.start, found.behind) == (2, "1:0:0", "4:0:0")
