"""The writer of a stream, as applications use it.

    append -> PendingEntry -> SegmentWriter -> LedgerWriter
    acknowledged entries -> pending entries, in order -> the futures of the appends

This file decides what can be decided at once: whether a record may be appended, under which number,
and into which pending entry. `writer_task` does what has to be waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from quire._runtime.clock import Clock
from quire._runtime.opening import open_or_closed, represented
from quire._runtime.tasks import TaskSet
from quire.client.write.writer import payload_list
from quire.codec.distributedlog.control_record import CreationTime, FencingToken, encode_control
from quire.codec.distributedlog.dlsn import DLSN, INVALID_DLSN
from quire.codec.distributedlog.limits import MAX_USER_TXID
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES, entry_ends
from quire.codec.wire.v2 import Buffer
from quire.errors import (
    QuireError,
    RecordTooLargeError,
    StreamClosedError,
    StreamConditionError,
    StreamEndedError,
    TxidOrderError,
    UsageError,
    check_type,
)
from quire.streams.namespace.settings import StreamSettings
from quire.streams.write.pending_entry import Appended, PendingEntry
from quire.streams.write.producers import encode_mark
from quire.streams.write.segments import Segments
from quire.streams.write.writer_task import ByteBudget, WriterTask


class StreamWriter:
    """Appends records to one stream. Made by `Namespace.open_writer`.

    A record is *acknowledged* when `append` (or a call that waits) returns: it is part of an entry
    that is fsynced on the ack quorum of bookies, and so are all records before it. Readers see it
    at once. Where a ledger fails the writer goes on in a new segment by itself; what was not
    acknowledged is sent again only where it is proven not to be in the old one. The writer ends
    when another client opens the stream for writing (StreamFencedError), or when for `GIVE_UP_S`
    nothing can be written.

    Use as `async with`: leaving the block closes it.
    """

    name: str
    """The name of the stream."""
    settings: StreamSettings
    """The settings of the stream when it was opened."""

    def __init__(
        self,
        segments: Segments,
        settings: StreamSettings,
        clock: Clock,
        tasks: TaskSet,
        budget: ByteBudget,
    ) -> None:
        self.name = segments.metadata.paths.name
        self.settings = settings
        self._segments = segments
        self._clock = clock
        self._last_txid = segments.taken.last_txid
        self._sequence = segments.taken.next_sequence
        self._last: PendingEntry | None = None
        self._ending = False
        self._marks = segments.taken.marks
        """The control state after all entries that were handed over, acknowledged or not."""
        self._writer_task = WriterTask(segments, settings, tasks, budget)

    # -- what is known ------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The sequence id that the next record gets: how many records the stream ever had."""
        return self._sequence

    @property
    def last_txid(self) -> int:
        """The highest that was given; 0 on a new stream."""
        return self._last_txid

    @property
    def buffered_bytes(self) -> int:
        """Appended and not acknowledged."""
        return self._writer_task.budget.used_bytes

    @property
    def closed(self) -> bool:
        """Whether this handle can append no more."""
        return self._writer_task.closing or self._writer_task.failure is not None

    def __repr__(self) -> str:
        state = open_or_closed(self.closed)
        return represented(self, state, f"next_sequence={self._sequence}", stream=self.name)

    # -- appending ----------------------------------------------------------------------------

    async def append(
        self,
        payload: Buffer,
        *,
        txid: int | None = None,
        expect: int | None = None,
        token: str = "",
    ) -> DLSN:
        """Append one record and wait until it is acknowledged; its position.

        `txid`: in a stream whose settings say `txids = "given"`, not less than the one before.
        `expect`: append only if the record gets this sequence id; `token`: and only if this fencing
        token is in force (StreamConditionError: nothing was appended). Waits first while
        `BUFFERED_BYTES_MAX` are unacknowledged. If cancelled after it began, the record may still
        become part of the stream.

        Raises RecordTooLargeError, TxidOrderError, UsageError, StreamQuotaError (nothing was
        appended); StreamFencedError, StreamClosedError, and after `GIVE_UP_S` what kept the writer
        from going on (the record may or may not be part of the stream).
        """
        txids = None if txid is None else (txid,)
        appended = await self._append((payload,), txids, expect, token)
        await appended.wait()
        return appended[0]

    async def append_many(
        self,
        payloads: Sequence[Buffer],
        *,
        txids: Sequence[int] | None = None,
        expect: int | None = None,
        token: str = "",
    ) -> Appended:
        """Append records that follow each other, and wait until all are acknowledged; their
        positions. Errors and cancellation as for `append`; on an error a prefix of them may be in
        the stream."""
        appended = await self._append(payloads, txids, expect, token)
        await appended.wait()
        return appended

    async def submit_many(
        self,
        payloads: Sequence[Buffer],
        *,
        txids: Sequence[int] | None = None,
        expect: int | None = None,
        token: str = "",
    ) -> Appended:
        """As `append_many`, without waiting for the acknowledgement: `Appended.wait` does, and so
        does `flush`. Positions are known once acknowledged."""
        return await self._append(payloads, txids, expect, token)

    async def flush(self) -> DLSN | None:
        """Wait until all that was appended is acknowledged; the position of the last record that
        this writer appended, if there is one. Cancel-safe."""
        last = self._last
        if last is None:
            self._check()
            return None
        await asyncio.shield(last.waiter())
        return last.position(len(last) - 1)

    async def producer(self, producer_id: str) -> Producer:
        """Append for a producer that numbers its records, so that a retry is no duplicate."""
        await self._note_marks()
        return Producer(self, producer_id)

    async def set_fencing_token(self, token: str, *, expect: str = "") -> None:
        """Require this token of all later appends; "" removes it. It stays in force for the
        writers to come. `expect` must be the one in force: StreamConditionError otherwise. Durable
        on return."""
        await self._note_marks()
        self._check_token(expect)
        entry = self._writer_task.open_entry(self._sequence)
        entry.mark(encode_control(FencingToken(token)))
        self._marks.token = entry.token = token
        self._writer_task.schedule_send()
        await asyncio.shield(entry.waiter())

    # -- the stream ---------------------------------------------------------------------------

    async def roll(self) -> None:
        """Complete the open segment, if there is one: what comes next goes into another."""
        self._check()
        await self._writer_task.roll()

    async def end_stream(self) -> None:
        """End the stream for good, behind all that was appended: no writer can open it again, and
        readers come to an end. Durable on return; the writer is closed then."""
        self._check()
        entry = self._writer_task.open_entry(self._sequence)
        entry.ends = self._ending = True
        self._last = entry
        await self.close()

    async def close(self) -> None:
        """Wait for what was appended, then complete the segment. When this returns the stream has
        no segment in progress. Raises what the appends raise: then the next writer completes it.
        Safe to call again. If cancelled, it goes on in the background."""
        await self._writer_task.close()

    def abandon(self) -> None:
        """Stop without completing the segment: the next writer does. Nothing is waited for."""
        self._abandon(None)

    def _abandon(self, error: QuireError | None) -> None:
        self._writer_task.abandon(error)

    def on_end(self, ended: Callable[[], object]) -> None:
        """Call `ended` once, when the writer is closed or has failed."""
        self._writer_task.on_end = ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abandon()

    # -- what is appended ---------------------------------------------------------------------

    async def _append(
        self,
        payloads: Sequence[Buffer],
        txids: Sequence[int] | None,
        expect: int | None,
        token: str,
        sent_by: tuple[str, int] | None = None,
    ) -> Appended:
        """`sent_by`: the producer, and its number of the first record. Those that the stream has
        already are left out."""
        await self._writer_task.budget.wait()
        self._check()
        self._check_token(token)
        payloads = payload_list(payloads, "a record")
        given = self._txids(len(payloads), txids)
        longest = max(map(len, payloads), default=0)
        if longest > MAX_PAYLOAD_BYTES:
            raise RecordTooLargeError(
                f"a record of stream {self.name} has {longest} bytes; at most {MAX_PAYLOAD_BYTES} "
                "go into one. Nothing was appended"
            )
        if expect is not None and type(expect) is not int:
            check_type("expect", expect, int)
        if expect is not None and expect != self._sequence:
            raise StreamConditionError(
                f"stream {self.name} has {self._sequence} records, not {expect}: nothing was "
                "appended"
            )
        self._segments.check_quota(self._writer_task.queued_bytes + sum(map(len, payloads)))
        if sent_by is None:
            return self._take(payloads, given, None)
        known = self._marks.duplicates(*sent_by, len(payloads))
        return self._take(payloads[known:], given[known:], (sent_by[0], sent_by[1] + known))

    def _take(
        self, payloads: Sequence[Buffer], txids: Sequence[int], sent_by: tuple[str, int] | None
    ) -> Appended:
        parts: list[tuple[PendingEntry, int, int]] = []
        entry, first, taken_bytes = self._writer_task.open_entry(self._sequence), 0, 0
        for end in entry_ends(payloads, self.settings.entry_bytes, entry.size_bytes):
            if first or not end:
                entry = self._writer_task.new_entry(self._sequence)
            if end > first:
                self._mark(entry, sent_by, first, end)
                at, size_bytes = entry.add(payloads[first:end], txids[first:end])
                parts.append((entry, at, end - first))
                taken_bytes += size_bytes
                self._sequence += end - first
            first = end
        if parts:
            self._last, self._last_txid = entry, txids[-1]
            self._writer_task.appended(taken_bytes)
        return Appended(parts)

    def _mark(
        self, entry: PendingEntry, sent_by: tuple[str, int] | None, first: int, end: int
    ) -> None:
        """Say in the entry whose records follow, and when they were appended if their txids do not
        tell."""
        if not entry.size_bytes and self.settings.txids == "given":
            entry.mark(encode_control(CreationTime(self._clock.now_ms())))
        if sent_by is not None:
            producer_id, sequence = sent_by
            entry.mark(encode_mark(producer_id, sequence + first, end - first))
            last, at = sequence + end - 1, len(entry) + end - first - 1
            entry.sent_by.append((producer_id, last, at))
            self._marks.sent(producer_id, last, INVALID_DLSN)

    def _txids(self, count: int, txids: Sequence[int] | None) -> Sequence[int]:
        if self.settings.txids == "time":
            if txids is not None:
                raise UsageError(
                    f"stream {self.name} numbers its records by time: give no txid, or create it "
                    "with txids = 'given'"
                )
            return [max(self._clock.now_ms(), self._last_txid)] * count
        if txids is None or len(txids) != count:
            raise UsageError(f"stream {self.name} takes a txid with each record")
        before = self._last_txid
        if not {int}.issuperset(map(type, txids)):
            for txid in txids:
                check_type("a txid", txid, int)
        for txid in txids:
            if not before <= txid <= MAX_USER_TXID:
                raise TxidOrderError(
                    f"txid {txid} of stream {self.name} is not within {before}, the one before, "
                    f"and {MAX_USER_TXID}: nothing was appended"
                )
            before = txid
        return txids

    async def _note_marks(self) -> None:
        self._check()
        if not self._segments.taken.has_marks:
            await self._segments.metadata.note_marks()
            self._segments.taken.has_marks = True
            self._check()  # It may have ended meanwhile, and nobody would send what is put in now.

    def _check_token(self, token: str) -> None:
        if token != self._marks.token:
            raise StreamConditionError(
                f"fencing token {token!r} is not in force on stream {self.name}: nothing was "
                "appended",
                remedy="Somebody else may have set one: this writer should stop",
            )

    def _check(self) -> None:
        failure = self._writer_task.failure
        if self._ending and (failure is None or isinstance(failure, StreamClosedError)):
            raise StreamEndedError(f"stream {self.name} was ended: nothing can follow")
        if failure is not None:
            raise failure
        if self._writer_task.closing:
            raise StreamClosedError(f"the writer of stream {self.name} is closed")


class Producer:
    """Appends the records of one producer, which numbers them (from 0 on, ascending): a record
    whose number is not above the last one that the stream has is left out. What it was before a
    crash, of the producer or of the writer, the stream knows."""

    producer_id: str
    """The name of the producer."""

    def __init__(self, writer: StreamWriter, producer_id: str) -> None:
        self.producer_id = producer_id
        self._writer = writer

    def __repr__(self) -> str:
        state = open_or_closed(self._writer.closed)
        last = f"last_sequence={self.last_sequence}"
        return represented(self, state, last, name=self.producer_id, stream=self._writer.name)

    @property
    def last_sequence(self) -> int:
        """The number of its last record that was handed over; -1 if there is none."""
        return self._writer._marks.last_sequence(self.producer_id)

    async def append(
        self, payload: Buffer, sequence: int, *, txid: int | None = None, token: str = ""
    ) -> DLSN | None:
        """As `StreamWriter.append`; None where the record is in the stream already. Either way it
        is acknowledged when this returns."""
        txids = None if txid is None else (txid,)
        appended = await self.append_many((payload,), sequence, txids=txids, token=token)
        return appended[0] if len(appended) else None

    async def append_many(
        self,
        payloads: Sequence[Buffer],
        first_sequence: int,
        *,
        txids: Sequence[int] | None = None,
        token: str = "",
    ) -> Appended:
        """Records that are numbered from `first_sequence` on; the positions of those that were not
        in the stream. All are acknowledged when this returns."""
        writer, sent_by = self._writer, (self.producer_id, first_sequence)
        appended = await writer._append(payloads, txids, None, token, sent_by)
        if len(appended) < len(payloads):
            await writer.flush()  # those that are known may still be under way
        await appended.wait()
        return appended
