"""The reader of several partitions of a topic, which reads all of them at the same time.

Each partition has a `StreamReader`, of which one batch at most waits to be delivered. Records keep
their order within a partition. The partitions are delivered as their batches arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self

from quire._runtime.opening import Ready, open_or_closed, represented
from quire._runtime.tasks import cancelled, each
from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import StreamGapError, UsageError
from quire.streams.read.positions import EARLIEST, Start, checked_start
from quire.streams.read.reader import GAP_CHOICES, OpeningReader, StreamReader
from quire.streams.read.records import Gap, Record, RecordBatch


class TopicRecord(NamedTuple):
    """One record of a topic, with its partition."""

    partition: int
    """The number of the partition."""
    record: Record
    """The record, as a reader of the partition's stream returns it."""

    @property
    def payload(self) -> bytes:
        """The bytes of the record, without its key, headers and event time."""
        return self.record.payload

    @property
    def value(self) -> bytes:
        """The bytes of the record, the same as `payload`."""
        return self.record.payload

    @property
    def key(self) -> bytes | None:
        """The key of the record, or None if it was appended without one."""
        return self.record.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers of the record by name, in the order of the append."""
        return self.record.headers

    @property
    def event_time(self) -> datetime | None:
        """The event time of the record in UTC, or None if it was appended without one."""
        return self.record.event_time

    @property
    def position(self) -> DLSN:
        """The position of the record in its partition."""
        return self.record.position


class TopicBatch(NamedTuple):
    """Records of one partition of a topic, or a gap in it."""

    partition: int
    """The number of the partition."""
    batch: RecordBatch | Gap
    """The records of one entry. With `on_gap="deliver"` it may be a gap."""


class TopicReader(Ready):
    """A reader of all partitions of a topic, or of some of them. `Topic.open_reader` returns it.

    Iterate over the reader (`async for record in reader`), or over `batches()`, which is much
    cheaper. Every record is acknowledged, and each one is delivered once. The records of one
    partition, and so those of one key, are delivered in order. Those of different partitions are
    not ordered.

    Cancelling a read is safe: what was not delivered is delivered the next time. Reading raises the
    errors of `StreamReader`.
    """

    name: str
    """The name of the topic."""

    def __init__(
        self,
        name: str,
        opened: Mapping[int, Callable[[DLSN], OpeningReader]],
        find: Callable[[int, Start], Awaitable[DLSN]],
        require_same: Callable[[], Awaitable[None]],
        *,
        start: Start | Mapping[int, Start] = EARLIEST,
        on_gap: str = "raise",
    ) -> None:
        """Create a reader.

        Args:
            name: The name of the topic.
            opened: Opens a reader of each partition at a position.
            find: Finds the position of a start in a partition.
            require_same: Raises NoSuchStreamError if the topic was deleted, also if another one has
                its name.
            start: Where to begin, in all partitions or in each.
            on_gap: What to do when records are missing.
        """
        if on_gap not in GAP_CHOICES:
            raise UsageError(
                f"the argument on_gap must be one of {', '.join(GAP_CHOICES)}, not {on_gap!r}"
            )
        self.name = name
        self._opened = dict(opened)
        self._find = find
        self._require_same = require_same
        self._starts: dict[int, Start] = {
            partition: checked_start(
                start.get(partition, EARLIEST) if isinstance(start, Mapping) else start
            )
            for partition in opened
        }
        self._positions: dict[int, DLSN] = {
            partition: place for partition, place in self._starts.items() if isinstance(place, DLSN)
        }
        self._closed = False
        self._readers: dict[int, StreamReader] = {}
        """The readers of the running iteration."""

    @property
    def assigned(self) -> list[int]:
        """The partitions that this reader reads, sorted."""
        return list(self._opened)

    @property
    def positions(self) -> dict[int, DLSN]:
        """The position of the next record of each partition, where another reader can continue.

        Before the first read it contains only the partitions whose start is a position.
        """
        return dict(self._positions)

    def __repr__(self) -> str:
        state = open_or_closed(self._closed)
        return represented(self, state, topic=self.name, partitions=len(self._opened))

    # -- reading ------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[TopicRecord, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for record in self.one_by_one(batch):
                    yield record

    def one_by_one(self, delivered: TopicBatch) -> Iterator[TopicRecord]:
        """Yield the records of a batch that this reader has just delivered.

        `positions` follows each record, so that a caller that stops among them can continue there.
        A gap has no records.

        Args:
            delivered: The batch.

        Yields:
            The records.
        """
        partition, batch = delivered
        if isinstance(batch, Gap):
            return
        behind = self._positions[partition]
        for record in batch:
            self._positions[partition] = record.position.next_slot()
            yield TopicRecord(partition, record)
        self._positions[partition] = behind

    async def batches(self) -> AsyncGenerator[TopicBatch, None]:
        """Yield the records of one entry of one partition at a time.

        Cancelling is safe. Memory is bounded by the read windows of `ClientConfig`, for each
        partition.

        Yields:
            A partition with a batch of its records, or with `on_gap="deliver"` also a gap.

        Raises:
            StreamGapError: Records are missing, and `on_gap` is "raise".
            NoSuchStreamError: The topic was deleted, also if another topic has its name.
            StreamDamagedError: The metadata or an entry cannot be decoded.
            UsageError: The reader is closed.
            QuireError: Another error of `StreamReader`.
        """
        self._check_open()
        await each(self._starts, self._settle)
        self._readers = dict(zip(self._opened, await each(self._opened, self._open)))
        iterations = {number: reader.batches() for number, reader in self._readers.items()}
        # A dictionary serves as an ordered set, so that the same seed gives the same run.
        waiting: dict[asyncio.Task[RecordBatch | Gap | None], int] = {}

        def wait_for(partition: int) -> None:
            task = asyncio.ensure_future(_next(iterations[partition]))
            waiting[task] = partition

        try:
            # The positions belong to this topic only if it is still there after each reader has
            # found its stream. Another topic of the name may have streams of the same names.
            await each(self._readers.values(), lambda reader: reader.find_life())
            await self._require_same()
            self._check_open()  # it may have been closed while the readers were opened
            for partition in iterations:
                wait_for(partition)
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in waiting if task in done]:
                    partition = waiting[task]
                    batch = self._result(task, partition)
                    del waiting[task]
                    if batch is None:
                        continue
                    self._positions[partition] = self._behind(partition)
                    yield TopicBatch(partition, batch)
                    self._check_open()
                    wait_for(partition)
        finally:
            await cancelled(waiting)
            for iteration in iterations.values():
                await iteration.aclose()
            for reader in self._readers.values():
                reader.close()
            self._readers = {}

    async def _settle(self, partition: int) -> None:
        """Find the position at which to begin, unless it is known."""
        if partition not in self._positions:
            self._positions[partition] = await self._find(partition, self._starts[partition])

    async def _open(self, partition: int) -> StreamReader:
        return await self._opened[partition](self._positions[partition])

    def _behind(self, partition: int) -> DLSN:
        position = self._readers[partition].position
        assert position is not None  # it began at a position
        return position

    def _result(
        self, task: asyncio.Task[RecordBatch | Gap | None], partition: int
    ) -> RecordBatch | Gap | None:
        try:
            return task.result()
        except StreamGapError:
            # As with one stream, the next read continues after the gap.
            self._positions[partition] = self._behind(partition)
            raise

    def close(self) -> None:
        """Close the reader. Nothing is held on bookies.

        Iterations raise UsageError from now on, also those that wait for records. Calling this
        again is safe.
        """
        self._closed = True
        for reader in self._readers.values():
            reader.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(
                f"the reader of topic {self.name} is closed", remedy="Open another reader"
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next(
    batches: AsyncGenerator[RecordBatch | Gap, None],
) -> RecordBatch | Gap | None:
    """Return the next batch, or None at the end."""
    return await anext(batches, None)
