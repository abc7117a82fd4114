"""The writer task: it takes pending entries to acknowledged ones, in order, for one stream writer.

The task waits for one thing after the other. It begins, rolls and completes segments, receives
acknowledgements, and continues with a new segment if a ledger fails. Entries are sent at the end of
an event-loop iteration while fewer than `entries_in_flight` are outstanding: a single record does
not wait, and under load records gather in entries. A byte budget bounds what is appended and not
acknowledged, for one writer and for all writers of a namespace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.errors import (
    ClientClosedError,
    QuireError,
    StreamClosedError,
    StreamFencedError,
    UnauthorizedError,
    UsageError,
)
from quire.streams.namespace.settings import StreamSettings
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.producers import ControlState
from quire.streams.write.segments import Segments, SegmentWriter

T = TypeVar("T")

BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""Appended to one stream and not acknowledged: behind that appends wait."""
FULL_ENTRIES_IN_FLIGHT_MAX = 64
"""The number of full entries in flight. `entries_in_flight` counts entries with room left."""
TURNS_BEFORE_CONTROL = 2
"""The number of event-loop iterations in which callers whose appends returned may append again.
Then an entry without records tells the bookies that the last one is acknowledged."""
SEGMENT_BACKOFF = Backoff(0.05, 2.0)
"""The pauses before a segment is begun or completed once more."""
GIVE_UP_S = 60.0
"""Without a segment to write to, for so long, the writer ends."""
FINAL = (ClientClosedError, StreamFencedError, UnauthorizedError, UsageError)


class ByteBudget:
    """Bytes in use under a limit. More than the limit is used when something large comes: who asks
    waits before, not for its own size."""

    def __init__(self, limit_bytes: int, outer: ByteBudget | None = None) -> None:
        """Bytes that are taken here are taken from `outer`, too."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._outer = outer
        self._free = asyncio.Event()
        self._free.set()

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        if self.used_bytes >= self.limit_bytes:
            self._free.clear()
        if self._outer is not None:
            self._outer.take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self.used_bytes < self.limit_bytes:
            self._free.set()
        if self._outer is not None:
            self._outer.give_back(size_bytes)

    @property
    def full(self) -> bool:
        return not self._free.is_set() or (self._outer is not None and self._outer.full)

    async def wait(self) -> None:
        """Wait until there is room, here and in `outer`. Cancel-safe."""
        while self.full:
            await self._free.wait()
            if self._outer is not None:
                await self._outer.wait()


class WriterTask:
    """From pending entries to acknowledged entries, in order."""

    def __init__(
        self, segments: Segments, settings: StreamSettings, tasks: TaskSet, budget: ByteBudget
    ) -> None:
        """`budget` is shared by all writers of the namespace."""
        self.name = segments.metadata.paths.name
        self.segments = segments
        self.settings = settings
        self.budget = ByteBudget(BUFFERED_BYTES_MAX, budget)
        """Bounds what is appended and not acknowledged."""
        self.failure: QuireError | None = None
        self.closing = False
        self.on_end: Callable[[], object] = lambda: None
        """Called once, when the writer is closed or has failed."""
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingEntry] = deque()
        """Not sent yet; only the last one still takes records."""
        self._work = asyncio.Event()
        """Something may have to be done that the task waits for."""
        self._send_scheduled = False
        self._rolled: asyncio.Future[None] | None = None
        """Done when the open segment is completed, for those who asked for that."""
        self._settled: ControlState = segments.taken.marks.copy()
        """The control state after all acknowledged entries."""
        segments.opening = self._settled.snapshot
        self._task = tasks.start(self._run())

    # -- for the writer -----------------------------------------------------------------------

    def open_entry(self, sequence: int) -> PendingEntry:
        """The one that takes the next record; `sequence` is the id of that."""
        return self._queue[-1] if self._queue else self.new_entry(sequence)

    def new_entry(self, sequence: int) -> PendingEntry:
        entry = PendingEntry(sequence)
        self._queue.append(entry)
        return entry

    @property
    def queued_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._queue)

    def appended(self, size_bytes: int) -> None:
        """Account for bytes of records that were put into pending entries."""
        self.budget.take(size_bytes)
        self.schedule_send()

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
            self.schedule_send()
            self._work.set()
        await asyncio.wait([self._task])
        if self.failure is not None and not isinstance(self.failure, StreamClosedError):
            raise self.failure

    def abandon(self, error: QuireError | None = None) -> None:
        """End at once. Appends raise `error`, or that the writer was abandoned."""
        if error is not None:
            error.outcome_known = False  # of what is under way
        self._fail(error or StreamClosedError(f"the writer of stream {self.name} was abandoned"))
        self._task.cancel()

    # -- sending ------------------------------------------------------------------------------

    def schedule_send(self) -> None:
        if not self._send_scheduled:
            self._send_scheduled = True
            self._loop.call_soon(self._send_and_wake)

    def _send_and_wake(self) -> None:
        self._send_scheduled = False
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 - appends must not wait for a defect for ever
            self._fail_unexpectedly(error)
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
        except ClientClosedError as error:
            error.outcome_known = False  # of what is under way
            self._fail(error)
        except QuireError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - appends must not wait for a defect for ever
            self._fail_unexpectedly(error)

    def _fail_unexpectedly(self, error: Exception) -> None:
        if self.failure is not None:
            return
        self._loop.call_exception_handler(
            {"message": f"unexpected error in the writer of stream {self.name}", "exception": error}
        )
        failure = StreamClosedError(
            f"the writer of stream {self.name} failed unexpectedly: {error!r}",
            remedy="Open the stream for writing again, and report this error",
        )
        failure.outcome_known = False
        self._fail(failure)

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
        retry = Retry(SEGMENT_BACKOFF, self.segments.rng, limit_s=GIVE_UP_S)
        while True:
            try:
                return await work()
            except FINAL:
                raise
            except QuireError:
                if not await retry.pause():
                    raise

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

    def _settle(self, entries: Sequence[PendingEntry]) -> None:
        for entry in entries:
            self.budget.give_back(entry.record_bytes)
            for producer_id, sequence, index in entry.sent_by:
                self._settled.sent(producer_id, sequence, entry.position(index))
            if entry.token is not None:
                self._settled.token = entry.token
            entry.settle()

    def _fail(self, error: QuireError) -> None:
        """The end: whatever is not acknowledged by now learns why."""
        if self.failure is not None:
            return
        self.failure = error
        segment = self.segments.open
        if segment is not None:
            segment.ledger.abandon()
            for entry in segment.in_flight:
                entry.settle(error)
        for entry in self._queue:
            entry.settle(error)
        if self._rolled is not None and not self._rolled.done():
            self._rolled.set_exception(error)
            self._rolled.exception()
        self.budget.give_back(self.budget.used_bytes)
        self.on_end()
