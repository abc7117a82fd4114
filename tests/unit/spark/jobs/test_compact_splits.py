"""The tasks of a compaction, which read all that the run counts as read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.errors import StreamGapError
from quire.spark.jobs.compact import CompactSource, CompactSpan, _span
from quire.spark.streams.offsets import StreamOffset
from quire.spark.streams.view import StreamView
from quire.streams import DLSN
from tests.support.streams import Bench, run

SOURCE: Any = SimpleNamespace(
    cluster=SimpleNamespace(password=b""), namespace="/acme/test", stream="s"
)


def test_tasks_read_up_to_the_end_of_the_run_even_if_bookies_know_less() -> None:
    """A bookie told the driver that a fourth record is acknowledged, and does not answer any more.

    The data source left this record out, and the next run began after it.
    """

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
            view = StreamView(b.streams, "s")
            await view.open()
            ledger = view.segments[0].ledger_id
            [known], _ = await view.splits(DLSN(1, 0, 0), DLSN(1, 4, 0))
            assert known.last == 2
            view.close()
            end = StreamOffset(DLSN(1, 4, 0), ledger, 4, view.life)
            span = CompactSpan(DLSN(1, 0, 0), end, 4)
            [split] = await CompactSource._splits(SOURCE, b.client, span)
            assert (split.first, split.last) == (0, 3)

    run(scene)


def test_tasks_do_not_read_another_stream_of_the_name() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")
        view = StreamView(b.streams, "s")
        await view.open()
        span = CompactSpan(view.oldest, view.reached(await view.frontier()), 1)
        view.close()
        await b.streams.delete_stream("s")
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"1")
        with pytest.raises(StreamGapError, match="not the one that was compacted before"):
            await CompactSource._splits(SOURCE, b.client, span)

    run(scene)


def test_a_run_reads_at_least_as_far_as_an_earlier_one() -> None:
    """A run with `full` asked a bookie that knew less, and ended before what the target included.

    It appended older records of some keys after the newer ones, and the next run began after both.
    """

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
            view = StreamView(b.streams, "s")
            await view.open()
            ledger = view.segments[0].ledger_id
            known = await _span(view, None)
            assert (known.end.position, known.end.sequence, known.records) == (DLSN(1, 3, 0), 3, 3)
            least = StreamOffset(DLSN(1, 4, 0), ledger, 4, view.life)
            found = await _span(view, None, least)
            assert (found.start, found.end, found.records) == (known.start, least, 4)
            assert await _span(view, None, known.end) == known
            assert (await _span(view, least, least)).empty
            other = StreamOffset(DLSN(1, 4, 0), ledger + 99, 4, view.life)
            with pytest.raises(StreamGapError, match="not the one that was compacted before"):
                await _span(view, None, other)
            view.close()

    run(scene)
