"""Publishing a batch of records to a stream exactly once.

This is for writers that work in many processes and may repeat any step, such as Spark's tasks and
driver.

    driver   batch = await begin(streams, "orders", key)         None: it is published already
    tasks    builder = SegmentBuilder(...); await builder.append(...); built = await builder.close()
    driver   await publish(streams, "orders", batch, [built, ...])

A published ledger is a completed segment. The transaction that names the segments also records who
published what (`published`), and checks the plan that `begin` made (`plans`). A batch is therefore
in the stream once, however often it is computed, and a driver that was replaced publishes nothing.
No segment names the ledgers of failed attempts, and `sweep_job` or the search for orphans finds
them.

Several sinks may publish to one stream. They share one claim, and the transaction succeeds only if
nothing else was published since the end of the stream was read (`stream_end`). Otherwise `publish`
reads the end again, and tries to publish after it. A writer that took over in between is
fenced only if the user has asked for that.

If the driver does not know the key when it plans, it calls `take` instead of `begin`, and fills in
the key before `publish`. (Spark tells a streaming sink its batch only when the tasks run.)

A ledger is deleted only if no transaction can still publish it. An abort therefore ends the plan
first. It then reads which ledgers the stream names, and deletes the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import each
from quire._runtime.units import counted
from quire.client import Client
from quire.codec.distributedlog.compression import check_available
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import (
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuireError,
    StreamConditionError,
    StreamError,
    StreamFencedError,
    StreamQuotaError,
    TxidOrderError,
)
from quire.metadata.bookies.collection import may_collect
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import StreamMetadata, WriterClaim
from quire.streams.publish.plans import BatchPlan, close_plan, forget_plan, is_open, open_plan
from quire.streams.publish.published import BatchKey, Published, check_moved, read_published
from quire.streams.publish.segment_builder import (
    JOB_KEY,
    LIFE_KEY,
    NO_NUMBER,
    BuiltSegment,
    SegmentBuilder,
)
from quire.streams.publish.stream_end import Planned, StreamEnd, find_end
from quire.streams.read.records import decode
from quire.streams.write.segments import APPLICATION

__all__ = [
    "BatchKey", "BuiltSegment", "SegmentBuilder", "StreamBatch", "abort", "begin", "discard",
    "is_published", "merge", "publish", "published_segments", "sweep_job", "take", "withdraw",
]  # fmt: skip

MERGE_BYTES = 8 * 1024 * 1024
"""The largest number of bytes that neighbouring ledgers may have together to become one segment.

A small batch must not leave one ledger for each task permanently.
"""
SEGMENTS_MAX = 900
"""The largest number of segments of one batch, because they are added in one transaction.

A batch of more ledgers is merged into larger segments than `MERGE_BYTES`.
"""
COMMIT_LIMIT_S = 60.0
"""Seconds for which a commit is tried again while other sinks publish to the same stream first."""
COMMIT_BACKOFF = Backoff(0.02, 1.0)
"""The pauses between two attempts of a commit."""
SWEEP_BEFORE = 1_000
"""The number of ledger ids before the first ledger of a batch at which `sweep_job` begins."""
SWEEP_LEDGERS_MAX = 5_000

logger = logging.getLogger("quire.streams")


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
    """The number that the batch's first segment gets if no other sink publishes before."""
    next_sequence: int
    claim: dict[str, Any]
    settings: dict[str, Any]
    plan: BatchPlan
    held_bytes: int = 0
    """The number of bytes in the stream before the batch, or 0 if the stream has no quota."""
    snapshot: bytes | None = None
    """The control record with the producers and the fencing token in force, or None if there are
    none.

    It is stored at the end of each segment, so that the next writer need not read the whole batch
    to find them.
    """
    token: str = field(default="", repr=False)
    fence_writers: bool = False
    """Whether `publish` may fence a writer that took the stream over after the plan."""

    @property
    def life(self) -> str:
        """The id that distinguishes the stream from all others that ever had its name."""
        return str(self.claim["life"]).rpartition("/")[2]


# -- the driver -------------------------------------------------------------------------------


async def begin(
    streams: Namespace,
    name: str,
    key: BatchKey,
    *,
    takeover: bool = False,
    token: str = "",
    fence_writers: bool = False,
) -> StreamBatch | None:
    """Plan a batch, or return None if the batch is published already.

    Raises UsageError if the writer has published under another query and `takeover` is not set. (A
    new query begins again with batch 0, which must not be mistaken for one that is published.) See
    `take` for other errors.
    """
    metadata = streams.metadata(name)
    await metadata.require()
    if await is_published(metadata, key, takeover=takeover):
        return None
    batch = await take(
        streams, name, key, takeover=takeover, token=token, fence_writers=fence_writers
    )
    # Former plans have ended. A batch that was published under one of them is seen now.
    if await is_published(metadata, key, takeover=takeover):
        await forget_plan(metadata, batch.plan)
        return None
    return batch


async def take(
    streams: Namespace,
    name: str,
    key: BatchKey,
    *,
    takeover: bool = False,
    token: str = "",
    fence_writers: bool = False,
) -> StreamBatch:
    """Plan a batch without checking whether it is published already. `publish` checks that.

    A writer that has the stream is fenced, even if this raises. Other sinks are not disturbed,
    except another driver of the same writer: it can publish nothing more.

    Args:
        streams: The namespace.
        name: The name of the stream.
        key: The key of the batch. The query and the number may be filled in later.
        takeover: Whether the batch may be published after those of another query of its writer.
        token: The fencing token of the stream.
        fence_writers: Whether `publish` may fence a writer that opens the stream meanwhile.

    Raises:
        NoSuchStreamError: There is no such stream.
        StreamEndedError: The stream was ended.
        StreamFencedError: Other programs took over during each attempt.
        RecoveryError: Too few bookies answer: try again.
        StreamConditionError: The stream has another fencing token.
        UsageError: A name is not valid, or the library for the compression of the stream is not
            installed.
        MetadataError: The settings or a segment of the stream cannot be decoded, or the metadata
            store does not answer.
    """
    metadata = streams.metadata(name)
    await metadata.require()
    settings = await streams.stream_settings(name)
    check_available(settings.compression)  # before a writer is fenced
    plan = await open_plan(metadata, key, streams.client.clock.now_ms())
    try:
        end = await find_end(streams, name, settings, key)
        _check_token(name, end, token)
    except QuireError:
        await forget_plan(metadata, plan)
        raise
    now_ms = streams.client.clock.now_ms() if settings.txids == "time" else 0
    return StreamBatch(
        key=key,
        takeover=takeover,
        txid=max(end.last_txid, now_ms),
        next_number=end.next_number,
        next_sequence=end.next_sequence,
        claim=_claim_values(end.claim),
        settings=settings.as_dict(),
        plan=plan,
        held_bytes=end.held_bytes,
        snapshot=None if end.marks is None else end.marks.snapshot(),
        token=token,
        fence_writers=fence_writers,
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
    this returns the segments with which it was published, and deletes what was built again. If
    other sinks have published since the plan, the batch follows what they published.

    Raises MetadataUnavailableError if the outcome is unknown: call this again, or call `abort`.
    After all other errors nothing was published, and their `outcome_known` is True. Raises
    StreamFencedError if a writer took over, if the plan has ended, or if other sinks were faster
    for `COMMIT_LIMIT_S`: call `begin` again. Raises StreamQuotaError, StreamConditionError,
    TxidOrderError, UsageError (see `begin`), and StreamError if a ledger in `built` is incomplete
    or was deleted.
    """
    return await _Publication(streams, name, batch, built).run()


async def abort(
    streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> bool:
    """Delete the ledgers that were built for a batch, except those that the stream names.

    Returns whether the batch is not published. It may be, because Spark also aborts after a
    `publish` whose outcome was unknown. A `publish` of this batch that is still running elsewhere
    can no longer publish anything. Raises MetadataError if the metadata store does not answer or a
    node cannot be decoded. Some ledgers may then be left: call this again.
    """
    metadata = streams.metadata(name)
    await close_plan(metadata, batch.plan, batch.claim["life"])
    await _discard_unnamed(streams.client, metadata, batch, built)
    return await published_segments(metadata, batch.key) is None


async def withdraw(streams: Namespace, name: str, batch: StreamBatch) -> None:
    """End a batch for which nothing was built, so that its plan does not remain.

    This is `abort` without its answer, and does nothing for a batch of a writer, whose next batch
    ends it. It raises nothing if the store does not answer, because the plan does no harm.
    """
    await forget_plan(streams.metadata(name), batch.plan)


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
    that its writer has followed with a later one. Raises MetadataError.
    """
    return await _named_by(metadata, await read_published(metadata, key), key)


async def sweep_job(
    streams: Namespace, name: str, key: BatchKey, kept: Iterable[int], first: int
) -> list[int]:
    """Delete the ledgers that were built for this batch, except those that are kept.

    A ledger that any segment of the stream names is kept as well. So is a ledger that was built for
    another stream which had this name, because that stream may have it under its new name. The
    search begins a little before ledger `first`, and reads a bounded number of ledgers. The search
    for orphans finds the rest later. Call this only after the batch was published, because then
    none of its other ledgers can be published any more. Nothing is deleted while the metadata
    store forbids deletions. Returns the ids of the deleted ledgers. Raises NoSuchStreamError, and
    the errors of reading and deleting ledgers.
    """
    client, metadata, spared = streams.client, streams.metadata(name), set(kept)
    life = await metadata.life_id()
    made = {**APPLICATION, "stream": metadata.paths.stream.encode()}
    made |= {JOB_KEY: key.job.encode(), LIFE_KEY: life.encode()}
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
    ours = [ledger_id for ledger_id, made_here in zip(some, found) if made_here]
    if not ours:
        return []
    # Read after the ledgers were found, so that a segment that names one of them is seen.
    named = {segment.ledger_id for segment in await metadata.segments()}
    if await metadata.life_id() != life:
        return []
    left = [ledger_id for ledger_id in ours if ledger_id not in named]
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
    return await metadata.completed_segments(range(first, first + count))


async def _discard_unnamed(
    client: Client, metadata: StreamMetadata, batch: StreamBatch, built: Sequence[BuiltSegment]
) -> None:
    """Delete those ledgers in `built` that the stream does not name.

    The caller has made sure that no pending transaction can name them.
    """
    if not built:
        return
    try:
        named = {segment.ledger_id for segment in await metadata.segments()}
    except NoSuchStreamError:
        return
    if await metadata.tree.exists(batch.claim["life"]):
        await discard(client, [one for one in built if one.ledger_id not in named])
    # Otherwise the stream was deleted or renamed together with what was published. The search for
    # orphans reads all streams and decides.


def _check_token(name: str, end: StreamEnd, token: str) -> None:
    if end.marks is not None and token != end.marks.token:
        raise StreamConditionError(
            f"stream {name} does not have the fencing token {token!r} that was given ('' is "
            "none). Nothing was appended",
            remedy="If another process has set a token, this writer should stop. Otherwise "
            "pass the stream's present token",
        )


# -- the commit -------------------------------------------------------------------------------


class _Publication:
    """One call of `publish`, which tries the transaction until it is known to be done or refused.

        the batch is recorded as published    The call returns.
        a writer took over                    The call is refused, unless the writer may be fenced.
        another sink published in between     The call tries again, after what that sink published.
        the plan has ended                    The call is refused.

    The ledgers that this call makes are named by its own transactions only. A transaction that was
    refused cannot succeed later, because a version that it checks has changed.
    """

    def __init__(
        self, streams: Namespace, name: str, batch: StreamBatch, built: Sequence[BuiltSegment]
    ) -> None:
        self._streams = streams
        self._client = streams.client
        self._metadata = streams.metadata(name)
        self._name = name
        self._batch = batch
        self._built = list(built)
        self._ready: list[BuiltSegment] | None = None
        """The ledgers to publish, after merging."""
        self._snapshot = batch.snapshot
        """The snapshot that the ledgers have."""
        self._end: StreamEnd | None = _planned_end(batch)
        self._copying_ms = 0
        """The duration of the last copy. The txids of the next copy take it into account."""
        self._retry = Retry(COMMIT_BACKOFF, streams.client.rng, limit_s=COMMIT_LIMIT_S)

    async def run(self) -> list[StreamSegment]:
        metadata, batch = self._metadata, self._batch
        # Another session may have made the plan. Without this, a store that lags behind could show
        # the stream as it was before.
        await metadata.tree.sync()
        while True:
            found = await read_published(metadata, batch.key)
            await _check_turn(metadata, found, batch.key, batch.takeover)
            if found.segments_of(batch.key) is not None:
                every = [*self._built, *self._made()]
                await _discard_unnamed(self._client, metadata, batch, every)
                return await _named_by(metadata, found, batch.key) or []
            try:
                end = await self._find_end()
                try:
                    return await self._attempt(end, found)
                except StreamFencedError as error:
                    await self._pause(error)
            except MetadataUnavailableError:
                raise
            except QuireError as error:
                await metadata.tree.sync()
                if await published_segments(metadata, batch.key) is not None:
                    continue  # by another driver, or by an attempt whose reply was lost
                error.outcome_known = True  # Nothing of this batch was published.
                await _discard_unnamed(self._client, metadata, batch, self._made())
                if isinstance(error, NoSuchLedgerError):
                    raise self._deleted(error) from error
                raise

    def _made(self) -> list[BuiltSegment]:
        """Return the ledgers that this call has made."""
        return [one for one in self._ready or () if one not in self._built]

    def _deleted(self, error: NoSuchLedgerError) -> StreamError:
        return StreamError(
            f"{self._batch.key} was not published to stream {self._name}: one of its ledgers was "
            f"deleted before that ({error.args[0]})",
            remedy="Compute the batch again. Sweep only orphans that are older than the longest "
            "job takes",
        )

    async def _find_end(self) -> StreamEnd:
        """Return the planned end of the stream, or where the stream ends now if it has grown."""
        batch, metadata = self._batch, self._metadata
        if self._end is not None:
            claim = self._end.claim
            try:
                if (await metadata.tree.read(metadata.paths.segments)).version == (
                    claim.ledgers_version
                ):
                    return self._end
            except NoSuchKeyError:
                pass  # the stream is gone, which `find_end` reports
            self._tell("the stream has changed since the plan")
        planned = Planned(batch.claim["life"], batch.claim["stamp"], batch.fence_writers)
        settings = StreamSettings(**batch.settings)
        end = await find_end(self._streams, self._name, settings, batch.key, planned)
        _check_token(self._name, end, batch.token)
        self._end = end
        return end

    async def _attempt(self, end: StreamEnd, found: Published) -> list[StreamSegment]:
        batch, metadata = self._batch, self._metadata
        ready = await self._prepared(end)
        segments = _segments_of(end, ready, self._client.clock.now_ms())
        await _check(self._client, self._name, batch, ready, end)
        await _commit(metadata, batch, end.claim, segments, found)
        await discard(self._client, [one for one in self._built if one not in ready])
        return segments

    async def _prepared(self, end: StreamEnd) -> list[BuiltSegment]:
        """Return the ledgers of the batch as they must be to follow the end of the stream.

        If another sink has published later txids since the plan, the records of a stream that
        assigns txids by time are copied with new ones. They are also copied if a writer has changed
        the producers or the fencing token, because each segment ends with these.
        """
        batch, clock = self._batch, self._client.clock
        ledgers = self._built if self._ready is None else self._ready
        snapshot = batch.snapshot if end.marks is None else end.marks.snapshot()
        early = any(one.first_txid < end.last_txid for one in ledgers)
        txid: int | None = None
        if early and batch.settings["txids"] == "time":
            txid = max(end.last_txid, clock.now_ms() + self._copying_ms)
        again = txid is not None or snapshot != self._snapshot
        if self._ready is not None and not again:
            return self._ready
        begun_ms, former = clock.now_ms(), self._made()
        renewed = Renewed(txid, snapshot) if again else None
        self._ready = await merge(self._streams, self._name, batch, ledgers, renewed)
        self._snapshot = snapshot
        if again:
            self._copying_ms = clock.now_ms() - begun_ms
        await discard(self._client, former)
        return self._ready

    async def _pause(self, error: StreamFencedError) -> None:
        """Wait before the next attempt. Raises StreamFencedError if there must be none."""
        batch, metadata = self._batch, self._metadata
        await metadata.tree.sync()
        if await published_segments(metadata, batch.key) is not None:
            return
        if not await is_open(metadata, batch.plan):
            raise StreamFencedError(
                f"{batch.key} was not published to stream {self._name}: its plan has ended, "
                "because the batch was aborted, or another driver of the same writer has begun a "
                "batch, or the stream was deleted or renamed, or the ledgers of the batch "
                "were deleted as orphans",
                remedy="If another driver has taken the place of this one, stop this one. "
                "Otherwise run the job, or start the query, again",
            ) from error
        if not await self._retry.pause():
            raise StreamFencedError(
                f"{batch.key} was not published to stream {self._name}: other sinks published "
                f"first during each attempt for {COMMIT_LIMIT_S:g} s "
                f"({self._retry.failures} attempts). Nothing was published",
                remedy="Start the query, or run the job, again. Let fewer sinks write the stream, "
                "or let them publish less often",
            ) from error
        self._end = None
        self._tell("another sink or writer was faster")

    def _tell(self, why: str) -> None:
        self._client.counters.stream_commits_retried += 1
        batch, attempt = self._batch, self._retry.failures + 1
        logger.info(
            "%s is published to stream %s later than its planned place, in attempt %d: %s",
            batch.key, self._name, attempt, why,
            extra={
                "event": "stream_commit_retried",
                "stream": self._name,
                "batch": str(batch.key),
                "attempt": attempt,
                "reason": why,
            },
        )  # fmt: skip


def _planned_end(batch: StreamBatch) -> StreamEnd:
    return StreamEnd(
        claim=_claim_of(batch.claim),
        last_txid=batch.txid,
        next_number=batch.next_number,
        next_sequence=batch.next_sequence,
        held_bytes=batch.held_bytes,
        marks=None,
    )


def _segments_of(end: StreamEnd, built: Sequence[BuiltSegment], now_ms: int) -> list[StreamSegment]:
    segments: list[StreamSegment] = []
    sequence = end.next_sequence
    for number, one in enumerate(built, end.next_number):
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
    client: Client,
    name: str,
    batch: StreamBatch,
    built: Sequence[BuiltSegment],
    end: StreamEnd,
) -> None:
    """Check the order of the txids, the quota of the stream, and that all ledgers are complete.

    Raises TxidOrderError, StreamQuotaError or StreamError. Nothing was published then.
    """
    last_txid = end.last_txid
    for one in built:
        if one.first_txid < last_txid:
            raise TxidOrderError(
                f"{batch.key} was not published to stream {name}: its txid {one.first_txid} is "
                f"less than txid {last_txid} before it",
                remedy="Sort the whole batch by txid, beginning after the last txid of the "
                "stream. If several sinks write the stream, let the stream assign txids by time",
            )
        last_txid = one.last_txid
    limit = batch.settings["bytes_max"]
    if limit and end.held_bytes + sum(one.size_bytes for one in built) > limit:
        raise StreamQuotaError(
            f"stream {name} holds {counted(end.held_bytes, 'byte')}, and {batch.key} would "
            f"exceed its quota of {counted(limit, 'byte')} (setting bytes_max). Nothing was "
            "published",
            remedy="Truncate the stream, or raise bytes_max. Then run the job, or start the query, "
            "again",
        )

    async def look(one: BuiltSegment) -> None:
        stored = await client.ledger_metadata(one.ledger_id)
        if not stored.closed or stored.last_entry_id < one.last_entry_id:
            raise StreamError(
                f"{batch.key} was not published to stream {name}: ledger {one.ledger_id} of the "
                "batch is open, or has fewer entries than were written",
                remedy="Compute and publish the batch again. If the error returns, report it",
            )

    await each(built, look)


async def _commit(
    metadata: StreamMetadata,
    batch: StreamBatch,
    claim: WriterClaim,
    segments: Sequence[StreamSegment],
    found: Published,
) -> None:
    operation, value = found.with_batch(batch.key, list(segments))
    await metadata.make_below(found.path.rpartition("/")[0])
    # Another driver may have published the same batch with the same numbers, but not these ledgers.
    after: dict[str, bytes | None] = {found.path: value}
    after |= {metadata.paths.segment(one.name): one.to_bytes() for one in segments}
    await metadata.publish(claim, segments, [operation, batch.plan.used()], after)


# -- merging ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Renewed:
    """The txid and the snapshot that copies get instead of those of the originals."""

    txid: int | None
    """The txid of all records, or None to keep their txids."""
    snapshot: bytes | None


async def merge(
    streams: Namespace,
    name: str,
    batch: StreamBatch,
    built: Sequence[BuiltSegment],
    renewed: Renewed | None = None,
) -> list[BuiltSegment]:
    """Copy each group of small neighbouring ledgers into one new ledger, and return the result.

    With `renewed` every ledger is copied. The result has the new ledgers and those that need no
    copying, in order. No ledger in `built` is deleted. After an error the new ledgers are deleted.
    """
    merged: list[BuiltSegment] = []
    try:
        for group in _groups(built):
            if len(group) == 1 and renewed is None:
                merged.append(group[0])
            else:
                merged.append(await _join(streams, name, batch, group, renewed))
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
    streams: Namespace,
    name: str,
    batch: StreamBatch,
    group: Sequence[BuiltSegment],
    renewed: Renewed | None = None,
) -> BuiltSegment:
    builder = SegmentBuilder(
        streams.client,
        streams.metadata(name).paths.stream,
        StreamSettings(**batch.settings),
        password=streams.password,
        job=batch.key.job,
        life=batch.life,
        snapshot=batch.snapshot if renewed is None else renewed.snapshot,
    )
    txid = None if renewed is None else renewed.txid
    try:
        for one in group:
            await _copy(streams, one, builder, txid)
        joined = await builder.close()
    except BaseException:
        await builder.discard()
        raise
    assert joined is not None
    assert joined.record_count == sum(one.record_count for one in group)
    return joined


async def _copy(
    streams: Namespace, one: BuiltSegment, builder: SegmentBuilder, txid: int | None
) -> None:
    segment = StreamSegment(NO_NUMBER, one.ledger_id, one.first_txid)
    client = streams.client
    async with (
        await client.open_ledger(one.ledger_id, password=streams.password) as reader,
        aclosing(reader.read_runs()) as runs,
    ):
        async for run in runs:
            for entry_id, payload in enumerate(run.payloads(), run.first):
                records = decode(segment, entry_id, payload).users()
                txids = list(records.txids) if txid is None else [txid] * len(records)
                await builder.append(records.payloads(), txids, records.envelopes)
