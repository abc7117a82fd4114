"""Append batches to the log: find space, keep the order, and report success or failure.

This part of the write path runs on the event loop. The segment of a batch is chosen when the batch
is appended, so that the index can name the segment at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from quire.codec.log.segment_header import ranges_of, segment_header_size
from quire.codec.log.state_records import BLOCK_BYTES, StateRecord
from quire.errors import DiskFullError, StorageError, UsageError
from quire.storage.config import StorageConfig
from quire.storage.log.group_commit import LogWriter, StorageTimes, WrittenGroup
from quire.storage.log.preallocation import PreallocatedSegments
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LogSegment, SegmentState

Done = Callable[[StorageError | None], None]
MAX_NOTE_BYTES = 256 * 1024
"""The most bytes of state records that are written as one batch."""


STATE_SHARE = 4
"""The divisor that gives, from the size of the reserve, the share of it that only state records may
use."""
PATIENCE_S = 0.01
"""The most seconds that a patient batch waits for other batches to share a sync with."""
PATIENT_BYTES_MAX = 512 * 1024
"""The bytes of patient batches at which they are written without further waiting. A batch that is
written with them is delayed only by the time that it takes to write this much."""


class TimerHandle(Protocol):
    """A timer that can be cancelled, like the event loop's `TimerHandle`."""

    def cancel(self) -> None: ...


class Schedule(Protocol):
    """A function that schedules a callback on the event loop."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> TimerHandle:
        """Call `callback` after `delay` seconds, like the event loop's `call_later`."""
        ...


class Appender:
    """The event loop's side of the log: it accepts batches and completes them once they are synced.

    A *patient* batch is one that no writer or reader waits for, such as a copy of an
    under-replicated entry. Such a batch may wait a moment to share a sync with another one; see
    `submit`.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        config: StorageConfig,
        preallocated: PreallocatedSegments,
        writer: LogWriter,
        schedule: Schedule,
        closed: Callable[[LogSegment], None],
        times: StorageTimes,
    ) -> None:
        """Create an appender without a current segment.

        `closed` is called with each segment that takes no more groups, as soon as all of its groups
        are synced.
        """
        self._catalogue = catalogue
        self._config = config
        self._preallocated = preallocated
        self._writer = writer
        writer.on_written, writer.on_failed = self.on_written, self.on_failed
        self._schedule = schedule
        self._closed = closed
        self._times = times
        self._sequence = 0
        self._completed = 0
        self._pending: list[StateRecord] = []
        """The state records that will be written with the next batch."""
        self._barriers: deque[tuple[int, Done]] = deque()
        self._raised: list[Exception] = []
        """The errors of callbacks of the group that is being completed. They must not keep the
        other callbacks from being called."""
        self._resting: list[tuple[LogBatch, LogSegment]] = []
        """The patient batches that were not handed to the worker of the log yet, each with its
        segment. They are newer than all batches that were handed over."""
        self._resting_bytes = 0
        self._patience: TimerHandle | None = None
        self._in_company = False
        """Whether patient batches should wait for company. It becomes True when an add of a writer
        arrives, and False when patient batches have waited in vain."""
        self._timer: TimerHandle | None = None
        self._idle_sequence = -1
        self._unmarked = False
        """Whether the last group has entries or records. If so, an end mark, which is an empty
        group, must follow it."""
        self._was_full = False
        self._stalled = False
        """Whether the log waits for a segment to be preallocated."""
        self._segment_wanted = False
        """Whether `begin_segment` was called and no segment was begun since."""
        self.current: LogSegment | None = None
        self.closing = False
        self.failed: StorageError | None = None
        self.on_failure: Callable[[StorageError], None] = lambda error: None
        self.on_drained: Callable[[], None] = lambda: None
        self.queued_bytes = 0
        self.end_group = 0
        """The number after that of the last synced group."""
        self.written_number = 0
        """The number of the newest segment that has a synced group."""
        self.groups = 0
        self.batches = 0
        self.bytes_written = 0

    # -- space ------------------------------------------------------------------------------------

    def resume(self, segment: LogSegment, sequence: int, pending: Sequence[StateRecord]) -> None:
        """Continue the log in `segment`, after the batch with the number `sequence`.

        The header of the segment is already written. `pending` has the records to write with the
        next batch. Another thread may call this, because it schedules nothing.
        """
        self._unmarked = segment.payload_bytes > 0 or bool(segment.records)
        self.current = segment
        self.end_group = segment.end_group
        self.written_number = segment.number
        self._sequence = self._completed = sequence
        self._pending.extend(pending)

    def _prepare(self, segment: LogSegment) -> None:
        segment.live = ranges_of(self._catalogue.live_numbers())
        segment.groups_at = segment.end = segment_header_size(len(segment.live))
        segment.state = SegmentState.CURRENT
        self._catalogue.segments[segment.number] = segment
        self.current = segment
        self._segment_wanted = False

    def admit(self, batch: LogBatch, *, reserve: bool) -> LogSegment:
        """Give a batch its place in the log, and return the segment that it will be written to.

        The batch also gets the state records that are waiting to be logged. Only batches with
        `reserve` may use the preallocated reserve.

        Raises:
            DiskFullError: There is no space for the batch. Nothing has changed.
            UsageError: The batch is larger than a segment. Nothing has changed.
            StorageError: The store is being closed. Nothing has changed.
        """
        if self.closing:
            raise StorageError("the bookie's store is being closed and takes no more entries")
        if not reserve and not self._preallocated.space:
            raise DiskFullError(
                f"the log of the bookie takes no more entries: {self._preallocated.error}"
            )
        if self._pending:
            batch.records = (*self._pending, *batch.records)
        batch.cost_bytes = cost = batch.cost()
        segment = self.current
        assert segment is not None
        runs, most = batch.run_count, self._config.max_runs_per_segment
        try:
            if runs and not self._preallocated.space:
                self._check_share(segment, cost)
            if not segment.fits(cost) or segment.run_count + runs > most:
                segment = self._roll(segment, cost)
        except BaseException:
            batch.records = batch.records[len(self._pending) :]
            raise
        self._pending.clear()
        self._sequence += 1
        batch.sequence = self._sequence
        return segment

    def _check_share(self, segment: LogSegment, cost: int) -> None:
        """Raise DiskFullError if a recovery's add would use the space reserved for state records.

        This is called on a full disk. Fences, and the deletions that free space, need this share.
        """
        share = self._preallocated.reserve_bytes // STATE_SHARE
        if not self._preallocated.capacity() and not segment.fits(cost + share):
            raise DiskFullError(f"the log of the bookie is full: {self._preallocated.error}")

    def _roll(self, old: LogSegment, cost: int) -> LogSegment:
        """Close the segment `old` and return the next one, which is the current one from now on.

        If no segment that is large enough is prepared, return `old`. The batch then goes to `old`
        as well, which grows if necessary.

        Raises:
            DiskFullError: There is no space for the batch. Nothing has changed.
            UsageError: The batch is larger than a segment. Nothing has changed.
        """
        preallocated = self._preallocated
        # Keep one block for the end mark, in case this becomes the last group of the segment.
        body = cost + BLOCK_BYTES
        needed = segment_header_size(len(self._catalogue.segments) + 1) + body
        if needed > self._config.segment_bytes:
            # The header is shorter than this bound, because adjacent segments are one range.
            needed = segment_header_size(len(ranges_of(self._catalogue.live_numbers()))) + body
        if needed > self._config.segment_bytes:
            raise UsageError(
                f"entries that take {cost:,} bytes of the log together do not fit into a segment "
                f"of {self._config.segment_bytes:,} bytes",
                remedy="Raise segment_bytes of the bookie",
            )
        if preallocated.capacity() < needed:
            if not preallocated.space:
                if old.fits(cost):
                    return old
                raise DiskFullError(f"the log of the bookie is full: {preallocated.error}")
            # The next segment is being prepared. Until it is ready, batches that were already
            # received still go to the old segment, which grows. `full` asks the callers to receive
            # no more.
            self._stalled = self._was_full = True
            return old
        segment = preallocated.take()
        segment.previous = old.number
        self._prepare(segment)
        old.state = SegmentState.CLOSED
        if not old.in_flight:
            self._closed(old)
        return segment

    def begin_segment(self, done: Done) -> None:
        """Begin another segment now, and call `done(error)` when its header is durable.

        The header lists the segments that exist now. If no segment is prepared, it is begun as soon
        as one is, and `done` is called when everything appended so far is durable. `done` may be
        called before this returns.
        """
        self._segment_wanted = True
        if not self._begin_wanted(lambda _, error: done(error)):
            self.barrier(done)

    def _begin_wanted(
        self, done: Callable[[LogBatch, StorageError | None], None] | None = None
    ) -> bool:
        """Begin the segment that `begin_segment` asked for, and return whether that succeeded."""
        current = self.current
        if not self._segment_wanted or current is None or self.closing or self.failed is not None:
            return False
        try:
            if not self._preallocated.capacity() or self._roll(current, 0) is current:
                return False
            # Without a group, the segment has not begun, and its header is not written.
            self._submit_records((), done)
        except StorageError:
            return False  # There is no space.
        return True

    # -- submission -------------------------------------------------------------------------------

    def submit(self, batch: LogBatch, segment: LogSegment) -> None:
        """Queue a batch that `admit` has accepted for `segment`. Its runs are already in the index.

        A patient batch waits for the next batch that is not patient, and both are written and
        synced together. So copies and explicit LACs need no syncs of their own on a disk that is
        busy anyway, and no other batch waits for a sync that serves only them.

        If no such batch arrives within `PATIENCE_S`, the patient batches are written by themselves.
        Later ones are then written at once until a writer's add arrives. Patient batches also stop
        waiting when they reach `PATIENT_BYTES_MAX`. The order of batches never changes.
        """
        runs, size = batch.run_count, batch.size_bytes
        segment.in_flight += 1
        segment.reserved += batch.cost_bytes
        segment.run_count += runs
        segment.payload_bytes += size
        segment.live_bytes += size
        self.queued_bytes += size
        if self.queued_bytes >= self._config.max_queued_bytes:
            self._was_full = True
        if not batch.patient:
            self._in_company = self._in_company or runs > 0
        elif self._in_company and self._resting_bytes + batch.cost_bytes < PATIENT_BYTES_MAX:
            self._resting.append((batch, segment))
            self._resting_bytes += batch.cost_bytes
            if self._patience is None:
                self._patience = self._schedule(PATIENCE_S, self._on_patience)
            return
        if self._resting:
            self._hand_over()
        self._writer.submit(batch, segment)

    def _on_patience(self) -> None:
        """Write the waiting patient batches, because no other batch has arrived."""
        self._in_company = False
        self._hand_over()

    def _hand_over(self) -> None:
        """Submit the patient batches that have waited. They must come before any newer batch."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        resting, self._resting, self._resting_bytes = self._resting, [], 0
        for batch, segment in resting:
            self._writer.submit(batch, segment)

    def note(self, records: Sequence[StateRecord], done: Done, *, patient: bool = False) -> None:
        """Log state records in order, and call `done(None)` when all of them are durable.

        If a record cannot be logged, `done(error)` is called, possibly before this returns. The
        records may use the preallocated reserve. `submit` explains `patient`.
        """
        if self.failed is not None:
            done(self.failed)
            return
        piece: list[StateRecord] = []
        size = 0
        try:
            for record in records:
                if size + record.size_bytes > MAX_NOTE_BYTES and piece:
                    self._submit_records(piece, None, patient)
                    piece, size = [], 0
                piece.append(record)
                size += record.size_bytes
            self._submit_records(piece, lambda _, error: done(error), patient)
        except StorageError as error:
            done(error)

    def _submit_records(
        self,
        records: Sequence[StateRecord],
        done: Callable[[LogBatch, StorageError | None], None] | None,
        patient: bool = False,
    ) -> None:
        batch = LogBatch((), (), records)
        batch.done, batch.patient = done, patient
        self.submit(batch, self.admit(batch, reserve=True))

    def add_pending(self, record: StateRecord) -> None:
        """Log this record with the next batch.

        If no batch arrives within `seal_idle_s`, it is logged without one.
        """
        self._pending.append(record)
        self._arm()

    def barrier(self, done: Done) -> None:
        """Call `done(None)` when everything appended so far is durable, or `done(error)`.

        State records that wait for the next batch count as well. `done` may be called before this
        returns.
        """
        if self.failed is None and self._pending:
            try:
                self._submit_records((), None)
            except StorageError as error:
                done(error)
                return
        if self.failed is not None or self._completed == self._sequence:
            done(self.failed)
        else:
            self._hand_over()
            self._barriers.append((self._sequence, done))

    # -- completion -------------------------------------------------------------------------------

    def on_written(self, group: WrittenGroup) -> None:
        """Complete the batches of a group that was written and synced."""
        segment = group.segment
        segment.end = group.end
        segment.end_group = self.end_group = group.number + 1
        self.written_number = segment.number
        segment.checksums.extend(group.checksums)
        size = 0
        content = False
        for batch in group.batches:
            batch.buffers = None
            size += batch.size_bytes
            segment.reserved -= batch.cost_bytes
            if batch.records:
                segment.records.extend(batch.records)
                content = True
        segment.in_flight -= len(group.batches)
        self._unmarked = content or size > 0
        self.queued_bytes -= size
        self.groups += 1
        self.batches += len(group.batches)
        self.bytes_written += size
        for batch in group.batches:
            done = batch.done
            if done is not None:
                batch.done = None
                try:
                    done(batch, None)
                except Exception as raised:  # noqa: BLE001 - raised by `_raise_first`
                    self._raised.append(raised)
            batch.forget_runs()
        self._times.on_written(group)
        self._completed = group.batches[-1].sequence
        self._release_barriers(None)
        if segment is not self.current and not segment.in_flight:
            self._closed(segment)
        if self._unmarked:
            self._arm()
        self._check_drained()
        self._raise_first()

    @property
    def taken(self) -> tuple[int, int]:
        """The bytes of frames that are not durable yet, and those written since the start."""
        return self.queued_bytes, self.bytes_written

    @property
    def full(self) -> bool:
        """Whether the callers should accept no more adds until `on_drained` is called."""
        return self._stalled or self.queued_bytes >= self._config.max_queued_bytes

    def on_prepared(self) -> None:
        """Continue after a segment was preallocated, or could not be."""
        self._stalled = False
        self._begin_wanted()
        self._check_drained()

    def _check_drained(self) -> None:
        half = self._config.max_queued_bytes // 2
        if self._was_full and not self._stalled and self.queued_bytes <= half:
            self._was_full = False
            self.on_drained()

    def _release_barriers(self, error: StorageError | None) -> None:
        barriers = self._barriers
        while barriers and (error is not None or barriers[0][0] <= self._completed):
            try:
                barriers.popleft()[1](error)
            except Exception as raised:  # noqa: BLE001 - raised by `_raise_first`
                self._raised.append(raised)

    def _raise_first(self) -> None:
        """Raise the first error of the callbacks of a group, now that all of them were called."""
        raised, self._raised = self._raised, []
        if raised:
            raise raised[0]

    def on_failed(self, batches: Sequence[LogBatch], error: StorageError) -> None:
        """Fail `batches` and every queued batch with the error, and accept no more.

        The failed batches may or may not be stored.
        """
        self.failed = error
        self._cancel_timer()
        self._hand_over()
        for batch in (*batches, *self._writer.take_waiting()):
            self.queued_bytes -= batch.size_bytes
            done = batch.done
            if done is not None:
                batch.done = None
                try:
                    done(batch, error)
                except Exception as raised:  # noqa: BLE001 - raised by `_raise_first`
                    self._raised.append(raised)
        self._release_barriers(error)
        self.on_failure(error)
        # Nothing is queued any more, and no segment will be prepared. Callers that accept no more
        # adds because of that must not wait for ever, because they accept no reads either.
        self._stalled = False
        self._check_drained()
        self._raise_first()

    # -- the end mark -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write end marks and pending state records, once the worker of the log runs."""
        if self._unmarked or self._pending:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and not self.closing and self.failed is None:
            self._idle_sequence = self._sequence
            self._timer = self._schedule(self._config.seal_idle_s, self._on_idle)

    def _on_idle(self) -> None:
        """Write an empty group after the last group, to prove that the last group was synced.

        This runs after `seal_idle_s` without adds.
        """
        self._timer = None
        if self.failed is not None or self.closing:
            return
        busy = self._sequence != self._idle_sequence or self._completed != self._sequence
        if not busy and (self._pending or self._unmarked):
            try:
                self._submit_records((), None)
            except StorageError:
                return  # There is no space. The next batch that fits proves the same.
        elif busy:
            self._arm()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def finish(self) -> None:
        """Queue the pending records and an end mark, before the worker of the log is stopped."""
        if self.failed is None and not self.closing:
            try:
                self._submit_records((), None)
            except StorageError:
                pass  # There is no space. The next start finds no clean stop and scans the log.
        self._hand_over()
        self.closing = True
        self._cancel_timer()

    @property
    def drained(self) -> bool:
        """Whether everything that was appended is durable, and no state records are pending."""
        return self._completed == self._sequence and not self._pending
