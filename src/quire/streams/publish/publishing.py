"""Publishing a batch of records to a stream exactly once: for writers that work in many processes
and may do everything again (Spark's tasks and driver).

    driver   batch = await begin(streams, "orders", key)         None: it is published already
    tasks    builder = SegmentBuilder(...); await builder.append(...); built = await builder.close()
    driver   await publish(streams, "orders", batch, [built, ...])

A published ledger is a completed segment. The transaction that names the segments also writes down
who published what (`published`), under the claim that `begin` took: a batch is in the stream once,
however often it is computed; a driver that was replaced publishes nothing; ledgers of attempts that
failed are named by no segment, and `sweep_job` or the audit of orphans finds them.

Where the driver does not know the key when it plans (Spark tells a streaming sink its batch when
the tasks run), `take` comes first, and the key is filled in before `publish`.

Before anything is deleted that may have been published, what is under way under this claim is made
impossible, and then the stream is asked which ledgers it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from quire._runtime.tasks import each
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
"""Ledgers of neighbouring tasks that are smaller together become one segment: a small batch must
not cost a ledger for each task for ever."""
SEGMENTS_MAX = 900
"""Of one batch: they are added in one transaction."""
SWEEP_BEFORE = 1_000
"""How many ledger ids before the first of a batch its failed attempts are looked for."""
SWEEP_LEDGERS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch that may be published: plain values, to be sent to tasks and back."""

    key: BatchKey
    takeover: bool
    """The writer may have had another query before."""
    txid: int
    """Of its records where the stream numbers by time, and the least that they may have."""
    next_number: int
    """Of its first segment."""
    next_sequence: int
    claim: dict[str, Any]
    settings: dict[str, Any]
    held_bytes: int = 0
    """In the stream before, where it has a quota."""
    snapshot: bytes | None = None
    """What producers and fencing tokens are in force, for the end of each segment: so that the next
    writer need not read the whole batch to find them."""


# -- the driver -------------------------------------------------------------------------------


async def begin(
    streams: Namespace, name: str, key: BatchKey, *, takeover: bool = False, token: str = ""
) -> StreamBatch | None:
    """Become the stream's writer, for this batch; None if it is published already.

    UsageError: the writer has published under another query, and `takeover` was not given (a new
    query begins again at batch 0, which must not be taken for one that is done). Others: `take`."""
    metadata = streams.metadata(name)
    await metadata.require()
    if await is_published(metadata, key, takeover=takeover):
        return None
    batch = await take(streams, name, key, takeover=takeover, token=token)
    # From here on nobody publishes without our noticing: what came in before is seen now.
    return None if await is_published(metadata, key, takeover=takeover) else batch


async def take(
    streams: Namespace, name: str, key: BatchKey, *, takeover: bool = False, token: str = ""
) -> StreamBatch:
    """Become the stream's writer, whether the batch is published already or not (`publish` finds
    out): whoever was it before is out.

    NoSuchStreamError, StreamEndedError, StreamFencedError (yet another writer came); RecoveryError
    (too few bookies answer: try again); StreamConditionError: the stream has a fencing token, which
    is not `token`."""
    metadata = streams.metadata(name)
    await metadata.require()
    settings = await streams.stream_settings(name)
    whole = bool(settings.bytes_max)
    taken = await take_over(streams.client, metadata, streams.password, whole=whole)
    if token != taken.marks.token:
        raise StreamConditionError(
            f"fencing token {token!r} is not in force on stream {name}: nothing was appended"
        )
    held_bytes = await stored_bytes(streams.client, taken.segments) if whole else 0
    now_ms = streams.client.clock.now_ms() if settings.txids == "time" else 0
    segments = taken.segments
    return StreamBatch(
        key=key,
        takeover=takeover,
        txid=max(taken.last_txid, now_ms),
        # Behind a writer that died with an empty segment, that one's number comes again.
        next_number=segments[-1].lssn + 1 if segments else max(1, taken.claim.newest),
        next_sequence=taken.next_sequence,
        claim=_claim_values(taken.claim),
        settings=settings.as_dict(),
        held_bytes=held_bytes,
        snapshot=taken.marks.snapshot(),
    )


async def is_published(metadata: StreamMetadata, key: BatchKey, *, takeover: bool = False) -> bool:
    """UsageError where it is not the turn of the key's query. False is an answer about a moment ago
    if another driver is at work; True stays true."""
    found = await read_published(metadata, key)
    await _check_turn(metadata, found, key, takeover)
    return found.segments_of(key) is not None


async def publish(
    streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> list[StreamSegment]:
    """Make the ledgers the next segments of the stream, in this order. Called again for the same
    batch, it returns the segments that it was published with, and deletes what was built again.

    On return the batch is durable and readers see all of it. StreamFencedError: another writer came
    between; nothing was published (begin it again). StreamQuotaError, TxidOrderError, UsageError
    (see `begin`): nothing was published. MetadataUnavailableError: unknown; call again, or `abort`.
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
        return before  # by ourselves, and the answer was lost; or by another driver
    await discard(client, [one for one in built if one not in merged])
    return segments


async def abort(
    streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> bool:
    """Delete what was built for a batch, but nothing that the stream names. (Spark aborts also
    after a commit that failed half way.) False: the batch is published after all.

    A `publish` of this batch that is still under way somewhere publishes nothing any more."""
    metadata = streams.metadata(name)
    await _discard_unnamed(streams.client, metadata, batch, built)
    return await published_segments(metadata, batch.key) is None


async def discard(client: Client, built: Iterable[BuiltSegment]) -> None:
    """Delete ledgers that were never handed to `publish`."""
    for one in built:
        try:
            await client.delete_ledger(one.ledger_id)
        except QuireError:
            pass  # A sweep finds it.


async def published_segments(metadata: StreamMetadata, key: BatchKey) -> list[StreamSegment] | None:
    """The segments of a batch, those that were truncated meanwhile left out, and none of a batch
    that is followed by another; None: not published."""
    return await _named_by(metadata, await read_published(metadata, key), key)


async def sweep_job(
    streams: Namespace, name: str, key: BatchKey, kept: Iterable[int], first: int
) -> list[int]:
    """Delete the ledgers that were built for this batch of the stream, from a little before ledger
    `first` on, but those that are kept; their ids. Only once the batch is published: nobody can
    publish another of its ledgers then. Looks at a bounded number; `orphans` finds all, later."""
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
    """Delete those that the stream does not name and never will."""
    if not built:
        return
    claim, tree = _claim_of(batch.claim), metadata.tree
    path, life = metadata.paths.segments, claim.life
    try:
        newest = (await tree.read(path)).value
        # Where the version is another one by now, the claim is void already.
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
    # Else the stream was deleted or renamed, and has taken along what was published: the audit of
    # orphans, which looks at all streams, can tell.


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
    """What would leave the stream without order, or with a hole."""
    last_txid = batch.txid
    for one in built:
        if one.first_txid < last_txid:
            raise TxidOrderError(
                f"{batch.key} of stream {name} has txid {one.first_txid} behind {last_txid}: "
                "nothing was published",
                remedy="Sort the whole batch by txid, and begin behind the last of the stream",
            )
        last_txid = one.last_txid
    limit = batch.settings["bytes_max"]
    if limit and batch.held_bytes + sum(one.size_bytes for one in built) > limit:
        raise StreamQuotaError(
            f"stream {name} may hold {limit} bytes, and has {batch.held_bytes}: {batch.key} was "
            "not published"
        )

    async def look(one: BuiltSegment) -> None:
        stored = await client.ledger_metadata(one.ledger_id)
        if not stored.closed or stored.last_entry_id < one.last_entry_id:
            raise StreamError(f"ledger {one.ledger_id} is not what was built for {batch.key}")

    try:
        await each(built, look)
    except NoSuchLedgerError as error:
        raise StreamError(
            f"a ledger of {batch.key} was deleted before it was published: {error}",
            remedy="Compute the batch again; sweep only orphans that are older than any job",
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
    """Small ledgers that follow each other copied into one; the others stay what they are. Nothing
    is deleted. What was merged once is not merged again."""
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
                await builder.append(records.payloads(), list(records.txids))
