"""The takeover of a stream: claim it, then fence and complete what the former writer left open.

The order matters. After the claim, the former writer can neither complete nor begin a segment. Then
its segments are recovered in the order of their numbers, which fences the ledger that it may still
be writing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from quire._runtime.retry import Backoff, Retry
from quire.client import Client, LedgerReader
from quire.codec.distributedlog.limits import MAX_POSITION, MAX_TXID
from quire.codec.distributedlog.name import decode_number
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import MetadataUnavailableError, NoSuchLedgerError, StreamEndedError
from quire.streams.namespace.stream_metadata import NO_LEDGER, StreamMetadata, WriterClaim
from quire.streams.read.records import read_entries
from quire.streams.write.producers import ControlState, read_marks

logger = logging.getLogger("quire.streams")

DELETE_ATTEMPTS = 6
DELETE_BACKOFF = Backoff(0.1)
"""The pauses between two attempts to delete an unused ledger."""
BACKWARD_ENTRIES = 8
"""The number of entries to read at a time in the search for the last record of a segment."""


@dataclass(slots=True)
class TakenStream:
    """A stream that was taken over: its claim, its completed segments, and where it continues."""

    claim: WriterClaim
    last_txid: int
    segments: list[StreamSegment] = field(default_factory=list)
    """The completed segments in ascending order: all, or only the newest (see `take_over`)."""
    marks: ControlState = field(default_factory=ControlState)
    has_marks: bool = False

    @property
    def next_sequence(self) -> int:
        """The sequence id of the next record."""
        return self.segments[-1].following_sequence_id if self.segments else 0


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record of a segment, of any kind."""

    txid: int
    count: int
    """The number of user records in the segment up to and including this record."""
    entry_id: int
    slot: int


async def take_over(
    client: Client,
    metadata: StreamMetadata,
    password: bytes,
    *,
    whole: bool = True,
    sink: str = "",
    expected: int | None = None,
) -> TakenStream:
    """Claim the stream, and complete the segments in progress.

    On return every record that former writers had acknowledged is part of a completed segment, and
    those writers cannot append any more. Without `whole`, only the newest segment is read, unless a
    segment is in progress or producers or fencing tokens were used. With `sink`, the name of a
    sink, other sinks may use the claim too. `expected` is the `ledgers_version` of the claim from
    which the stream may be taken.

    Raises NoSuchStreamError, StreamEndedError, and StreamFencedError if another writer took over
    meanwhile, or since `expected`. Raises also the errors of `complete` and of `read_marks`.
    Nothing is lost: try again.
    """
    await metadata.ensure_writable()
    claim = await metadata.claim(sink, expected)
    # A writer that has used its first mark since then has a segment in progress, so all are read.
    if whole or await metadata.has_marks():
        segments = await metadata.segments()
    else:
        segments = await metadata.newest_segments()
    check_not_ended(metadata.paths.name, claim.max_txid)
    taken = TakenStream(claim, claim.max_txid)
    for segment in segments:
        if not segment.in_progress:
            taken.segments.append(segment)
            taken.last_txid = max(taken.last_txid, segment.last_txid)
            continue
        completed = await complete(client, metadata, taken, segment, password)
        if completed is not None:
            taken.segments.append(completed)
            taken.last_txid = max(taken.last_txid, completed.last_txid)
    check_not_ended(metadata.paths.name, taken.last_txid)
    await free_allocated(client, metadata, claim)
    taken.has_marks = await metadata.has_marks()
    if taken.has_marks:
        taken.marks = await read_marks(client, taken.segments, password)
    return taken


def check_not_ended(stream: str, last_txid: int) -> None:
    """Raise StreamEndedError if the last txid of a stream says that the stream was ended."""
    if last_txid == MAX_TXID:
        raise StreamEndedError(
            f"stream {stream} cannot be opened for writing: it was ended, so nothing can be "
            "appended",
            remedy="Write to another stream",
        )


async def complete(
    client: Client,
    metadata: StreamMetadata,
    taken: TakenStream,
    segment: StreamSegment,
    password: bytes,
) -> StreamSegment | None:
    """Recover the ledger of a segment in progress, and complete the segment.

    Returns None for a segment without entries, which is removed (its number is assigned again). A
    segment whose ledger is gone is completed as lost. Its records may have been acknowledged and
    read, so neither its number nor their sequence ids may be assigned again.

    Raises StreamFencedError if another writer took over meanwhile, RecoveryError if too few bookies
    answer, UnauthorizedError if the password is wrong, and StreamDamagedError or LaterStreamError
    if the last entries cannot be decoded.
    """
    try:
        reader = await client.open_ledger(segment.ledger_id, password=password, recover=True)
    except NoSuchLedgerError:
        lost = segment.completed_as_lost(
            last_txid=max(taken.last_txid, segment.first_txid),
            record_count=MAX_POSITION,
            completion_time_ms=client.clock.now_ms(),
            start_sequence_id=taken.next_sequence,
        )
        await metadata.change(taken.claim, complete=lost)
        tell_lost(metadata.paths.name, lost)
        return lost
    async with reader:
        last = await last_record(reader, segment)
        if last is None and reader.last_add_confirmed >= 0:
            # Readers may be after its entries, so the number must not be assigned again.
            last = LastRecord(max(taken.last_txid, segment.first_txid), 0, -1, -1)
    if last is None:
        await delete_allocated(client, metadata, taken.claim)
        await metadata.change(taken.claim, drop=segment)
        return None  # the ledger is the allocated one now, which `free_allocated` deletes
    completed = segment.completed(
        last_txid=last.txid,
        record_count=last.count,
        last_entry_id=last.entry_id,
        last_slot_id=last.slot,
        completion_time_ms=client.clock.now_ms(),
        start_sequence_id=taken.next_sequence,
    )
    await metadata.change(taken.claim, complete=completed)
    return completed


def tell_lost(stream: str, segment: StreamSegment) -> None:
    """Log that a segment was completed as lost because its ledger is gone."""
    logger.error(
        "stream %s: ledger %d of segment %d was deleted while the segment was in progress. The "
        "segment is kept as lost; readers report its records as a gap",
        stream, segment.ledger_id, segment.lssn,
        extra={
            "event": "stream_segment_lost",
            "stream": stream,
            "segment": segment.lssn,
            "ledger": segment.ledger_id,
        },
    )  # fmt: skip


async def last_record(reader: LedgerReader, segment: StreamSegment) -> LastRecord | None:
    """Return the last record of any kind in a closed ledger, or None if there is none.

    Raises the errors of `read_entries`.
    """
    behind = reader.last_add_confirmed + 1
    while behind > 0:
        first = max(0, behind - BACKWARD_ENTRIES)
        for entry_id, records in reversed(await read_entries(reader, segment, first, behind - 1)):
            if len(records):
                at = len(records) - 1
                return LastRecord(
                    txid=records.txids[at],
                    count=records.positions[at],
                    entry_id=entry_id,
                    slot=records.slots[at],
                )
        behind = first
    return None


async def free_allocated(client: Client, metadata: StreamMetadata, claim: WriterClaim) -> None:
    """Delete the allocated ledger, and note that there is none.

    The ledger was created ahead and never used, or its segment was dropped. It is deleted first:
    as long as the node names it, another client can delete it as well.

    Raises StreamFencedError if another writer has opened the stream, MetadataError if the node does
    not name a ledger, and MetadataUnavailableError if the store does not answer. The ledger is then
    deleted, or the node still names it.
    """
    if claim.allocated != NO_LEDGER:
        await delete_allocated(client, metadata, claim)
        await metadata.free_allocation(claim)


async def delete_allocated(client: Client, metadata: StreamMetadata, claim: WriterClaim) -> None:
    """Delete the allocated ledger, if there is one, which the node continues to name.

    Raises as `free_allocated` does.
    """
    if claim.allocated == NO_LEDGER:
        return
    ledger_id = decode_number(claim.allocated, metadata.paths.allocation)
    retry = Retry(DELETE_BACKOFF, client.rng, attempts=DELETE_ATTEMPTS)
    while True:
        try:
            # The node may have been read after another writer had noted its own ledger there.
            await metadata.require_claim(claim)
            await client.delete_ledger(ledger_id)
            return
        except MetadataUnavailableError:
            if not await retry.pause():
                raise


async def delete_insisting(client: Client, ledger_id: int) -> None:
    """Delete a ledger that nothing names any more, and try again while the store does not answer.

    If all attempts fail, the call returns, and the search for orphans finds the ledger later.
    Raises the other errors of `Client.delete_ledger`.
    """
    retry = Retry(DELETE_BACKOFF, client.rng, attempts=DELETE_ATTEMPTS)
    while True:
        try:
            await client.delete_ledger(ledger_id)
            return
        except MetadataUnavailableError:
            if not await retry.pause():
                return
