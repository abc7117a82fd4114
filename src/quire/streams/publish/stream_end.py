"""The end of a stream, after which a sink publishes its next batch.

Sinks share one claim (`claim_stamp`). As long as no writer takes it from them, a sink only reads
the end of the stream, and fences nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire._runtime.retry import Backoff, Retry
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import NoSuchStreamError, StreamFencedError, nothing_done
from quire.streams.namespace.claim_stamp import claimant, is_sink
from quire.streams.namespace.known_sizes import known_sizes
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import NO_LEDGER, StreamMetadata, WriterClaim
from quire.streams.namespace.truncation import stored_bytes
from quire.streams.publish.published import BatchKey
from quire.streams.write.producers import ControlState, read_marks
from quire.streams.write.takeover import TakenStream, check_not_ended, take_over

TAKE_ATTEMPTS = 10
"""The number of attempts to take a stream from its writer while other programs do the same."""
TAKE_BACKOFF = Backoff(0.05, 2.0)
"""The pauses between two attempts to take a stream from its writer."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The place of the next batch, as of one version of the stream's metadata."""

    claim: WriterClaim
    last_txid: int
    next_number: int
    """The number that the next segment gets."""
    next_sequence: int
    held_bytes: int
    """The number of bytes in the stream, or 0 if the stream has no quota."""
    marks: ControlState | None
    """The producers and the fencing token in force.

    None means that no writer has held the stream since the plan, so that they are the same.
    """


@dataclass(frozen=True, slots=True)
class Planned:
    """The claim under which the batch was planned."""

    life: str
    stamp: str
    fence_writers: bool
    """Whether a writer that has taken over since then may be fenced."""


async def find_end(
    streams: Namespace,
    name: str,
    settings: StreamSettings,
    key: BatchKey,
    planned: Planned | None = None,
) -> StreamEnd:
    """Return the end of the stream, and take the stream from its writer if it has one.

    A batch that is `planned` already takes the stream only if the user has allowed that.

    Raises NoSuchStreamError and StreamEndedError. Raises StreamFencedError if a writer has the
    stream and must not be fenced, or other programs take over during each attempt. Raises
    RecoveryError if too few bookies answer: try again.
    """
    metadata, whole = streams.metadata(name), bool(settings.bytes_max)
    retry = Retry(TAKE_BACKOFF, streams.client.rng, attempts=TAKE_ATTEMPTS)
    while True:
        claim = await metadata.shared_claim()
        if planned is not None and claim.life != planned.life:
            raise NoSuchStreamError(
                f"{key} was not published to stream {name}: the stream was deleted or renamed "
                "after the batch was planned, and another stream has its name now",
                remedy="If the stream was renamed, publish to it under its new name. To publish to "
                "the stream that has the name now, run the job again, or begin the query with a "
                "new checkpoint",
            )
        known = "" if planned is None else planned.stamp
        end = await _shared_end(streams, metadata, claim, known, whole)
        if end is not None:
            return end
        # Sinks leave no segment in progress. One that appears under their claim belongs to a
        # writer of another implementation.
        by_writer = not is_sink(claim.stamp) or claim.stamp == known
        if by_writer and planned is not None and not planned.fence_writers:
            raise _held_by_writer(name, key, claim.stamp)
        try:
            # Not from a writer that has opened the stream since it was looked at.
            taken = await take_over(
                streams.client, metadata, streams.password, whole=whole, sink=_sink_name(key),
                expected=claim.ledgers_version,
            )  # fmt: skip
        except StreamFencedError as error:
            if not await retry.pause():
                raise _never_taken(name, None if planned is None else key) from error
            await metadata.tree.sync()
            continue
        held_bytes = await stored_bytes(streams.client, taken.segments) if whole else 0
        return _end_of(taken, held_bytes, taken.marks)


def _sink_name(key: BatchKey) -> str:
    return f"writer/{key.writer}" if key.writer else f"job/{key.query}"


def _held_by_writer(name: str, key: BatchKey, stamp: str) -> StreamFencedError:
    who = "a writer that is not Quire's" if is_sink(stamp) else claimant(stamp)
    return nothing_done(
        StreamFencedError(
            f"{key} was not published to stream {name}: {who} took the stream over after the "
            "batch was planned. Nothing was published",
            remedy="Stop that writer, and run the job or start the query again, which fences it. "
            "To fence writers that open the stream while a batch runs, set the option "
            "'fenceWriters'",
        )
    )


def _never_taken(name: str, key: BatchKey | None) -> StreamFencedError:
    """Return the error for a stream that other programs kept taking over.

    `key` names the batch that was to be published, or is None while a batch was being planned.
    """
    what = "a batch was not planned for" if key is None else f"{key} was not published to"
    return nothing_done(
        StreamFencedError(
            f"{what} stream {name}: other programs took the stream over during "
            f"each of {TAKE_ATTEMPTS} attempts. Nothing was published",
            remedy="Find the other writers of the stream, and stop those that should not write it. "
            "Then run the job, or start the query, again",
        )
    )


async def _shared_end(
    streams: Namespace, metadata: StreamMetadata, claim: WriterClaim, known: str, whole: bool
) -> StreamEnd | None:
    """Return the end of the stream, or None if sinks must take the stream from a writer first.

    `known` is the stamp for which the caller knows the producers and the token.
    """
    if not is_sink(claim.stamp) or claim.allocated != NO_LEDGER:
        return None
    check_not_ended(metadata.paths.name, claim.max_txid)
    marked = claim.stamp != known and await metadata.has_marks()
    sizes = known_sizes(metadata)
    segments: Sequence[StreamSegment]
    if whole:
        _, segments = await sizes.segments()
    else:
        segments = await (metadata.segments() if marked else metadata.newest_segments())
    if any(segment.in_progress for segment in segments):
        return None  # a sink died while it took the stream over
    last_txid = max([claim.max_txid, *[segment.last_txid for segment in segments]])
    taken = TakenStream(claim, last_txid, list(segments))
    marks: ControlState | None = None
    if marked:
        marks = await read_marks(streams.client, segments, streams.password)
    elif claim.stamp != known:
        marks = ControlState()
    held_bytes = sum(await sizes.of(segments)) if whole else 0
    return _end_of(taken, held_bytes, marks)


def _end_of(taken: TakenStream, held_bytes: int, marks: ControlState | None) -> StreamEnd:
    segments = taken.segments
    return StreamEnd(
        claim=taken.claim,
        last_txid=taken.last_txid,
        # If the last writer died with an empty segment, its number is used again.
        next_number=segments[-1].lssn + 1 if segments else max(1, taken.claim.newest),
        next_sequence=taken.next_sequence,
        held_bytes=held_bytes,
        marks=marks,
    )
