"""The ledgers that streams, objects and datasets name in their own records.

A ledger's custom metadata only says what it was created for. The record of the owner is
authoritative: the segments and the allocation of a stream, the head of an object, the ledgers of a
dataset.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import unquote

from quire._runtime.tasks import each
from quire._runtime.units import counted
from quire.client import Client
from quire.client.datasets.datasets import Datasets
from quire.client.datasets.heads import HEADS as DATASETS
from quire.codec.distributedlog.name import PARTITION, StreamPaths, decode_number, is_reserved
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.core.ranges import merged
from quire.errors import (
    LaterMetadataError,
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    QuireError,
)
from quire.metadata.ledgers.deletions import Deletion
from quire.metadata.tree import Tree
from quire.streams.namespace.stored_settings import SETTINGS_NODE
from quire.streams.namespace.stream_metadata import LIST_ATTEMPTS
from quire.streams.namespace.tree_search import OTHERS, walk
from quire.streams.objects.format import HEADS as OBJECTS
from quire.streams.objects.format import LEAF, ObjectInfo, decode_head, head_key
from quire.streams.statemachine.snapshot_info import BUCKET as STATE_MACHINES

OWNERS_AT_ONCE = 64
"""The number of streams, objects or datasets whose records are read at the same time."""
RANGES_SHOWN_MAX = 3
"""The number of ranges of entries of one ledger that a text names."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a ledger."""

    kind: str
    """The kind of owner, such as "stream", "object", "state machine" or "dataset"."""
    name: str
    place: str = ""
    """The namespace of a stream, the bucket of an object, or "" for other owners."""

    def __str__(self) -> str:
        where = {"stream": "namespace", "object": "bucket", "state machine": "bucket"}
        place = f" in {where.get(self.kind, 'place')} {self.place}" if self.place else ""
        return f"{self.kind} {self.name}{place}"


@dataclass(frozen=True, slots=True)
class NamedLedger:
    """A ledger that the record of an owner names."""

    ledger_id: int
    owner: Owner
    part: str
    """A text that says which part of the owner is in the ledger, such as "entries 0 to 99"."""
    needed: bool = True
    """Whether data is lost with the ledger.

    It is False if the ledger was created ahead of its use, or truncated.
    """
    after: str = ""
    """The position at which a stream continues after the segment that this ledger holds.

    It is "" for the last segment, and for ledgers of other owners.
    """
    like: int | None = None
    """The id of a ledger of the same stream that exists, if this one is lost. It has the same
    settings in all probability. None if there is none, and for ledgers of other owners."""
    deletion: Deletion | None = None
    """Who deleted the ledger, if it is lost and that is known."""


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """The record of an owner that cannot be read. It may name any ledger."""

    owner: Owner
    why: str


OwnerRecord = Sequence[NamedLedger] | UnreadableRecord
"""The ledgers that one owner names, or the reason why its record cannot be read."""


async def records(client: Client, *, objects: bool = True) -> AsyncGenerator[OwnerRecord, None]:
    """Yield the records of all datasets, streams and, with `objects`, objects of the cluster.

    A record that cannot be read is yielded as `UnreadableRecord`, and the others follow. Raises
    MetadataUnavailableError. Cancel-safe. Memory is bounded by `OWNERS_AT_ONCE` records.
    """
    names = await client.metadata.list_values((DATASETS,))
    for at in range(0, len(names), OWNERS_AT_ONCE):
        some = names[at : at + OWNERS_AT_ONCE]
        for record in await each(some, lambda name: dataset_record(client, name)):
            yield record
    if objects:
        async with aclosing(_object_records(client)) as found:
            async for record in found:
                yield record
    async with aclosing(_stream_records(client)) as found:
        async for record in found:
            yield record


# -- datasets ---------------------------------------------------------------------------------


async def dataset_record(client: Client, name: str) -> OwnerRecord:
    """Return the ledgers that a dataset names, or none if there is no such dataset.

    Raises MetadataUnavailableError. Other errors are part of the result.
    """
    owner = Owner("dataset", name)
    try:
        dataset = await Datasets(client.metadata).read(name)
    except NoSuchKeyError:
        return ()  # the dataset was dropped
    except MetadataUnavailableError:
        raise
    except QuireError as error:
        return UnreadableRecord(owner, str(error))
    parts: dict[int, list[tuple[int, int]]] = {}
    for one in dataset.ledgers:
        parts.setdefault(one.ledger_id, []).append((one.first, one.last))
    return [
        NamedLedger(ledger_id, owner, f"entries {_ranges(ranges)}")
        for ledger_id, ranges in parts.items()
    ]


def _ranges(ranges: list[tuple[int, int]]) -> str:
    """Return ranges of entries in words. A dataset with partitions has many of one ledger."""
    joined = merged(ranges)
    shown = [f"{first} to {last}" for first, last in joined[:RANGES_SHOWN_MAX]]
    more = len(joined) - len(shown)
    return ", ".join([*shown, f"and {more} more ranges"] if more else shown)


# -- objects ----------------------------------------------------------------------------------


async def object_record(client: Client, bucket: str, name: str) -> OwnerRecord:
    """Return the ledger that an object names, or none if there is no such object.

    Raises MetadataUnavailableError. Other errors are part of the result.
    """
    owner = object_owner(bucket, name)
    try:
        head = decode_head(name, (await client.metadata.read_value(head_key(bucket, name))).value)
    except NoSuchKeyError:
        return ()
    except MetadataUnavailableError:
        raise
    except QuireError as error:
        return UnreadableRecord(owner, str(error))
    return [_held(owner, head)]


def object_owner(bucket: str, name: str) -> Owner:
    """Return the object with this name, or the state machine if the bucket is that of snapshots."""
    return Owner("state machine" if bucket == STATE_MACHINES else "object", name, bucket)


def _held(owner: Owner, head: ObjectInfo) -> NamedLedger:
    what = "its snapshot" if owner.kind == "state machine" else "all of it"
    return NamedLedger(head.ledger_id, owner, f"{what}, {counted(head.size_bytes, 'byte')}")


async def _object_records(client: Client) -> AsyncGenerator[OwnerRecord, None]:
    todo = [(OBJECTS, bucket) for bucket in await client.metadata.list_values((OBJECTS,))]
    folders: list[tuple[str, ...]] = list(todo)
    while folders:
        folder = folders.pop()
        found = await client.metadata.list_values(folder)
        folders += [(*folder, name) for name in found if not name.startswith(LEAF)]
        leaves = [name for name in found if name.startswith(LEAF)]
        bucket, above = unquote(folder[1]), "".join(f"{unquote(part)}/" for part in folder[2:])
        names = [above + unquote(name[len(LEAF) :]) for name in leaves]
        for at in range(0, len(names), OWNERS_AT_ONCE):
            some = names[at : at + OWNERS_AT_ONCE]
            for record in await each(some, lambda name: object_record(client, bucket, name)):  # noqa: B023
                yield record


# -- streams ----------------------------------------------------------------------------------


async def stream_record(client: Client, path: str) -> OwnerRecord:
    """Return the ledgers that the stream at this path names, including its allocation.

    Raises MetadataUnavailableError. Other errors are part of the result.
    """
    tree = client.metadata.tree
    try:
        owner = await stream_owner(tree, path)
        return await ledgers_of(tree, path, owner)
    except MetadataUnavailableError:
        raise
    except QuireError as error:
        return UnreadableRecord(Owner("stream", path), str(error))


async def stream_owner(tree: Tree, path: str) -> Owner:
    """Return the stream at this path as an owner, with its namespace and its name in it.

    The namespace is the closest path above the stream that has a node with settings. Without one,
    the name is the last part of the path.
    """
    parts = path.strip("/").split("/")
    for length in range(len(parts) - 1, 0, -1):
        namespace = "/" + "/".join(parts[:length])
        if await tree.exists(f"{namespace}/{SETTINGS_NODE}"):
            return Owner("stream", "/".join(parts[length:]), namespace)
    return Owner("stream", parts[-1], "/" + "/".join(parts[:-1]))


async def ledgers_of(tree: Tree, path: str, owner: Owner) -> list[NamedLedger]:
    """Return the ledgers that the stream at this path names, including its allocation.

    Every node counts, even if two have the same number. Raises MetadataError if one cannot be
    decoded: it could name any ledger.
    """
    namespace, _, name = path.rpartition("/")
    paths = StreamPaths(namespace, name)
    ahead: dict[int, NamedLedger] = {}
    for _ in range(LIST_ATTEMPTS):
        # Read the allocation first: a ledger moves from there to a segment.
        if allocated := await _value(tree, paths.allocation):
            ledger_id = decode_number(allocated, paths.allocation)
            ahead[ledger_id] = NamedLedger(
                ledger_id, owner, "created ahead for its next segment", False
            )
        try:
            names = await tree.children(paths.segments)
        except NoSuchKeyError:
            return list(ahead.values())  # the stream is being created or deleted
        values = await each(names, lambda node: _value(tree, paths.segment(node)))
        there = [value for value in values if value is not None]
        if len(there) == len(values):
            segments = [_segment(paths.segment(node), value) for node, value in zip(names, there)]
            segments.sort(key=lambda one: one.lssn)
            firsts = [(one.lssn, str(one.first_dlsn)) for one in segments]
            found = [
                NamedLedger(
                    one.ledger_id,
                    owner,
                    segment_words(one),
                    one.truncation is not Truncation.TRUNCATED,
                    next((first for lssn, first in firsts if lssn > one.lssn), ""),
                )
                for one in segments
            ]
            named = {one.ledger_id for one in found}
            return [*found, *(one for one in ahead.values() if one.ledger_id not in named)]
    raise MetadataError(
        f"the segments of stream {path} could not be listed: they changed during each of "
        f"{LIST_ATTEMPTS} attempts",
        remedy="Try again",
    )


def segment_words(segment: StreamSegment) -> str:
    """Describe a segment and the positions of its records in words."""
    if segment.in_progress:
        return f"segment {segment.lssn}, in progress, from position {segment.first_dlsn}"
    return (
        f"segment {segment.lssn}, {counted(segment.record_count, 'record')} from position "
        f"{segment.first_dlsn} to {segment.last_dlsn}"
    )


def _segment(path: str, value: bytes) -> StreamSegment:
    try:
        return StreamSegment.from_bytes(value, oldest=1)
    except LaterMetadataError as error:
        raise LaterMetadataError(f"{path}: {error.args[0]}") from None
    except MetadataError as error:
        raise MetadataError(
            f"the node {path} of a stream's segment cannot be decoded, and may name any ledger: "
            f"{error.args[0]}",
            remedy="If a later version of Quire wrote it, use that version. Otherwise restore "
            "the node from a backup of the metadata store",
        ) from error


async def _value(tree: Tree, path: str) -> bytes | None:
    """Return the value of the node, or None if there is no such node."""
    try:
        return (await tree.read(path)).value
    except NoSuchKeyError:
        return None


async def _stream_records(client: Client) -> AsyncGenerator[OwnerRecord, None]:
    tree = client.metadata.tree
    tops = [f"/{name}" for name in await tree.children("/") if not is_reserved(name)]
    for top in tops:
        if top in OTHERS:
            continue
        try:
            async with aclosing(_below(client, top, past_denied=False)) as found:
                async for record in found:
                    yield record
        except MetadataDeniedError as error:
            yield UnreadableRecord(Owner("nodes below", top), str(error))
            async with aclosing(_below(client, top, past_denied=True)) as found:
                async for record in found:
                    yield record


async def _below(client: Client, top: str, past_denied: bool) -> AsyncGenerator[OwnerRecord, None]:
    some: list[str] = []
    tree = client.metadata.tree
    async with aclosing(walk(tree, [top], past_denied=past_denied)) as places:
        async for path, names in places:
            if PARTITION in names:
                some.append(path)
            if len(some) == OWNERS_AT_ONCE:
                for record in await each(some, lambda one: stream_record(client, one)):
                    yield record
                some = []
    for record in await each(some, lambda one: stream_record(client, one)):
        yield record
