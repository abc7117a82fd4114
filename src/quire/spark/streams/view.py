"""The driver's view of one stream: its segments, its end, and the records between two positions.

As little as possible is read. The metadata has all that is needed about completed segments. For the
segment in progress, the last acknowledged entry has it. Entries in the middle are read only to find
where the limit of a trigger is.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire._runtime.tasks import each
from quire.client import LedgerReader
from quire.errors import NoSuchLedgerError, StreamError, StreamGapError
from quire.spark.streams.offsets import StreamOffset
from quire.spark.streams.plan import SegmentRange, StreamSplit, counted, lay_out, split_of
from quire.streams import DLSN, Gap, Namespace, StreamSegment
from quire.streams.mirror.check import MARKER
from quire.streams.namespace.known_segments import KnownSegments
from quire.streams.read.arrow import Origin
from quire.streams.read.positions import (
    TIME_MAX_MS,
    Start,
    creation_time_ms,
    find,
    find_end,
    oldest_position,
    search_segment,
)
from quire.streams.read.records import decode

NOWHERE = -1
"""The number of the segment of a `CountedPosition` that is after the end of the stream."""
READERS_MAX = 4
"""The largest number of ledgers of one stream that are kept open."""
LOOKS_MAX = 5
"""The largest number of times to read the segments before a missing ledger counts as lost.

The ledger may be missing only because its segment was truncated a moment ago.
"""
LOOK_DELAY_S = 0.1

logger = logging.getLogger("quire.spark")


@dataclass(frozen=True, slots=True)
class CountedPosition:
    """A position in a stream, with the number of records and bytes of its segment before it."""

    position: DLSN
    lssn: int
    """The number of the segment whose records and bytes are counted.

    It is the segment of the position, or the one before it if the position is at that segment's
    end. It is `NOWHERE` if the stream did not reach the position yet: nothing is counted then.
    """
    records: int = 0
    size_bytes: int = 0
    """The stored bytes of the entries before that of the position."""
    next_ms: int | None = None
    """The Unix time in milliseconds at which the record at the position was appended, or None.

    None means that the time is unknown, or that there is no record yet.
    """


class StreamView:
    """The segments and settings of one stream as they were at the last `look`.

    A view belongs to the event loop of its client.
    """

    def __init__(self, streams: Namespace, name: str) -> None:
        self.name = name
        self.segments: Sequence[StreamSegment] = ()
        self.life: str | None = None
        """The id of the stream's life that `segments` belong to (`StreamMetadata.life_id`).

        It is "" if the client may not read it, and None before the first `look`.
        """
        self.txid_is_time = True
        self._copied = False
        """Whether the stream is a copy that `replicate` made.

        Each run of a replication begins the ledger of the copy's segment in progress again, so the
        ledger of a position does not identify a copy.
        """
        self._streams = streams
        self._client = streams.client
        self._known = KnownSegments(streams.metadata(name))
        self._lengths: dict[int, tuple[int, int]] = {}
        """The number of payload bytes and of entries in closed ledgers, by ledger id."""
        self._readers: dict[int, LedgerReader] = {}

    async def look(self, *, anew: bool = False) -> None:
        """Read the segments again, and the life that they belong to.

        With `anew`, nothing that was read before is reused (see `KnownSegments`). Raises
        NoSuchStreamError if the stream does not exist.
        """
        if anew:
            self.forget()
        former, (self.life, self.segments) = self.life, await self._known.look()
        if self.life and self.life != former:
            metadata = self._streams.metadata(self.name)
            self._copied = await metadata.tree.exists(f"{metadata.paths.root}/{MARKER}")
        # A stream may have very many segments, so look at all of them only if that is needed.
        if self._readers or len(self._lengths) > len(self.segments):
            kept = {segment.ledger_id for segment in self.segments}
            for ledger_id in [*self._readers]:
                if ledger_id not in kept:
                    self._readers.pop(ledger_id).close()
            self._lengths = {k: v for k, v in self._lengths.items() if k in kept}

    def forget(self) -> None:
        """Forget the segments that were read, so that the next `look` reads all their nodes again.

        Call this if the ledger of a segment is gone.
        """
        self._known.forget()

    async def open(self) -> None:
        """Read the segments for the first time, and the settings of the stream.

        Raises NoSuchStreamError if it does not exist.
        """
        await self.look()
        settings = await self._streams.stream_settings(self.name)
        self.txid_is_time = settings.txids == "time"

    def close(self) -> None:
        """Close the ledgers that the view holds open."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def origin(self, segment: StreamSegment) -> Origin:
        """Return the stream and the segment from which records come, as an `Origin`."""
        return Origin(self.name, segment, self.txid_is_time)

    def now_ms(self) -> int:
        """Return the present time in milliseconds."""
        return self._client.clock.now_ms()

    async def find(self, start: Start) -> DLSN:
        """Return the position at which a reader with this start would begin.

        It is searched in the segments of the last `look`. Raises UsageError for an invalid start,
        and the errors of reading a ledger.
        """
        return await find(self._client, self.segments, start, self._streams.password)

    async def find_end(self, end: Start) -> DLSN:
        """Return the position before which a reader with this end would stop.

        It is searched in the segments of the last `look`. Raises UsageError for an invalid end, and
        the errors of reading a ledger.
        """
        return await find_end(self._client, self.segments, end, self._streams.password)

    @property
    def oldest(self) -> DLSN:
        """The first position that was not truncated."""
        return oldest_position(self.segments)

    # -- ledgers ------------------------------------------------------------------------------

    async def _reader(self, segment: StreamSegment) -> LedgerReader:
        """Return the ledger of a segment.

        For a segment in progress it is in the state of the last open or refresh.
        """
        found = self._readers.pop(segment.ledger_id, None)
        if found is None or (found.ledger_closed is False and not segment.in_progress):
            found = await self._client.open_ledger(
                segment.ledger_id, password=self._streams.password, recover=not segment.in_progress
            )
        self._readers[segment.ledger_id] = found  # keep the most recently used one last
        while len(self._readers) > READERS_MAX:
            self._readers.pop(next(iter(self._readers))).close()
        return found

    async def _size(self, segment: StreamSegment) -> tuple[int, int]:
        """Return the bytes and entries in the ledger of a completed segment."""
        size = self._lengths.get(segment.ledger_id)
        if size is None:
            metadata = await self._client.ledger_metadata(segment.ledger_id)
            if not metadata.closed:  # its writer died before it closed the ledger
                metadata = (await self._reader(segment)).metadata
            size = (metadata.length, metadata.last_entry_id + 1)
            self._lengths[segment.ledger_id] = size
        return size

    def _segment(self, lssn: int) -> StreamSegment | None:
        at = self._index(lssn)
        found = self.segments[at] if at < len(self.segments) else None
        return found if found is not None and found.lssn == lssn else None

    def _index(self, lssn: int) -> int:
        """Return the index of the first segment with this number or a later one."""
        return bisect_left(self.segments, lssn, key=lambda segment: segment.lssn)

    # -- planning -----------------------------------------------------------------------------

    async def splits(
        self, start: DLSN, end: DLSN | None, sequence: int | None = None, *,
        reached: bool = False, counts: bool = False,
    ) -> tuple[list[StreamSplit], list[Gap]]:  # fmt: skip
        """Return the splits of start..end that exist, and the gaps.

        `end` is None for everything that is acknowledged now. `sequence` is the sequence of the
        record at `start`, or None if it is unknown. A segment whose ledger was deleted is a gap,
        even if nobody truncated it. `reached` says that everything before `end` was once
        acknowledged, whatever bookies report now. With `counts`, only the number of records is
        needed.

        Raises NoSuchStreamError, StreamGapError if another stream has the name now, and the errors
        of reading a ledger.
        """
        life = self.life
        for look in range(LOOKS_MAX):
            parts, gaps = lay_out(self.segments, start, end, sequence, reached=reached)
            found = await each(parts, lambda part: self._split_or_gap(part, reached, counts))
            missing = [one for one in found if isinstance(one, Gap)]
            if not missing:
                break
            if look:
                await asyncio.sleep(LOOK_DELAY_S)
            await self.look(anew=True)
            if self.life != life:
                raise another_stream(self.name, start)
        every = sorted([*gaps, *missing], key=lambda gap: gap.first)
        return [one for one in found if isinstance(one, StreamSplit)], every

    async def _split_or_gap(
        self, part: SegmentRange, reached: bool, counts: bool
    ) -> StreamSplit | Gap | None:
        try:
            return await self._split(part, reached, counts)
        except NoSuchLedgerError:
            behind = part.segment.first_dlsn.next_segment()
            return Gap("lost", part.start, part.end or behind)

    async def _split(self, part: SegmentRange, reached: bool, counts: bool) -> StreamSplit | None:
        segment = part.segment
        origin = self.origin(segment)
        if counts and (split := counted(origin, part)) is not None:
            return split
        if not segment.in_progress:
            size_bytes, entries = await self._size(segment)
            # The ledger of a lost segment may have been restored: it shows where the segment ends.
            last = entries - 1 if segment.lost else segment.last_entry_id
            return self._marked(split_of(origin, part, last, size_bytes, entries))
        reader = await self._reader(segment)
        last = reader.last_add_confirmed
        if part.end is None or last < part.end.entry_id:
            last = await reader.refresh()
        if part.end is not None and reached:  # tasks wait until bookies know this entry again
            last = max(last, part.end.entry_id)
        if last < 0:
            return None
        known = min(last, reader.last_add_confirmed)
        size_bytes = (await reader.read_entry(known)).ledger_length if known >= 0 else 0
        return self._marked(split_of(origin, part, last, size_bytes, last + 1))

    def _marked(self, split: StreamSplit | None) -> StreamSplit | None:
        """Note in a split whether it is one of a copy."""
        if split is None or not self._copied:
            return split
        return replace(split, life_of_copy=self.life or "")

    # -- where it ends ------------------------------------------------------------------------

    async def frontier(self, floor: DLSN | None = None) -> CountedPosition:
        """Return the position after the last acknowledged record.

        Entries before `floor` are not read. Raises NoSuchLedgerError if the ledger of the segment
        in progress is gone, and the errors of reading it.
        """
        for segment in reversed(self.segments):
            if segment.in_progress:
                mark = await self._frontier_in(segment, floor)
                if mark is not None:
                    return mark
            elif segment.record_count:
                size_bytes = await self._known_bytes(segment)
                behind = segment.first_dlsn.next_segment()
                return CountedPosition(behind, segment.lssn, segment.record_count, size_bytes)
        oldest = self.oldest
        return CountedPosition(oldest, oldest.lssn)

    async def _frontier_in(
        self, segment: StreamSegment, floor: DLSN | None, last: int | None = None
    ) -> CountedPosition | None:
        """Return the position after the last record of a segment, or None if it has no record.

        The search looks at no entry after `last` (by default the last acknowledged one) or before
        `floor`.
        """
        reader = await self._reader(segment)
        at = await reader.refresh() if last is None else last
        lowest = floor.entry_id if floor is not None and floor.lssn == segment.lssn else 0
        while at >= lowest:
            entry = await reader.read_entry(at)
            users = decode(segment, at, bytes(entry.payload)).users()
            if len(users):
                position = DLSN(segment.lssn, at + 1, 0)
                return CountedPosition(
                    position, segment.lssn, users.positions[-1], entry.ledger_length
                )
            at -= 1
        return None

    # -- places -------------------------------------------------------------------------------

    async def mark(self, position: DLSN) -> CountedPosition:
        """Return a position with the number of records and bytes of its segment before it.

        A position that no longer exists counts as the oldest one that exists. A position after the
        last record of a completed segment counts as the beginning of the next segment. For a
        position that the stream did not reach yet, see `CountedPosition.lssn`. If the ledger of the
        position is gone, nothing is counted. Raises the errors of reading a ledger.
        """
        if not self.segments:
            return CountedPosition(position, position.lssn)
        position = max(position, self.oldest)
        segment = self._segment(position.lssn)
        if segment is None:  # between two segments, or after the last
            at = self._index(position.lssn)
            if not at:
                return CountedPosition(position, position.lssn)
            before = self.segments[at - 1]
            if before.in_progress or (
                at == len(self.segments) and position > before.first_dlsn.next_segment()
            ):
                return CountedPosition(position, NOWHERE)
            return await self._end_of(before, position)
        if not segment.in_progress and (not segment.record_count or position > segment.last_dlsn):
            return await self._end_of(segment, position)
        try:
            return await self._mark_in(segment, position)
        except NoSuchLedgerError:
            return CountedPosition(position, segment.lssn)  # reading reports the loss

    async def _end_of(self, segment: StreamSegment, position: DLSN) -> CountedPosition:
        """Return a position at the end of a completed segment, or after it."""
        position = max(position, segment.first_dlsn.next_segment())
        size_bytes = await self._known_bytes(segment)
        return CountedPosition(position, segment.lssn, segment.record_count, size_bytes)

    async def _mark_in(self, segment: StreamSegment, position: DLSN) -> CountedPosition:
        reader = await self._reader(segment)
        last = reader.last_add_confirmed
        if segment.in_progress and last < position.entry_id:
            last = await reader.refresh()
        before_bytes: int | None = None
        for entry_id in range(position.entry_id, last + 1):
            entry = await reader.read_entry(entry_id)
            everything = decode(segment, entry_id, bytes(entry.payload))
            if before_bytes is None:
                before_bytes = entry.ledger_length - len(entry.payload)
            for at, slot in enumerate(everything.slots):
                if everything.flags[at] or DLSN(segment.lssn, entry_id, slot) < position:
                    continue
                told = creation_time_ms(segment, entry_id, everything, at)
                if told is None and self.txid_is_time:
                    told = everything.txids[at]
                next_ms = None if told is None or told > TIME_MAX_MS else told
                records = everything.positions[at] - 1
                return CountedPosition(position, segment.lssn, records, before_bytes, next_ms)
        # The position is after all records, so everything in the segment is before it.
        if not segment.in_progress:
            return await self._end_of(segment, position)
        if position > DLSN(segment.lssn, last + 1, 0):
            return CountedPosition(position, NOWHERE)
        found = await self._frontier_in(segment, None, last)  # what comes meanwhile is after it
        if found is None:
            return CountedPosition(position, segment.lssn)
        return CountedPosition(position, segment.lssn, found.records, found.size_bytes)

    def reached(self, mark: CountedPosition) -> StreamOffset:
        """Return a position as a checkpoint stores it, with what identifies the stream later."""
        counted_in, here = self._segment(mark.lssn), self._segment(mark.position.lssn)
        sequence: int | None = None
        if (
            counted_in is not None
            and (here is counted_in or not counted_in.in_progress)
            and not (here is counted_in and counted_in.lost)
            and counted_in.first_sequence_id >= 0
        ):
            sequence = counted_in.first_sequence_id + mark.records
        ledger_id = here.ledger_id if here is not None else None
        if here is not None and here.in_progress and mark.position == here.first_dlsn:
            ledger_id = None  # if it stays empty, its number is assigned again with another ledger
        return StreamOffset(mark.position, ledger_id, sequence, self.life or None)

    def knows(self, mark: CountedPosition) -> bool:
        """Return whether the position is counted, in a segment that is still listed."""
        return self._segment(mark.lssn) is not None

    def same_stream(self, reached: StreamOffset) -> bool:
        """Return whether a stored position is in this stream, not in a former one of its name.

        Another life means another stream. The life may be unknown in an old checkpoint, and
        DistributedLog's own programs delete and create streams without changing it. The ledger of
        the position and the number of records before it may then still show the difference. A copy
        that `replicate` made has other ledgers from time to time, so its life decides.
        """
        position = reached.position
        if reached.life and self.life and reached.life != self.life:
            return False
        if not self.segments:
            return position <= self.oldest
        here = self._segment(position.lssn)
        if here is None:
            last = self.segments[-1]
            if position.lssn != last.lssn + 1 or reached.sequence is None:
                return position.lssn <= last.lssn + 1
            if last.in_progress:
                return False  # a segment in progress has no position after its end
            return last.first_sequence_id < 0 or reached.sequence == last.following_sequence_id
        if reached.ledger_id is not None and not (self._copied and reached.life):
            return reached.ledger_id == here.ledger_id
        if position != here.first_dlsn or here.first_sequence_id < 0:
            return True
        return reached.sequence in (None, here.first_sequence_id)

    # -- how much -----------------------------------------------------------------------------

    def records_between(self, start: CountedPosition, end: CountedPosition) -> int:
        """Return the number of acknowledged records between two positions, without lost records."""
        if end.position <= start.position:
            return 0
        between = self.segments[self._index(start.lssn) : self._index(end.lssn)]
        records = sum(segment.known_records for segment in between)
        return self._known_part(end) + records - self._known_part(start)

    def _known_part(self, mark: CountedPosition) -> int:
        """Return the number of records of a position's own segment before it.

        Lost records are not counted.
        """
        segment = self._segment(mark.lssn)
        return mark.records if segment is not None and not segment.lost else 0

    async def bytes_between(self, start: CountedPosition, end: CountedPosition) -> int:
        """Return the stored bytes of the entries between two positions.

        A ledger that is gone counts as 0. Raises MetadataError.
        """
        if end.position <= start.position:
            return 0
        between = self.segments[self._index(start.lssn) : self._index(end.lssn)]
        sizes = await each(between, self._known_bytes)
        return max(end.size_bytes - start.size_bytes + sum(sizes), 0)

    async def _known_bytes(self, segment: StreamSegment) -> int:
        try:
            return (await self._size(segment))[0] if not segment.in_progress else 0
        except NoSuchLedgerError:
            return 0  # the segment was truncated just now

    # -- limits -------------------------------------------------------------------------------

    async def after_records(
        self, start: CountedPosition, limit: int, end: CountedPosition
    ) -> CountedPosition:
        """Return the position `limit` records after `start`, or `end` if there are fewer.

        If that position is in a segment whose ledger is gone, return the position after the
        segment, or `end` if that is before it. Reading up to there reports the loss. Raises the
        errors of reading a ledger.
        """
        if self.records_between(start, end) <= limit:
            return end
        left = limit + start.records
        for segment in self.segments[self._index(start.lssn) :]:
            if segment.lssn < end.lssn and left >= segment.known_records:
                left -= segment.known_records
                continue
            if not left:  # between two segments
                return await self.mark(segment.first_dlsn)
            number = left + 1
            try:
                found = await search_segment(
                    await self._reader(segment),
                    segment,
                    lambda _, __, records, at, number=number: records.positions[at] < number,  # type: ignore[misc]
                )
                return end if found is None else await self._before(end, segment, found)
            except NoSuchLedgerError:
                return await self._after_gone(segment, end)
        return end

    async def _before(
        self, end: CountedPosition, segment: StreamSegment, position: DLSN
    ) -> CountedPosition:
        return min(end, await self._mark_in(segment, position), key=_at)

    async def _after_gone(self, segment: StreamSegment, end: CountedPosition) -> CountedPosition:
        """Return the position after a segment whose ledger is gone, or `end` if that is before it.

        Reading up to this position reports the loss.
        """
        if segment.in_progress:
            return end
        return min(end, await self._end_of(segment, segment.first_dlsn.next_segment()), key=_at)

    async def after_bytes(
        self, start: CountedPosition, limit: int, end: CountedPosition, *, least: bool
    ) -> CountedPosition:
        """Return the position after the last entry that fits into `limit` stored bytes.

        The bytes are counted from `start` on, and the result is never after `end`. With `least`,
        the result includes one entry even if it does not fit. A segment whose ledger is gone is
        treated as by `after_records`. Raises the errors of reading a ledger.
        """
        left = limit + start.size_bytes
        for segment in self.segments[self._index(start.lssn) :]:
            if segment.lssn == end.lssn and left >= end.size_bytes:
                return end
            size_bytes = await self._known_bytes(segment)
            if segment.lssn < end.lssn and left >= size_bytes:
                left -= size_bytes
                continue
            first = start.position.entry_id if segment.lssn == start.position.lssn else 0
            try:
                behind = await self._fitting(segment, first, left)
                if behind == first and start.position >= DLSN(segment.lssn, first, 0):
                    if not least:
                        return start
                    behind = first + 1
                return await self._before(end, segment, DLSN(segment.lssn, behind, 0))
            except NoSuchLedgerError:
                return await self._after_gone(segment, end)
        return end

    async def _fitting(self, segment: StreamSegment, first: int, limit_bytes: int) -> int:
        """Return the id after the last entry up to which the ledger has at most this many bytes."""
        reader = await self._reader(segment)
        low, high = first, reader.last_add_confirmed + 1
        while low < high:
            middle = (low + high) // 2
            if (await reader.read_entry(middle)).ledger_length <= limit_bytes:
                low = middle + 1
            else:
                high = middle
        return low


def _at(mark: CountedPosition) -> DLSN:
    return mark.position


def another_stream(name: str, position: DLSN) -> StreamError:
    """Return the error for a stream whose name another stream has now."""
    return StreamGapError(
        f"stream {name} is not the one that was read up to position {position}: that one was "
        "deleted or renamed, and another stream has its name now",
        remedy="Start a streaming query with another checkpoint location, or with the option "
        "failOnDataLoss set to false: both read the present stream from its beginning. Run any "
        "other job again",
    )


def warn_if_reversed(name: str, start: DLSN, end: DLSN | None) -> None:
    """Log a warning if the end that a user named is before the start, so that nothing is read.

    It is not an error: only the records show that a time is before a position, for example.
    """
    if end is not None and end < start:
        logger.warning(
            "nothing of stream %s is read: the end is position %s, before the start %s",
            name, end, start,
        )  # fmt: skip


OPTION = "To continue after them, set the option failOnDataLoss to false, or start at a later place"


def lost(name: str, gaps: list[Gap], remedy: str = OPTION) -> StreamError:
    """Return the error for records that are gone."""
    told = "; ".join(str(gap) for gap in gaps)
    return StreamGapError(f"stream {name} lacks records: {told}", remedy=remedy)
