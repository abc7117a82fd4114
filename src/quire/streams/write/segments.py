"""The segments of a stream as its writer sees them: the open one, and how the next one follows.

A segment is a ledger and a node. The ledger is created ahead of its use and noted in the node
`allocation`, so that a crash leaves no ledger that nothing names. Rolling is one transaction, so
that a reader always finds where the stream continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from quire._runtime.tasks import TaskSet
from quire._runtime.units import counted
from quire.client import Client, LedgerWriter
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import MAX_TXID
from quire.codec.distributedlog.record import (
    CONTROL_PAYLOAD,
    control_record,
    encode_records,
    end_of_stream_record,
)
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.wire.v2 import Buffer
from quire.core.placement import Wanted
from quire.errors import (
    NoSuchLedgerError,
    QuireError,
    StreamFencedError,
    StreamQuotaError,
    UsageError,
)
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import retain, stored_bytes
from quire.streams.write.lock import StreamLock
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.takeover import (
    TakenStream,
    delete_allocated,
    delete_insisting,
    free_allocated,
    tell_lost,
)

APPLICATION = {"application": b"quire", "component": b"stream"}
RETENTION_LIMIT_S = 5.0
"""Seconds that closing a writer waits for the retention that its last segment has begun."""
"""The custom metadata of the ledgers of streams, together with the stream's path.

The search for orphans recognises these ledgers by it.
"""


class SegmentWriter:
    """The open segment, which encodes pending entries and knows which of them are acknowledged."""

    def __init__(
        self,
        segment: StreamSegment,
        ledger: LedgerWriter,
        compression: Compression,
        start_sequence: int,
        due_s: float,
    ) -> None:
        """Open a segment. `due_s` is the event loop's time at which it is to be completed."""
        self.segment = segment
        self.start_sequence = start_sequence
        self.due_s = due_s
        self.ledger = ledger
        self._compression = compression
        self.in_flight: deque[PendingEntry] = deque()
        self._sent_position = 0
        self._sent_txid = segment.first_txid
        self.count = 0
        """The number of records in the acknowledged entries of this segment."""
        self.last_txid = segment.first_txid
        self.last = DLSN(segment.lssn, -1, -1)
        """The position of the last record in an acknowledged entry, not counting control records.
        """
        self.failed = False
        """Whether the ledger refused an entry. Waiting for the entries in flight then raises the
        reason.
        """
        self.used = False
        """Whether any entry was sent other than those that Quire adds for its own use."""
        self.invisible = False
        """Whether readers cannot see the last entry yet, because no entry follows it.

        It is False if the last entry is a control entry, which readers need not see.
        """

    def send(self, entry: PendingEntry) -> None:
        """Encode the entry and pass it to the ledger.

        Raises the errors of `LedgerWriter.submit`, and UsageError if the format cannot store the
        entry. It was not sent then.
        """
        parts: list[Buffer] = []
        size, first, position = 0, 0, self._sent_position
        txid = self._sent_txid
        for at, payload in [*entry.marks, (len(entry), b"")]:
            if at > first:
                more, more_bytes = encode_records(
                    entry.payloads[first:at],
                    entry.txids[first:at],
                    position + 1,
                    entry.envelopes[first:at],
                )
                parts.extend(more)
                size += more_bytes
                position += at - first
                txid, first = entry.txids[at - 1], at
            if payload:
                record = control_record(position, txid, payload)
                parts.append(record)
                size += len(record)
        if entry.ends:
            record = end_of_stream_record(position)
            parts.append(record)
            size += len(record)
        entry.entry_id = self.ledger.submit(wrap(parts, size, self._compression))
        entry.lssn = self.segment.lssn
        self._sent_position, self._sent_txid = position, txid
        self.invisible = not entry.control
        self.used |= not entry.control
        self.in_flight.append(entry)

    def send_control(self, payload: bytes = CONTROL_PAYLOAD) -> None:
        """Send an entry with a control record, which tells bookies what was acknowledged before it.

        Raises as `send` does.
        """
        entry = PendingEntry(0)
        entry.control = True
        entry.mark(payload)
        self.send(entry)

    async def acknowledged(self) -> list[PendingEntry]:
        """Wait for the oldest entry in flight, and return all entries acknowledged by then.

        Raises the error that ended the ledger. Cancel-safe.
        """
        await self.ledger.wait(self.in_flight[0].entry_id)
        return self.acknowledged_through(self.ledger.last_add_confirmed)

    def acknowledged_through(self, entry_id: int) -> list[PendingEntry]:
        """Remove and return the entries in flight whose ids are not greater than `entry_id`."""
        entries: list[PendingEntry] = []
        while self.in_flight and self.in_flight[0].entry_id <= entry_id:
            entry = self.in_flight.popleft()
            entries.append(entry)
            if len(entry):
                self.count += len(entry)
                self.last_txid = entry.txids[-1]
                self.last = entry.position(len(entry) - 1)
            if entry.ends:
                self.last_txid = MAX_TXID
                self.last = entry.position(len(entry))
        return entries

    def completed(self, completion_time_ms: int) -> StreamSegment:
        """Return the completed form of this segment, with the acknowledged entries as its content.

        The ledger must have been closed or recovered before, and must hold no other entries with
        records.
        """
        return self.segment.completed(
            last_txid=self.last_txid,
            record_count=self.count,
            last_entry_id=self.last.entry_id,
            last_slot_id=self.last.slot_id,
            completion_time_ms=completion_time_ms,
            start_sequence_id=self.start_sequence,
        )

    def lost(self, completion_time_ms: int) -> StreamSegment:
        """Return the lost segment that replaces this one when its ledger is gone.

        Entries in flight go to the next segment, with the same sequence ids.
        """
        return self.segment.completed_as_lost(
            last_txid=self.last_txid,
            record_count=self.count,
            completion_time_ms=completion_time_ms,
            start_sequence_id=self.start_sequence,
        )


class Segments:
    """The open segment of a stream, and the transitions from one segment to the next.

    `begin`, `roll`, `complete`, `mend` and `release` wait, and only one of them may run at a time.
    They raise StreamFencedError if another writer has the stream. After another error of a ledger
    or of the metadata store they may be called again. All other methods return at once.
    """

    def __init__(
        self,
        client: Client,
        metadata: StreamMetadata,
        settings: StreamSettings,
        taken: TakenStream,
        tasks: TaskSet,
        *,
        password: bytes = b"",
        stored_bytes: int = 0,
        lock: StreamLock | None = None,
    ) -> None:
        """Prepare the segments, without an open one. `release` releases `lock`."""
        self.metadata = metadata
        self.taken = taken
        self.rng = client.rng
        self.open: SegmentWriter | None = None
        self.opening: Callable[[], bytes | None] = lambda: None
        """A function that returns the control record with which each segment begins, or None."""
        self.ended = False
        """Whether the writer has ended, so that it needs no more ledgers."""
        self._client = client
        self._settings = settings
        self._tasks = tasks
        self._password = password
        self._lock = lock
        self._stored_bytes = stored_bytes
        """The number of payload bytes in completed segments, for the stream's quota."""
        self._just_completed: dict[int, int] = {}
        """The payload bytes of the segments that this writer has completed since `_retain` began,
        by number."""
        self._spare: LedgerWriter | None = None
        self._made: LedgerWriter | None = None
        """A ledger that was created, but is perhaps not recorded in the node `allocation` yet, or
        None.

        The next attempt to record one uses it.
        """
        self._preparing: asyncio.Task[None] | None = None
        """The task that creates the next ledger, or None.

        It is separate, so that it can clean up after itself if the writer is abandoned.
        """
        self._why: QuireError | None = None
        """The error of the last attempt to create the next ledger, or None."""
        self._retaining: asyncio.Task[None] | None = None

    @property
    def next_number(self) -> int:
        """The number of the next segment."""
        completed = self.taken.segments
        return completed[-1].lssn + 1 if completed else self._first_number()

    def _first_number(self) -> int:
        # A writer that died with an empty segment has used up its number in the node.
        return max(1, self.taken.claim.newest)

    def check_quota(self, more_bytes: int) -> None:
        """Raise StreamQuotaError if `more_bytes` would exceed the stream's quota `bytes_max`.

        In this case, it first begins to delete in the background what retention and truncation
        allow, so that a later append may succeed.
        """
        limit = self._settings.bytes_max
        if not limit:
            return
        held = self._stored_bytes + (self.open.ledger.length if self.open else 0)
        if held + more_bytes > limit:
            self.retain()  # another client may have truncated the stream
            raise StreamQuotaError(
                f"stream {self.metadata.paths.name} holds {counted(held, 'byte')}, and an "
                f"append of {counted(more_bytes, 'byte')} would exceed its quota of "
                f"{counted(limit, 'byte')} (setting bytes_max). Nothing was appended",
                remedy="Truncate the stream, or raise bytes_max",
            )

    def spare_from_retention(self) -> None:
        """Let `retain` delete only what was truncated explicitly, whatever the settings say."""
        self._settings = replace(self._settings, explicit_truncation=True)

    def retain(self) -> None:
        """Delete in the background what retention and truncation allow.

        If the stream has a limit `bytes_max`, also count the stored bytes that are left. Does
        nothing while an earlier call is at work. An error is ignored: the next roll tries again.
        """
        if self._retaining is None:
            self._retaining = self._tasks.start(self._retain())

    async def _retain(self) -> None:
        self._just_completed.clear()
        try:
            life = self.taken.claim.life
            await retain(self._client, self.metadata, self._settings, life=life)
            if self._settings.bytes_max:
                segments = await self.metadata.segments()
                completed = [segment for segment in segments if not segment.in_progress]
                counted = max((segment.lssn for segment in completed), default=0)
                held = await stored_bytes(self._client, completed)
                # The list may be older than the segments that were completed meanwhile.
                late = [size for lssn, size in self._just_completed.items() if lssn > counted]
                self._stored_bytes = held + sum(late)
        except QuireError:
            pass  # nothing depends on it, and the next roll tries again
        finally:
            self._retaining = None

    # -- ledgers made ahead -------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the next ledger ahead of its use, in the background."""
        if self._spare is None and self._preparing is None:
            self._preparing = self._tasks.start(self._prepare_quietly())

    async def _prepare_quietly(self) -> None:
        try:
            await self._prepare()
        except QuireError as error:
            self._why = error  # the caller that needs the ledger raises this
            if self.ended:
                await self._drop_made_quietly()
        finally:
            self._preparing = None

    async def _prepare(self) -> None:
        settings, paths = self._settings, self.metadata.paths
        if self._made is None:
            self._made = await self._client.create_ledger(
                ensemble_size=settings.ensemble_size,
                write_quorum=settings.write_quorum,
                ack_quorum=settings.ack_quorum,
                digest=settings.digest,
                password=self._password,
                custom={**APPLICATION, "stream": paths.stream.encode()},
            )
        ledger = self._made
        try:
            await delete_allocated(self._client, self.metadata, self.taken.claim)
            await self.metadata.allocate(self.taken.claim, ledger.ledger_id)
        except (StreamFencedError, asyncio.CancelledError):
            await self._drop_made()
            raise
        self._spare, self._made = ledger, None

    async def _drop_made(self) -> None:
        """Delete the ledger that was created but not recorded in `allocation`, if there is one."""
        if self._made is not None:
            made, self._made = self._made, None
            made.abandon()
            try:
                await delete_insisting(self._client, made.ledger_id)
            except asyncio.CancelledError:
                await delete_insisting(self._client, made.ledger_id)
                raise

    async def _drop_made_quietly(self) -> None:
        try:
            await self._drop_made()
        except QuireError:
            pass  # the search for orphans finds the ledger later

    async def give_up(self) -> None:
        """Delete the next ledger if the writer has ended before it was recorded in `allocation`.

        If a task is still creating or recording the ledger, this call returns at once: that task
        deletes the ledger if it fails. A ledger that is recorded is left to the next writer.
        Nothing is raised.
        """
        if self._preparing is None:
            await self._drop_made_quietly()

    async def _take_spare(self) -> LedgerWriter:
        self.prepare()
        while self._preparing is not None:
            await asyncio.wait([self._preparing])
        if self._spare is None:
            assert self._why is not None
            raise self._why
        return self._spare

    @property
    def has_spare(self) -> bool:
        """Whether the ledger of the next segment exists already."""
        return self._spare is not None

    async def check_next(self, *, at_once: bool) -> None:
        """Check that a next segment can be begun, before the open one is completed.

        Args:
            at_once: Whether the next segment is begun now. Its ledger is then created. Otherwise
                only the registered bookies are looked at, so that a stream without appends does not
                keep an empty ledger.

        Raises:
            QuireError: The next ledger cannot be created now, or the metadata store does not
                answer, so that the open segment cannot be completed either.
        """
        if at_once and self._spare is None:
            await self._take_spare()
            return
        size = self._settings.ensemble_size
        bookies = await self._client.metadata.bookies(addresses=False)
        if len(bookies.writable) < size and self._spare is None:
            raise self._client.placement.too_few(Wanted.new(size))

    async def _delete_spare(self) -> None:
        """Delete the ledger that was created ahead, so that the node can name another one."""
        while self._preparing is not None:
            await asyncio.wait([self._preparing])
        if self._made is not None:
            await self._prepare()  # whether it was noted may be unknown
        if self._spare is not None:
            self._spare.abandon()
            self._spare = None
        await delete_allocated(self._client, self.metadata, self.taken.claim)

    async def release(self) -> None:
        """Delete the ledger that was created ahead of its use, release the lock, and end retention.

        The writer must not use the segments any more. Retention that takes longer than
        `RETENTION_LIMIT_S` goes on in the background.
        """
        while self._preparing is not None:
            await asyncio.wait([self._preparing])
        if self._spare is not None:
            self._spare.abandon()
            self._spare = None
        await free_allocated(self._client, self.metadata, self.taken.claim)
        await self._drop_made()
        if self._lock is not None:
            await self._lock.release()
        with suppress(TimeoutError):
            async with asyncio.timeout(RETENTION_LIMIT_S):
                await self._retained()

    async def _retained(self) -> None:
        """Wait until retention has seen the segment that was completed last.

        Otherwise closing the namespace right after the writer would end it, and the next writer
        could find its stream full.
        """
        for _ in range(2):  # the call that is at work may not know the last segment
            if self._just_completed:
                self.retain()
            if self._retaining is not None:
                await asyncio.wait([self._retaining])

    # -- segments -----------------------------------------------------------------------------

    async def begin(self, entry: PendingEntry) -> None:
        """Open a segment for `entry`, which the caller sends next."""
        assert self.open is None
        ledger = await self._take_spare()
        segment = self._new_segment(ledger, self.next_number, entry)
        await self.metadata.change(self.taken.claim, begin=segment, insist=True)
        self._opened(segment, ledger)

    async def complete(self) -> None:
        """Close the ledger and complete the open segment. No entry may be in flight."""
        completed = await self._close_ledger()
        await self.metadata.change(self.taken.claim, complete=completed, insist=True)
        self._completed(completed)

    async def roll(self, entry: PendingEntry) -> None:
        """Complete the open segment and begin the next one for `entry`, in one transaction.

        No entry may be in flight. The caller sends `entry` next, to the new segment.
        """
        ledger = await self._take_spare()
        completed = await self._close_ledger()
        segment = self._new_segment(ledger, completed.lssn + 1, entry)
        await self.metadata.change(self.taken.claim, complete=completed, begin=segment, insist=True)
        self._completed(completed)
        self._opened(segment, ledger)

    async def mend(self, settle: Callable[[Sequence[PendingEntry]], None]) -> list[PendingEntry]:
        """Recover the ledger of the open segment, and complete the segment with its entries.

        `settle` receives the pending entries that are part of the segment as soon as that is
        certain, even if another writer completes the segment. Returns the pending entries that are
        not part of it, without the control entries.

        A segment without entries is removed. A segment whose ledger was deleted after entries were
        sent is kept as lost.

        Raises the errors of recovering a ledger, except NoSuchLedgerError. Raises StreamFencedError
        if another writer has taken the stream, and MetadataError; `settle` was called before that.
        """
        writer = self.open
        assert writer is not None
        ledger_id = writer.ledger.ledger_id
        writer.ledger.abandon()
        try:
            reader = await self._client.open_ledger(
                ledger_id, password=self._password, recover=True
            )
        except NoSuchLedgerError:
            end, gone = -1, writer.used
        else:
            end, gone = reader.last_add_confirmed, False
            reader.close()
        settle(writer.acknowledged_through(end))
        lost = [entry for entry in writer.in_flight if not entry.control]
        if gone:
            # Its records may have been read, so its number must not be assigned again.
            completed = writer.lost(self._client.clock.now_ms())
            await self.metadata.change(self.taken.claim, complete=completed, insist=True)
            tell_lost(self.metadata.paths.name, completed)
            self._completed(completed)
        elif end < 0:
            await self._delete_spare()
            await self.metadata.change(self.taken.claim, drop=writer.segment, insist=True)
            self.open = None  # `_prepare` or `release` deletes the ledger, which is allocated now
        else:
            completed = writer.completed(self._client.clock.now_ms())
            await self.metadata.change(self.taken.claim, complete=completed, insist=True)
            self._completed(completed)
        return lost

    async def _close_ledger(self) -> StreamSegment:
        assert self.open is not None
        assert not self.open.in_flight
        await self.open.ledger.close()
        return self.open.completed(self._client.clock.now_ms())

    def _new_segment(self, ledger: LedgerWriter, number: int, entry: PendingEntry) -> StreamSegment:
        # Without a record, the entry ends an empty stream or sets a fencing token.
        first_txid = MAX_TXID if entry.ends else self.taken.claim.max_txid
        if entry.txids:
            first_txid = entry.txids[0]
        return StreamSegment(number, ledger.ledger_id, first_txid)

    def _opened(self, segment: StreamSegment, ledger: LedgerWriter) -> None:
        self._spare = None
        compression = Compression[self._settings.compression.upper()]
        due_s = asyncio.get_running_loop().time() + self._settings.roll_interval_s
        self.open = SegmentWriter(segment, ledger, compression, self.taken.next_sequence, due_s)
        opening = self.opening()
        if opening is not None:
            try:
                self.open.send_control(opening)
            except UsageError:
                raise  # no segment can take it
            except QuireError:
                self.open.failed = True

    def _completed(self, completed: StreamSegment) -> None:
        assert self.open is not None
        self._stored_bytes += self.open.ledger.length
        self._just_completed[completed.lssn] = self.open.ledger.length
        self.taken.segments.append(completed)
        self.open = None
        self.retain()
