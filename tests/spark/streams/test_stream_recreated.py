"""A streaming query on a stream that is deleted and recreated with the same name.

The checkpoint of a query is usually between two segments, where neither segment nor ledger
distinguishes the two streams.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quire.blocking import Namespace
from quire.errors import StreamGapError
from quire.spark.streams.source import QuireStreamSource
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import NAMESPACE as NAMESPACE
from tests.support.spark.streams import append, batches, numbered, stream_reader

pytestmark = pytest.mark.spark

LIMIT_S = 60.0
"""Seconds to wait for anything that has to happen."""

Json = dict[str, Any]


class Query:
    """Does what Spark does with a source: triggers, checkpoints, restarts."""

    def __init__(self, uri: str, **options: Any) -> None:
        self._make = lambda: stream_reader(uri, columns="stream,value", **options)
        self.reader: QuireStreamSource = self._make()
        self.offset: Json = self.reader.initialOffset()
        self.values: list[bytes] = []

    def plan(self) -> Json:
        return self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())

    def run(self, end: Json) -> None:
        for batch in batches(self.reader, self.reader.partitions(self.offset, end)):
            self.values += batch.column("value").to_pylist()
        self.offset = json.loads(json.dumps(end))

    def trigger(self) -> None:
        end = self.plan()
        if end != self.offset:
            self.run(end)

    def until(self, count: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(self.values) < count:
            self.trigger()
            assert time.monotonic() < deadline, self.values
        assert len(self.values) == count

    def idle(self) -> None:
        """Run triggers until one fails."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self.trigger()

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self._make()


Start = Callable[..., Query]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the source wait for news only briefly within one call."""
    monkeypatch.setattr("quire.spark.streams.query.POLL_S", 0.05)
    monkeypatch.setattr("quire.spark.streams.query.DISCOVERY_INTERVAL_S", 0.0)
    monkeypatch.setattr("quire.spark.streams.source.IDLE_GAP_S", 60.0)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stream of this test's own, whose name may stand in a pattern."""
    return re.sub(r"\W+", "-", str(request.node.name)).strip("-")


@pytest.fixture
def query(cluster: LocalCluster) -> Iterator[Start]:
    made: list[Query] = []

    def start(**options: Any) -> Query:
        made.append(Query(cluster.uri, **options))
        return made[-1]

    yield start
    for each in made:
        each.reader.stop()


def create_again(
    streams: Namespace, name: str, count: int, *, segments: int = 1, open_segment: bool = False
) -> None:
    """Delete the stream and create it with other records, which begin at 1000."""
    streams.delete_stream(name)
    append(streams, name, numbered(1000, 1000 + count), segments=segments)
    if open_segment:
        writer = streams.open_writer(name)
        writer.append(b"open")
        writer.abandon()


def fails(running: Query, name: str) -> None:
    """The query fails with one error, at once or with the next news, and delivers nothing."""
    before = list(running.values)
    with pytest.raises(StreamGapError) as caught:
        running.idle()
    message = str(caught.value)
    assert f"stream {name} is not the one that was read up to" in message
    assert "deleted or renamed, and another stream has its name now" in message
    assert "another checkpoint location" in message
    assert "failOnDataLoss" in message
    assert running.values == before


def without_lives(offset: Json) -> Json:
    """The offset as a version wrote it that did not know lives."""
    old: Json = json.loads(json.dumps(offset))
    for known in old["checks"].values():
        known.pop("life", None)
    return old


@pytest.mark.parametrize("read", [1, 3], ids=["one read", "three read"])
@pytest.mark.parametrize("segments", [1, 2, 3, 5])
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
def test_a_query_fails_when_its_stream_is_recreated(
    streams: Namespace, name: str, query: Start, read: int, segments: int, restarted: bool
) -> None:
    append(streams, name, numbered(0, 20), segments=read)
    running = query(stream=name)
    running.until(20)
    create_again(streams, name, 50, segments=segments)
    if restarted:
        running.restart()
    fails(running, name)
    append(streams, name, numbered(1050, 1080))
    running.restart()
    fails(running, name)


@pytest.mark.parametrize("read", [1, 3], ids=["one read", "three read"])
@pytest.mark.parametrize("segments", [1, 2, 5])
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
def test_a_lenient_query_reads_the_recreated_stream_from_its_beginning(
    streams: Namespace, name: str, query: Start, read: int, segments: int, restarted: bool
) -> None:
    append(streams, name, numbered(0, 20), segments=read)
    running = query(stream=name, failOnDataLoss="false")
    running.until(20)
    create_again(streams, name, 50, segments=segments)
    if restarted:
        running.restart()
    running.until(70)
    append(streams, name, numbered(1050, 1080))
    running.until(100)
    assert running.values == numbered(0, 20) + numbered(1000, 1080)


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
@pytest.mark.parametrize("segments", [1, 2])
def test_a_recreated_stream_of_the_same_shape_is_noticed(
    streams: Namespace, name: str, query: Start, segments: int, restarted: bool
) -> None:
    """Only the creation of the stream distinguishes the two."""
    append(streams, name, numbered(0, 20), segments=segments)
    careful, careless = query(stream=name), query(stream=name, failOnDataLoss="false")
    for each in (careful, careless):
        each.until(20)
    create_again(streams, name, 20, segments=segments)
    if restarted:
        careful.restart()
        careless.restart()
    fails(careful, name)
    careless.until(40)
    assert careless.values == numbered(0, 20) + numbered(1000, 1020)


def test_a_recreated_stream_without_records_is_noticed(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20))
    careful, careless = query(stream=name), query(stream=name, failOnDataLoss="false")
    for each in (careful, careless):
        each.until(20)
    streams.delete_stream(name)
    streams.create_stream(name)
    fails(careful, name)
    careless.restart()
    careless.trigger()
    assert careless.offset["streams"] == {name: "1:0:0"}
    append(streams, name, numbered(1000, 1010))
    careless.until(30)
    careful.restart()
    fails(careful, name)


def test_a_recreated_stream_is_noticed_within_a_segment(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20))
    limit = {"stream": name, "maxRecordsPerTrigger": 7}
    careful, careless = query(**limit), query(**limit, failOnDataLoss="false")
    for each in (careful, careless):
        each.trigger()
        assert each.offset["streams"] == {name: "1:0:7"}
    create_again(streams, name, 20, open_segment=True)
    fails(careful, name)
    careless.until(7 + 21)
    assert careless.values == numbered(0, 7) + numbered(1000, 1020) + [b"open"]


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
def test_a_recreated_stream_of_a_pattern_is_noticed(
    streams: Namespace, name: str, query: Start, restarted: bool
) -> None:
    for part in "ab":
        append(streams, f"{name}/{part}", numbered(0, 20))
    pattern = {"streamPattern": f"{name}/*"}
    careful, careless = query(**pattern), query(**pattern, failOnDataLoss="false")
    for each in (careful, careless):
        each.until(40)
    create_again(streams, f"{name}/a", 20)
    if restarted:
        careful.restart()
        careless.restart()
    fails(careful, f"{name}/a")
    append(streams, f"{name}/b", numbered(20, 30))
    careless.until(70)
    assert sorted(careless.values[40:]) == sorted(numbered(1000, 1020) + numbered(20, 30))


def test_available_now_notices_a_recreated_stream(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20), segments=2)
    careful, careless = query(stream=name), query(stream=name, failOnDataLoss="false")
    for each in (careful, careless):
        each.until(20)
    create_again(streams, name, 20, segments=2)
    careful.restart()
    careful.reader.prepareForTriggerAvailableNow()
    fails(careful, name)
    careless.restart()
    careless.reader.prepareForTriggerAvailableNow()
    careless.until(40)
    careless.trigger()
    assert careless.values == numbered(0, 20) + numbered(1000, 1020)


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
def test_a_stream_recreated_between_plan_and_run_is_noticed(
    streams: Namespace, name: str, query: Start, restarted: bool
) -> None:
    append(streams, name, numbered(0, 20))
    careful, careless = query(stream=name), query(stream=name, failOnDataLoss="false")
    planned = [each.plan() for each in (careful, careless)]
    create_again(streams, name, 20)
    if restarted:
        careful.restart()
        careless.restart()
    with pytest.raises(StreamGapError, match=f"stream {name}"):
        careful.run(planned[0])
    careless.run(planned[1])
    careless.until(20)
    assert careless.values == numbered(1000, 1020)


def test_a_planned_batch_of_a_recreated_stream_is_repeatable(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20))
    careless = query(stream=name, failOnDataLoss="false")
    careless.until(20)
    create_again(streams, name, 20)
    careless.restart()
    end = careless.plan()
    careless.restart()  # the driver died before the batch was committed
    append(streams, name, numbered(1020, 1030))
    careless.run(end)
    assert careless.values == numbered(0, 20) + numbered(1000, 1020)


# -- checkpoints of versions before lives -----------------------------------------------------


def test_an_old_checkpoint_continues_and_stores_the_life(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20), segments=2)
    running = query(stream=name)
    running.until(20)
    running.offset = without_lives(running.offset)
    running.restart()
    append(streams, name, numbered(20, 30))
    running.until(30)
    assert running.values == numbered(0, 30)
    assert running.offset["checks"][name]["life"]
    create_again(streams, name, 30, segments=3)
    running.restart()
    fails(running, name)


def test_an_old_checkpoint_notices_other_numbers_of_records(
    streams: Namespace, name: str, query: Start
) -> None:
    append(streams, name, numbered(0, 20))
    careful, careless = query(stream=name), query(stream=name, failOnDataLoss="false")
    for each in (careful, careless):
        each.until(20)
        each.offset = without_lives(each.offset)
        each.restart()
    create_again(streams, name, 50)
    fails(careful, name)
    careless.until(70)
    assert careless.values == numbered(0, 20) + numbered(1000, 1050)


def test_a_running_query_with_an_old_checkpoint_notices_a_recreated_stream(
    streams: Namespace, name: str, query: Start
) -> None:
    """The life that the stream had when the query opened it counts, also before the first batch."""
    append(streams, name, numbered(0, 20))
    running = query(stream=name)
    running.until(20)
    running.offset = without_lives(running.offset)
    running.restart()
    running.trigger()
    create_again(streams, name, 20)
    fails(running, name)


def test_an_old_checkpoint_cannot_tell_streams_of_the_same_shape(
    streams: Namespace, name: str, query: Start
) -> None:
    """This limitation is documented. It needs the same number of records before the same
    segment."""
    append(streams, name, numbered(0, 20))
    running = query(stream=name)
    running.until(20)
    running.offset = without_lives(running.offset)
    create_again(streams, name, 20)
    running.restart()
    append(streams, name, numbered(1020, 1030))
    running.until(30)
    assert running.values == numbered(0, 20) + numbered(1020, 1030)
