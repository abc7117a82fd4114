"""The check that a stream is still the copy that `replicate` made of another stream.

A copy has a node `quire-mirror` below its root (JSON in UTF-8):

    {"format": 1, "cluster": "b3...", "stream": "/team/orders", "life": "17-3"}

It stores the instance id of the source's cluster, the path of the source, and the life of the
source, which distinguishes the streams that had this path (`quire.streams.namespace.stream_life`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire._runtime.units import end_text
from quire.client import Client
from quire.codec.distributedlog.limits import UNASSIGNED_SEQUENCE_ID
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    LaterMetadataError,
    MetadataError,
    NoSuchKeyError,
    NoSuchLedgerError,
    ReadError,
    StreamDivergedError,
    StreamExistsError,
    StreamGapError,
    later_json,
)
from quire.streams.mirror.copy import JOB, SOURCE_KEY
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.settings import encode_settings
from quire.streams.namespace.stored_settings import STREAM_SETTINGS_NODE
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.publish.segment_builder import JOB_KEY
from quire.streams.read.positions import last_entry

MARKER = "quire-mirror"
FORMAT = 1
REMEDY = (
    "Replicate to another namespace, and compare the two streams (`quire stream show`). If nobody "
    "needs the records in the target's stream, delete that stream to start over"
)


async def origin_of(source: Namespace, name: str) -> dict[str, Any]:
    """Return the marker that the copy of this source stream stores, as the JSON of `quire-mirror`.

    Raises NoSuchStreamError if the stream does not exist.
    """
    metadata = source.metadata(name)
    life = await metadata.life()
    return {
        "format": FORMAT,
        "cluster": await source.client.metadata.instance_id(),
        "stream": metadata.paths.stream,
        "life": life.path.rpartition("/")[2],
    }


async def prepare_target(
    target: Namespace, name: str, origin: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Create the copy, still empty and with these settings of its own, unless it exists.

    Raises StreamDivergedError if the existing stream is not a copy of this source,
    StreamExistsError if a topic has its name, and MetadataError if its marker cannot be decoded.
    """
    metadata = target.metadata(name)
    more = {MARKER: json.dumps(origin).encode()}
    if settings:
        more[STREAM_SETTINGS_NODE] = encode_settings(settings)
    if not await metadata.exists():
        try:
            await metadata.create(more)
            return
        except StreamExistsError:
            if not await metadata.exists():
                raise  # a topic has this name
            # It was created just now, perhaps by another run of `replicate`.
    await check_origin(metadata, origin)


async def carry_settings(target: Namespace, name: str, settings: Mapping[str, Any]) -> None:
    """Replace the copy's own settings with these, if they differ.

    Raises NoSuchStreamError, UsageError if a setting is not valid in the target, and MetadataError.
    """
    own = await target.own_stream_settings(name)
    if own != settings:
        gone = {key: None for key in own if key not in settings}
        await target.configure_stream(name, {**gone, **settings})


async def check_origin(metadata: StreamMetadata, origin: Mapping[str, Any]) -> None:
    """Check that the target is a copy of this source.

    Raises StreamDivergedError if it is not, and MetadataError if its marker cannot be decoded.
    """
    path = f"{metadata.paths.root}/{MARKER}"
    name = metadata.paths.name
    try:
        found = stored_json((await metadata.tree.read(path)).value)
        if message := later_json(path, found, tuple(origin), FORMAT):
            raise LaterMetadataError(message)
        if found.get("format") != FORMAT:
            raise ValueError(f"it has format {found.get('format')!r}")
        if lacks := [key for key in origin if key not in found]:
            raise ValueError(f"it has no field {lacks[0]!r}")
    except NoSuchKeyError:
        raise StreamDivergedError(
            f"stream {name} of the target namespace already exists, and was not made by "
            "replication. Nothing was changed",
            remedy=REMEDY,
        ) from None
    except (AttributeError, RecursionError, ValueError) as error:
        raise MetadataError(
            f"the node {path} of the target stream {name}, which says what it is a copy of, "
            f"cannot be decoded: {error}",
            remedy="If a later version of Quire wrote it, use that version. Otherwise restore "
            "the node from a backup of the metadata store",
        ) from None
    if (found["cluster"], found["stream"]) != (origin["cluster"], origin["stream"]):
        raise StreamDivergedError(
            f"stream {name} of the target namespace is a copy of stream {found['stream']} in "
            f"cluster {found['cluster']}, not of {origin['stream']} in cluster "
            f"{origin['cluster']}. Nothing was changed",
            remedy=REMEDY,
        )
    if found["life"] != origin["life"]:
        raise StreamDivergedError(
            f"stream {name} of the target namespace is a copy of a former stream "
            f"{origin['stream']}, which was deleted or renamed. Nothing was changed",
            remedy=REMEDY,
        )


def copy_of(segment: StreamSegment, ledger_id: int) -> StreamSegment:
    """Return a segment of the source as the target stores it, with the copy's ledger."""
    if segment.in_progress:
        # The first sequence id was computed from the list of segments, and is not stored yet.
        segment = replace(segment, start_sequence_id=UNASSIGNED_SEQUENCE_ID)
    return replace(segment, ledger_id=ledger_id)


def _identity(segment: StreamSegment) -> StreamSegment:
    """Return the segment without what may differ in a copy: the ledger and the truncation."""
    return replace(segment, ledger_id=0, status=0, min_active_entry_id=0, min_active_slot_id=0)


def _is_beginning(segment: StreamSegment, original: StreamSegment) -> bool:
    """Return whether the copy's segment is what it had of one that the source truncated."""
    whole = replace(
        segment,
        last_txid=original.last_txid,
        record_count=original.record_count,
        last_entry_id=original.last_entry_id,
        last_slot_id=original.last_slot_id,
        completion_time_ms=original.completion_time_ms,
        start_sequence_id=original.start_sequence_id,
    )
    return (
        original.truncation is Truncation.TRUNCATED
        and _identity(whole) == _identity(original)
        and segment.last_entry_id <= original.last_entry_id
        and segment.record_count <= original.record_count
    )


def check_segments(
    name: str, copied: Sequence[StreamSegment], source: Sequence[StreamSegment]
) -> None:
    """Raise StreamDivergedError unless each segment of the copy is a segment of the source.

    Older segments that the source has deleted since are allowed, and so is the beginning of a
    segment that the source truncated before the rest of it was copied. `copied` must be read before
    `source`, because the source may advance in between.
    """
    there = {segment.lssn: segment for segment in source}
    newest = max(there, default=0)
    for segment in copied:
        original = there.get(segment.lssn)
        if original is None:
            if segment.lssn > newest and not segment.in_progress:
                raise StreamDivergedError(
                    f"stream {name} of the target namespace has segment {segment.lssn}, but the "
                    f"source ends with segment {newest}: another writer has written to the "
                    "target",
                    remedy=REMEDY,
                )
            continue  # the source has truncated it, or dropped it because it was empty
        if segment.in_progress:
            continue  # `look_at_copy` checks it
        if original.in_progress:
            raise StreamDivergedError(
                f"segment {segment.lssn} of stream {name} {end_text(segment.last_entry_id)} "
                "in the target, but continues in the source: another writer was opened in the "
                "target",
                remedy=REMEDY,
            )
        if _identity(segment) != _identity(original) and not _is_beginning(segment, original):
            raise StreamDivergedError(
                f"segment {segment.lssn} of stream {name} differs between the target and the "
                "source, so the target is not a copy",
                remedy=REMEDY,
            )


async def look_at_copy(
    source: Namespace, target: Namespace, name: str
) -> tuple[int, StreamSegment | None]:
    """Return the number of the copy's newest completed segment, and its segment in progress.

    The number is 0 if no segment is completed, and the segment is None if none is in progress.
    Raises StreamDivergedError if the target is not a copy of the source.
    """
    last, partial = 0, None
    copied = await target.segments(name)
    # A server that lags behind would show the source as it was before the copy was made.
    await source.client.metadata.tree.sync()
    originals = await source.segments(name)
    check_segments(name, copied, originals)
    for segment in copied:
        if segment.in_progress:
            await _check_in_progress(source, target, name, segment, originals)
            partial = segment
        else:
            last = segment.lssn
    return last, partial


async def _check_in_progress(
    source: Namespace,
    target: Namespace,
    name: str,
    partial: StreamSegment,
    originals: Sequence[StreamSegment],
) -> None:
    """Raise StreamDivergedError if the source never had the records of a segment in progress.

    A source whose metadata was restored from a backup lacks its newest segments, or has others with
    their numbers, and perhaps with the ids of their ledgers. The copy may then be the only one that
    has their records, and must keep them. A number is used again as well if nothing was written to
    its segment.
    """
    if await source_of(target.client, name, partial) is None:
        return  # the ledger is gone
    there = {segment.lssn: segment for segment in originals}
    original, newest = there.get(partial.lssn), max(there, default=0)
    if original is None and partial.lssn < newest:
        return  # the source has truncated the segment
    if original is not None and not await _differs(source, target, partial, original):
        return
    if await last_entry(target.client, partial, target.password) is None:
        return
    found = f"ends with segment {newest}" if original is None else "has another one of that number"
    raise StreamDivergedError(
        f"stream {name} of the target namespace has records of a segment {partial.lssn} that the "
        f"source lacks: the source {found}. Perhaps the metadata of the source was restored from "
        "a backup. Nothing was changed",
        remedy=REMEDY,
    )


async def _differs(
    source: Namespace, target: Namespace, partial: StreamSegment, original: StreamSegment
) -> bool:
    """Return whether the copy's segment in progress certainly has other entries than the source's.

    Only the last entry that readers of the copy see is compared. It has the txids of its records,
    so that another segment hardly has the same one.
    """
    if original.truncation is Truncation.TRUNCATED:
        return False
    try:
        async with (
            await target.client.open_ledger(partial.ledger_id, password=target.password) as copy,
            await source.client.open_ledger(original.ledger_id, password=source.password) as reader,
        ):
            last = copy.last_add_confirmed
            if last < 0:
                return False
            if reader.last_add_confirmed < last:
                return reader.ledger_closed  # otherwise this client does not know the entry yet
            both = [bytes((await one.read_entry(last)).payload) for one in (copy, reader)]
            return both[0] != both[1]
    except (NoSuchLedgerError, ReadError):
        return False  # that is reported when the segment is copied


def lacking(segments: Sequence[StreamSegment], last: int) -> list[StreamSegment]:
    """Return the segments that a copy lacks if it ends with segment `last`.

    Only the newest of the truncated segments is included, because the sequence ids of the next
    segment continue from its node.
    """
    todo = [segment for segment in segments if segment.lssn > last]
    given_up = [s for s in todo if s.truncation is Truncation.TRUNCATED]
    return [s for s in todo if s.truncation is not Truncation.TRUNCATED or s is given_up[-1]]


def check_gap(
    name: str, segments: Sequence[StreamSegment], last: int, partial: StreamSegment | None = None
) -> None:
    """Raise StreamGapError if the source truncated segments before they were copied.

    `last` is the number of the copy's newest completed segment, and `partial` its segment in
    progress. A copy without both has no gap.
    """
    readable = [s for s in segments if s.truncation is not Truncation.TRUNCATED]
    gone = max((s.lssn for s in segments if s.truncation is Truncation.TRUNCATED), default=0)
    if last and readable and readable[0].lssn > last + 1:
        first, gone = last + 1, readable[0].lssn - 1
    elif partial is not None and partial.lssn <= gone:
        first = partial.lssn
    else:
        return
    remedy = "Replicate with on_gap='skip' (`--skip-gaps`) to continue after them"
    if partial is not None:
        remedy += f". The copy keeps what it has of segment {partial.lssn}"
    raise StreamGapError(
        f"stream {name} has a gap: the source truncated segments {first} to {gone} before they "
        "were copied to the target",
        remedy=remedy,
    )


async def last_shown(
    target: Namespace, partial: StreamSegment | None, segment: StreamSegment
) -> int:
    """Return the last entry of the source's segment that readers of the copy can see already.

    `partial` is the copy's segment in progress. Returns -1 if readers see no entry. A closed ledger
    counts like an open one. A copy that was made from another ledger counts like a copy of the
    source's present ledger: its entries must not disappear from the copy either. Returns -1 also if
    the ledger is gone. Raises the other errors of `Client.open_ledger`.
    """
    if partial is None or partial.lssn != segment.lssn:
        return -1
    try:
        async with await target.client.open_ledger(
            partial.ledger_id, password=target.password
        ) as reader:
            return reader.last_add_confirmed
    except NoSuchLedgerError:
        return -1


async def source_of(client: Client, name: str, segment: StreamSegment) -> int | None:
    """Return the id of the ledger in the source from which this segment of the target was copied.

    Returns None if the ledger of the segment was deleted. Raises StreamDivergedError if another
    program has written the ledger, and MetadataError.
    """
    try:
        custom = (await client.ledger_metadata(segment.ledger_id)).custom
    except NoSuchLedgerError:
        return None
    if custom.get(JOB_KEY) != JOB:
        raise StreamDivergedError(
            f"another writer is writing segment {segment.lssn} of stream {name} in the target "
            "namespace, so the target is no copy any more",
            remedy=REMEDY,
        )
    return int(custom[SOURCE_KEY])
