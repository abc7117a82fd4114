"""The writer task, which takes the pending entries of a stream writer to acknowledgement.

The task waits for one thing after the other. It begins, rolls and completes segments, receives
acknowledgements, and continues with a new segment if a ledger fails. Entries are sent after an
event-loop iteration while fewer than `entries_in_flight` are outstanding: a single record does
not wait, and under load records gather in entries. A byte budget limits the unacknowledged bytes of
one writer, and of all writers of a namespace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
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
    done_in_part,
)
from quire.streams.namespace.settings import StreamSettings
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.producers import ControlState
from quire.streams.write.segments import Segments, SegmentWriter

T = TypeVar("T")

BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""The number of unacknowledged bytes of one stream above which appends wait."""
FULL_ENTRIES_IN_FLIGHT_MAX = 64
"""The largest number of entries in flight while the next entry in the queue is full.

The setting `entries_in_flight` is the limit while the next entry can still take records.
"""
TURNS_BEFORE_CONTROL = 2
"""The number of event-loop iterations to wait for further appends before a control entry is sent.

The control entry has no records. It tells the bookies that the entry before it is acknowledged.
"""
SEGMENT_BACKOFF = Backoff(0.05, 2.0)
"""The pauses before another attempt to begin or complete a segment."""
GIVE_UP_S = 60.0
"""Seconds for which the writer retries before it fails.

It retries to begin, complete or repair a segment, and to write a record in one segment after the
other while their ledgers fail.
"""
NEXT_LEDGER_PAUSE_S = 10.0
"""Seconds between two attempts to create the ledger of the next segment while that fails.

Meanwhile the writer continues in the open segment.
"""
FINAL = (ClientClosedError, StreamFencedError, UnauthorizedError, UsageError)


class ByteBudget:
    """A limit on the number of bytes in use.

    A caller waits until fewer bytes than the limit are in use, however many it needs itself. A
    large request may therefore exceed the limit.
    """

    def __init__(self, limit_bytes: int, outer: ByteBudget | None = None) -> None:
        """Create a budget. Bytes that are in use here are also in use in `outer`."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._outer = outer
        self._free = asyncio.Event()
        self._free.set()

    def take(self, size_bytes: int) -> None:
        """Count bytes as in use, here and in `outer`, even above the limit."""
        self.used_bytes += size_bytes
        if self.used_bytes >= self.limit_bytes:
            self._free.clear()
        if self._outer is not None:
            self._outer.take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Return bytes that are no longer in use."""
        self.used_bytes -= size_bytes
        if self.used_bytes < self.limit_bytes:
            self._free.set()
        if self._outer is not None:
            self._outer.give_back(size_bytes)

    @property
    def full(self) -> bool:
        """Whether the limit is reached, here or in `outer`."""
        return not self._free.is_set() or (self._outer is not None and self._outer.full)

    async def wait(self) -> None:
        """Wait until there is space, here and in `outer`. Cancel-safe."""
        while self.full:
            await self._free.wait()
            if self._outer is not None:
                await self._outer.wait()


class WriterTask:
    """The task that takes pending entries to acknowledgement, in order."""

    def __init__(
        self,
        segments: Segments,
        settings: StreamSettings,
        tasks: TaskSet,
        budget: ByteBudget,
        on_end: Callable[[], object],
    ) -> None:
        """Start the task.

        `budget` is shared by all writers of the namespace. `on_end` is called once, when the writer
        is closed or has failed.
        """
        self.name = segments.metadata.paths.name
        self.segments = segments
        self.settings = settings
        self.budget = ByteBudget(BUFFERED_BYTES_MAX, budget)
        """The limit on the unacknowledged bytes of this writer."""
        self.failure: QuireError | None = None
        self.closing = False
        self._complete = False
        """Whether the writer has ended with everything acknowledged and no segment in progress."""
        self._abandoned = False
        """Whether the application has abandoned the writer, and so knows that it has ended."""
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingEntry] = deque()
        """The entries that were not sent yet. Only the last one still takes records."""
        self._work = asyncio.Event()
        """Set when the task may have something to do, so that `_rest` returns."""
        self._send_scheduled = False
        self._rolled: asyncio.Future[None] | None = None
        """Done when the open segment is completed. It is None unless a caller of `roll` waits for
        that.
        """
        self._next_try_s: float | None = None
        """The event loop's time at which the creation of the next ledger is tried again.

        It is None unless the last attempt failed. The open segment is then kept although it is due,
        until there is a next ledger. A writer that had completed it could not write anything.
        """
        self._failing_since_s: float | None = None
        """The event loop's time at which the first of several ledgers failed, or None.

        It is None unless entries with records have waited since then, and none was acknowledged.
        """
        self._refusal: QuireError | None = None
        """The error with which the open segment refused an entry, or None."""
        self._settled: ControlState = segments.taken.marks.copy()
        """The producers and the fencing token after all acknowledged entries."""
        segments.opening = self._settled.snapshot
        self._task = tasks.start(self._run())

    # -- for the writer -----------------------------------------------------------------------

    def open_entry(self, sequence: int) -> PendingEntry:
        """Return the entry that takes the next record, whose sequence id is `sequence`."""
        return self._queue[-1] if self._queue else self.new_entry(sequence)

    def new_entry(self, sequence: int) -> PendingEntry:
        """Add an empty entry to the queue, and return it."""
        entry = PendingEntry(sequence)
        self._queue.append(entry)
        return entry

    @property
    def queued_bytes(self) -> int:
        """The number of bytes of the entries that were not sent yet."""
        return sum(entry.size_bytes for entry in self._queue)

    def appended(self, size_bytes: int) -> None:
        """Count bytes that were put into pending entries as in use, and schedule the sending."""
        self.budget.take(size_bytes)
        self.schedule_send()

    async def roll(self) -> None:
        """Complete the open segment, if there is one, and wait until that is done.

        Entries that were not sent yet go to the next segment. While no next segment can be begun,
        the open one takes further entries, and the call tries again for `GIVE_UP_S`.

        Raises:
            QuireError: The writer failed, or the open segment was kept.
        """
        segment = self.segments.open
        retry = Retry(SEGMENT_BACKOFF, self.segments.rng, limit_s=GIVE_UP_S)
        while True:
            try:
                await self._roll_now(segment)
                return
            except FINAL:
                raise
            except QuireError as error:
                if self.failure is not None:
                    raise
                if await retry.pause():
                    continue
                kept = copy(error)
                kept.args = (
                    f"the open segment of stream {self.name} was not completed in {GIVE_UP_S:g} s, "
                    "because no next segment can be begun. It takes further records: "
                    f"{error.args[0]}",
                    *error.args[1:],
                )
                kept.outcome_known = True
                raise kept from error

    async def _roll_now(self, segment: SegmentWriter | None) -> None:
        """Complete `segment`, the open one, unless it has been completed already.

        Raises:
            QuireError: The writer failed, or no next segment can be begun now.
        """
        if segment is not None:
            if self.segments.open is segment:
                # The writer sends entries to the segment while this waits.
                await self.segments.check_next(at_once=False)
            if self.segments.open is not segment:
                return
        if self.failure is not None:  # the task has ended, and would complete nothing
            raise self.failure.with_traceback(None)
        if self._rolled is None:
            if not self._queue and self.segments.open is None:
                return
            self._rolled = self._loop.create_future()
            self._work.set()
        await asyncio.shield(self._rolled)

    async def close(self) -> None:
        """Wait for all entries, and complete the open segment.

        Raises:
            QuireError: The writer failed, or was abandoned while this waited.
        """
        known = self._abandoned
        if self.failure is None:
            self.closing = True
            self.schedule_send()
            self._work.set()
        await asyncio.wait([self._task])
        if self.failure is not None and not (self._complete or known):
            # The failure may know that later appends do nothing. Earlier ones may have succeeded.
            raise done_in_part(self.failure) from self.failure.__cause__

    def abandon(self, error: QuireError | None = None) -> None:
        """End at once. Appends raise `error`, or report that the writer was abandoned."""
        if error is not None:
            error.outcome_known = False  # entries in flight may or may not be stored
        self._abandoned |= error is None and self.failure is None
        self._fail(
            error
            or StreamClosedError(
                f"the writer of stream {self.name} was abandoned, so records in flight may or may "
                "not be in the stream",
                remedy="Open the stream for writing again, and read its end to find out",
            )
        )
        self._task.cancel()

    # -- sending ------------------------------------------------------------------------------

    def schedule_send(self) -> None:
        """Send the queued entries that may be sent, at the end of this event-loop iteration."""
        if not self._send_scheduled:
            self._send_scheduled = True
            self._loop.call_soon(self._send_and_wake)

    def _send_and_wake(self) -> None:
        self._send_scheduled = False
        try:
            self._send()
        except QuireError as error:
            self._fail(error)
            self._task.cancel()
        except Exception as error:  # noqa: BLE001 - a defect must not make appends wait forever
            self._fail_unexpectedly(error)
            self._task.cancel()  # otherwise it would continue, and complete the segment
        self._work.set()

    def _send(self) -> None:
        """Send queued entries to the open segment until a limit is reached or the segment is due.

        Without an open segment nothing is sent. An error of the ledger is only noted: `_step`
        handles it. Raises UsageError if no segment can take the next entry, not even a new one.
        """
        segment, queue = self.segments.open, self._queue
        if segment is None or self.failure is not None:
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
            except QuireError as error:
                if isinstance(error, UsageError) and not segment.used:
                    raise
                segment.failed, self._refusal = True, error
                return
            queue.popleft()

    def _is_due(self, segment: SegmentWriter) -> bool:
        """Return whether the segment should take no more entries.

        A segment always takes one entry, because the state at its beginning may be as long as
        `roll_bytes`.
        """
        if self._rolled is not None:
            return True
        if self._next_try_s is not None and not self.segments.has_spare:
            return False
        return segment.used and (
            segment.ledger.length >= self.settings.roll_bytes or self._loop.time() >= segment.due_s
        )

    # -- the task -----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while await self._step():
                self._send()
            await self.segments.release()
            self._complete = self.failure is None
            self._fail(
                StreamClosedError(
                    f"the writer of stream {self.name} is closed",
                    remedy="Open the stream for writing again",
                )
            )
        except ClientClosedError as error:
            error.outcome_known = False  # entries in flight may or may not be stored
            self._fail(error)
        except QuireError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a defect must not make appends wait forever
            self._fail_unexpectedly(error)
        finally:
            await self.segments.give_up()

    def _fail_unexpectedly(self, error: Exception) -> None:
        if self.failure is not None:
            return
        self._loop.call_exception_handler(
            {"message": f"unexpected error in the writer of stream {self.name}", "exception": error}
        )
        failure = StreamClosedError(
            f"the writer of stream {self.name} failed because of a bug: {error!r}. Records in "
            "flight may or may not be in the stream",
            remedy=(
                "Open the stream for writing again, read its end to find out, and report this error"
            ),
        )
        failure.outcome_known = False
        self._fail(failure)
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    async def _step(self) -> bool:
        """Do one step that has to wait, and return whether the task continues.

        A step begins, rolls or repairs a segment, waits for acknowledgements, or waits for work.
        The result is False when the writer is closed and no entry is left.
        """
        segments = self.segments
        segment = segments.open
        if segment is None:
            self._next_try_s = None
            return await self._without_segment()
        if self._next_try_s is not None and self._loop.time() >= self._next_try_s:
            self._next_try_s = self._loop.time() + NEXT_LEDGER_PAUSE_S
            segments.prepare()
        if segment.in_flight:
            try:
                self._settle(await segment.acknowledged())
            except QuireError as error:
                await self._mend(error)
        elif segment.failed:
            await self._mend(self._refusal)
        elif self._is_due(segment) or (self.closing and not self._queue):
            await self._roll()
        elif not self._queue and not await self._show(segment):
            due_s = segment.due_s if self._next_try_s is None else self._next_try_s
            await self._rest(due_s - self._loop.time())
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
        asked = self._rolled is not None
        # A caller of `roll` has checked the bookies.
        if self._queue or not (asked or self.closing):
            try:
                await self.segments.check_next(at_once=bool(self._queue))
            except FINAL:
                raise
            except QuireError as error:
                if asked:
                    self._refuse_roll(error)
                else:
                    self._next_try_s = self._loop.time() + NEXT_LEDGER_PAUSE_S
                return
        self._next_try_s = None
        try:
            if self._queue:
                await self.segments.roll(self._queue[0])
            else:
                await self.segments.complete()
        except FINAL:
            raise
        except QuireError as error:
            await self._mend(error)
        if self._rolled is not None:
            self._rolled.set_result(None)
            self._rolled = None

    def _refuse_roll(self, error: QuireError) -> None:
        """Raise an error in the callers of `roll`, if there are any."""
        if self._rolled is not None and not self._rolled.done():
            self._rolled.set_exception(error)
            self._rolled.exception()  # a cancelled caller does not look at it
        self._rolled = None

    async def _mend(self, reason: QuireError | None) -> None:
        """Give up the ledger of the open segment, and queue the entries that it lacks again.

        Raises `reason`, which is the error of the ledger, if no ledger has taken any of these
        entries for `GIVE_UP_S` seconds.
        """
        if self._failing_since_s is None:
            self._failing_since_s = self._loop.time()
        lost = await self._insist(lambda: self.segments.mend(self._settle))
        self._queue.extendleft(reversed(lost))
        self._refusal = None
        if not self._queue:
            self._failing_since_s = None
        since_s = self._failing_since_s
        if reason is not None and since_s is not None and self._loop.time() - since_s >= GIVE_UP_S:
            raise self._given_up(reason)

    def _given_up(self, error: QuireError) -> QuireError:
        """Return the error of the last attempt as the reason why the writer fails."""
        what = f"stream {self.name} could not be written for {GIVE_UP_S:g} s"
        error.args = (f"{what}: {error.args[0]}", *error.args[1:])
        return error

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat some work until it succeeds, for at most `GIVE_UP_S` seconds."""
        retry = Retry(SEGMENT_BACKOFF, self.segments.rng, limit_s=GIVE_UP_S)
        while True:
            try:
                return await work()
            except FINAL:
                raise
            except QuireError as error:
                if not await retry.pause():
                    raise self._given_up(error) from error.__cause__

    async def _show(self, segment: SegmentWriter) -> bool:
        """Make the last entry visible to readers: send a control entry unless other entries follow.

        Returns False if nothing had to be done, because the last entry is visible already.
        """
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
        """Wait until there is work, for at most `seconds`, or without a limit if that is None."""
        self._work.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._work.wait()
        except TimeoutError:
            pass

    def _settle(self, entries: Sequence[PendingEntry]) -> None:
        """Complete the appends of acknowledged entries."""
        for entry in entries:
            if not entry.control:
                self._failing_since_s = None
            self.budget.give_back(entry.record_bytes)
            for producer_id, sequence, index in entry.sent_by:
                self._settled.sent(producer_id, sequence, entry.position(index))
            if entry.token is not None:
                self._settled.token = entry.token
            entry.settle()

    def _fail(self, error: QuireError) -> None:
        """End the writer. All entries that are not acknowledged fail with this error.

        Entries that were sent may be stored, so their outcome is unknown whatever ended the writer.
        """
        if self.failure is not None:
            return
        self.failure = error
        self.segments.ended = True
        segment = self.segments.open
        if segment is not None:
            segment.ledger.abandon()
            in_doubt = done_in_part(error)
            for entry in segment.in_flight:
                entry.settle(in_doubt)
        for entry in self._queue:
            entry.settle(error)
        self._refuse_roll(error)
        self.budget.give_back(self.budget.used_bytes)
        self._on_end()
