"""The segments of a stream for a reader that looks at them again and again.

A query of Spark adds a segment with each micro-batch, so a stream may have very many. A reader that
follows it would read all their nodes again after each change. But the node of a completed segment
changes only when the segment is truncated. `KnownSegments` therefore reads the names of all nodes,
and the values of those that are new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import MetadataDeniedError, MetadataUnavailableError
from quire.streams.namespace.stream_life import StreamLife
from quire.streams.namespace.stream_metadata import (
    LIST_ATTEMPTS,
    NamedSegments,
    StreamMetadata,
    numbered,
)

READ_ANEW_S = 300.0
"""Seconds after which the nodes of all segments are read again at the next `look`.

Truncation by Quire changes the version of the stream's life, so the next `look` notices it. This
limit is for DistributedLog's own programs, which do not know that node.
"""

DOUBTED_MIN = 8
"""The number of the oldest segments that are read again first when something was truncated."""


class KnownSegments:
    """The segments of a stream as they were last read, and the life that they belong to."""

    def __init__(self, metadata: StreamMetadata) -> None:
        self._metadata = metadata
        self._named: NamedSegments = {}
        self._life: StreamLife | None = None
        """The life as it was before `_named` was read, or None if nothing is known.

        With its version, all truncations by Quire are in `_named`.
        """
        self._read_anew_s = float("-inf")
        """The time of the event loop when all nodes were last read."""

    def forget(self) -> None:
        """Forget what is known, because it is wrong. The next `look` reads all nodes."""
        self._life = None

    async def look(self) -> tuple[str, Sequence[StreamSegment]]:
        """Return the id of the present stream (`StreamMetadata.life_id`), and its segments.

        The result is what `StreamMetadata.segments` would have returned at some moment since the
        last `look`.

        Raises NoSuchStreamError, MetadataUnavailableError, and MetadataError if the node of a
        segment cannot be decoded.
        """
        before, doubted = self._life, 0
        for attempt in range(1, LIST_ATTEMPTS + 1):
            if attempt == LIST_ATTEMPTS:
                before = None  # Truncations may follow each other, so read everything at last.
            now_s = asyncio.get_running_loop().time()
            known = self._trusted(doubted)
            if before is None or now_s - self._read_anew_s >= READ_ANEW_S:
                before, known = await self._present_life(), {}
            named = await self._metadata.named_segments(known)
            present = await self._present_life()
            if _id_of(present) != _id_of(before) or (known and self._is_another(named)):
                self.forget()  # another stream has the name now: read its segments
                before = None
                continue
            if known and (present != before or not self._goes_on(named, doubted)):
                # Something was truncated. That changes the oldest segments, so read as many of them
                # as it takes to find one that is as before.
                before, doubted = present, max(DOUBTED_MIN, 2 * doubted)
                continue
            if not known:
                self._read_anew_s = now_s
            self._life, self._named = before, named
            return _id_of(present), numbered(list(named.values()))
        raise MetadataUnavailableError(
            f"the segments of stream {self._metadata.paths.name} could not be read: the stream was "
            f"deleted and created again during each of {LIST_ATTEMPTS} attempts",
            remedy="Try again",
        )

    def _trusted(self, doubted: int) -> NamedSegments:
        """Return what is known without the newest segment, and without some of the oldest ones.

        The newest one is always read again. These are the `doubted` oldest ones that were not
        truncated, because a truncation is never undone.
        """
        known = dict(self._named)
        for name in self._oldest(doubted):
            del known[name]
        if known:
            known.popitem()
        return known

    def _oldest(self, count: int) -> list[str]:
        kept = (n for n, s in self._named.items() if s.truncation is not Truncation.TRUNCATED)
        return list(islice(kept, count))

    def _is_another(self, named: NamedSegments) -> bool:
        """Return whether the newest known segment has become another one.

        DistributedLog's programs have then deleted the stream and created another one.
        """
        name, segment = next(reversed(self._named.items()))
        found = named.get(name, segment)
        return (found.ledger_id, found.first_txid) != (segment.ledger_id, segment.first_txid)

    def _goes_on(self, named: NamedSegments, doubted: int) -> bool:
        """Return whether the last of the doubted segments is as before, and so all after it.

        If all segments that may have been truncated were doubted, all of them were read again.
        """
        oldest = self._oldest(doubted)
        if len(oldest) < doubted or not oldest:
            return True
        return named.get(oldest[-1]) == self._named[oldest[-1]]

    async def _present_life(self) -> StreamLife | None:
        """Return the life of the stream, or None if it has none that this client may read."""
        try:
            return await self._metadata.life()
        except MetadataDeniedError:
            return None


def _id_of(life: StreamLife | None) -> str:
    return "" if life is None else life.id
