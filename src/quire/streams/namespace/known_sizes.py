"""The sizes of streams that a client looks at again and again, for retention and for quotas.

A query of Spark applies the retention of its stream after every few micro-batches, and its quota
with each. The stream may have very many segments, so each client remembers the segments
(`known_segments`) and the lengths of closed ledgers, which never change.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire._runtime.tasks import each
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import NoSuchLedgerError
from quire.streams.namespace.known_segments import KnownSegments
from quire.streams.namespace.stream_metadata import StreamMetadata

REMEMBERED = "sizes of streams"
STREAMS_KEPT_MAX = 16
"""The largest number of streams whose segments and sizes a client remembers."""


class KnownSizes:
    """The segments of one stream, and the sizes of their ledgers, as a client remembers them."""

    def __init__(self, metadata: StreamMetadata) -> None:
        self._client = metadata.client
        self._known = KnownSegments(metadata)
        self._lengths: dict[int, int] = {}
        """The payload bytes of closed ledgers that segments name, by ledger id."""

    async def segments(self) -> tuple[str, Sequence[StreamSegment]]:
        """Return the id of the stream's life, and the segments (`KnownSegments.look`)."""
        life, segments = await self._known.look()
        if len(self._lengths) > len(segments):
            named = {segment.ledger_id for segment in segments}
            self._lengths = {key: size for key, size in self._lengths.items() if key in named}
        return life, segments

    async def of(self, segments: Sequence[StreamSegment]) -> list[int]:
        """Return the payload bytes in the ledger of each segment.

        A ledger that is open, or gone when it is first asked for, counts as 0. Raises the other
        errors of `Client.ledger_metadata`.
        """
        lengths, missing = self._lengths, set[int]()

        async def read(segment: StreamSegment) -> None:
            try:
                stored = await self._client.ledger_metadata(segment.ledger_id)
            except NoSuchLedgerError:
                missing.add(segment.ledger_id)
                return
            if stored.closed:
                lengths[segment.ledger_id] = stored.length
            else:
                missing.add(segment.ledger_id)

        # The ledger of a truncated segment may have been deleted since it was seen.
        await each(
            [
                segment
                for segment in segments
                if segment.ledger_id not in lengths or segment.truncation is Truncation.TRUNCATED
            ],
            read,
        )
        return [
            0 if segment.ledger_id in missing else lengths.get(segment.ledger_id, 0)
            for segment in segments
        ]


def known_sizes(metadata: StreamMetadata) -> KnownSizes:
    """Return what the client of `metadata` remembers of the stream, perhaps nothing yet."""
    streams: dict[str, KnownSizes] = metadata.client.remembered.setdefault(REMEMBERED, {})
    found = streams.pop(metadata.paths.stream, None) or KnownSizes(metadata)
    while len(streams) >= STREAMS_KEPT_MAX:
        streams.pop(next(iter(streams)))
    streams[metadata.paths.stream] = found
    return found
