"""What a stream writer has to wait for: one task, one thing after the other.

It begins, rolls and completes segments, hears of acknowledgements, and goes on with a new segment
where a ledger fails. Drafts are sent at the end of a turn of the event loop while fewer than
`entries_in_flight` are under way: alone a record does not wait, under load records gather.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quire._runtime.tasks import TaskSet
from quire.errors import (
    QuireError,
    StreamClosedError,
    StreamFencedError,
    UnauthorizedError,
    UsageError,
)
from quire.streams.namespace.settings import StreamSettings
from quire.streams.write.drafts import Draft
from quire.streams.write.producers import Marks
from quire.streams.write.room import Room
from quire.streams.write.segment_writer import SegmentWriter
from quire.streams.write.segments import Segments

T = TypeVar("T")

BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""Appended to one stream and not acknowledged: behind that appends wait."""
FULL_ENTRIES_IN_FLIGHT_MAX = 64
"""Of full entries; `entries_in_flight` is for those that could still take more records."""
TURNS_BEFORE_CONTROL = 2
"""Turns of the event loop in which whoever waited for an append may append again, before an entry
without records tells the bookies that the last one is acknowledged."""
RETRY_DELAY_S = 0.05
"""Before a segment is begun or completed once more; it doubles up to the maximum."""
RETRY_DELAY_MAX_S = 2.0
GIVE_UP_S = 60.0
"""Without a segment to write to, for so long, the writer ends."""
FINAL = (StreamFencedError, UnauthorizedError, UsageError)


class Pump:
    """From drafts to acknowledged entries, in order."""

    def __init__(
        self, segments: Segments, settings: StreamSettings, tasks: TaskSet, room: Room
    ) -> None:
        """`room`: that all writers share."""
        self.name = segments.metadata.paths.name
        self.segments = segments
        self.settings = settings
        self.room = Room(BUFFERED_BYTES_MAX, room)
        """For what is appended and not acknowledged."""
        self.failure: QuireError | None = None
        self.closing = False
        self.on_end: Callable[[], object] = lambda: None
        """Called once, when the writer is closed or has failed."""
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Draft] = deque()
        """Not sent yet; only the last one still takes records."""
        self._work = asyncio.Event()
        """Something may have to be done that the task waits for."""
        self._turn_planned = False
        self._rolled: asyncio.Future[None] | None = None
        """Of somebody who waits for the open segment to be completed."""
        self._settled: Marks = segments.taken.marks.copy()
        """What the acknowledged entries say."""
        segments.opening = self._settled.snapshot
        self._task = tasks.start(self._run())

    # -- for the writer -----------------------------------------------------------------------

    def open_draft(self, sequence: int) -> Draft:
        """The one that takes the next record; `sequence` is the id of that."""
        return self._queue[-1] if self._queue else self.new_draft(sequence)

    def new_draft(self, sequence: int) -> Draft:
        draft = Draft(sequence)
        self._queue.append(draft)
        return draft

    @property
    def queued_bytes(self) -> int:
        return sum(draft.size_bytes for draft in self._queue)

    def appended(self, size_bytes: int) -> None:
        """So many bytes of records were put into drafts."""
        self.room.take(size_bytes)
        self.plan_turn()

    async def roll(self) -> None:
        if self._rolled is None:
            if not self._queue and self.segments.open is None:
                return
            self._rolled = self._loop.create_future()
            self._work.set()
        await asyncio.shield(self._rolled)

    async def close(self) -> None:
        if self.failure is None:
            self.closing = True
            self.plan_turn()
            self._work.set()
        await asyncio.wait([self._task])
        if self.failure is not None and not isinstance(self.failure, StreamClosedError):
            raise self.failure

    def abandon(self) -> None:
        self._fail(StreamClosedError(f"the writer of stream {self.name} was abandoned"))
        self._task.cancel()

    # -- sending ------------------------------------------------------------------------------

    def plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_planned = False
        self._send()
        self._work.set()

    def _send(self) -> None:
        """Send what may be sent now. The task sees to the rest."""
        segment, queue = self.segments.open, self._queue
        if segment is None:
            return
        while queue and not segment.failed and not self._is_due(segment):
            under_way = len(segment.in_flight)
            full = len(queue) > 1
            if under_way >= (
                FULL_ENTRIES_IN_FLIGHT_MAX if full else self.settings.entries_in_flight
            ):
                return
            try:
                segment.send(queue[0])
            except QuireError:
                segment.failed = True
                return
            queue.popleft()

    def _is_due(self, segment: SegmentWriter) -> bool:
        """Whether nothing more should go into it. It takes something first: what stands at its
        beginning may be as long as `roll_bytes`."""
        return self._rolled is not None or (
            segment.used
            and (
                segment.ledger.length >= self.settings.roll_bytes
                or self._loop.time() >= segment.due_s
            )
        )

    # -- the task -----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while await self._step():
                self._send()
            await self.segments.release()
            self._fail(StreamClosedError(f"the writer of stream {self.name} is closed"))
        except QuireError as error:
            self._fail(error)

    async def _step(self) -> bool:
        """The next thing that has to be waited for. False: closed, and all is done."""
        segments = self.segments
        segment = segments.open
        if segment is None:
            return await self._without_segment()
        if segment.in_flight:
            try:
                self._settle(await segment.acknowledged())
            except QuireError:
                await self._mend()
        elif segment.failed:
            await self._mend()
        elif self._is_due(segment) or (self.closing and not self._queue):
            await self._roll()
        elif not self._queue and not await self._show(segment):
            await self._rest(segment.due_s - self._loop.time())
        return True

    async def _without_segment(self) -> bool:
        if self._rolled is not None:
            self._rolled.set_result(None)
            self._rolled = None
        if self._queue:
            await self._insist(lambda: self.segments.begin(self._queue[0]))
        elif self.closing:
            return False
        else:
            await self._rest(None)
        return True

    async def _roll(self) -> None:
        try:
            if self._queue:
                await self.segments.roll(self._queue[0])
            else:
                await self.segments.complete()
        except FINAL:
            raise
        except QuireError:
            await self._mend()
        if self._rolled is not None:
            self._rolled.set_result(None)
            self._rolled = None

    async def _mend(self) -> None:
        """Give up the ledger; what is not part of it is sent again."""
        lost = await self._insist(lambda: self.segments.mend(self._settle))
        self._queue.extendleft(reversed(lost))

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        delay_s, give_up = RETRY_DELAY_S, self._loop.time() + GIVE_UP_S
        while True:
            try:
                return await work()
            except FINAL:
                raise
            except QuireError:
                if self._loop.time() >= give_up:
                    raise
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_DELAY_MAX_S)

    async def _show(self, segment: SegmentWriter) -> bool:
        """Let readers see the last entry, unless another one follows it anyway. False: they do."""
        if not segment.invisible:
            return False
        for _ in range(TURNS_BEFORE_CONTROL):
            await asyncio.sleep(0)
        if not self._queue and not segment.in_flight:
            try:
                segment.send_control()
            except QuireError:
                segment.failed = True
        return True

    async def _rest(self, seconds: float | None) -> None:
        self._work.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._work.wait()
        except TimeoutError:
            pass

    def _settle(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self.room.give_back(draft.record_bytes)
            for producer_id, sequence, index in draft.sent_by:
                self._settled.sent(producer_id, sequence, draft.position(index))
            if draft.token is not None:
                self._settled.token = draft.token
            draft.settle()

    def _fail(self, error: QuireError) -> None:
        """The end: whatever is not acknowledged by now learns why."""
        if self.failure is not None:
            return
        self.failure = error
        segment = self.segments.open
        if segment is not None:
            segment.ledger.abandon()
            for draft in segment.in_flight:
                draft.settle(error)
        for draft in self._queue:
            draft.settle(error)
        if self._rolled is not None and not self._rolled.done():
            self._rolled.set_exception(error)
            self._rolled.exception()
        self.room.give_back(self.room.used_bytes)
        self.on_end()
