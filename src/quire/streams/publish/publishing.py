"""Publishing a batch of records to a stream exactly once.

This is for writers that work in many processes and may repeat any step, such as Spark's tasks and
driver.

    driver   batch = await begin(streams, "orders", key)         None: it is published already
    tasks    builder = SegmentBuilder(...); await builder.append(...); built = await builder.close()
    driver   await publish(streams, "orders", batch, [built, ...])

A published ledger is a completed segment. The transaction that names the segments also records who
published what (`published`), under the claim that `begin` took. A batch is therefore in the stream
once, however often it is computed, and a driver that was replaced publishes nothing. No segment
names the ledgers of failed attempts, and `sweep_job` or the search for orphans finds them.

If the driver does not know the key when it plans, it calls `take` instead of `begin`, and fills in
the key before `publish`. (Spark tells a streaming sink its batch only when the tasks run.)

A ledger is deleted only if no transaction can still publish it. The deletion first changes the
version of the node `ledgers`, so that pending transactions under this claim fail. It then reads
which ledgers the stream names, and deletes the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from quire._runtime.tasks import each
from quire._runtime.units import counted
from quire.client import Client
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import (
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuireError,
    StreamConditionError,
    StreamError,
    StreamQuotaError,
    TxidOrderError,
    VersionConflictError,
)
from quire.metadata.bookies.collection import may_collect
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Put
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import StreamMetadata, WriterClaim
from quire.streams.namespace.truncation import stored_bytes
from quire.streams.publish.published import BatchKey, Published, check_moved, read_published
from quire.streams.publish.segment_builder import JOB_KEY, NO_NUMBER, BuiltSegment, SegmentBuilder
from quire.streams.read.records import decode
from quire.streams.write.segments import APPLICATION
from quire.streams.write.takeover import take_over

__all__ = [
    "BatchKey", "BuiltSegment", "SegmentBuilder", "StreamBatch", "abort", "begin", "discard",
    "is_published", "merge", "publish", "published_segments", "sweep_job", "take",
]  # fmt: skip

MERGE_BYTES = 8 * 1024 * 1024
"""The largest number of bytes that neighbouring ledgers may have together to become one segment.

A small batch must not leave one ledger for each task permanently.
"""
SEGMENTS_MAX = 900
"""The largest number of segments of one batch, because they are added in one transaction.

A batch of more ledgers is merged into larger segments than `MERGE_BYTES`.
"""
SWEEP_BEFORE = 1_000
"""The number of ledger ids before the first ledger of a batch at which `sweep_job` begins."""
SWEEP_LEDGERS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of records that the caller of `begin` or `take` may publish to one stream.

    All fields are plain values, so the driver can send the batch to its tasks.
    """

    key: BatchKey
    takeover: bool
    """Whether the batch may be published although its writer has published under another query."""
    txid: int
    """The txid of all records of the batch if the stream assigns txids by time.

    Otherwise it is the least txid that the records may have.
    """
    next_number: int
    """The number that the batch's first segment gets in the stream."""
    next_sequence: int
    claim: dict[str, Any]
    settings: dict[str, Any]
    held_bytes: int = 0
    """The number of bytes in the stream before the batch, or 0 if the stream has no quota."""
    snapshot: bytes | None = None
    """The control record with the producers and the fencing token in force, or None if there are
    none.

    It is stored at the end of each segment, so that the next writer need not read the whole batch
    to find them.
    """


# -- the driver -------------------------------------------------------------------------------


async def begin(
    streams: Namespace, name: str, key: BatchKey, *, takeover: bool = False, token: str = ""
) -> StreamBatch | None:
    """Become the stream's writer for this batch, or return None if the batch is published already.

    Raises UsageError if the writer has published under another query and `takeover` is not set. (A
    new query begins again with batch 0, which must not be mistaken for one that is published.) See
    `take` for other errors.
    """
    metadata = streams.metadata(name)
    await metadata.require()
    if await is_published(metadata, key, takeover=takeover):
        return None
    batch = await take(streams, name, key, takeover=takeover, token=token)
    # Nobody can publish unnoticed from here on. A batch that was published before is seen now.
    return None if await is_published(metadata, key, takeover=takeover) else batch


async def take(
    streams: Namespace, name: str, key: BatchKey, *, takeover: bool = False, token: str = ""
) -> StreamBatch:
    """Become the stream's writer, whether or not the batch is published already.

    `publish` finds out whether it is. The previous writer is fenced, even if this raises. Raises
    NoSuchStreamError and StreamEndedError. Raises StreamFencedError if another writer takes over
    meanwhile, and RecoveryError if too few bookies answer: try again. Raises StreamConditionError
    if the stream's fencing token is not `token`.
    """
    metadata = streams.metadata(name)
    await metadata.require()
    settings = await streams.stream_settings(name)
    whole = bool(settings.bytes_max)
    taken = await take_over(streams.client, metadata, streams.password, whole=whole)
    if token != taken.marks.token:
        raise StreamConditionError(
            f"stream {name} does not have the fencing token {token!r} that was given ('' is "
            "none). Nothing was appended",
            remedy="If another process has set a token, this writer should stop. Otherwise "
            "pass the stream's present token",
        )
    held_bytes = await stored_bytes(streams.client, taken.segments) if whole else 0
    now_ms = streams.client.clock.now_ms() if settings.txids == "time" else 0
    segments = taken.segments
    return StreamBatch(
        key=key,
        takeover=takeover,
        txid=max(taken.last_txid, now_ms),
        # If the last writer died with an empty segment, its number is used again.
        next_number=segments[-1].lssn + 1 if segments else max(1, taken.claim.newest),
        next_sequence=taken.next_sequence,
        claim=_claim_values(taken.claim),
        settings=settings.as_dict(),
        held_bytes=held_bytes,
        snapshot=taken.marks.snapshot(),
    )


async def is_published(metadata: StreamMetadata, key: BatchKey, *, takeover: bool = False) -> bool:
    """Return whether a batch is published. Raises UsageError if the key's query may not publish.

    True remains true, except for a job that `JOBS_MAX` later jobs have followed. False may be out
    of date on return if another driver is at work.
    """
    found = await read_published(metadata, key)
    await _check_turn(metadata, found, key, takeover)
    return found.segments_of(key) is not None


async def publish(
    streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> list[StreamSegment]:
    """Make the ledgers the next segments of the stream, in this order.

    On return the batch is durable, and readers see all of it. If the batch was published before,
    this returns the segments with which it was published, and deletes what was built again.

    Raises MetadataUnavailableError if the outcome is unknown: call this again, or call `abort`.
    After all other errors nothing was published. Raises StreamFencedError if another writer took
    over: call `begin` again. Raises StreamQuotaError, TxidOrderError, UsageError (see `begin`), and
    StreamError if a ledger in `built` is incomplete or was deleted.
    """
    metadata, client = streams.metadata(name), streams.client
    found = await read_published(metadata, batch.key)
    await _check_turn(metadata, found, batch.key, batch.takeover)
    if found.segments_of(batch.key) is not None:
        await _discard_unnamed(client, metadata, batch, built)
        return await _named_by(metadata, found, batch.key) or []
    merged = await merge(streams, name, batch, built)
    claim = _claim_of(batch.claim)
    segments = _segments_of(batch, merged, client.clock.now_ms())
    try:
        await _check(client, name, batch, merged)
        await _commit(metadata, batch, claim, segments, found)
    except MetadataUnavailableError:
        raise
    except QuireError:
        await metadata.tree.sync()
        before = await published_segments(metadata, batch.key)
        mine = [one for one in merged if one not in built]
        if before is not None:
            mine += built
        await _discard_unnamed(client, metadata, batch, mine)
        if before is None:
            raise
        return before  # another driver published it, or an earlier attempt whose reply was lost
    await discard(client, [one for one in built if one not in merged])
    return segments


async def abort(
    streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> bool:
    """Delete the ledgers that were built for a batch, except those that the stream names.

    Returns whether the batch is not published. It may be, because Spark also aborts after a
    `publish` whose outcome was unknown. A `publish` of this batch that is still running elsewhere
    can no longer publish anything.
    """
    metadata = streams.metadata(name)
    await _discard_unnamed(streams.client, metadata, batch, built)
    return await published_segments(metadata, batch.key) is None


async def discard(client: Client, built: Iterable[BuiltSegment]) -> None:
    """Delete ledgers that no segment names and no pending transaction may name.

    A ledger that cannot be deleted is left for `sweep_job` or the search for orphans.
    """
    for one in built:
        try:
            await client.delete_ledger(one.ledger_id)
        except QuireError:
            pass  # a sweep finds the ledger


async def published_segments(metadata: StreamMetadata, key: BatchKey) -> list[StreamSegment] | None:
    """Return the segments of a batch, or None if it is not published.

    Segments whose nodes were deleted by truncation are left out. The result is empty for a batch
    that its writer has followed with a later one.
    """
    return await _named_by(metadata, await read_published(metadata, key), key)


async def sweep_job(
    streams: Namespace, name: str, key: BatchKey, kept: Iterable[int], first: int
) -> list[int]:
    """Delete the ledgers that were built for this batch, except those that are kept.

    The search begins a little before ledger `first`, and reads a bounded number of ledgers. The
    search for orphans finds the rest later. Call this only after the batch was published, because
    then none of its other ledgers can be published any more. Nothing is deleted while the metadata
    store forbids deletions. Returns the ids of the deleted ledgers.
    """
    client, spared = streams.client, set(kept)
    made = {**APPLICATION, "stream": streams.metadata(name).paths.stream.encode()}
    made[JOB_KEY] = key.job.encode()
    if not await may_collect(client.metadata):
        return []
    some: list[int] = []
    async with aclosing(client.list_ledgers(max(0, first - SWEEP_BEFORE))) as ledgers:  # type: ignore[type-var]
        async for ledger_id in ledgers:
            if ledger_id not in spared:
                some.append(ledger_id)
            if len(some) == SWEEP_LEDGERS_MAX:
                break

    async def is_of_batch(ledger_id: int) -> bool:
        try:
            custom = (await client.ledger_metadata(ledger_id)).custom
        except NoSuchLedgerError:
            return False
        return all(custom.get(name) == value for name, value in made.items())

    found = await each(some, is_of_batch)
    left = [ledger_id for ledger_id, ours in zip(some, found) if ours]
    await each(left, client.delete_ledger)
    return left


# -- inside -----------------------------------------------------------------------------------


def _claim_values(claim: WriterClaim) -> dict[str, Any]:
    return {**asdict(claim), "allocated": claim.allocated.decode("ascii")}


def _claim_of(values: dict[str, Any]) -> WriterClaim:
    return WriterClaim(**{**values, "allocated": values["allocated"].encode("ascii")})


async def _check_turn(
    metadata: StreamMetadata, found: Published, key: BatchKey, takeover: bool
) -> None:
    found.check(metadata.paths.name, key, takeover)
    if key.writer and not found.values:
        await check_moved(metadata, key)


async def _named_by(
    metadata: StreamMetadata, found: Published, key: BatchKey
) -> list[StreamSegment] | None:
    numbers = found.segments_of(key)
    if numbers is None:
        return None
    first, count = numbers
    if not count:
        return []
    return [s for s in await metadata.segments() if first <= s.lssn < first + count]


async def _discard_unnamed(
    client: Client, metadata: StreamMetadata, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> None:
    """Delete those ledgers in `built` that the stream does not name and never will.

    Pending transactions under the claim of `batch` are made to fail before that.
    """
    if not built:
        return
    claim, tree = _claim_of(batch.claim), metadata.tree
    path, life = metadata.paths.segments, claim.life
    try:
        newest = (await tree.read(path)).value
        # If the version has changed, the claim is lost already.
        await tree.commit(Check(life, ANY_VERSION), Put(path, newest, claim.ledgers_version))
    except VersionConflictError:
        await tree.sync()
    except NoSuchKeyError:
        pass
    try:
        named = {segment.ledger_id for segment in await metadata.segments()}
    except NoSuchStreamError:
        return
    if await tree.exists(life):
        await discard(client, [one for one in built if one.ledger_id not in named])
    # Otherwise the stream was deleted or renamed together with what was published. The search for
    # orphans reads all streams and decides.


def _segments_of(
    batch: StreamBatch, built: Sequence[BuiltSegment], now_ms: int
) -> list[StreamSegment]:
    segments: list[StreamSegment] = []
    sequence = batch.next_sequence
    for number, one in enumerate(built, batch.next_number):
        started = StreamSegment(number, one.ledger_id, one.first_txid)
        segments.append(
            started.completed(
                last_txid=one.last_txid,
                record_count=one.record_count,
                last_entry_id=one.last_entry_id,
                last_slot_id=one.last_slot_id,
                completion_time_ms=now_ms,
                start_sequence_id=sequence,
            )
        )
        sequence += one.record_count
    return segments


async def _check(
    client: Client, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> None:
    """Check the order of the txids, the quota of the stream, and that all ledgers are complete.

    Raises TxidOrderError, StreamQuotaError or StreamError. Nothing was published then.
    """
    last_txid = batch.txid
    for one in built:
        if one.first_txid < last_txid:
            raise TxidOrderError(
                f"stream {name} cannot take {batch.key}: its txid {one.first_txid} is less than "
                f"txid {last_txid} before it. Nothing was published",
                remedy="Sort the whole batch by txid, beginning after the last txid of the stream",
            )
        last_txid = one.last_txid
    limit = batch.settings["bytes_max"]
    if limit and batch.held_bytes + sum(one.size_bytes for one in built) > limit:
        raise StreamQuotaError(
            f"stream {name} holds {counted(batch.held_bytes, 'byte')}, and {batch.key} would "
            f"exceed its quota of {counted(limit, 'byte')} (setting bytes_max). Nothing was "
            "published",
            remedy="Truncate the stream, or raise bytes_max. Then publish the batch again",
        )

    async def look(one: BuiltSegment) -> None:
        stored = await client.ledger_metadata(one.ledger_id)
        if not stored.closed or stored.last_entry_id < one.last_entry_id:
            raise StreamError(
                f"{batch.key} was not published to stream {name}: its ledger {one.ledger_id} is "
                "open, or has fewer entries than were written",
                remedy="Compute and publish the batch again. If the error returns, report it",
            )

    try:
        await each(built, look)
    except NoSuchLedgerError as error:
        raise StreamError(
            f"{batch.key} was not published to stream {name}: one of its ledgers was deleted "
            f"before that ({error.args[0]})",
            remedy=(
                "Compute the batch again. Sweep only orphans that are older than the "
                "longest job takes"
            ),
        ) from error


async def _commit(
    metadata: StreamMetadata,
    batch: StreamBatch,
    claim: WriterClaim,
    segments: Sequence[StreamSegment],
    found: Published,
) -> None:
    operation, value = found.with_batch(batch.key, list(segments))
    await metadata.make_below(found.path.rpartition("/")[0])
    await metadata.publish(claim, segments, [operation], {found.path: value})


# -- merging ----------------------------------------------------------------------------------


async def merge(
    streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> list[BuiltSegment]:
    """Copy each group of small neighbouring ledgers into one new ledger, and return the result.

    The result has the new ledgers and those that need no merging, in order. No ledger in `built` is
    deleted. After an error the new ledgers are deleted.
    """
    merged: list[BuiltSegment] = []
    try:
        for group in _groups(built):
            merged.append(group[0] if len(group) == 1 else await _join(streams, name, batch, group))
    except BaseException:
        await discard(streams.client, [one for one in merged if one not in built])
        raise
    return merged


def _groups(built: Sequence[BuiltSegment]) -> list[list[BuiltSegment]]:
    limit = MERGE_BYTES
    while True:
        groups: list[list[BuiltSegment]] = []
        size_bytes = 0
        for one in built:
            if groups and size_bytes + one.size_bytes <= limit:
                groups[-1].append(one)
                size_bytes += one.size_bytes
            else:
                groups.append([one])
                size_bytes = one.size_bytes
        if len(groups) <= SEGMENTS_MAX:
            return groups
        limit *= 2


async def _join(
    streams: Namespace, name: str, batch: StreamBatch, group: Sequence[BuiltSegment]
) -> BuiltSegment:
    builder = SegmentBuilder(
        streams.client,
        streams.metadata(name).paths.stream,
        StreamSettings(**batch.settings),
        password=streams.password,
        job=batch.key.job,
        snapshot=batch.snapshot,
    )
    try:
        for one in group:
            await _copy(streams, one, builder)
        joined = await builder.close()
    except BaseException:
        await builder.discard()
        raise
    assert joined is not None
    assert joined.record_count == sum(one.record_count for one in group)
    return joined


async def _copy(streams: Namespace, one: BuiltSegment, builder: SegmentBuilder) -> None:
    segment = StreamSegment(NO_NUMBER, one.ledger_id, one.first_txid)
    client = streams.client
    async with (
        await client.open_ledger(one.ledger_id, password=streams.password) as reader,
        aclosing(reader.read_runs()) as runs,
    ):
        async for run in runs:
            for entry_id, payload in enumerate(run.payloads(), run.first):
                records = decode(segment, entry_id, payload).users()
                await builder.append(records.payloads(), list(records.txids), records.envelopes)
