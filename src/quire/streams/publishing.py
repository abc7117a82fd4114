"""Publishing a batch of records to a stream exactly once: for writers that work in many processes
and may do everything again (Spark's tasks and driver).

    driver   batch = await begin(streams, "orders", key)         None: it is published already
    tasks    builder = SegmentBuilder(...); await builder.append(...); built = await builder.close()
    driver   await publish(streams, "orders", batch, [built, ...])

A published ledger is a completed segment. The transaction that names the segments also writes down
who published what (`<root>/quire-writers/NAME`), under the claim that `begin` took: a batch is in
the stream once, however often it is computed; a driver that was replaced publishes nothing; ledgers
of attempts that failed are named by no segment, and the audit of orphans finds them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from quire.client import Client, LedgerWriter
from quire.codec.compression import Compression
from quire.codec.frames import Buffer
from quire.codec.record import entry_ends
from quire.codec.stream_segment import StreamSegment
from quire.errors import (
    MetadataError,
    NoSuchKeyError,
    QuireError,
    StreamFencedError,
    UsageError,
)
from quire.metadata.tree import Create, Operation, Put
from quire.streams.drafts import Draft
from quire.streams.namespace import Namespace
from quire.streams.records import decode
from quire.streams.segment_writer import SegmentWriter
from quire.streams.segments import APPLICATION
from quire.streams.settings import StreamSettings
from quire.streams.stream_metadata import Claim, StreamMetadata
from quire.streams.takeover import take_over

WRITER_NAME_BYTES_MAX = 200
MERGE_BYTES = 8 * 1024 * 1024
"""Ledgers of tasks that are smaller together become one segment: a small batch must not cost a
ledger for each task for ever."""
UNACKED_ENTRIES_MAX = 64
NO_NUMBER = 0
NEVER_DUE_S = float("inf")


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What makes a batch the same when it is computed again."""

    writer: str
    """Chosen by the user, or by the name of the query."""
    query: str
    """Changes when the writer begins anew, with batch numbers from 0."""
    number: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that may be published: plain values, to be sent to tasks and back."""

    key: BatchKey
    txid: int
    """Of its records where the stream numbers by time, and the least that they may have."""
    next_sequence: int
    claim: dict[str, Any]
    writer_version: int
    """Of the node that says what the writer has published; -1: there is none yet."""
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Built:
    """A closed ledger full of records: plain values."""

    ledger_id: int
    record_count: int
    first_txid: int
    last_txid: int
    last_entry_id: int
    last_slot_id: int
    size_bytes: int


class SegmentBuilder:
    """Fills one ledger with records, as the segment that it may become. Use it in one task."""

    def __init__(
        self,
        client: Client,
        path: str,
        settings: StreamSettings,
        *,
        password: bytes = b"",
        job: str = "",
    ) -> None:
        """`path` of the stream (`Namespace.path` + "/" + its name); `job` is stored with the ledger
        for whoever finds it left over."""
        self._client = client
        self._settings = settings
        self._custom = {**APPLICATION, "stream": path.encode(), "quire.job": job.encode()}
        self._password = password
        self._writer: SegmentWriter | None = None
        self._draft = Draft(0)
        self._ledger: LedgerWriter | None = None

    async def append(self, payloads: Sequence[Buffer], txids: Sequence[int]) -> None:
        """In order; txids must not decrease. Nothing is durable before `close`."""
        if not payloads:
            return
        writer = self._writer or await self._open(txids[0])
        limit, first = self._settings.entry_bytes, 0
        for end in entry_ends(payloads, limit, self._draft.size_bytes):
            if first or not end:
                writer.send(self._draft)
                self._draft = Draft(0)
                while len(writer.in_flight) > UNACKED_ENTRIES_MAX:
                    await writer.acknowledged()
            if end > first:
                self._draft.add(payloads[first:end], txids[first:end])
            first = end

    async def _open(self, first_txid: int) -> SegmentWriter:
        settings = self._settings
        self._ledger = await self._client.create_ledger(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest=settings.digest,
            password=self._password,
            custom=self._custom,
        )
        segment = StreamSegment(NO_NUMBER, self._ledger.ledger_id, first_txid)
        compression = Compression[settings.compression.upper()]
        self._writer = SegmentWriter(segment, self._ledger, compression, 0, NEVER_DUE_S)
        return self._writer

    async def close(self) -> Built | None:
        """All records are durable, and the ledger is closed; None if there were none."""
        writer = self._writer
        if writer is None:
            return None
        if len(self._draft):
            writer.send(self._draft)
        while writer.in_flight:
            await writer.acknowledged()
        await writer.ledger.close()
        return Built(
            ledger_id=writer.ledger.ledger_id,
            record_count=writer.count,
            first_txid=writer.segment.first_txid,
            last_txid=writer.last_txid,
            last_entry_id=writer.last.entry_id,
            last_slot_id=writer.last.slot_id,
            size_bytes=writer.ledger.length,
        )

    async def discard(self) -> None:
        """Give up what was written."""
        if self._ledger is not None:
            self._ledger.abandon()
            await self._client.delete_ledger(self._ledger.ledger_id)


# -- the driver -------------------------------------------------------------------------------


async def begin(
    streams: Namespace, name: str, key: BatchKey, *, takeover: bool = False
) -> Batch | None:
    """Become the stream's writer, for this batch; None if it is published already.

    UsageError: the writer has published under another query, and `takeover` was not given (a new
    query begins again at batch 0, which must not be taken for one that is done)."""
    metadata = streams.metadata(name)
    await metadata.require()
    node, version = await _published(metadata, key.writer)
    if node is not None and node["query"] == key.query and node["number"] >= key.number:
        return None
    if node is not None and node["query"] != key.query and not takeover:
        raise UsageError(
            f"writer {key.writer!r} of stream {name} has published up to batch {node['number']} "
            f"of query {node['query']}, this is query {key.query}",
            remedy="Continue the checkpoint of that query, choose another writer, or give takeover "
            "to go on behind what it has published",
        )
    settings = await streams.stream_settings(name)
    taken = await take_over(streams.client, metadata, streams.password)
    now_ms = streams.client.clock.now_ms() if settings.txids == "time" else 0
    return Batch(
        key=key,
        txid=max(taken.last_txid, now_ms),
        next_sequence=taken.next_sequence,
        claim=_claim_values(taken.claim),
        writer_version=version,
        settings=settings.as_dict(),
    )


async def publish(
    streams: Namespace, name: str, batch: Batch, built: Sequence[Built]
) -> list[StreamSegment]:
    """Make the ledgers the next segments of the stream, in this order. Called again for the same
    batch, it returns the segments that it was published with, and deletes what was built again.

    On return the batch is durable and readers see all of it. StreamFencedError: another writer came
    between; nothing was published (begin it again). MetadataUnavailableError: unknown; call again.
    """
    metadata, client = streams.metadata(name), streams.client
    before = await published_segments(metadata, batch.key)
    if before is not None:
        kept = {segment.ledger_id for segment in before}
        await discard(client, [b for b in built if b.ledger_id not in kept])
        return before
    merged = await _merge(streams, name, batch, built)
    claim = _claim_of(batch.claim)
    segments = _segments_of(batch, merged, claim, client.clock.now_ms())
    try:
        await _commit(metadata, batch, claim, segments)
    except StreamFencedError:
        await discard(client, [b for b in merged if b not in built])
        raise
    await discard(client, [b for b in built if b not in merged])
    return segments


async def abort(streams: Namespace, name: str, key: BatchKey, built: Sequence[Built]) -> bool:
    """Delete what was built for a batch, unless it is published after all: then nothing is deleted
    that the stream names, and the answer is False. (Spark aborts also after a commit that failed
    half way.)"""
    published = await published_segments(streams.metadata(name), key)
    kept = {segment.ledger_id for segment in published or ()}
    await discard(streams.client, [b for b in built if b.ledger_id not in kept])
    return published is None


async def discard(client: Client, built: Sequence[Built]) -> None:
    for one in built:
        try:
            await client.delete_ledger(one.ledger_id)
        except QuireError:
            pass  # The audit of orphans finds it.


async def published_segments(metadata: StreamMetadata, key: BatchKey) -> list[StreamSegment] | None:
    """The segments of a batch, those that were truncated meanwhile left out; None: not published
    (as far as the last batch of the writer tells)."""
    node, _ = await _published(metadata, key.writer)
    if node is None or node["query"] != key.query or node["number"] < key.number:
        return None
    if node["number"] > key.number:
        return []
    ledgers = set(node["ledgers"])
    return [s for s in await metadata.segments() if s.ledger_id in ledgers]


# -- inside -----------------------------------------------------------------------------------


def _claim_values(claim: Claim) -> dict[str, Any]:
    return {**asdict(claim), "allocated": claim.allocated.decode("ascii")}


def _claim_of(values: dict[str, Any]) -> Claim:
    return Claim(**{**values, "allocated": values["allocated"].encode("ascii")})


def _node_path(metadata: StreamMetadata, writer: str) -> str:
    encoded = quote(writer, safe="")
    if not writer or len(encoded) > WRITER_NAME_BYTES_MAX:
        raise UsageError(f"{writer[:80]!r} cannot be the name of a writer")
    return f"{metadata.paths.root}/quire-writers/{encoded}"


async def _published(metadata: StreamMetadata, writer: str) -> tuple[dict[str, Any] | None, int]:
    path = _node_path(metadata, writer)
    try:
        found = await metadata.tree.read(path)
    except NoSuchKeyError:
        return None, -1
    try:
        node = json.loads(found.value)
        if node["format"] != 1:
            raise ValueError("a later format")
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(f"{path} cannot be understood: {error}") from None
    return node, found.version


def _segments_of(
    batch: Batch, built: Sequence[Built], claim: Claim, now_ms: int
) -> list[StreamSegment]:
    segments: list[StreamSegment] = []
    sequence, number = batch.next_sequence, claim.newest
    for one in built:
        number += 1
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


async def _commit(
    metadata: StreamMetadata, batch: Batch, claim: Claim, segments: Sequence[StreamSegment]
) -> None:
    path = _node_path(metadata, batch.key.writer)
    node = {
        "format": 1, "query": batch.key.query, "number": batch.key.number,
        "ledgers": [segment.ledger_id for segment in segments],
    }  # fmt: skip
    value = json.dumps(node).encode()
    more: list[Operation] = [
        Put(path, value, batch.writer_version) if batch.writer_version >= 0 else Create(path, value)
    ]
    await metadata.tree.make_path(path.rpartition("/")[0])
    await metadata.publish(claim, segments, more, {path: value})


async def _merge(
    streams: Namespace, name: str, batch: Batch, built: Sequence[Built]
) -> list[Built]:
    """Small ledgers of one batch copied into one; large ones stay what they are."""
    small = sum(one.size_bytes for one in built) <= MERGE_BYTES
    if len(built) < 2 or not small:
        return list(built)
    settings = StreamSettings(**batch.settings)
    path = streams.metadata(name).paths.stream
    job = f"{batch.key.writer}/{batch.key.query}/{batch.key.number}"
    builder = SegmentBuilder(streams.client, path, settings, password=streams.password, job=job)
    try:
        for one in built:
            await _copy(streams, one, builder)
        merged = await builder.close()
    except BaseException:
        await builder.discard()
        raise
    assert merged is not None
    return [merged]


async def _copy(streams: Namespace, one: Built, builder: SegmentBuilder) -> None:
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
