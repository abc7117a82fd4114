"""The path of a batch into the log, on the event loop: space, order, completion, failure.

The segment of a batch is chosen when the batch is appended, so that the index can name it at once.
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
"""The most bytes of state records written as one batch."""


STATE_SHARE = 4
"""The divisor that gives the share of the reserve for state records alone."""
PATIENCE_S = 0.01
"""Seconds that a patient batch waits at most for others to share their sync."""
PATIENT_BYTES_MAX = 512 * 1024
"""The number of bytes on the disk at which waiting patient batches are written by themselves. It
bounds the delay of a batch that they join: by no more than the time to write this much."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Schedule(Protocol):
    def __call__(self, delay: float, callback: Callable[[], None], /) -> TimerHandle:
        """Call `callback` after `delay` seconds, like the event loop's `call_later`."""
        ...


class Appender:
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

        `closed` is called with each segment that takes no more groups, once all of its groups are
        synced.
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
        """The state records to be written with the next batch."""
        self._barriers: deque[tuple[int, Done]] = deque()
        self._resting: list[tuple[LogBatch, LogSegment]] = []
        """Patient batches that the log's worker does not know of yet. They are the newest of all
        batches."""
        self._resting_bytes = 0
        self._patience: TimerHandle | None = None
        self._in_company = False
        """Whether a writer's add has arrived since a patient batch last waited in vain."""
        self._timer: TimerHandle | None = None
        self._idle_sequence = -1
        self._unmarked = False
        """Whether the last group is something other than an end mark."""
        self._was_full = False
        self._stalled = False
        """Whether the log waits for a preallocated segment."""
        self.current: LogSegment | None = None
        self.closing = False
        self.failed: StorageError | None = None
        self.on_failure: Callable[[StorageError], None] = lambda error: None
        self.on_drained: Callable[[], None] = lambda: None
        self.queued_bytes = 0
        self.end_group = 0
        """The number of the group after the last synced one."""
        self.groups = 0
        self.batches = 0
        self.bytes_written = 0

    # -- space ------------------------------------------------------------------------------------

    def resume(self, segment: LogSegment, sequence: int, pending: Sequence[StateRecord]) -> None:
        """Set the segment to append to, which is begun already, and continue after its last batch.

        `sequence` is the number of the last batch, and `pending` is what is to be written with the
        next one. This may be called on another thread, because it schedules nothing.
        """
        self._unmarked = segment.payload_bytes > 0 or bool(segment.records)
        self.current = segment
        self.end_group = segment.end_group
        self._sequence = self._completed = sequence
        self._pending.extend(pending)

    def _prepare(self, segment: LogSegment) -> None:
        segment.live = ranges_of(self._catalogue.live_numbers())
        segment.groups_at = segment.end = segment_header_size(len(segment.live))
        segment.state = SegmentState.CURRENT
        self._catalogue.segments[segment.number] = segment
        self.current = segment

    def admit(self, batch: LogBatch, *, reserve: bool) -> LogSegment:
        """Return the segment that the batch will go to.

        `DiskFullError` and `UsageError` mean that nothing has happened.
        """
        if self.closing:
            raise StorageError("the store is closed")
        if not reserve and not self._preallocated.space:
            raise DiskFullError(f"the log takes no more adds: {self._preallocated.error}")
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
        """Refuse recovery adds that would use up the share of the reserve for state records.

        The disk is full. A fence, or the deletions that give space back, must not lack the space
        that an add has taken.
        """
        share = self._preallocated.reserve_bytes // STATE_SHARE
        if not self._preallocated.capacity() and not segment.fits(cost + share):
            raise DiskFullError(f"the log is full: {self._preallocated.error}")

    def _roll(self, old: LogSegment, cost: int) -> LogSegment:
        preallocated = self._preallocated
        # One block is for the end mark, in case this becomes the last group.
        header = segment_header_size(len(self._catalogue.segments) + 1)
        needed = header + cost + BLOCK_BYTES
        if needed > self._config.segment_bytes:
            raise UsageError(
                f"a batch that takes {cost} bytes does not fit into a segment of "
                f"{self._config.segment_bytes}",
                remedy="Raise segment_bytes",
            )
        if preallocated.capacity() < needed:
            if not preallocated.space:
                if old.fits(cost):
                    return old
                raise DiskFullError(f"the log is full: {preallocated.error}")
            # The next segment is being prepared. Until it is ready the old one grows by what was
            # received already, and no more should be received.
            self._stalled = self._was_full = True
            return old
        segment = preallocated.take()
        segment.previous = old.number
        self._prepare(segment)
        old.state = SegmentState.CLOSED
        if not old.in_flight:
            self._closed(old)
        return segment

    # -- submission -------------------------------------------------------------------------------

    def submit(self, batch: LogBatch, segment: LogSegment) -> None:
        """Queue a batch that `admit` has accepted for `segment`, once its runs are indexed.

        A patient batch waits for the next batch that is not patient, and both are written and
        synced together. So copies and explicit LACs cost no syncs of their own on a disk that is
        written to anyway, and no batch waits behind a sync that is theirs alone. If none arrives
        within `PATIENCE_S`, the patient batches are written by themselves, and later ones are
        written at once until a writer's add arrives. They are also written by themselves if many
        bytes wait. The order of batches never changes.
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
        """Write the waiting batches because no other batch has arrived."""
        self._in_company = False
        self._hand_over()

    def _hand_over(self) -> None:
        """Submit the patient batches that have waited, before any newer batch."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        resting, self._resting, self._resting_bytes = self._resting, [], 0
        for batch, segment in resting:
            self._writer.submit(batch, segment)

    def note(self, records: Sequence[StateRecord], done: Done, *, patient: bool = False) -> None:
        """Log state records in order, and call `done` when all are durable.

        They may use the reserve. `patient` is explained in `submit`.
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
        """Log this record before the next batch, or soon if there is none."""
        self._pending.append(record)
        self._arm()

    def barrier(self, done: Done) -> None:
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
        segment = group.segment
        segment.end = group.end
        segment.end_group = self.end_group = group.number + 1
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
                done(batch, None)
            batch.forget_runs()
        self._times.on_written(group)
        self._completed = group.batches[-1].sequence
        self._release_barriers(None)
        if segment is not self.current and not segment.in_flight:
            self._closed(segment)
        if self._unmarked:
            self._arm()
        self._check_drained()

    @property
    def taken(self) -> tuple[int, int]:
        """The bytes that wait to be durable, and the bytes written since the start."""
        return self.queued_bytes, self.bytes_written

    @property
    def full(self) -> bool:
        return self._stalled or self.queued_bytes >= self._config.max_queued_bytes

    def on_prepared(self) -> None:
        """Continue after a segment was prepared, or could not be."""
        self._stalled = False
        self._check_drained()

    def _check_drained(self) -> None:
        half = self._config.max_queued_bytes // 2
        if self._was_full and not self._stalled and self.queued_bytes <= half:
            self._was_full = False
            self.on_drained()

    def _release_barriers(self, error: StorageError | None) -> None:
        barriers = self._barriers
        while barriers and (error is not None or barriers[0][0] <= self._completed):
            barriers.popleft()[1](error)

    def on_failed(self, batches: Sequence[LogBatch], error: StorageError) -> None:
        """Fail for good: batches in the queue may or may not be stored, and no more are
        accepted."""
        self.failed = error
        self._cancel_timer()
        self._hand_over()
        for batch in (*batches, *self._writer.take_waiting()):
            self.queued_bytes -= batch.size_bytes
            done = batch.done
            if done is not None:
                batch.done = None
                done(batch, error)
        self._release_barriers(error)
        self.on_failure(error)

    # -- the end mark -----------------------------------------------------------------------------

    def start(self) -> None:
        if self._unmarked or self._pending:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and not self.closing and self.failed is None:
            self._idle_sequence = self._sequence
            self._timer = self._schedule(self._config.seal_idle_s, self._on_idle)

    def _on_idle(self) -> None:
        """Write an empty group after the last one, which proves that the last one was synced."""
        self._timer = None
        if self.failed is not None or self.closing:
            return
        busy = self._sequence != self._idle_sequence or self._completed != self._sequence
        if not busy and (self._pending or self._unmarked):
            try:
                self._submit_records((), None)
            except StorageError:
                return  # There is no space. The next batch will do this, if one fits.
        elif busy:
            self._arm()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def finish(self) -> None:
        """Queue what is pending and the end mark, before the log's worker is stopped."""
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
        return self._completed == self._sequence and not self._pending
