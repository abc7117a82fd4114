"""The writer of a stream, as applications use it.

    append -> PendingEntry -> SegmentWriter -> LedgerWriter
    acknowledged entries -> pending entries, in order -> the futures of the appends

This module makes the decisions that need no waiting: whether a record may be appended, which number
it gets, and which pending entry takes it. `writer_task` does everything that has to wait.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from datetime import datetime
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
    done_in_part,
    nothing_done,
    whole_number,
)
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import WriterClaim
from quire.streams.write.envelopes import Headers, Text, sealed
from quire.streams.write.pending_entry import Appended, PendingEntry
from quire.streams.write.producers import encode_mark
from quire.streams.write.segments import Segments
from quire.streams.write.writer_task import ByteBudget, WriterTask


class StreamWriter:
    """A writer that appends records to one stream. `Namespace.open_writer` opens it.

    A record is acknowledged when `append`, or another call that waits, returns. Its entry and all
    records before it are then fsynced on an ack quorum of bookies. Readers see it as soon as the
    bookies know that it is acknowledged, usually some milliseconds later.

    If a ledger fails, the writer continues in a new segment. It sends a record again only if
    recovery of the old ledger proved that the record is not in it. The writer ends when another
    client opens the stream for writing (StreamFencedError), or when nothing could be written for 60
    seconds (`GIVE_UP_S`).

    Use it with `async with`: leaving the block closes the writer, and an exception abandons it.
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
        ended: Callable[[StreamWriter], object],
    ) -> None:
        """Begin to write. `ended` is called once, when the writer is closed or has failed."""
        self.name = segments.metadata.paths.name
        self.settings = settings
        self._segments = segments
        self._clock = clock
        self._last_txid = segments.taken.last_txid
        self._sequence = segments.taken.next_sequence
        self._last: PendingEntry | None = None
        self._ending = False
        self._marks = segments.taken.marks
        """The producers and the fencing token after all entries that were appended, acknowledged or
        not.
        """
        self._writer_task = WriterTask(
            segments, settings, tasks, budget, functools.partial(ended, self)
        )

    # -- state --------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The sequence id of the next record.

        It is the number of records that were ever appended to the stream, including those of this
        writer that are not acknowledged yet. A lost segment counts as 2,147,483,647 records.
        """
        return self._sequence

    @property
    def last_txid(self) -> int:
        """The highest txid that was assigned. It is 0 in a new stream."""
        return self._last_txid

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that were appended and not acknowledged, record headers included."""
        return self._writer_task.budget.used_bytes

    @property
    def closed(self) -> bool:
        """Whether this handle can no longer append."""
        return self._writer_task.closing or self._writer_task.failure is not None

    @property
    def _claim(self) -> WriterClaim:
        """The claim under which this writer writes, which identifies the stream."""
        return self._segments.taken.claim

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
        key: Text | None = None,
        headers: Headers | None = None,
        event_time: datetime | None = None,
    ) -> DLSN:
        """Append one record, and wait until it is acknowledged.

        On return the record is durable on an ack quorum. The call first waits while 16 MiB
        (`BUFFERED_BYTES_MAX`) of this writer, or 64 MiB of all writers of the same `Namespace`, are
        unacknowledged. If it is cancelled after that, the record may still become part of the
        stream.

        Args:
            payload: The bytes of the record.
            txid: The transaction id of the record, not less than the one before. Pass it only if
                the stream's setting `txids` is "given".
            expect: Append only if the record gets this sequence id.
            token: The fencing token that must be in force, or "" if the stream must have none.
            key: The key of the record, as bytes or as a text, which is encoded in UTF-8.
            headers: The headers of the record by name. A value is bytes or a text.
            event_time: The time of the event that the record describes, with a time zone.

        Returns:
            The position of the record.

        Raises:
            RecordTooLargeError: The record is too large. Nothing was appended.
            TxidOrderError: The txid is less than the one before, or larger than the format allows.
                Nothing was appended.
            StreamConditionError: `expect` or `token` does not match. Nothing was appended.
            StreamQuotaError: The stream would hold more bytes than its setting `bytes_max` allows.
                Nothing was appended.
            UsageError: An argument is not valid. Nothing was appended.
            StreamEndedError: The stream was ended by this writer. Nothing was appended.
            StreamFencedError: Another client opened the stream for writing. Outcome unknown.
            StreamClosedError: The writer was closed or abandoned. Outcome unknown.
            ClientClosedError: The client was closed. Outcome unknown.
            UnauthorizedError: A bookie does not accept this client. Outcome unknown.
            QuireError: Nothing could be written for 60 seconds, and this is the reason. Outcome
                unknown.
        """
        txids = None if txid is None else (txid,)
        appended = await self._append(
            (payload,),
            txids,
            expect,
            token,
            None,
            None if key is None else (key,),
            None if headers is None else (headers,),
            None if event_time is None else (event_time,),
        )
        await appended.wait()
        return appended[0]

    async def append_many(
        self,
        payloads: Sequence[Buffer],
        *,
        txids: Sequence[int] | None = None,
        expect: int | None = None,
        token: str = "",
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        event_times: Sequence[datetime | None] | None = None,
    ) -> Appended:
        """Append several records in order, and wait until all of them are acknowledged.

        On return all records are durable on an ack quorum. If the call fails or is cancelled, any
        number of the records, from the first on, may be part of the stream.

        Args:
            payloads: The bytes of each record.
            txids: A transaction id for each record, as for `append`.
            expect: Append only if the first record gets this sequence id.
            token: The fencing token that must be in force, or "" if the stream must have none.
            keys: A key for each record, as for `append`, or None for one without a key.
            headers: The headers of each record, as for `append`, or None for one without headers.
            event_times: An event time for each record, as for `append`, or None for one without.

        Returns:
            The positions of the records.

        Raises:
            QuireError: See `append`.
        """
        appended = await self._append(
            payloads, txids, expect, token, None, keys, headers, event_times
        )
        await appended.wait()
        return appended

    async def submit_many(
        self,
        payloads: Sequence[Buffer],
        *,
        txids: Sequence[int] | None = None,
        expect: int | None = None,
        token: str = "",
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        event_times: Sequence[datetime | None] | None = None,
    ) -> Appended:
        """Append several records in order, without waiting for their acknowledgement.

        Nothing is durable on return. Wait for the records with `Appended.wait` or `flush`. Their
        positions are known when they are acknowledged. If the call is cancelled while it waits for
        buffer space, nothing was appended.

        Args:
            payloads: The bytes of each record.
            txids: A transaction id for each record, as for `append`.
            expect: Append only if the first record gets this sequence id.
            token: The fencing token that must be in force, or "" if the stream must have none.
            keys: A key for each record, as for `append`, or None for one without a key.
            headers: The headers of each record, as for `append`, or None for one without headers.
            event_times: An event time for each record, as for `append`, or None for one without.

        Returns:
            The records, to wait for.

        Raises:
            QuireError: See `append`. Nothing was appended.
        """
        return await self._append(payloads, txids, expect, token, None, keys, headers, event_times)

    async def flush(self) -> DLSN | None:
        """Wait until every record that was appended is acknowledged.

        On return these records are durable on an ack quorum. Cancelling this call is safe: it takes
        no record back.

        Returns:
            The position of the last record that this writer appended, or None if there is none.

        Raises:
            QuireError: The writer failed before the records were acknowledged, or it appended none
                and is closed. See `append`.
        """
        last = self._last
        if last is None:
            self._check()
            return None
        try:
            await asyncio.shield(last.waiter())
        except QuireError as error:
            # The last record may never have been sent. That says nothing about those before it.
            raise done_in_part(error) from error.__cause__
        return last.position(len(last) - 1)

    async def producer(self, producer_id: str) -> Producer:
        """Return a producer, which numbers its records so that a retry creates no duplicate.

        Cancelling this call is safe.

        Args:
            producer_id: The name of the producer. It must be unique in the stream.

        Returns:
            The producer. It ends with this writer.

        Raises:
            UsageError: The name is not text.
            NoSuchStreamError: The stream was deleted or renamed.
            MetadataError: The metadata store does not answer or refuses this client.
            QuireError: The writer is closed or has failed.
        """
        check_type("the name of a producer", producer_id, str)
        await self._note_marks()
        return Producer(self, producer_id)

    async def set_fencing_token(self, token: str, *, expect: str = "") -> None:
        """Set the fencing token that all later appends must pass.

        The token is durable on return, and stays in force for later writers. If the call is
        cancelled, the token may still be set.

        Args:
            token: The new token. "" removes the token.
            expect: The token that must be in force now.

        Raises:
            StreamConditionError: Another token is in force. Nothing was changed.
            UsageError: The token is not valid. Nothing was changed.
            NoSuchStreamError: The stream was deleted or renamed. Nothing was changed.
            MetadataError: The metadata store does not answer or refuses this client. The token was
                not changed.
            QuireError: The writer failed. See `append`.
        """
        check_type("a fencing token", token, str)
        control = encode_control(FencingToken(token))  # raises before anything is changed
        await self._note_marks()
        self._check_token(expect)
        entry = self._writer_task.open_entry(self._sequence)
        if entry.size_bytes > self.settings.entry_bytes:  # many tokens must not make it too large
            entry = self._writer_task.new_entry(self._sequence)
        entry.mark(control)
        self._marks.token = entry.token = token
        self._writer_task.schedule_send()
        await asyncio.shield(entry.waiter())

    # -- the stream ---------------------------------------------------------------------------

    async def roll(self) -> None:
        """Complete the segment of all records that were appended. Later records go to a new one.

        On return every record that was appended before is durable, and its segment is completed.
        That includes records of `submit_many`. Records of calls that begin meanwhile may go to
        either segment. If the call is cancelled, the segment may be completed in the background, or
        stay open.

        A new segment needs `ensemble_size` writable bookies and the metadata store. While either is
        missing, the open segment is kept and takes further records. The call tries again for 60 s.

        Raises:
            NotEnoughBookiesError: Too few bookies are writable for a new segment. The open segment
                is kept, and the writer can be used.
            MetadataUnavailableError: The metadata store does not answer. The open segment is kept,
                and the writer can be used.
            QuireError: The writer failed. See `append`.
        """
        self._check()
        await self.flush()
        self._check()
        await self._writer_task.roll()

    async def end_stream(self) -> None:
        """End the stream permanently after all records that were appended.

        On return the end is durable, and the writer is closed. No writer can open the stream again,
        and readers that follow it stop at the end. If the call is cancelled, it continues in the
        background.

        Raises:
            QuireError: The writer failed. See `append`. The stream may or may not have been ended.
        """
        self._check()
        entry = self._writer_task.open_entry(self._sequence)
        entry.ends = self._ending = True
        await self.close()

    async def close(self) -> None:
        """Wait for all appends, and complete the open segment.

        On return all records are durable, and the stream has no segment in progress. The call also
        waits up to five seconds for the retention that completing the segment begins. If the call
        fails, the next writer completes the segment. Calling it again is safe. If the call is
        cancelled, it continues in the background. After `abandon` it does nothing.

        Raises:
            StreamClosedError: The writer was abandoned while this call waited.
            QuireError: The writer has failed. See `append`.
        """
        await self._writer_task.close()

    def abandon(self) -> None:
        """Stop at once, without completing the segment. The next writer completes it.

        Appends that wait raise StreamClosedError, and their outcome is unknown.
        """
        self._abandon(None)

    def _abandon(self, error: QuireError | None) -> None:
        self._writer_task.abandon(error)

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

    # -- inside -------------------------------------------------------------------------------

    async def _append(
        self,
        payloads: Sequence[Buffer],
        txids: Sequence[int] | None,
        expect: int | None,
        token: str,
        sent_by: tuple[str, int] | None = None,
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        event_times: Sequence[datetime | None] | None = None,
        *,
        within_quota: bool = True,
    ) -> Appended:
        """Append records, and leave out those of a producer that the stream has already.

        `sent_by` is the producer, and the number that it gave to the first record. Without
        `within_quota`, the records may exceed the quota of the stream.
        """
        await self._writer_task.budget.wait()
        self._check()
        self._check_token(token)
        payloads = payload_list(payloads, "a record")
        envelopes = b""
        if keys is not None or headers is not None or event_times is not None:
            payloads, envelopes = sealed(payloads, keys, headers, event_times)
        # What a producer sends again is in the stream already, and its txids and bytes with it.
        known = 0 if sent_by is None else self._marks.duplicates(*sent_by, len(payloads))
        given = self._txids(len(payloads), txids, known)
        longest = max(map(len, payloads), default=0)
        if longest > MAX_PAYLOAD_BYTES:
            raise RecordTooLargeError(
                f"a record for stream {self.name} has {longest} bytes{_with_envelope(envelopes)}, "
                f"but at most {MAX_PAYLOAD_BYTES} are allowed. Nothing was appended",
                remedy="Split the record",
            )
        if expect is not None:
            expect = whole_number("expect", expect)
        if expect is not None and expect != self._sequence:
            raise StreamConditionError(
                f"nothing was appended to stream {self.name}: its next record gets sequence id "
                f"{self._sequence}, but the append expected {expect}",
                remedy="Find out whether an earlier append succeeded after all, or whether "
                "another writer has appended",
            )
        if known and known == len(payloads):
            return Appended([])
        new_bytes = sum(map(len, payloads[known:] if known else payloads))
        if within_quota:
            self._segments.check_quota(self._writer_task.queued_bytes + new_bytes)
        if sent_by is None:
            return self._take(payloads, given, envelopes, None)
        left = (sent_by[0], sent_by[1] + known)
        if payloads:
            encode_mark(*left, len(payloads) - known)  # raises before anything is changed
        return self._take(payloads[known:], given[known:], envelopes[known:], left)

    def _take(
        self,
        payloads: Sequence[Buffer],
        txids: Sequence[int],
        envelopes: bytes,
        sent_by: tuple[str, int] | None,
    ) -> Appended:
        parts: list[tuple[PendingEntry, int, int]] = []
        if not payloads:
            return Appended(parts)  # an entry without records would be sent for nothing
        entry, first, taken_bytes = self._writer_task.open_entry(self._sequence), 0, 0
        for end in entry_ends(payloads, self.settings.entry_bytes, entry.size_bytes):
            if first or not end:
                entry = self._writer_task.new_entry(self._sequence)
            if end > first:
                self._mark(entry, sent_by, first, end)
                at, size_bytes = entry.add(
                    payloads[first:end], txids[first:end], envelopes[first:end]
                )
                parts.append((entry, at, end - first))
                taken_bytes += size_bytes
                self._sequence += end - first
            first = end
        self._last, self._last_txid = entry, txids[-1]
        self._writer_task.appended(taken_bytes)
        return Appended(parts)

    def _mark(
        self, entry: PendingEntry, sent_by: tuple[str, int] | None, first: int, end: int
    ) -> None:
        """Add control records to the entry: the producer of the next records, and the time.

        The time is needed only in streams whose txids are not times.
        """
        if not entry.size_bytes and self.settings.txids == "given":
            entry.mark(encode_control(CreationTime(self._clock.now_ms())))
        if sent_by is not None:
            producer_id, sequence = sent_by
            entry.mark(encode_mark(producer_id, sequence + first, end - first))
            last, at = sequence + end - 1, len(entry) + end - first - 1
            entry.sent_by.append((producer_id, last, at))
            self._marks.sent(producer_id, last, INVALID_DLSN)

    def _txids(self, count: int, txids: Sequence[int] | None, known: int) -> Sequence[int]:
        """Return a txid for each of `count` records, of which the stream has the first `known`."""
        if self.settings.txids == "time":
            if txids is not None:
                raise UsageError(
                    f"stream {self.name} assigns txids by time, so none can be passed. Nothing "
                    "was appended",
                    remedy="Pass no txid, or create the stream with the setting txids = 'given'",
                )
            return [max(self._clock.now_ms(), self._last_txid)] * count
        if txids is None or len(txids) != count:
            raise UsageError(
                f"stream {self.name} needs one txid for each record, because its setting txids "
                "is 'given'. Nothing was appended",
                remedy="Pass a txid with each record",
            )
        before = self._last_txid
        if not {int}.issuperset(map(type, txids)):
            txids = [whole_number("a txid", txid) for txid in txids]
        for txid in txids[known:] if known else txids:
            if not before <= txid <= MAX_USER_TXID:
                raise TxidOrderError(
                    f"txid {txid} is not allowed in stream {self.name}: it must be from "
                    f"{before}, the txid before it, to {MAX_USER_TXID}. Nothing was appended",
                    remedy="Append records in ascending order of their txids, all in this range",
                )
            before = txid
        return txids

    async def _note_marks(self) -> None:
        self._check()
        if not self._segments.taken.has_marks:
            await self._segments.metadata.note_marks()
            self._segments.taken.has_marks = True
            self._check()  # the writer may have ended meanwhile, and would send nothing more

    def _check_token(self, token: str) -> None:
        if token != self._marks.token:
            check_type("a fencing token", token, str)
            raise StreamConditionError(
                f"stream {self.name} does not have the fencing token {token!r} that was given "
                "('' is none). Nothing was appended",
                remedy=(
                    "If another process has set a token, this writer should stop. Otherwise "
                    "pass the stream's present token"
                ),
            )

    def _check(self) -> None:
        failure = self._writer_task.failure
        if self._ending and (failure is None or isinstance(failure, StreamClosedError)):
            raise StreamEndedError(
                f"stream {self.name} was ended, so nothing can be appended",
                remedy="Write to another stream",
            )
        if failure is not None:
            raise failure.with_traceback(None)
        if self._writer_task.closing:
            raise nothing_done(
                StreamClosedError(
                    f"the writer of stream {self.name} is closed, so nothing was appended",
                    remedy="Open the stream for writing again",
                )
            )


def _with_envelope(envelopes: bytes) -> str:
    return " with its key, headers and event time" if envelopes else ""


class Producer:
    """A producer of one stream, which numbers its records. `StreamWriter.producer` returns it.

    The numbers begin at 0 and ascend. A record whose number is not above the last one in the stream
    is left out, because the stream has it already. The stream stores the last number of each
    producer, so this holds across crashes of the producer and of the writer. A stream remembers
    1,000 producers: those that have appended last.
    """

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
        """The number of the producer's last record, or -1 if there is none.

        It includes records that were passed to `append` and are not acknowledged yet.
        """
        return self._writer._marks.last_sequence(self.producer_id)

    async def append(
        self,
        payload: Buffer,
        sequence: int,
        *,
        txid: int | None = None,
        token: str = "",
        key: Text | None = None,
        headers: Headers | None = None,
        event_time: datetime | None = None,
    ) -> DLSN | None:
        """Append one record unless the stream has it already, and wait until it is acknowledged.

        On return the record is durable on an ack quorum, whichever call appended it. If the call is
        cancelled, the record may still become part of the stream: repeating the call is safe.

        Args:
            payload: The bytes of the record.
            sequence: The producer's number of the record.
            txid: The transaction id of the record, as for `StreamWriter.append`.
            token: The fencing token that must be in force, or "" if the stream must have none.
            key: The key of the record, as for `StreamWriter.append`.
            headers: The headers of the record, as for `StreamWriter.append`.
            event_time: The event time of the record, as for `StreamWriter.append`.

        Returns:
            The position of the record, or None if the stream had it already.

        Raises:
            UsageError: An argument is not valid, or the number is negative. Nothing was appended.
            QuireError: See `StreamWriter.append`.
        """
        txids = None if txid is None else (txid,)
        appended = await self.append_many(
            (payload,),
            sequence,
            txids=txids,
            token=token,
            keys=None if key is None else (key,),
            headers=None if headers is None else (headers,),
            event_times=None if event_time is None else (event_time,),
        )
        return appended[0] if len(appended) else None

    async def append_many(
        self,
        payloads: Sequence[Buffer],
        first_sequence: int,
        *,
        txids: Sequence[int] | None = None,
        token: str = "",
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        event_times: Sequence[datetime | None] | None = None,
    ) -> Appended:
        """Append the records that the stream lacks, and wait until all are acknowledged.

        On return all records are durable on an ack quorum. If the call is cancelled, any number of
        them, from the first on, may become part of the stream: repeating the call is safe.

        Args:
            payloads: The bytes of each record.
            first_sequence: The producer's number of the first record. The others follow without
                gaps.
            txids: A transaction id for each record, as for `StreamWriter.append`.
            token: The fencing token that must be in force, or "" if the stream must have none.
            keys: A key for each record, as for `StreamWriter.append_many`.
            headers: The headers of each record, as for `StreamWriter.append_many`.
            event_times: An event time for each record, as for `StreamWriter.append_many`.

        Returns:
            The positions of the records that were appended.

        Raises:
            UsageError: An argument is not valid, or the number is negative. Nothing was appended.
            QuireError: See `StreamWriter.append`.
        """
        first_sequence = whole_number("the number of a record", first_sequence)
        writer, sent_by = self._writer, (self.producer_id, first_sequence)
        appended = await writer._append(
            payloads, txids, None, token, sent_by, keys, headers, event_times
        )
        if len(appended) < len(payloads):
            await writer.flush()  # the records that were left out may still be in flight
        await appended.wait()
        return appended
