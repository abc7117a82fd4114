"""Seal segments that take no more groups: write footers, and drop the indexes in memory.

The footers are written off the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from quire.codec.log.footer import Summary
from quire.codec.log.state_records import Deleted, RecordKind, StateRecord
from quire.storage.background.job import BackgroundJob, JobContext
from quire.storage.log.preallocation import is_full
from quire.storage.segment.footer import Sealed, SealInput, write_footer
from quire.storage.segment.segment import (
    ColumnarRows,
    LedgerInfo,
    LedgerPart,
    LogSegment,
    SegmentState,
)

LEDGERS_PER_SLICE = 500
"""The number of ledgers that are handed over from the index in memory to the footer in one
event-loop iteration, which takes about a millisecond. A segment may have entries of tens of
thousands, and adds must not wait for all of them."""
NO_SEGMENT_BEFORE = 1
"""The number of the first segment of a log. A deletion record applies to segments before the number
that it names, so with this number it deletes nothing."""


class Sealer(BackgroundJob):
    """The job that seals the closed segments of one store, which means writing their footers."""

    def __init__(self, context: JobContext, sealed: Callable[[], None]) -> None:
        """Create a sealer that calls `sealed` after each seal."""
        super().__init__(context)
        self._sealed = sealed
        self._postponed: list[LogSegment] = []
        """The segments that could not be sealed for lack of space."""
        self.closed = False
        self._under_way: set[int] = set()
        """The numbers of closed segments that are being sealed."""
        self.error: str | None = None
        """The error of the last seal that failed, or None if none has failed. A later success does
        not clear it. A segment that is not sealed can still be read."""

    @property
    def under_way(self) -> int:
        """The number of closed segments whose seal has begun and has not ended.

        Segments that could not be sealed because the disk was full are not counted.
        """
        return len(self._under_way)

    def seal(self, segment: LogSegment) -> None:
        """Begin to seal a segment that takes no more groups. All its groups must be synced.

        A segment that lost groups is not sealed until the loss is repaired. Otherwise the footer
        could overwrite what is left of these groups.
        """
        if segment.number in self._catalogue.lossy:
            return
        if segment.state is not SegmentState.CLOSED or segment.number in self._under_way:
            return
        self._under_way.add(segment.number)
        described = _described(list(segment.parts.items()), self._catalogue.ledgers)
        records = [*segment.records, *mentions_of(segment)]
        job = SealInput(self._directory_id, segment, described, records)
        self._jobs.run(partial(write_footer, job), partial(self._on_written, job))

    def seal_repaired(self) -> None:
        """Seal the segments whose losses are repaired. All that was restored must be durable."""
        for segment in list(self._catalogue.segments.values()):
            if segment.lost_groups and segment.state is SegmentState.CLOSED:
                self.seal(segment)

    def retry(self) -> None:
        """Seal the segments that had to wait for space."""
        postponed, self._postponed = self._postponed, []
        for segment in postponed:
            self.seal(segment)

    def _on_written(self, job: SealInput, sealed: Sealed | None, error: Exception | None) -> None:
        if sealed is None:
            self._under_way.discard(job.segment.number)
            assert error is not None
            self.error = str(error)
            if is_full(error):
                self._postponed.append(job.segment)
            else:
                self._broken(error)
            return
        segment = job.segment
        segment.trailer = sealed.trailer
        segment.mentions = sealed.mentions
        self._take_over(segment, sealed.ledgers, 0)

    def _take_over(self, segment: LogSegment, ledgers: Summary, at: int) -> None:
        """Hand the ledgers from position `at` on over from the index in memory to the footer.

        Reads find a ledger through its part in memory before this, and through the footer after it.
        """
        infos, parts, number = self._catalogue.ledgers, segment.parts, segment.number
        turn = slice(at, at + LEDGERS_PER_SLICE)
        for ledger_id, first, last, size_bytes in zip(
            ledgers.ledger_ids[turn],
            ledgers.firsts[turn],
            ledgers.lasts[turn],
            ledgers.size_bytes[turn],
        ):
            # A ledger that was dropped in the meantime is in the footer but no longer in the index.
            part = parts.pop(ledger_id, None)
            if part is None:
                continue
            info = infos[ledger_id]
            info.drop_part(part)
            info.add_sealed(number, first, last, size_bytes)
        at += LEDGERS_PER_SLICE
        if self.closed:
            return  # The footer is written, so the next start finds it.
        if at < len(ledgers.ledger_ids):
            self._schedule(0, partial(self._take_over, segment, ledgers, at))
        else:
            self._on_taken_over(segment)

    def _on_taken_over(self, segment: LogSegment) -> None:
        """Drop the segment's index from memory, after all ledgers were handed over."""
        self._under_way.discard(segment.number)
        infos = self._catalogue.ledgers
        for ledger_id, empty in segment.parts.items():
            infos[ledger_id].drop_part(empty)
            segment.live_ledgers -= 1
        segment.parts, segment.columnar = {}, ColumnarRows()
        segment.records = []
        segment.forgotten = set()
        segment.checksums = array("I")
        segment.run_count = 0
        segment.lost_groups = 0
        segment.state = SegmentState.SEALED
        if segment.file is not None:
            self._files.get(segment)
        self._sealed()


def mentions_of(segment: LogSegment) -> Iterator[StateRecord]:
    """Yield a deletion record for each dropped ledger that has runs in the segment but no record.

    The footer does not name the runs of dropped ledgers. But if the footer is damaged, a start
    finds these runs in the groups, and then needs the records of the deletions. The records are
    kept as long as a segment mentions the ledger, so the records yielded here mention it in the
    footer. They delete nothing themselves, because the deletion may not be durable yet.
    """
    known = {record.ledger_id for record in segment.records}
    value = Deleted(0, False, NO_SEGMENT_BEFORE).encode()
    for ledger_id in sorted(segment.forgotten - known):
        yield StateRecord(RecordKind.DELETED, ledger_id, value)


def _described(
    parts: list[tuple[int, LedgerPart]], ledgers: Mapping[int, LedgerInfo]
) -> Iterator[tuple[int, LedgerPart, int]]:
    """Yield the id of each ledger, its runs in the segment, and its LAC, for the footer.

    This runs on the maintenance thread. The parts do not change any more, and any LAC that was
    known at some time is a valid lower bound.
    """
    parts.sort()
    for ledger_id, part in parts:
        info = ledgers.get(ledger_id)
        yield ledger_id, part, -1 if info is None else info.last_add_confirmed
