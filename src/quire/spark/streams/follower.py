"""The follower, which notices that a stream has new records at very low cost.

It keeps one long poll on one bookie and a watch on the list of segments. It does not find out what
is new: the query that it notifies does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.client import LedgerReader
from quire.errors import QuireError
from quire.streams import Namespace, StreamSegment
from quire.streams.read.segment_list import SegmentList

BACKOFF = Backoff(0.2, 5.0)
"""The pauses after an error before the stream is followed again."""


class StreamFollower:
    """A follower of one stream, which calls `tell` when there may be new records.

    It calls `tell` once, and not again before `take` is called, so a busy query is not notified
    repeatedly. The arguments of `tell` are the name of the stream, and whether its segments may
    have changed.
    """

    def __init__(
        self, streams: Namespace, name: str, tasks: TaskSet, tell: Callable[[str, bool], None]
    ) -> None:
        self._streams = streams
        self._name = name
        self._tell = tell
        self._taken = asyncio.Event()
        self._task = tasks.start(self._run())

    def take(self) -> None:
        """Allow the next call of `tell`, because the query has read all that it knows of now."""
        self._taken.set()

    def stop(self) -> None:
        """Stop following the stream. `tell` is not called any more."""
        self._task.cancel()

    async def _run(self) -> None:
        retry = Retry(BACKOFF, self._streams.client.rng)
        while True:
            try:
                async with SegmentList(self._streams.metadata(self._name)) as listed:
                    while True:
                        await self._follow(listed)
                        retry.reset()
            except QuireError:
                await self._news()  # the query then sees the error itself, or that it has passed
                await retry.pause()

    async def _follow(self, listed: SegmentList) -> None:
        """Follow the stream until its newest segment changes or is completed."""
        newest = listed.segments[-1] if listed.segments else None
        if newest is None or not newest.in_progress:
            await self._news()
            await listed.changed()
            return
        async with await self._open(newest) as reader:
            await self._news()
            while not reader.ledger_closed:
                if await _first(listed.changed(), self._more(reader)):
                    return
                await self._news(segments=False)
            await listed.changed()

    async def _open(self, segment: StreamSegment) -> LedgerReader:
        return await self._streams.client.open_ledger(
            segment.ledger_id, password=self._streams.password
        )

    async def _more(self, reader: LedgerReader) -> None:
        await reader.wait_confirmed(reader.last_add_confirmed + 1)

    async def _news(self, segments: bool = True) -> None:
        self._taken.clear()
        self._tell(self._name, segments)
        await self._taken.wait()


async def _first(one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Run two coroutines until one has ended, cancel the rest, and return whether `one` has ended.

    Raises the error of a coroutine that failed.
    """
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
