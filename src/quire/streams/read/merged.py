"""Looking at the records of several streams as one list, for people.

The records are in the order of their txids, which do not decrease along a stream. In most streams
they are times. As with `peek`, nothing is recovered or fenced, and a stream that cannot be read
does not hide the records of the others.

A page is found by merging: the first records of each stream are read in small chunks, and a chunk
follows only if all records of the one before are on the page. A page of N records therefore reads
about two times N records, and at least one of each stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import MetadataError, QuireError, UnauthorizedError
from quire.streams.read.peek import Peeked, peek, position_before_end
from quire.streams.read.positions import Start, find, oldest_position
from quire.streams.read.records import Gap, Record

T = TypeVar("T")

STREAMS_AT_ONCE = 16
"""The number of streams that are read at the same time. Finding the end of a stream takes several
reads one after the other, so reading few streams at a time would make a page slow."""
FIRST_CHUNK_MAX = 4
"""The largest number of records in the first chunk of a stream. Each later chunk has twice as many
as the one before."""
CHUNK_MAX = 20
"""The largest number of records in a chunk."""


@dataclass(slots=True)
class _Found(Generic[T]):
    """An item that was read, in the form that the caller keeps."""

    txid: int | None
    """The txid, or None if the item is not a record. Such an item keeps its place in its stream."""
    position: DLSN
    behind: DLSN
    kept: T


@dataclass(slots=True)
class MergedStream(Generic[T]):
    """One of the streams, with the part of it that is on the page."""

    number: int
    segments: Sequence[StreamSegment]
    chunk: int
    begin: DLSN
    """The position at which the items of the page begin."""
    end: DLSN
    """The position after the items of the page."""
    error: QuireError | None = None
    """The reason why the stream could not be read, or None if it could."""
    waiting: deque[_Found[T]] = field(default_factory=deque)
    """Items that were read and are not on the page, the oldest first."""
    upcoming: DLSN | None = None
    """The position at which the next chunk begins, or at which it ends if the page is read
    backwards. None means the end of the stream."""
    exhausted: bool = False
    place: float = 0
    """The txid of the last record that came onto the page, or infinity before the first one."""


class MergedPeek(Generic[T]):
    """A page of the items of several streams. Call `after` or `before` once.

    If the call is cancelled, for example by a time-out, the items found so far are still a whole
    piece of the list, and `whole` is False.
    """

    def __init__(
        self,
        client: Client,
        streams: Sequence[Sequence[StreamSegment]],
        limit: int,
        keep: Callable[[int, Peeked], T],
        is_enough: Callable[[T], bool],
        password: bytes = b"",
    ) -> None:
        """Create a page without items.

        Args:
            client: The client of the cluster.
            streams: All segments of each stream.
            limit: The largest number of items.
            keep: Returns what to keep of an item of the stream with this number. It is called when
                the item was read, so that large payloads do not stay in memory.
            is_enough: Called for each item that comes onto the page. Once it returns True, the page
                ends with this item.
            password: The password of the ledgers.
        """
        self._client = client
        self._limit = limit
        self._keep = keep
        self._is_enough = is_enough
        self._password = password
        chunk = max(1, min(FIRST_CHUNK_MAX, -(-limit // max(1, len(streams)))))
        oldest = [oldest_position(segments) for segments in streams]
        self.streams: list[MergedStream[T]] = [
            MergedStream(number, segments, chunk, at, at)
            for number, (segments, at) in enumerate(zip(streams, oldest))
        ]
        self._items: list[T] = []
        self._backwards = False
        self.begun = False
        """Whether the first items of all streams were read."""
        self.whole = False
        """Whether the page has as many items as it may have, or all that there are."""

    @property
    def items(self) -> list[T]:
        """The items of the page, the oldest first."""
        return self._items[::-1] if self._backwards else self._items

    @property
    def more(self) -> bool:
        """Whether items follow in the direction in which the page was read."""
        return not self.whole or any(one.waiting for one in self.streams)

    async def after(self, starts: Sequence[Start]) -> None:
        """Find the first items of the streams. `starts` has a place to begin for each stream.

        Raises MetadataError and UnauthorizedError. After another error of a stream, such as a place
        that is not valid, the page has no further items of it, and `MergedStream.error` is set.
        """
        placed = dict(zip(range(len(self.streams)), starts, strict=True))

        async def read(one: MergedStream[T]) -> None:
            start = placed.pop(one.number, None)
            if start is not None:
                found = await find(self._client, one.segments, start, self._password)
                one.begin = one.end = one.upcoming = found
            await self._read_later(one)

        await self._merge(read, self._take_oldest)

    async def before(self, ends: Sequence[DLSN | None]) -> None:
        """Find the last items of the streams. `ends` has the position after them for each stream.

        None means the end of the stream. Raises, and sets `MergedStream.error`, as `after` does.
        """
        self._backwards = True
        for one, end in zip(self.streams, ends, strict=True):
            one.upcoming = end
            if end is not None:
                one.begin = one.end = end
        await self._merge(self._read_earlier, self._take_newest)

    async def _merge(
        self,
        read: Callable[[MergedStream[T]], Awaitable[None]],
        take: Callable[[MergedStream[T]], _Found[T]],
    ) -> None:
        async def refill(one: MergedStream[T]) -> None:
            try:
                while not one.waiting and not one.exhausted:
                    await read(one)
                    one.chunk = min(CHUNK_MAX, 2 * one.chunk)
            except (MetadataError, UnauthorizedError):
                raise
            except QuireError as error:
                one.error, one.exhausted = error, True

        sign, side = (-1, -1) if self._backwards else (1, 0)

        def rank(one: MergedStream[T]) -> tuple[float, int]:
            txid = one.waiting[side].txid
            return sign * (one.place if txid is None else txid), sign * one.number

        for one in self.streams:
            one.place = -sign * inf
        await each(self.streams, refill, STREAMS_AT_ONCE)
        self.begun = True
        heap = [rank(one) for one in self.streams if one.waiting]
        heapify(heap)
        while heap and len(self._items) < self._limit:
            one = self.streams[abs(heappop(heap)[1])]
            found = take(one)
            one.place = one.place if found.txid is None else found.txid
            self._items.append(found.kept)
            if self._is_enough(found.kept):
                break
            await refill(one)
            if one.waiting:
                heappush(heap, rank(one))
        else:
            self.whole = True

    async def _read_later(self, one: MergedStream[T]) -> None:
        assert one.upcoming is not None
        start, count = one.upcoming, 0
        source = peek(self._client, one.segments, start, self._password, one.chunk)
        async with aclosing(source) as items:
            async for item, behind in items:
                self._found(one, item, behind)
                one.upcoming, count = behind, count + 1
                if count == one.chunk:
                    return
        one.exhausted = True

    async def _read_earlier(self, one: MergedStream[T]) -> None:
        end = one.upcoming
        begin = await position_before_end(
            self._client, one.segments, one.chunk, self._password, end
        )
        if begin is None:
            one.exhausted = True
            return
        source = peek(self._client, one.segments, begin, self._password, one.chunk)
        async with aclosing(source) as items:
            async for item, behind in items:
                if end is not None and _position(item) >= end:
                    break
                self._found(one, item, behind)
        if end is None and one.waiting:
            one.begin = one.end = one.waiting[-1].behind
        one.upcoming = begin

    def _found(self, one: MergedStream[T], item: Peeked, behind: DLSN) -> None:
        txid = item.txid if isinstance(item, Record) else None
        kept = self._keep(one.number, item)
        one.waiting.append(_Found(txid, _position(item), behind, kept))

    @staticmethod
    def _take_oldest(one: MergedStream[T]) -> _Found[T]:
        found = one.waiting.popleft()
        one.end = found.behind
        return found

    @staticmethod
    def _take_newest(one: MergedStream[T]) -> _Found[T]:
        found = one.waiting.pop()
        one.begin = found.position
        return found


def _position(item: Peeked) -> DLSN:
    return item.first if isinstance(item, Gap) else item.position
