"""The nodes of one stream, and the transactions that change them.

Only this module decides who may write. Every change that a writer makes to the segments names the
version of the node `ledgers`, and `claim` increases that version. A writer that has lost its claim
cannot begin, complete or roll a segment any more (`StreamFencedError`), and its successor fences
the ledger that it still writes. Truncation needs no claim. The lock (`quire.streams.write.lock`)
only keeps writers from interrupting each other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from quire._runtime.names.in_commands import command_with
from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.limits import BY, FIRST_LSSN
from quire.codec.distributedlog.name import LAYOUT_DATA, StreamPaths, decode_number, encode_number
from quire.codec.distributedlog.segment import (
    StreamSegment,
    completed_name,
    in_progress_name,
    parse_segment_name,
)
from quire.errors import (
    KeyExistsError,
    LaterMetadataError,
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchStreamError,
    NotEmptyError,
    StreamExistsError,
    StreamFencedError,
    VersionConflictError,
    nothing_done,
    written_later,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Operation, Put
from quire.streams.namespace.claim_stamp import sink_stamp
from quire.streams.namespace.stream_life import StreamLife, StreamLives, unique
from quire.streams.namespace.topic_nodes import no_topic, topic_path

NamedSegments = dict[str, StreamSegment]
"""Segments by the names of their nodes."""

NO_LEDGER = b""
LOST_REPLY_ATTEMPTS = 10
"""The number of attempts to learn the outcome of a transaction whose reply was lost."""
LOST_REPLY_BACKOFF = Backoff(0.1, 2.0)
"""The pauses between two attempts to learn the outcome of a transaction."""
LOST_REPLY_LIMIT_S = 60.0
"""Seconds for which an open writer tries to learn the outcome of a transaction.

A writer that has no segment for this time ends anyway.
"""
CREATE_ATTEMPTS = 5
"""The largest number of attempts to create a stream.

An attempt fails if a stream or a topic of the same name is deleted meanwhile, or if the namespace
gets its first topic.
"""
REST_ATTEMPTS = 10
"""The largest number of attempts to delete the nodes that a deleted stream has left.

An attempt fails if another client changes one of them.
"""
NODES_PER_COMMIT = 200
LIST_ATTEMPTS = 20
"""The largest number of attempts to read all segments.

An attempt fails if the node of a segment is renamed or deleted meanwhile.
"""


@dataclass(slots=True)
class WriterClaim:
    """The right to write a stream, and the versions of the metadata nodes on which it depends.

    The claim is lost when another client claims the stream, which changes these versions.
    """

    ledgers_version: int
    newest: int
    """The highest segment number that was ever used."""
    max_txid: int
    max_txid_version: int
    allocated: bytes
    """The decimal id of the allocated ledger, or `NO_LEDGER`.

    This ledger was created ahead of its use, or was that of a segment that was dropped. Later
    writers never use it: they only delete it.
    """
    allocation_version: int
    life: str
    """The path of a node that identifies this stream among all that ever had its name
    (`StreamLife`).
    """
    stamp: str
    """The value of the node at `life`, which identifies the newest claim."""

    @property
    def life_id(self) -> str:
        """The id of the life, which no other life of any stream has."""
        return self.life.rpartition("/")[2]


class StreamMetadata:
    """The access to the metadata nodes of one stream: it reads and changes them.

    All calls that wait raise MetadataError if the store does not answer or refuses this client.
    """

    def __init__(self, client: Client, paths: StreamPaths) -> None:
        self.client = client
        self.tree = client.metadata.tree
        self._rng = client.rng
        self.paths = paths
        self.lives = StreamLives(self.tree, paths)
        self._old_names: dict[tuple[int, bool], str] = {}
        """The names of segment nodes that follow Java's former naming, as of the last read.

        The keys are segment numbers with `in_progress`. Nodes with current names are not included.
        """
        self._doubted: WriterClaim | None = None
        """The claim whose last transaction has an unknown outcome, or None.

        The versions that the claim holds may then be too low.
        """
        self.doubted_stamps: set[bytes] = set()
        """The stamps of claims that this object began after its last one that it knows of.

        Such a claim was made, or not: its answer was lost.
        """
        self._committing = asyncio.Lock()
        """A lock that is held during each transaction under a claim.

        Each transaction needs the versions that the previous one left, and a background task
        records ledgers in the node `allocation`.
        """

    # -- the stream ---------------------------------------------------------------------------

    async def create(
        self,
        more: Mapping[str, bytes] | None = None,
        guard: Callable[[], Awaitable[Sequence[Operation]]] | None = None,
    ) -> None:
        """Create all nodes of the stream in one transaction.

        `more` has further nodes, as values by their path below the stream's root. Each attempt
        calls `guard`, which raises an error if the stream must not be created. Otherwise it returns
        operations that make the transaction fail if that changes in between. Raises
        StreamExistsError if a stream or a topic has this name, and another MetadataError if the
        nodes changed during each of `CREATE_ATTEMPTS` attempts.
        """
        for attempt in range(CREATE_ATTEMPTS):
            guards = [] if guard is None else await guard()
            try:
                await self.tree.commit(*await self.creation(more), *guards)
                return
            except (NoSuchKeyError, VersionConflictError):
                if attempt == CREATE_ATTEMPTS - 1:
                    raise
            except KeyExistsError as error:
                if await self.exists():
                    raise self.already_exists() from error
                if await self.tree.exists(topic_path(self.paths.namespace, self.paths.name)):
                    raise self._topic_exists() from error
                if attempt == CREATE_ATTEMPTS - 1:
                    raise
                await self.remove_former()

    async def creation(self, more: Mapping[str, bytes] | None = None) -> list[Operation]:
        """Return the operations that create the stream, with the arguments of `create`.

        The nodes above them are created by this call. If the transaction fails because a node is
        missing, call this again.
        """
        nodes = self.paths.created()
        nodes += [(f"{self.paths.root}/{name}", value) for name, value in (more or {}).items()]
        await self.tree.make_path(self.paths.stream)
        life = await self.lives.begin()
        absent = await no_topic(self.tree, self.paths)
        return [*(Create(path, value) for path, value in nodes), *life, *absent]

    def already_exists(self) -> StreamExistsError:
        """Return the error for a new stream whose name is taken."""
        return StreamExistsError(
            f"stream {self.paths.name} already exists in namespace {self.paths.namespace}. It was "
            "not changed",
            remedy="Use this stream, or choose another name",
        )

    def _topic_exists(self) -> StreamExistsError:
        return StreamExistsError(
            f"stream {self.paths.name} was not created in namespace {self.paths.namespace}: a "
            "topic has this name",
            remedy="Use the topic, or choose another name",
        )

    async def ensure_writable(self) -> None:
        """Create the nodes that only writers need, if they are missing.

        Raises NoSuchStreamError if the stream was deleted.
        """
        for path, value in self.paths.created():
            if not await self.tree.exists(path):
                await self.make_below(path, value)

    async def make_below(self, path: str, value: bytes = b"") -> None:
        """Create the node at `path`, which is below the stream's root, unless it exists.

        Raises NoSuchStreamError if the stream was deleted, so that it does not come back partially.
        """
        try:
            await self.tree.commit(Check(self.paths.segments, ANY_VERSION), Create(path, value))
        except KeyExistsError:
            pass
        except NoSuchKeyError as error:
            raise await self._missing() from error

    async def has_marks(self) -> bool:
        """Return whether producers or fencing tokens may have been used.

        `quire.streams.write.producers` describes them.
        """
        return await self.tree.exists(self._marks)

    async def note_marks(self) -> None:
        """Record in the stream's metadata that producers or fencing tokens are used.

        Call this before the first of them is appended. Raises NoSuchStreamError if the stream was
        deleted.
        """
        await self.make_below(self._marks)

    @property
    def _marks(self) -> str:
        return f"{self.paths.root}/quire-marks"

    async def begin_deletion(self, life: str) -> None:
        """Record in the stream's metadata that the stream is being deleted.

        From then on it cannot be renamed, because it will soon lack segments. The record remains
        until nothing of the stream is left. Raises NoSuchKeyError if the stream with the life at
        this path (`StreamLife.path`) does not exist any more.
        """
        try:
            await self.tree.commit(Check(life, ANY_VERSION), Create(self._deletion))
        except KeyExistsError:
            pass  # an earlier deletion was interrupted, or another one is at work

    async def refuse_deleted(self) -> None:
        """Raise NoSuchStreamError if the deletion of the stream has begun."""
        if not await self.tree.exists(self._deletion):
            return
        await self.tree.sync()  # the server may lag behind the end of the deletion
        if await self.tree.exists(self._deletion):
            raise NoSuchStreamError(
                f"stream {self.paths.name} of namespace {self.paths.namespace} is being deleted, "
                "or its deletion was interrupted",
                remedy="Complete the deletion: "
                f"{command_with('quire stream delete', self.paths.name)} (in Python, "
                "delete_stream)",
            )

    @property
    def _deletion(self) -> str:
        return f"{self.paths.root}/quire-deletion"

    async def exists(self) -> bool:
        """Return whether the stream exists."""
        return await self.tree.exists(self.paths.segments)

    async def require(self) -> None:
        """Raise NoSuchStreamError unless the stream exists."""
        if not await self.exists():
            raise await self._missing()

    async def remove_former(self) -> None:
        """Delete what an interrupted deletion has left, so that a stream can get the name.

        Does nothing if a stream has the name. Raises the errors of `remove_rest`.
        """
        if not await self.exists() and await self.tree.exists(self.paths.root):
            await self.remove_rest()

    async def remove_rest(self) -> None:
        """Delete the nodes that are left of a deleted stream.

        If another stream gets the name meanwhile, that stream is not changed.

        Raises:
            MetadataUnavailableError: Other clients changed the nodes during each attempt.
        """
        # Creating and deleting this node in one transaction fails if there is a stream.
        absent: list[Operation] = [Create(self.paths.segments), Delete(self.paths.segments)]
        for _ in range(REST_ATTEMPTS):
            nodes = await self._below(self.paths.root)
            try:
                for at in range(0, len(nodes), NODES_PER_COMMIT):
                    part = nodes[at : at + NODES_PER_COMMIT]
                    await self.tree.commit(*absent, *[Delete(path) for path in part])
            except KeyExistsError:
                return  # another stream has the name now
            except (NoSuchKeyError, NotEmptyError):
                continue  # another client changed them meanwhile
            break
        else:
            raise MetadataUnavailableError(
                f"stream {self.paths.name} was deleted, but nodes of it are left: "
                f"other clients changed them during each of {REST_ATTEMPTS} attempts",
                remedy="Try again",
            )
        await self.remove_markers()
        await self.lives.clear()

    async def _below(self, path: str) -> list[str]:
        """Return the paths of this node and of all nodes below it, children first."""
        try:
            names = await self.tree.children(path)
        except NoSuchKeyError:
            return []
        parts = await each([f"{path}/{name}" for name in names], self._below)
        return [*itertools.chain(*parts), path]

    async def remove_markers(self) -> None:
        """Delete the stream's own node and the nodes above it that have no children any more.

        The node of the namespace is kept. So is a node with a value, and those above it: it is not
        a stream's, but may bind another namespace to its ledgers, or belong to another program.
        """
        path = self.paths.stream
        while path != self.paths.namespace:
            try:
                node = await self.tree.read(path)
                if node.value:
                    return
                await self.tree.commit(Delete(path, node.version))
            except (NotEmptyError, NoSuchKeyError, VersionConflictError):
                return
            path = path.rpartition("/")[0]

    async def _missing(self) -> NoSuchStreamError:
        """Return the error for a stream that does not exist, which says if it is a topic."""
        namespace, name = self.paths.namespace, self.paths.name
        if await self.tree.exists(topic_path(namespace, name)):
            return NoSuchStreamError(
                f"{name} is a topic in namespace {namespace}, and not a stream",
                remedy=f"Name a partition, such as {name}/0. Programs open a topic with `topic`",
            )
        topic, _, number = name.rpartition("/")
        if topic and number.isdecimal() and await self.tree.exists(topic_path(namespace, topic)):
            return NoSuchStreamError(
                f"topic {topic} of namespace {namespace} has no partition {number}",
                remedy=f"Name one of its partitions "
                f"(`{command_with('quire stream show', topic)}` shows them)",
            )
        return NoSuchStreamError(
            f"stream {name} does not exist in namespace {namespace}: it was never created, or it "
            "was deleted or renamed",
            remedy="Check both names (`quire stream list` shows the streams)",
        )

    async def segments(
        self, newest: int | None = None, until: int | None = None
    ) -> list[StreamSegment]:
        """Return the segments in ascending order: all, or at most the `newest` ones.

        With `until`, they are those with numbers up to this one, and the one after them.

        A segment that appears twice for a moment counts as completed. The first segment in progress
        gets its first sequence id, which is not stored yet.

        Raises NoSuchStreamError, and MetadataError if a segment cannot be decoded.
        """
        for _ in range(LIST_ATTEMPTS):
            names = [name for name in await self._children() if parse_segment_name(name)]
            if newest is not None:
                names = sorted(names, key=_number_of)[-newest:]
            if until is not None:
                names = _up_to(names, until)
            try:
                named = _each_once(dict(zip(names, await each(names, self._read))))
            except NoSuchKeyError:
                continue  # a segment was completed or truncated just now
            self._old_names = {
                (segment.lssn, segment.in_progress): name
                for name, segment in named.items()
                if name != segment.name
            }
            return numbered(list(named.values()))
        raise self._changing()

    async def named_segments(self, known: NamedSegments) -> NamedSegments:
        """Return the segments by the names of their nodes, in ascending order.

        The nodes of completed segments in `known` are not read again. Raises as `segments` does.
        """
        for _ in range(LIST_ATTEMPTS):
            names = await self._children()
            kept = {name: known[name] for name in names if name in known}
            unread = [
                name
                for name in names
                if (name not in kept or kept[name].in_progress) and parse_segment_name(name)
            ]
            try:
                kept.update(zip(unread, await each(unread, self._read)))
            except NoSuchKeyError:
                continue
            return _each_once(kept)
        raise self._changing()

    def _changing(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"the segments of stream {self.paths.name} could not be read: they changed during "
            f"each of {LIST_ATTEMPTS} attempts",
            remedy="Try again",
        )

    async def count_segments(self) -> int:
        """Return the number of segments without reading them.

        Raises NoSuchStreamError if the stream does not exist.
        """
        return sum(parse_segment_name(name) is not None for name in await self._children())

    async def newest_segments(self) -> list[StreamSegment]:
        """Return only the newest segment if all segments are completed, and all segments otherwise.

        This is for callers that add segments often, because a stream may have very many. Raises as
        `segments` does.
        """
        newest = _newest_if_completed(await self._children())
        if newest is not None:
            try:
                return [await self._read(newest)]
            except NoSuchKeyError:
                pass  # the segment was deleted just now
        return await self.segments()

    async def completed_segments(self, numbers: Sequence[int]) -> list[StreamSegment]:
        """Return the completed segments with these numbers whose nodes exist and have their names.

        Nodes that follow Java's former naming are left out. Raises as `segments` does.
        """

        async def read(lssn: int) -> StreamSegment | None:
            try:
                return await self._read(completed_name(lssn))
            except NoSuchKeyError:
                return None

        found = [segment for segment in await each(numbers, read) if segment is not None]
        if not found:
            await self.require()
        return found

    def node(self, lssn: int, *, in_progress: bool) -> str:
        """Return the path of a segment's node, as it was at the last read."""
        new = in_progress_name(lssn) if in_progress else completed_name(lssn)
        return self.paths.segment(self._old_names.get((lssn, in_progress), new))

    async def _read(self, name: str) -> StreamSegment:
        value = (await self.tree.read(self.paths.segment(name))).value
        try:
            return StreamSegment.from_bytes(value)
        except LaterMetadataError as error:
            where = f"a segment of stream {self.paths.name} ({self.paths.segment(name)})"
            raise LaterMetadataError(f"{where} cannot be read: {error.args[0]}") from None
        except MetadataError as error:
            raise MetadataError(
                f"the node {self.paths.segment(name)} of a segment of stream {self.paths.name} "
                f"cannot be decoded: {error.args[0]}",
                remedy="If a later version of Quire wrote it, use that version. Otherwise "
                "restore the node from a backup of the metadata store",
            ) from error

    async def _children(self) -> list[str]:
        try:
            return await self.tree.children(self.paths.segments)
        except NoSuchKeyError as error:
            raise await self._missing() from error

    async def life(self) -> StreamLife:
        """Return the node that identifies the present stream among all that ever had its name.

        The version of the node changes with each claim and each truncation. Raises
        NoSuchStreamError.
        """
        try:
            return await self.lives.find()
        except NoSuchKeyError as error:
            raise await self._missing() from error

    async def life_id(self) -> str:
        """Return the id that distinguishes this stream from all others that ever had its name.

        The id is "" if the stream has none and this client may not write one. Raises
        NoSuchStreamError.
        """
        try:
            return (await self.life()).id
        except MetadataDeniedError:
            return ""

    def replaced(self) -> NoSuchStreamError:
        """Return the error for a stream whose name another stream has now."""
        return NoSuchStreamError(
            f"stream {self.paths.name} was deleted or renamed, and another stream has its name now",
            remedy="Open the stream that has the name now if you mean that one. Positions in the "
            "former stream mean nothing there",
        )

    async def mark_truncated(
        self, known: StreamLife, segments: Sequence[StreamSegment]
    ) -> StreamLife:
        """Replace the nodes of these segments in one transaction, and return the life after it.

        Raises VersionConflictError or NoSuchKeyError if something has changed since `known`.
        Nothing was changed then.
        """
        operations: list[Operation] = []
        for segment in segments:
            operations.append(Delete(self.node(segment.lssn, in_progress=False)))
            operations.append(Create(self.paths.segment(segment.name), segment.to_bytes()))
        await self.tree.commit(*operations, Put(known.path, known.value, known.version))
        for segment in segments:
            self._old_names.pop((segment.lssn, False), None)  # the new node has the new name
        return StreamLife(known.path, known.value, known.version + 1)

    # -- the right to write -------------------------------------------------------------------

    async def claim(self, sink: str = "", expected: int | None = None) -> WriterClaim:
        """Take the right to write from the present writer, at once.

        With `sink`, which is the name of a sink, other sinks may use the claim too (`claim_stamp`).
        With `expected`, the `ledgers_version` of a former claim, StreamFencedError is raised if
        anything has changed since then.
        The former writer notices it when it begins or completes a segment, or when its ledger is
        fenced. Raises NoSuchStreamError, and LaterMetadataError or MetadataError if the stream has
        a layout that is not known.
        """
        try:
            return await self._claim(sink, expected)
        except NoSuchKeyError as error:  # the stream was deleted or renamed just now
            raise await self._missing() from error

    async def _claim(self, sink: str, expected: int | None) -> WriterClaim:
        version = (await self.tree.read(self.paths.version)).value
        if len(version) != len(LAYOUT_DATA):
            raise MetadataError(
                f"the node {self.paths.version} of stream {self.paths.name}, which has the "
                f"version of its layout, is damaged: it holds {version.hex() or 'nothing'} "
                f"instead of {LAYOUT_DATA.hex()}",
                remedy="Restore the node from a backup of the metadata store",
            )
        if version != LAYOUT_DATA:
            raise LaterMetadataError(
                written_later(
                    f"stream {self.paths.name}", f"the layout version {version.hex()}",
                    LAYOUT_DATA.hex(), by=BY,
                )
            )  # fmt: skip
        life, stamp = (await self.lives.find()).path, unique(self.tree)
        if sink:
            stamp = sink_stamp(stamp, sink)
        stamped = Put(life, stamp.encode("ascii"))
        self.doubted_stamps.add(stamped.value)
        for _ in range(LIST_ATTEMPTS):
            ledgers = await self.tree.read(self.paths.segments)
            if expected not in (None, ledgers.version):
                raise self._fenced()
            try:
                claim = Put(self.paths.segments, ledgers.value, ledgers.version)
                await self.tree.commit(stamped, claim)
            except VersionConflictError:
                continue
            max_txid = await self.tree.read(self.paths.max_txid)
            allocation = await self.tree.read(self.paths.allocation)
            self.doubted_stamps.clear()
            return WriterClaim(
                ledgers_version=ledgers.version + 1,
                newest=decode_number(ledgers.value, self.paths.segments),
                max_txid=decode_number(max_txid.value, self.paths.max_txid),
                max_txid_version=max_txid.version,
                allocated=allocation.value,
                allocation_version=allocation.version,
                life=life,
                stamp=stamp,
            )
        raise nothing_done(
            MetadataUnavailableError(
                f"stream {self.paths.name} was not opened for writing: other writers opened it "
                f"during each of {LIST_ATTEMPTS} attempts",
                remedy="Stop the other writers, or try again",
            )
        )

    async def shared_claim(self) -> WriterClaim:
        """Return the newest claim as it is now, without taking it from anybody.

        Only sinks may use it, and only if `claim_stamp.is_sink` accepts its stamp. A transaction
        under it fails if anything has changed since this call. Raises NoSuchStreamError if the
        stream does not exist.
        """
        try:
            # In this order: a claim that is made meanwhile changes the version that was read.
            ledgers = await self.tree.read(self.paths.segments)
            life = await self.lives.find()
            max_txid = await self.tree.read(self.paths.max_txid)
            allocation = await self.tree.read(self.paths.allocation)
        except NoSuchKeyError as error:
            raise await self._missing() from error
        return WriterClaim(
            ledgers_version=ledgers.version,
            newest=decode_number(ledgers.value, self.paths.segments),
            max_txid=decode_number(max_txid.value, self.paths.max_txid),
            max_txid_version=max_txid.version,
            allocated=allocation.value,
            allocation_version=allocation.version,
            life=life.path,
            stamp=life.value.decode("ascii", errors="replace"),
        )

    # -- segments -----------------------------------------------------------------------------

    async def allocate(self, claim: WriterClaim, ledger_id: int) -> None:
        """Record in the node `allocation` that the stream owns this ledger.

        No segment names the ledger yet. Raises the errors of `change`.
        """
        await self._put_allocation(claim, encode_number(ledger_id))

    async def free_allocation(self, claim: WriterClaim) -> None:
        """Record in the node `allocation` that no ledger is allocated.

        The caller must have deleted the ledger that was allocated. Raises the errors of `change`.
        """
        await self._put_allocation(claim, NO_LEDGER)

    async def _put_allocation(self, claim: WriterClaim, value: bytes) -> None:
        async with self._committing:
            put = Put(self.paths.allocation, value, claim.allocation_version)
            await self._commit(claim, [put], {self.paths.allocation: value})
            claim.allocated = value
            claim.allocation_version += 1

    async def change(
        self,
        claim: WriterClaim,
        *,
        complete: StreamSegment | None = None,
        begin: StreamSegment | None = None,
        drop: StreamSegment | None = None,
        insist: bool = False,
    ) -> None:
        """Change segments in one transaction, so that readers see either all changes or none.

        The transaction completes a segment, begins the next one with the allocated ledger, or
        removes an empty one (`drop`), whose ledger becomes the allocated one. The caller must have
        deleted the ledger that was allocated before. With `insist`, the transaction is repeated for
        `LOST_REPLY_LIMIT_S` while all replies are lost. Callers that keep the claim need that,
        because their next change would be another one.

        Raises StreamFencedError if another writer has claimed the stream. Nothing was changed then,
        unless an earlier attempt was done whose reply was lost. Raises MetadataUnavailableError if
        the outcome stays unknown.
        """
        assert drop is None or begin is None  # both change the allocation
        async with self._committing:
            paths = self.paths
            newest, max_txid = claim.newest, claim.max_txid
            operations: list[Operation] = []
            after: dict[str, bytes | None] = {}
            allocated = claim.allocated
            if drop is not None:
                gone = self.node(drop.lssn, in_progress=True)
                operations.append(Delete(gone))
                after[gone] = None
                # If this process never learns that the segment is gone, the next writer finds the
                # ledger here, and deletes it.
                allocated = encode_number(drop.ledger_id)
                operations.append(Put(paths.allocation, allocated, claim.allocation_version))
                after[paths.allocation] = allocated
            if complete is not None:
                operations.append(Create(paths.segment(complete.name), complete.to_bytes()))
                operations.append(Delete(self.node(complete.lssn, in_progress=True)))
                after[paths.segment(complete.name)] = complete.to_bytes()
                newest = max(newest, complete.lssn)
                max_txid = max(max_txid, complete.last_txid)
                operations.append(
                    Put(paths.max_txid, encode_number(max_txid), claim.max_txid_version)
                )
            if begin is not None:
                assert claim.allocated == encode_number(begin.ledger_id)
                allocated = NO_LEDGER
                operations.append(Put(paths.allocation, NO_LEDGER, claim.allocation_version))
                operations.append(Create(paths.segment(begin.name), begin.to_bytes()))
                after[paths.segment(begin.name)] = begin.to_bytes()
                newest = max(newest, begin.lssn)
            operations.append(Put(paths.segments, encode_number(newest), claim.ledgers_version))
            await self._commit(claim, operations, after, insist=insist)
            claim.newest, claim.max_txid = newest, max_txid
            claim.ledgers_version += 1
            if complete is not None:
                claim.max_txid_version += 1
            if begin is not None or drop is not None:
                claim.allocated = allocated
                claim.allocation_version += 1

    async def publish(
        self,
        claim: WriterClaim,
        segments: Sequence[StreamSegment],
        more: Sequence[Operation],
        after: Mapping[str, bytes | None],
    ) -> None:
        """Add completed segments after the newest one, together with the operations in `more`.

        All of this is one transaction. `after` maps paths of nodes to the values that they have
        after the transaction, or to None if it deletes them. If the reply is lost, these values
        show whether the transaction was done.

        Raises StreamFencedError as `change` does, and MetadataUnavailableError if the outcome stays
        unknown.
        """
        async with self._committing:
            newest = max([claim.newest, *[segment.lssn for segment in segments]])
            max_txid = max([claim.max_txid, *[segment.last_txid for segment in segments]])
            operations: list[Operation] = [
                Create(self.paths.segment(segment.name), segment.to_bytes()) for segment in segments
            ]
            operations += [
                *more,
                Put(self.paths.max_txid, encode_number(max_txid), claim.max_txid_version),
                Put(self.paths.segments, encode_number(newest), claim.ledgers_version),
            ]
            await self._commit(claim, operations, after)
            claim.newest, claim.max_txid = newest, max_txid
            claim.ledgers_version += 1
            claim.max_txid_version += 1

    async def _commit(
        self,
        claim: WriterClaim,
        operations: Sequence[Operation],
        after: Mapping[str, bytes | None],
        *,
        insist: bool = False,
    ) -> None:
        """Execute a transaction under the claim, and find out its outcome if the reply is lost.

        The transaction was done if the node `ledgers` has the next version, the nodes have the
        values in `after`, and nobody has claimed the stream since. The last condition is needed
        because the next writer may have made the same change.

        Raises StreamFencedError if it was not done, and MetadataUnavailableError if the outcome is
        still unknown after `LOST_REPLY_ATTEMPTS`, or with `insist` after `LOST_REPLY_LIMIT_S`. A
        later conflict then does not show that there is another writer.
        """
        guard = [Check(claim.life, ANY_VERSION)]
        version = claim.ledgers_version
        if any(operation.path == self.paths.segments for operation in operations):
            version += 1
        else:
            guard.append(Check(self.paths.segments, claim.ledgers_version))
        if insist:
            retry = Retry(LOST_REPLY_BACKOFF, self._rng, limit_s=LOST_REPLY_LIMIT_S)
        else:
            retry = Retry(LOST_REPLY_BACKOFF, self._rng, attempts=LOST_REPLY_ATTEMPTS)
        while True:
            try:
                try:
                    await self.tree.commit(*operations, *guard)
                except (VersionConflictError, KeyExistsError, NoSuchKeyError) as error:
                    if not await self._is_so(claim, version, after):
                        if self._doubted is claim and await self._holds(claim):
                            raise self._in_doubt() from error
                        raise self._fenced() from error
                self._doubted = None
                return  # it was done now, or by an earlier attempt whose reply was lost
            except MetadataUnavailableError:
                if self._doubted is claim or not await retry.pause():
                    self._doubted = claim
                    raise

    async def require_claim(self, claim: WriterClaim) -> None:
        """Raise StreamFencedError if somebody has claimed the stream after this claim.

        Otherwise the claim held until now, and everything that was read since it was made is as
        this claim or an earlier one left it.
        """
        if not await self._holds(claim):
            raise self._fenced()

    def _fenced(self) -> StreamFencedError:
        return StreamFencedError(
            f"stream {self.paths.name} was taken over: another writer opened it, or it was "
            "deleted or renamed",
            remedy="Records in flight may or may not be in the stream: read its end to find out. "
            "Open the stream for writing again only if this process should be its writer",
        )

    def _in_doubt(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"the segments of stream {self.paths.name} could not be changed: it is not known "
            "whether an earlier change was stored, because its replies were lost",
            remedy="Open the stream for writing again",
        )

    async def _holds(self, claim: WriterClaim) -> bool:
        """Return whether nobody has claimed the stream after this claim."""
        try:
            return (await self.tree.read(claim.life)).value == claim.stamp.encode("ascii")
        except NoSuchKeyError:
            return False

    async def _is_so(
        self, claim: WriterClaim, ledgers_version: int, after: Mapping[str, bytes | None]
    ) -> bool:
        """Return whether the claim holds with this version, and the nodes are as in `after`.

        `after` holds the expected value of each node by path, or None for a node that must not
        exist.
        """
        try:
            if not await self._holds(claim):
                return False
            if (await self.tree.read(self.paths.segments)).version != ledgers_version:
                return False
        except NoSuchKeyError:
            return False
        for path, value in after.items():
            try:
                found = (await self.tree.read(path)).value
            except NoSuchKeyError:
                found = None
            if found != value and not self._was_truncated(path, value, found):
                return False
        return True

    def _was_truncated(self, path: str, value: bytes | None, found: bytes | None) -> bool:
        """Return whether the node of a completed segment differs only because of a truncation.

        Truncation needs no claim, so it may have happened since. A truncated segment may also be
        freed.
        """
        if value is None or not path.startswith(f"{self.paths.segments}/"):
            return False
        segment = StreamSegment.from_bytes(value)
        if segment.in_progress:
            return False
        return found is None or StreamSegment.from_bytes(found).is_rest_of(segment)


def _newest_if_completed(names: Sequence[str]) -> str | None:
    """Return the name of the newest segment, or None if a segment may be in progress.

    The names are sorted. Only the first and the last one are parsed, because there may be very
    many: names of completed segments that have a number are all of one length, and no other name is
    between them.
    """
    if len(set(map(len, names))) != 1:
        return None
    for name in (names[0], names[-1]):
        parsed = parse_segment_name(name)
        if parsed is None or parsed.lssn is None or name != completed_name(parsed.lssn):
            return None
    return names[-1]


def _up_to(names: Sequence[str], lssn: int) -> list[str]:
    """Return the names of segments up to number `lssn`, those without a number, and one more."""
    last = min((number for name in names if (number := _number_of(name)) > lssn), default=lssn)
    return [name for name in names if _number_of(name) <= last]


def _number_of(name: str) -> int:
    """Return the number in the name of a segment, or 0 if the name has none."""
    parsed = parse_segment_name(name)
    return 0 if parsed is None or parsed.lssn is None else parsed.lssn


def _each_once(named: NamedSegments) -> NamedSegments:
    """Return the segments in ascending order, each once: a completed one before one in progress."""
    found: dict[int, tuple[str, StreamSegment]] = {}
    for name, segment in named.items():
        other = found.get(segment.lssn)
        if other is None or other[1].in_progress:
            found[segment.lssn] = name, segment
    return dict(found[lssn] for lssn in sorted(found))


def numbered(segments: list[StreamSegment]) -> list[StreamSegment]:
    """Give the first segment in progress its first sequence id.

    It continues where the segment before it ends. The first ids of later segments are unknown.
    """
    for at, segment in enumerate(segments):
        if segment.in_progress:
            if at:
                start = segments[at - 1].following_sequence_id
                segments[at] = segment.with_start_sequence_id(start)
            elif segment.lssn == FIRST_LSSN:
                segments[at] = segment.with_start_sequence_id(0)
            break
    return segments
