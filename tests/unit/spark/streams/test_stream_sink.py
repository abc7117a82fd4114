"""The sink of streams without Spark: what the driver publishes and deletes."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from quire.errors import MetadataUnavailableError
from quire.spark.streams.sink import (
    Committer,
    StreamMessage,
    StreamTaskOutput,
    WritePlan,
    _ordered,
    message_of,
)
from quire.spark.streams.write_options import StreamWriteOptions
from quire.streams.namespace.namespace import Namespace
from quire.streams.publish import publishing
from quire.streams.publish.plans import is_open
from quire.streams.publish.publishing import BatchKey, BuiltSegment, StreamBatch
from tests.support.streams import Bench, run

NAMES = ("a", "b", "c")
OPTIONS = StreamWriteOptions("memory://sim", "/acme/test", NAMES, "stream")


def test_an_abort_continues_after_a_stream_that_cannot_be_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledgers of the streams after it stayed, and so did the plans under which they might
    have been published."""

    async def scene(b: Bench) -> None:
        abort, aborted = publishing.abort, []

        async def aborting(
            streams: Namespace, name: str, batch: StreamBatch, built: list[BuiltSegment]
        ) -> bool:
            aborted.append(name)
            if name == "a":
                raise MetadataUnavailableError("no answer")
            return await abort(streams, name, batch, built)

        batches = {}
        for name in NAMES:
            await b.streams.create_stream(name)
            batch = await publishing.begin(b.streams, name, BatchKey.of_job("nightly"))
            assert batch is not None
            batches[name] = batch
        output = StreamTaskOutput(b.client, OPTIONS, WritePlan(batches))
        for name in NAMES:
            await output.append(name, [b"x"], None)
        built = await output.close()
        message = StreamMessage(0, 0, tuple(built), batches)
        monkeypatch.setattr(publishing, "abort", aborting)
        with pytest.raises(MetadataUnavailableError):
            await Committer(OPTIONS).abort_written(b.client, [message])
        assert aborted == [*NAMES]
        assert await b.ledgers() == [one.ledger_id for name, one in built if name == "a"]
        for name, batch in batches.items():
            assert await is_open(b.streams.metadata(name), batch.plan) == (name == "a")

    run(scene)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, None, 1, None, 2], [1, 3, 2, 4, 0]),
        ([1.0, math.nan, None, -math.inf, math.nan, math.inf], [2, 3, 0, 5, 1, 4]),
        (["b", "", None, "a", "b"], [2, 1, 3, 0, 4]),
        ([None, None], [0, 1]),
    ],
)
def test_rows_are_in_the_order_of_spark(values: list[Any], expected: list[int]) -> None:
    """Nulls come first, NaN comes last, and rows with equal values keep their order."""
    numbers = range(len(values))
    table = pa.table({"number": numbers, "value": values})
    found = _ordered(iter(table.to_batches(max_chunksize=2)), 1)
    assert [n for batch in found for n in batch.column(0).to_pylist()] == expected


@pytest.mark.parametrize("begun_again", [False, True])
@pytest.mark.parametrize("attempt", [0, 1, 3])
@pytest.mark.parametrize("partition", [0, 2])
def test_the_ledgers_of_failed_attempts_are_swept(
    partition: int, attempt: int, begun_again: bool
) -> None:
    """A sweep reads many ledgers. It is made if any task, or the whole batch, was repeated."""
    options = StreamWriteOptions("memory://sim", "/acme/test", ("a",))

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("a")
        batch = await publishing.begin(b.streams, "a", BatchKey.of_job("nightly"))
        assert batch is not None
        plan = WritePlan({"a": batch}, sweep=begun_again)

        async def written(value: bytes) -> list[tuple[str, BuiltSegment]]:
            output = StreamTaskOutput(b.client, options, plan)
            await output.append("a", [value], None)
            return await output.close()

        await written(b"of an attempt that died")
        messages = [
            message_of(plan, number, attempt if number == partition else 0, await written(b"x"))
            for number in range(3)
        ]
        assert [one.sweep for one in messages] == [
            begun_again or (number == partition and attempt > 0) for number in range(3)
        ]
        await Committer(options).commit_written(b.client, messages)
        named = sorted(one.ledger_id for one in await b.streams.segments("a"))
        left = set(await b.ledgers()).difference(named)
        assert len(left) == (not begun_again and not attempt)

    run(scene)
