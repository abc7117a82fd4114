"""The division of parts of streams into tasks.

    segments, start and end -> ranges of segments (and gaps) -> splits -> partitions

This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from quire.spark.ledgers.plan import Range, WeightedRange, plan
from quire.streams import DLSN, Gap, StreamSegment, Truncation
from quire.streams.read.arrow import Origin

COUNT_BYTES = 1
"""The size in bytes that a record counts when a task makes its row from metadata alone."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A readable part of one segment, from `start` to just before `end`."""

    segment: StreamSegment
    start: DLSN
    end: DLSN | None
    """The position before which to end, or None for the end of what is acknowledged."""

    @property
    def whole(self) -> bool:
        """Whether the part is the whole segment."""
        return self.end is None and self.start == self.segment.first_dlsn


def lay_out(
    segments: Sequence[StreamSegment],
    start: DLSN,
    end: DLSN | None = None,
    sequence: int | None = None,
    *,
    reached: bool = False,
) -> tuple[list[SegmentRange], list[Gap]]:
    """Return the parts of start..end that can be read, and the gaps.

    `sequence` is the number of records before `start`, if it is known. If the next existing segment
    begins with that sequence id, no record between is missing, and there is no gap. `reached` says
    that the stream once extended to `end`, so that everything missing before it is a gap.
    """
    parts: list[SegmentRange] = []
    gaps: list[Gap] = []

    def gone(kind: str, behind: DLSN) -> None:
        """Add a gap as a whole, even if it extends beyond `end`."""
        if position < behind and (end is None or position < end):
            gaps.append(Gap(kind, position, behind))

    position = start
    first = bisect_left(segments, start.lssn, key=lambda segment: segment.lssn)
    for at, segment in enumerate(segments[first:], first):
        if position.lssn < segment.lssn:
            read = position == start and sequence is not None
            if not (read and sequence == segment.first_sequence_id):
                gone("lost" if at else "truncated", segment.first_dlsn)
            position = segment.first_dlsn
        if end is not None and end <= position:
            return parts, gaps
        behind = segment.first_dlsn.next_segment()
        if not segment.in_progress and (not segment.record_count or position > segment.last_dlsn):
            position = behind
            continue
        if segment.truncation is Truncation.TRUNCATED:
            gone("truncated", behind)
        else:
            if segment.truncation is Truncation.PARTIAL and position < segment.min_active_dlsn:
                gone("truncated", segment.min_active_dlsn)
                position = segment.min_active_dlsn
            here = end if end is not None and end < behind else None
            if here is None or position < here:
                parts.append(SegmentRange(segment, position, here))
        position = behind
    if end is not None and reached:
        gone("lost", end)
    return parts, gaps


@dataclass(frozen=True, slots=True)
class StreamSplit:
    """The entries from `first` to `last` of a segment, as a value that is sent to a task.

    Of these entries only the records from `start` to just before `end` are read.
    """

    origin: Origin
    first: int
    last: int
    start: DLSN | None = None
    """The position of the first record to read, or None for the first record of entry `first`."""
    end: DLSN | None = None
    """The position before which to end, or None for the end of entry `last`."""
    size_bytes: int = 0
    """The approximate number of payload bytes in the entries."""
    records: int | None = None
    """The number of records, if it is known from the metadata, without a request to a bookie."""
    first_sequence: int = 0
    """The sequence id of the first record, if no bookie is asked."""
    life_of_copy: str = ""
    """The id of the stream's life if `replicate` made the stream, or "".

    The segment of such a stream may get another ledger, which has the same entries.
    """


@dataclass(frozen=True, slots=True)
class StreamPartition(InputPartition):  # type: ignore[misc]
    """One task, which reads the splits in it one after the other."""

    splits: tuple[StreamSplit, ...]


def split_of(
    origin: Origin, part: SegmentRange, last_entry: int, size_bytes: int, entries: int
) -> StreamSplit | None:
    """Return the entries of a part whose segment can be read up to `last_entry`.

    Its ledger has `size_bytes` in this many `entries`. Returns None if the part has no entries.
    """
    first, last = part.start.entry_id, last_entry
    if part.end is not None:
        last = min(last, part.end.entry_id - (not part.end.slot_id))
    if first > last:
        return None
    share = size_bytes * (last - first + 1) // max(entries, 1)
    start = part.start if part.start.slot_id else None
    end = part.end if part.end is not None and part.end.slot_id else None
    return StreamSplit(origin, first, last, start, end, share)


def counted(origin: Origin, part: SegmentRange) -> StreamSplit | None:
    """Return the split of a segment whose rows are made from metadata, without a bookie.

    Returns None unless the part is the whole of a completed segment.
    """
    segment = part.segment
    if segment.in_progress or segment.lost or not part.whole:
        return None
    return StreamSplit(
        origin, 0, segment.last_entry_id, None, None, COUNT_BYTES * segment.record_count,
        segment.record_count, segment.first_sequence_id,
    )  # fmt: skip


def partitions(
    streams: Iterable[Sequence[StreamSplit]], *, partition_bytes: int, min_partitions: int = 1
) -> list[StreamPartition]:
    """Return tasks with about equal shares, in which each stream keeps its order.

    `streams` has the splits of each stream, in order. A task has about `partition_bytes` at most,
    and less if that gives `min_partitions` tasks. Small streams share a task. The tasks of large
    streams alternate, so that tasks that run at the same time ask different bookies.
    """
    laid = [list(splits) for splits in streams if splits]
    total = sum(_extent(split).weight for splits in laid for split in splits)
    share = max(1, min(partition_bytes, -(-total // max(min_partitions, 1))))
    queues: list[list[StreamPartition]] = []
    small: list[StreamSplit] = []
    small_weight = 0
    for splits in laid:
        weight = sum(_extent(split).weight for split in splits)
        if weight <= share and small_weight + weight > share and small:
            queues.append([StreamPartition(tuple(small))])
            small, small_weight = [], 0
        if weight <= share:
            small += splits
            small_weight += weight
        else:
            queues.append(list(_cut(splits, share)))
    if small:
        queues.append([StreamPartition(tuple(small))])
    return list(_in_turns(queues))


def _in_turns(queues: list[list[StreamPartition]]) -> Iterator[StreamPartition]:
    for at in range(max(map(len, queues), default=0)):
        for queue in queues:
            if at < len(queue):
                yield queue[at]


def _extent(split: StreamSplit) -> WeightedRange:
    entries = Range(split.origin.segment.ledger_id, split.first, split.last)
    if split.records is not None:
        entries = entries._replace(first=0, last=0)
    return WeightedRange(entries, split.size_bytes)


def _cut(splits: Sequence[StreamSplit], share: int) -> Iterator[StreamPartition]:
    by_ledger = {split.origin.segment.ledger_id: split for split in splits}
    for ranges in plan(map(_extent, splits), partition_bytes=share):
        yield StreamPartition(tuple(_part(by_ledger[part.ledger_id], part) for part in ranges))


def _part(split: StreamSplit, part: Range) -> StreamSplit:
    if split.records is not None:
        return split
    entries = split.last - split.first + 1
    size_bytes = split.size_bytes * part.entries // entries
    return replace(split, first=part.first, last=part.last, size_bytes=size_bytes)
