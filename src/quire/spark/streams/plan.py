"""How parts of streams become tasks. Pure.

segments, from where to where -> ranges of segments (and gaps) -> splits -> partitions
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from quire.spark.ledgers.plan import Range, WeightedRange, plan
from quire.streams import DLSN, Gap, StreamSegment, Truncation
from quire.streams.read.arrow import Origin

COUNT_BYTES = 1
"""What a record weighs that is made from metadata."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A part of one segment that can be read: from `start` on, to before `end`."""

    segment: StreamSegment
    start: DLSN
    end: DLSN | None
    """None: to its end, or to what is acknowledged."""

    @property
    def whole(self) -> bool:
        return self.end is None and self.start == self.segment.first_dlsn


def lay_out(
    segments: Sequence[StreamSegment],
    start: DLSN,
    end: DLSN | None = None,
    sequence: int | None = None,
    *,
    reached: bool = False,
) -> tuple[list[SegmentRange], list[Gap]]:
    """What of start..end can be read, and what is gone. `sequence`: how many records came before
    `start`, where that is known: then what is gone and had been read is no gap. `reached`: the
    stream had come to `end`, so that what is missing there was there."""
    parts: list[SegmentRange] = []
    gaps: list[Gap] = []

    def gone(kind: str, behind: DLSN) -> None:
        """Told as a whole, also where it goes on behind `end`."""
        if position < behind and (end is None or position < end):
            gaps.append(Gap(kind, position, behind))

    position = start
    for at, segment in enumerate(segments):
        if segment.lssn < position.lssn:
            continue
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
    """Entries first..last of a segment, and of them the records from `start` on, to before `end`.
    A value that tasks are given."""

    origin: Origin
    first: int
    last: int
    start: DLSN | None = None
    end: DLSN | None = None
    size_bytes: int = 0
    """Of its entries, about."""
    records: int | None = None
    """Known from the metadata, where no bookie has to be asked."""
    first_sequence: int = 0
    """Of its first record, where no bookie is asked."""


@dataclass(frozen=True, slots=True)
class StreamPartition(InputPartition):  # type: ignore[misc]
    """One task: these splits, one behind the other."""

    splits: tuple[StreamSplit, ...]


def split_of(
    origin: Origin, part: SegmentRange, last_entry: int, size_bytes: int, entries: int
) -> StreamSplit | None:
    """The entries of a part whose segment can be read up to `last_entry`; its ledger has
    `size_bytes` in so many `entries`."""
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
    """The split that needs no bookie: of a completed segment that is read as a whole."""
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
    """Tasks of about equal shares. Those of one stream keep its order. Small streams share a task;
    the tasks of large ones take turns, so that those which run together ask different bookies."""
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
