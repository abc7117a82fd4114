"""A topic, as applications use it: `Namespace.topic` returns it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

from quire._runtime.opening import Opening, opening, represented
from quire._runtime.tasks import each
from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import ArgumentTypeError, UsageError, whole_number
from quire.streams.read.positions import EARLIEST, Start
from quire.streams.read.reader import OpeningReader
from quire.streams.read.subscriptions import Subscription
from quire.streams.topics.partitioner import partition_of
from quire.streams.topics.reader import TopicReader
from quire.streams.topics.topic_metadata import StoredTopic, TopicMetadata, partition_stream
from quire.streams.topics.writer import TopicWriter
from quire.streams.write.envelopes import Text, text_bytes
from quire.streams.write.writer import StreamWriter


class Streams(Protocol):
    """The calls of a namespace that a topic needs."""

    def open_writer(
        self, name: str, *, create: bool = False, lock: float | None = None
    ) -> Opening[StreamWriter]:
        """Become the writer of a stream."""
        ...

    def open_reader(
        self,
        name: str,
        *,
        start: Start = EARLIEST,
        end: DLSN | None = None,
        follow: bool = False,
        on_gap: str = "raise",
    ) -> OpeningReader:
        """Open a reader of a stream."""
        ...

    async def find(self, name: str, start: Start) -> DLSN:
        """Return the position at which a reader with this start would begin now."""
        ...

    def subscription(self, name: str, subscriber: str) -> Subscription:
        """Return the stored position of a named reader."""
        ...


class Topic:
    """A topic with several partitions. `Namespace.topic` returns it.

    Partition 3 of the topic `clicks` is the stream `clicks/3`, with which all calls for streams
    work as well. A topic holds no resources and need not be closed.
    """

    name: str
    """The name of the topic."""
    partitions: int
    """The number of partitions, which never changes."""

    def __init__(self, streams: Streams, metadata: TopicMetadata, stored: StoredTopic) -> None:
        self.name = stored.name
        self.partitions = stored.partitions
        self._streams = streams
        self._metadata = metadata
        self._stored = stored

    def __repr__(self) -> str:
        return represented(self, name=self.name, partitions=self.partitions)

    def stream(self, partition: int) -> str:
        """Return the name of the stream that is a partition.

        Args:
            partition: The number of the partition.

        Returns:
            The name of the stream.

        Raises:
            UsageError: The topic has no such partition.
        """
        return partition_stream(self.name, self._assigned([partition])[0])

    def partition_of(self, key: Text) -> int:
        """Return the partition of the records with a key.

        It is `(murmur2(key) & 0x7fffffff) % partitions`, as in Kafka.

        Args:
            key: The key, as bytes or as a text, which is encoded in UTF-8.

        Returns:
            The number of the partition.

        Raises:
            UsageError: The key has another type, or the text cannot be encoded.
        """
        return partition_of(text_bytes(key, "the key"), self.partitions)

    @opening
    async def open_writer(
        self, *, assign: Collection[int] | None = None, lock: float | None = None
    ) -> TopicWriter:
        """Become the writer of partitions, and fence their previous writers.

        Several programs can write a topic at the same time if each of them has partitions of its
        own. If the call fails or is cancelled, no record is lost, and some of the previous writers
        may be fenced.

        Args:
            assign: The partitions to write. None means all of them.
            lock: Seconds to wait for the lock of each partition, as for `Namespace.open_writer`.
                None opens the partitions without their locks.

        Returns:
            The writer. Use it with `async with`, or close it.

        Raises:
            NoSuchStreamError: The topic was deleted, also if another topic has its name.
            UsageError: `assign` is empty, or names a partition that does not exist.
            QuireError: See `Namespace.open_writer`.
        """
        assigned = self._assigned(assign)
        opened: dict[int, StreamWriter] = {}

        async def open_one(partition: int) -> None:
            name = partition_stream(self.name, partition)
            opened[partition] = await self._streams.open_writer(name, lock=lock)

        try:
            await each(assigned, open_one)
            # A deletion fences the writers. But if the topic was deleted before they were opened,
            # they may belong to another topic of this name, with another number of partitions.
            await self._require_same()
        except BaseException:
            for writer in opened.values():
                writer.abandon()
            raise
        return TopicWriter(self.name, self.partitions, {at: opened[at] for at in assigned})

    def open_reader(
        self,
        *,
        assign: Collection[int] | None = None,
        start: Start | Mapping[int, Start] = EARLIEST,
        follow: bool = False,
        on_gap: str = "raise",
    ) -> TopicReader:
        """Return a reader of partitions.

        This call does no I/O. `async for record in topic.open_reader()` reads all records.

        Args:
            assign: The partitions to read. None means all of them.
            start: Where to begin in all partitions: EARLIEST, LATEST, AtTxid, AtTime or AtSequence.
                It may also be a dictionary with a place for each partition, such as the result of
                `positions`. Partitions that it does not name are read from the beginning.
            follow: Whether to wait for further records until all partitions are ended.
            on_gap: What to do when records are missing: "raise" raises StreamGapError, "deliver"
                yields a `Gap` among the `batches`, and "skip" continues after the gap.
                Iteration by records leaves out the `Gap`.

        Returns:
            The reader.

        Raises:
            UsageError: An argument is not valid. A single position is refused as `start`, because
                it belongs to one partition.
        """
        if isinstance(start, DLSN):
            raise UsageError(
                f"a position belongs to one partition, so topic {self.name} cannot be read from "
                f"{start} in all of them",
                remedy=f"Read one partition, such as {self.name}/0 (in Python, pass a dictionary "
                "with the position of each partition)",
            )
        if isinstance(start, Mapping):
            self._assigned(start or None)  # refuse partitions that do not exist
        assigned = self._assigned(assign)

        def opened(partition: int, position: DLSN) -> OpeningReader:
            return self._streams.open_reader(
                partition_stream(self.name, partition),
                start=position, follow=follow, on_gap=on_gap,
            )  # fmt: skip

        async def find(partition: int, place: Start) -> DLSN:
            return await self._streams.find(partition_stream(self.name, partition), place)

        openers = {number: partial(opened, number) for number in assigned}
        return TopicReader(self.name, openers, find, self._require_same, start=start, on_gap=on_gap)

    # -- positions ----------------------------------------------------------------------------

    async def positions(self, subscriber: str) -> dict[int, DLSN]:
        """Return the stored positions of a named reader by partition.

        Partitions without a stored position are left out. Start a reader with the result. The
        position of a partition is that of the subscription of its stream. Cancelling this call is
        safe.

        Args:
            subscriber: The name of the reader.

        Returns:
            The position of the first record of each partition that is still to be processed.

        Raises:
            UsageError: The name of the reader is not valid.
            NoSuchStreamError: The topic was deleted, also if another topic has its name.
            QuireError: A position could not be read. See `Subscription.position`.
        """
        numbers = range(self.partitions)
        found = await each(numbers, lambda at: self._subscription(at, subscriber).position())
        await self._require_same()
        return {at: position for at, position in enumerate(found) if position is not None}

    async def commit(self, subscriber: str, positions: Mapping[int, DLSN]) -> None:
        """Store the positions of a named reader, such as `TopicReader.positions`.

        The positions are durable on return. A stored position only moves forward, even if several
        processes store it. If the call fails or is cancelled, the positions of some partitions may
        be stored.

        Args:
            subscriber: The name of the reader.
            positions: The position of the first record that is still to be processed, by partition.

        Raises:
            UsageError: The name of the reader, a partition or a position is not valid.
            NoSuchStreamError: The topic was deleted, also if another topic has its name.
            QuireError: A position could not be stored. See `Subscription.commit`.
        """
        if not isinstance(positions, Mapping):
            raise ArgumentTypeError(
                "the positions to commit must be a dictionary with the position of each partition, "
                f"not {type(positions).__name__}",
                remedy="Pass `TopicReader.positions`",
            )
        if positions:
            self._assigned(positions)

        moved = {partition: self._subscription(partition, subscriber) for partition in positions}

        async def store(partition: int) -> None:
            await moved[partition].commit(positions[partition])

        # The streams are found before the topic is, so that none belongs to a later topic.
        await each(moved.values(), lambda subscription: subscription.find_life())
        await self._require_same()
        await each(positions, store)

    async def _require_same(self) -> None:
        await self._metadata.require_same(self._stored)

    def _subscription(self, partition: int, subscriber: str) -> Subscription:
        return self._streams.subscription(partition_stream(self.name, partition), subscriber)

    def _assigned(self, given: Collection[int] | None) -> list[int]:
        """Return partitions that a caller names, sorted, or all of them for None.

        Raises UsageError if none is named, or one that the topic does not have.
        """
        if given is None:
            return list(range(self.partitions))
        if isinstance(given, str | bytes) or not isinstance(given, Collection):
            raise ArgumentTypeError(
                f"the partitions to assign must be a list of numbers, not {type(given).__name__}"
            )
        numbers = {whole_number("a partition", partition) for partition in given}
        for partition in sorted(numbers):
            if not 0 <= partition < self.partitions:
                raise UsageError(
                    f"topic {self.name} has no partition {partition}: it has the partitions 0 to "
                    f"{self.partitions - 1}"
                )
        if not given:
            raise UsageError(
                f"no partition of topic {self.name} is assigned",
                remedy="Name at least one, or pass None for all of them",
            )
        return sorted(numbers)
