"""Reading a stream: one segment after another, up to its end or without end.

    segment list -> the segment of the position -> its ledger (closed: read, open: tail)
                 -> entries -> batches of records, from the position on

Records that no longer exist are reported (`Gap`), never skipped silently. A record is missing only
if it was truncated, or if its ledger, the end of its ledger or the number of its segment is gone.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from quire._runtime.opening import Opening, open_or_closed, represented
from quire.client import Client, LedgerReader
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import MAX_TXID
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.codec.entry.entry import EntryRun
from quire.errors import NoSuchLedgerError, StreamGapError, UsageError, check_type
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.read.ahead import AHEAD_ENTRIES, AHEAD_LEDGERS, ReadAhead
from quire.streams.read.positions import (
    EARLIEST,
    Start,
    check_position,
    checked_start,
    find,
    oldest_position,
)
from quire.streams.read.records import Gap, Record, RecordBatch, decode, lacks_end
from quire.streams.read.segment_list import SegmentList

H = TypeVar("H")

GAP_CHOICES = ("raise", "deliver", "skip")
MISSING_LOOKS = 3
"""The largest number of times to read the list of segments before a missing ledger counts as lost.

The ledger may be missing only because its segment was truncated a moment ago.
"""
MISSING_DELAY_S = 0.2
"""Seconds between two reads of the list of segments because of a missing ledger."""


class StreamReader:
    """A reader of one stream, from a position on. `Namespace.open_reader` opens it.

    Iterate over the reader (`async for record in reader`), or over `batches()`, which is much
    cheaper. Every record is acknowledged, and each one is delivered once and in order. The reader
    stops at its `end`, if it was opened with one. Otherwise it stops after the records that were
    acknowledged when it got there, or with `follow` when the stream is ended.

    Cancelling a read is safe: what was not delivered is delivered the next time. Reading raises:

    - StreamGapError if records are missing. The next read continues after the gap. With
      `on_gap="deliver"`, `batches` yields a `Gap` instead, and an iteration over records leaves the
      gap out. With `on_gap="skip"` both leave it out.
    - NoSuchStreamError if the stream does not exist, or if another stream got its name after the
      first read.
    - StreamDamagedError if an entry cannot be decoded, LaterStreamError if a later version wrote
      the entry, and MetadataError if the metadata cannot be decoded.
    - UnauthorizedError if the password of the namespace is not that of the stream's ledgers.
    - ReadError, RecoveryError or WriteError if too few bookies answer.
    - MetadataUnavailableError if the metadata store does not answer, and MetadataDeniedError if it
      refuses this client.
    - UsageError if the reader is closed, and ClientClosedError if the client is.
    """

    name: str
    """The name of the stream."""
    ended: bool
    """Whether the end of the stream was reached, so that nothing will ever follow."""

    def __init__(
        self,
        client: Client,
        metadata: StreamMetadata,
        *,
        start: Start = EARLIEST,
        end: DLSN | None = None,
        follow: bool = True,
        on_gap: str = "raise",
        password: bytes = b"",
    ) -> None:
        if on_gap not in GAP_CHOICES:
            raise UsageError(
                f"the argument on_gap must be one of {', '.join(GAP_CHOICES)}, not {on_gap!r}"
            )
        check_type("follow", follow, bool)
        start = checked_start(start)
        if end is not None:
            check_position(end)
        self.name = metadata.paths.name
        self._client = client
        self._metadata = metadata
        self._start = start
        self._end = end
        self._follow = follow
        self._on_gap = on_gap
        self._password = password
        self._position: DLSN | None = start if isinstance(start, DLSN) else None
        self._life: str | None = None
        """The id of the stream's life that the position belongs to (`StreamMetadata.life_id`), or
        None.
        """
        self.ended = False
        self._closed = False
        self._ahead = ReadAhead()
        self._lists: dict[SegmentList, None] = {}
        self._ledgers: dict[LedgerReader, None] = {}
        """The open ledger readers of running iterations, which may be waiting for entries."""

    @property
    def position(self) -> DLSN | None:
        """The position of the next record, where this or another reader can continue.

        It is None if nothing was read yet and the start must still be searched.
        """
        return self._position

    def __repr__(self) -> str:
        state = open_or_closed(self._closed)
        return represented(self, state, f"position={self._position}", stream=self.name)

    # -- reading ------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[Record, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                if isinstance(batch, RecordBatch):
                    for record in self.one_by_one(batch):
                        yield record

    def one_by_one(self, batch: RecordBatch) -> Iterator[Record]:
        """Yield the records of a batch that this reader has just delivered.

        `position` follows each record, so that a caller that stops among them can continue there.

        Args:
            batch: The batch.

        Yields:
            The records.
        """
        behind, self.ended = (self._position, self.ended), False
        for record in batch:
            self._position = record.position.next_slot()
            yield record
        self._position, self.ended = behind

    async def find_life(self) -> None:
        """Bind the reader to the stream that has the name now, so that it never reads another one.

        Without this call, the first read does so. Cancelling this call is safe.

        Raises:
            NoSuchStreamError: The stream does not exist, or another stream has its name.
            MetadataUnavailableError: The metadata store does not answer.
        """
        life = await self._metadata.life_id()
        if self._life is not None and life != self._life:
            raise self._metadata.replaced()
        self._life = life

    async def batches(self) -> AsyncGenerator[RecordBatch | Gap, None]:
        """Yield the records of one entry at a time.

        Cancelling is safe. Memory is bounded by the read windows of `ClientConfig`.

        Yields:
            A batch of records, or with `on_gap="deliver"` also a gap.

        Raises:
            StreamGapError: Records are missing, and `on_gap` is "raise".
            NoSuchStreamError: The stream does not exist, or another stream has its name.
            StreamDamagedError: An entry cannot be decoded.
            UsageError: The reader is closed.
            QuireError: Another error of `StreamReader`.
        """
        self._check_open()
        if self._position is None and self._start != EARLIEST:
            await self._metadata.tree.sync()  # the server may lag behind the writer
        async with self._listed() as listed:
            self._life = listed.life
            if self._position is None:
                self._position = await find(
                    self._client, listed.segments, self._start, self._password
                )
            looked_at: DLSN | None = None
            while not self._done():
                self._check_open()  # `close` does not know a list or ledger that is being opened
                segment = self._segment_of(listed)
                if segment is None:
                    self.ended = _is_ended(listed.segments)
                    if self.ended or (not self._follow and looked_at == self._at):
                        return
                    if self._follow:
                        await listed.changed()
                    else:
                        looked_at = self._at
                        await self._look_at_newest(listed)
                    continue
                if self._is_behind(segment):
                    self._position = segment.first_dlsn.next_segment()
                    continue
                gap = self._gap_before(segment, listed)
                if gap is not None and gap.kind == "lost" and not await self._still(gap, listed):
                    continue
                if gap is not None:
                    if self._tell(gap):
                        yield gap
                    continue
                async with aclosing(self._segment(segment, listed)) as batches:
                    async for batch in batches:
                        yield batch
                        self._check_open()
                if self._at_the_end(segment, listed):
                    await self._look_at_newest(listed)
                    if self._at_the_end(segment, listed):
                        return

    def close(self) -> None:
        """Close the reader. Nothing is held on bookies.

        Iterations raise UsageError from now on, also those that wait for records. Calling this
        again is safe.
        """
        self._closed = True
        for listed in self._lists:
            listed.end(self._closed_error())
        for ledger in self._ledgers:
            ledger.close()

    @asynccontextmanager
    async def _listed(self) -> AsyncGenerator[SegmentList, None]:
        async with SegmentList(self._metadata, self._life) as listed:
            with _among(self._lists, listed):
                try:
                    yield listed
                finally:
                    self._ahead.close()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> UsageError:
        return UsageError(
            f"the reader of stream {self.name} is closed", remedy="Open another reader"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _look_at_newest(self, listed: SegmentList) -> None:
        """Read the list of segments again, at what may be the end of the stream.

        The writer may have begun segments since the list was read, and the server may lag behind
        it.
        """
        await self._metadata.tree.sync()
        await listed.look()

    def _done(self) -> bool:
        return self.ended or (self._end is not None and self._at >= self._end)

    def _at_the_end(self, segment: StreamSegment, listed: SegmentList) -> bool:
        """Return whether the position is in the segment in progress, where this reader stops.

        This is always False with `follow`, and if the list has been read again meanwhile and says
        something else about the segment.
        """
        ends = not self._follow and segment.in_progress and self._at.lssn == segment.lssn
        return ends and self._segment_of(listed) == segment

    @property
    def _at(self) -> DLSN:
        assert self._position is not None
        return self._position

    # -- which segment ------------------------------------------------------------------------

    def _segment_of(self, listed: SegmentList) -> StreamSegment | None:
        """Return the segment that holds the position, else the first one after it, or None."""
        at = bisect_left(listed.segments, self._at.lssn, key=_number)
        return listed.segments[at] if at < len(listed.segments) else None

    def _is_behind(self, segment: StreamSegment) -> bool:
        """Return whether the position is after the segment's last record.

        Nothing is missing then, even if the segment is truncated.
        """
        if segment.in_progress or self._at.lssn != segment.lssn:
            return False
        return self._at > max(segment.last_dlsn, segment.first_dlsn)

    def _gap_before(self, segment: StreamSegment, listed: SegmentList) -> Gap | None:
        """Return the gap between the position and the first record that can be read, or None."""
        position, first = self._at, segment.first_dlsn
        if segment.truncation is Truncation.TRUNCATED:
            first_left = bisect_left(listed.segments, segment.lssn, key=_number)
            following = listed.segments[first_left:]
            return Gap("truncated", position, oldest_position(following))
        if segment.truncation is Truncation.PARTIAL:
            first = segment.min_active_dlsn
        if position >= first:
            return None
        # Everything before the oldest segment was truncated. A number that is missing after it was
        # lost.
        if segment is listed.segments[0] or position.lssn == segment.lssn:
            return Gap("truncated", position, first)
        return Gap("lost", position, segment.first_dlsn)

    async def _still(self, gap: Gap, listed: SegmentList) -> bool:
        """Return whether the gap is still there after reading the list of segments again.

        Reading the list is not atomic, so it may show a gap that does not exist.
        """
        await listed.look(anew=True)
        segment = self._segment_of(listed)
        return segment is not None and self._gap_before(segment, listed) == gap

    def _tell(self, gap: Gap) -> bool:
        """Move the position after the gap, and return whether the gap is to be delivered.

        Raises StreamGapError if `on_gap` is "raise".
        """
        self._position = gap.behind
        if self._on_gap == "raise":
            error = StreamGapError(
                f"stream {self.name}: {gap}",
                remedy="Begin after the gap, or open the reader with on_gap='deliver'",
            )
            error.kind = gap.kind
            raise error
        return self._on_gap == "deliver"

    # -- one segment --------------------------------------------------------------------------

    async def _segment(
        self, segment: StreamSegment, listed: SegmentList
    ) -> AsyncGenerator[RecordBatch | Gap, None]:
        """Yield the records from the position on, up to the end of the segment.

        In a segment in progress this stops at the last acknowledged record, or with `follow` waits
        for further records.
        """
        first = self._at.entry_id if self._at.lssn == segment.lssn else 0
        self._read_ahead(segment, listed)
        try:
            ahead = await self._ahead.take(segment.ledger_id)
            async with await self._open(segment) if ahead is None else ahead.reader as reader:
                known = None if ahead is None else ahead.runs
                async with aclosing(self._runs(reader, first, known)) as runs:
                    async for run in runs:
                        for entry_id, payload in enumerate(run.payloads(), run.first):
                            batch = self._batch(segment, entry_id, payload)
                            if batch is not None:
                                yield batch
                            if self._done():
                                return
                closed, last = reader.ledger_closed, reader.last_add_confirmed
        except NoSuchLedgerError:
            gap = await self._missing(segment, listed)
            if gap is not None and self._tell(gap):
                yield gap
            return
        if closed and self._at.entry_id <= last:
            return  # it was closed after the range to read was decided, so entries are left
        if closed and lacks_end(segment, last):
            gap = Gap("lost", self._at, segment.first_dlsn.next_segment())
            if self._tell(gap):
                yield gap
            return
        if closed and segment.in_progress:
            await self._leave_in_progress(segment, last, listed)
        elif closed:
            self._position = segment.first_dlsn.next_segment()

    async def _leave_in_progress(
        self, segment: StreamSegment, last: int, listed: SegmentList
    ) -> None:
        """Move on after the closed ledger of a segment in progress, or wait for its completion.

        Only the list says that a segment has ended. If the ledger of a copy is closed too early, as
        autorecovery does when its writer is gone, the replication gives the segment another ledger
        with more entries. If nothing was written to the ledger, the number is assigned again.
        """
        await listed.look()
        if self._segment_of(listed) != segment:
            return  # it was completed, or has another ledger
        if last >= 0 and listed.segments[-1] != segment:
            self._position = segment.first_dlsn.next_segment()
        elif self._follow:
            await listed.changed()

    def _read_ahead(self, segment: StreamSegment, listed: SegmentList) -> None:
        """Begin to read the small completed segments after this one."""
        at = bisect_left(listed.segments, segment.lssn, key=_number) + 1
        for upcoming in listed.segments[at : at + AHEAD_LEDGERS]:
            if upcoming.in_progress or upcoming.truncation is not Truncation.ACTIVE:
                return
            if self._end is not None and self._end <= upcoming.first_dlsn:
                return
            if upcoming.last_entry_id < AHEAD_ENTRIES:
                self._ahead.begin(upcoming.ledger_id, partial(self._open, upcoming))

    async def _open(self, segment: StreamSegment) -> LedgerReader:
        reader = await self._client.open_ledger(segment.ledger_id, password=self._password)
        if segment.in_progress or reader.ledger_closed:
            return reader
        # The writer that completed the segment died before it closed the ledger.
        reader.close()
        return await self._client.open_ledger(
            segment.ledger_id, password=self._password, recover=True
        )

    async def _runs(
        self, reader: LedgerReader, first: int, known: Sequence[EntryRun] | None
    ) -> AsyncGenerator[EntryRun, None]:
        """Yield the entries from `first` on. `known` are those that were read ahead, or None."""
        self._check_open()  # it may have been closed while the ledger was opened
        if known is not None and not first:
            for run in known:
                yield run
            return
        last = reader.last_add_confirmed
        if not self._follow or reader.ledger_closed:
            runs = reader.read_runs(first, last) if first <= last else None
        else:
            runs = reader.tail_runs(first)
        if runs is None:
            return
        try:
            with _among(self._ledgers, reader):
                async with aclosing(runs):
                    async for run in runs:
                        yield run
        except UsageError:
            self._check_open()  # this error names the stream, and not one of its ledgers
            raise

    def _batch(self, segment: StreamSegment, entry_id: int, payload: bytes) -> RecordBatch | None:
        """Return the records of an entry that are to be delivered, or None if there are none.

        The position moves after the entry.
        """
        records = decode(segment, entry_id, payload)
        if records.end_of_stream is not None:
            self.ended = True
        records = records.users()
        here = DLSN(segment.lssn, entry_id, 0)
        if self._at > here:
            records = records.part(bisect_left(records.slots, self._at.slot_id), len(records))
        self._position = DLSN(segment.lssn, entry_id + 1, 0)
        end = self._end
        if end is not None and end <= self._position and end > here:
            if end.entry_id == entry_id and end.lssn == segment.lssn:
                records = records.part(0, bisect_left(records.slots, end.slot_id))
            self._position = end
        return RecordBatch(segment, entry_id, records) if len(records) else None

    async def _missing(self, segment: StreamSegment, listed: SegmentList) -> Gap | None:
        """Return the gap of a segment whose ledger is gone.

        Returns None if the segment is gone as well, because then nothing is lost.
        """
        for _ in range(MISSING_LOOKS):
            now = {found.lssn: found for found in await listed.look(anew=True)}.get(segment.lssn)
            if now is None or (now.ledger_id, now.truncation) != (
                segment.ledger_id,
                segment.truncation,
            ):
                return None
            await asyncio.sleep(MISSING_DELAY_S)
        return Gap("lost", self._at, segment.first_dlsn.next_segment())


class OpeningReader(Opening[StreamReader]):
    """The result of `Namespace.open_reader`. Iterating over it opens the reader and reads."""

    async def __aiter__(self) -> AsyncGenerator[Record, None]:
        async with self as reader, aclosing(aiter(reader)) as records:
            async for record in records:
                yield record


@contextmanager
def _among(handles: dict[H, None], handle: H) -> Iterator[None]:
    """Keep a handle in `handles` while the block runs."""
    handles[handle] = None
    try:
        yield
    finally:
        del handles[handle]


def _number(segment: StreamSegment) -> int:
    return segment.lssn


def _is_ended(segments: Sequence[StreamSegment]) -> bool:
    """Return whether nothing can follow these segments."""
    return bool(segments) and not segments[-1].in_progress and segments[-1].last_txid == MAX_TXID
