"""Write the log: combine all waiting batches into one group, write it, and sync it.

The log writes one group at a time: group n + 1 is written only after the sync of group n has
returned. So a valid group, or a later segment, proves that everything before it was synced. A bad
block before such a group is damage. Only the last group of a log may be torn. The log never waits
for more batches: while one sync runs, the batches of the next group arrive.

`LogWriter` does not create threads. `submit`, `halt` and `take_waiting` are called on the event
loop, and `step` is called by the worker. They share only a deque and two flags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from quire._runtime.metrics import Histogram
from quire._runtime.shortages import reason_of
from quire.codec.log.group import EncodedGroup, GroupEncoder
from quire.codec.log.segment_header import SegmentHeader, encode_segment_header
from quire.errors import StorageError
from quire.storage.interfaces import Worker
from quire.storage.log.page_cache import LogPageCache
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.segment import LogSegment


class WrittenGroup:
    """A group of the log that is written and synced, with its batches."""

    __slots__ = ("batches", "checksums", "end", "number", "segment", "times_s")

    def __init__(
        self,
        segment: LogSegment,
        batches: Sequence[LogBatch],
        group: EncodedGroup,
        times_s: tuple[float, float, float],
    ) -> None:
        self.segment = segment
        self.batches = batches
        self.number = group.header.number
        self.end = group.header.end
        self.checksums = group.checksums
        self.times_s = times_s
        """The monotonic times in seconds when the group was begun, written and synced."""


class StorageTimes:
    """Histograms of the log's latencies. Each group is timed once.

    `queued`, `written` and `synced` count groups. `added` and `answered` count entries. Patient
    batches wait on purpose, so `queued`, `added` and `answered` leave them out.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.queued = Histogram()
        """Seconds from the receipt of a group's oldest batch until the group was begun."""
        self.written = Histogram()
        """Seconds to compose a group and hand it to the operating system."""
        self.synced = Histogram()
        """Seconds that the fdatasync of a group took."""
        self.added = Histogram()
        """Seconds from the receipt of the oldest entry of a group until the group was durable.
        Every entry of the group counts with this time."""
        self.answered = Histogram()
        """Seconds from the receipt of the oldest entry of a group until all entries were answered.
        Every entry of the group counts with this time."""

    def on_written(self, group: WrittenGroup) -> None:
        """Record the latencies of a group, after its batches were completed."""
        began_s, written_s, synced_s = group.times_s
        self.written.observe(written_s - began_s)
        self.synced.observe(synced_s - written_s)
        oldest_s, entries = 0.0, 0
        for batch in group.batches:
            if batch.entries and not batch.patient:
                oldest_s = oldest_s or batch.received_s
                entries += batch.entries
        if entries:
            self.queued.observe(began_s - oldest_s)
            self.added.observe(synced_s - oldest_s, entries)
            self.answered.observe(self._monotonic() - oldest_s, entries)


class LogWriter:
    """The part of the log on its worker, which writes and syncs one group after the other."""

    def __init__(
        self,
        worker: Worker,
        cache: LogPageCache,
        directory_id: bytes,
        max_group_bytes: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._worker = worker
        self._cache = cache
        self._directory_id = directory_id
        self._max_group_bytes = max_group_bytes
        self._monotonic = monotonic
        self.on_written: Callable[[WrittenGroup], None] = lambda group: None
        """A function that is called on the event loop for each synced group, in order."""
        self.on_failed: Callable[[Sequence[LogBatch], StorageError], None] = lambda *failure: None
        """A function that is called on the event loop after a failure, with the batches of the
        failed group and the error. Nothing is written after a failure."""
        self._waiting: deque[tuple[LogBatch, LogSegment]] = deque()
        self._segment: LogSegment | None = None
        self._end = 0
        self._stopped = False
        self.draining = False
        """Whether the worker is about to be stopped. If so, its last step writes all waiting
        batches."""
        self.next_group = 0
        self._halt: StorageError | None = None

    # -- on the event loop ------------------------------------------------------------------------

    def start(self) -> None:
        self._worker.start(self.step)

    def submit(self, batch: LogBatch, segment: LogSegment) -> None:
        """Queue a batch for the next group of its segment."""
        self._waiting.append((batch, segment))
        self._worker.wake()

    def halt(self, error: StorageError) -> None:
        """Write nothing after the current group, because the disk has failed elsewhere.

        `on_failed` is then called with the error and without batches.
        """
        self._halt = error
        self._worker.wake()

    def take_waiting(self) -> list[LogBatch]:
        """Remove and return the batches that are still queued after a failure."""
        waiting = [batch for batch, _ in self._waiting]
        self._waiting.clear()
        return waiting

    # -- on the worker ----------------------------------------------------------------------------

    def step(self) -> None:
        """Write the next group of the queued batches, or all groups after `draining` is set.

        If more batches wait, another step is requested. Nothing is written after a failure.
        """
        while not self._stopped:
            if self._halt is not None:
                self._stopped = True
                self._worker.post(partial(self.on_failed, (), self._halt))
                return
            taken = self._take()
            if taken is None:
                return
            segment, batches = taken
            try:
                group = self.write(segment, batches)
            except OSError as error:
                self._fail(segment, batches, reason_of(error))
                return
            except BaseException as error:
                self._fail(segment, batches, f"{type(error).__name__}: {error}")
                raise
            self._worker.post(partial(self.on_written, group))
            self._cache.wrote(segment.name, group.end)  # Do this last: nobody waits for it.
            if self._waiting and not self.draining:
                self._worker.wake()
                return

    def write(self, segment: LogSegment, batches: Sequence[LogBatch]) -> WrittenGroup:
        """Write one group of batches to a segment, and sync it. The group is durable on return.

        An `OSError` is final: nothing may be written to the log after it.
        """
        began_s = self._monotonic()
        file = segment.file
        assert file is not None
        if segment is not self._segment:
            self._begin(segment)
        encoder = GroupEncoder(self._directory_id, segment.number, self.next_group, self._end)
        bases = [
            encoder.add(
                batch.columns or batch.runs, batch.buffers or (), batch.size_bytes, batch.records
            )
            for batch in batches
        ]
        group = encoder.finish()
        assert group.header.end - self._end == sum(map(len, group.buffers))
        file.write(group.buffers, self._end)
        written_s = self._monotonic()
        file.sync()
        times_s = began_s, written_s, self._monotonic()
        for batch, base in zip(batches, bases):
            batch.file_offset = group.header.payload_offset + base
        self._end = group.header.end
        self.next_group += 1
        return WrittenGroup(segment, batches, group, times_s)

    def _begin(self, segment: LogSegment) -> None:
        """Write and sync the segment's header before its first group is written.

        So if a header fails its checksum, either no group of the segment was ever acknowledged, or
        the header was damaged later.
        """
        assert segment.file is not None
        header = SegmentHeader(
            self._directory_id, segment.number, self.next_group, segment.previous, segment.live
        )
        data = encode_segment_header(header)
        segment.file.write([data], 0)
        segment.file.sync()
        assert len(data) == segment.groups_at
        segment.first_group = self.next_group
        self._segment = segment
        self._end = len(data)

    def _take(self) -> tuple[LogSegment, list[LogBatch]] | None:
        """Remove and return the batches of the next group with their segment.

        All batches of a group are for one segment. The result is None if nothing waits.
        """
        waiting = self._waiting
        try:
            batch, segment = waiting.popleft()
        except IndexError:
            return None
        taken = [batch]
        size = batch.size_bytes
        while waiting:
            # Only this thread removes batches, so the batch that is peeked at is the one removed
            # below.
            batch, other = waiting[0]
            size += batch.size_bytes
            if other is not segment or size > self._max_group_bytes:
                break
            waiting.popleft()
            taken.append(batch)
        return segment, taken

    def _fail(self, segment: LogSegment, batches: Sequence[LogBatch], reason: str) -> None:
        self._stopped = True
        error = StorageError(
            f"writing group {self.next_group} of the log to {segment.name} failed: {reason}",
            remedy=(
                "Entries in flight may or may not be stored, and the directory takes no "
                "more. Check the disk, and restart the bookie"
            ),
        )
        self._worker.post(partial(self.on_failed, batches, error))
