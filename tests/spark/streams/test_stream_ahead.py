"""Streaming queries that begin at a position which the stream reaches only later."""

from __future__ import annotations

import pytest

from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.query import StreamQuery
from quire.streams import DLSN
from tests.support.streams import Bench, run


@pytest.mark.parametrize("start", ["1:3:0", "2:0:0", "2:2:0"])
@pytest.mark.parametrize("limit", ["maxRecordsPerTrigger", "maxBytesPerTrigger"])
def test_a_limit_is_counted_from_a_position_that_did_not_exist_yet(start: str, limit: str) -> None:
    """The records before it were counted when the query began, so that the limit of a trigger was
    reached before the position. The query read nothing until it was started again."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")
            options = StreamReadOptions.parse(
                {"metadata": "memory:", "namespace": b.streams.path, "stream": "s", limit: "2",
                 "start": start}, streaming=True, environ={},
            )  # fmt: skip
            query = StreamQuery(b.client, options)
            await query.open()
            offsets = await query.initial()
            assert await query.latest(offsets, limited=True, wait=False) is None
            for _ in range(10):
                for number in range(5):
                    await writer.append(b"%d" % number)
                await writer.roll()
            wanted = [r.position for r in await b.read("s") if r.position >= DLSN.parse(start)]
            found = []
            for _ in range(len(wanted) * 3):
                end = await query.latest(offsets, limited=True, wait=True)
                if end is not None:
                    [splits] = await query.splits(offsets, end, counts=False)
                    found += [
                        f"{one.origin.segment.lssn}:{entry}"
                        for one in splits
                        for entry in range(one.first, one.last + 1)
                    ]
                    offsets = end
            assert found == [f"{one.lssn}:{one.entry_id}" for one in wanted]
            await query.close()

    run(scene)
