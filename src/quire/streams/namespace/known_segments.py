"""The segments of a stream for a reader that looks at them again and again.

A query of Spark adds a segment with each micro-batch, so a stream may have very many. A reader that
follows it would read all their nodes again after each change. But the node of a completed segment
changes only when the segment is truncated. `KnownSegments` therefore reads the names of all nodes,
and the values of those that are new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import MetadataDeniedError, MetadataUnavailableError
from quire.streams.namespace.stream_life import StreamLife
from quire.streams.namespace.stream_metadata import (
    LIST_ATTEMPTS,
    NamedSegments,
    StreamMetadata,
    numbered,
)

READ_ANEW_S = 30.0
"""Seconds after which the nodes of all segments are read again at the next look.

Truncation by Quire changes the version of the stream's life, so the next look notices it. This
limit is for DistributedLog's own programs, which do not know that node.
"""


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
        """Read all nodes at the next look, because what is known has turned out to be wrong."""
        self._life = None

    async def look(self) -> tuple[str, Sequence[StreamSegment]]:
        """Return the id of the present stream (`StreamMetadata.life_id`), and its segments.

        The result is as `StreamMetadata.segments` would have returned it since the last look, or
        now. Raises NoSuchStreamError and MetadataUnavailableError.
        """
        for _ in range(LIST_ATTEMPTS):
            now_s = asyncio.get_running_loop().time()
            before, known = self._life, dict(self._named)
            if before is None or now_s - self._read_anew_s >= READ_ANEW_S:
                before, known = await self._present_life(), {}
            # The newest one is read again. If it differs, DistributedLog's programs have deleted
            # the stream and created another one.
            newest = known.popitem() if known else None
            named = await self._metadata.named_segments(known)
            present = await self._present_life()
            if newest is not None and (
                present != before or named.get(newest[0], newest[1]) != newest[1]
            ):
                self.forget()  # something was truncated, or another stream has the name
                continue
            if _id_of(present) != _id_of(before):
                continue  # another stream has the name now: read its segments
            if newest is None:
                self._read_anew_s = now_s
            self._life, self._named = before, named
            return _id_of(present), numbered(list(named.values()))
        raise MetadataUnavailableError(
            f"the segments of stream {self._metadata.paths.name} could not be read: the stream was "
            f"deleted and created again during each of {LIST_ATTEMPTS} attempts",
            remedy="Try again",
        )

    async def _present_life(self) -> StreamLife | None:
        """Return the life of the stream, or None if it has none that this client may read."""
        try:
            return await self._metadata.life()
        except MetadataDeniedError:
            return None


def _id_of(life: StreamLife | None) -> str:
    return "" if life is None else life.id
