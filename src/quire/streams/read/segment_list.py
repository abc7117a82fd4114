"""The segments of a stream as readers see them, kept up to date by a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from quire._runtime.tasks import came
from quire.client.client import end_with_client
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import ClientClosedError, QuireError
from quire.streams.namespace.known_segments import KnownSegments
from quire.streams.namespace.stream_metadata import StreamMetadata

LIST_AGAIN_S = 30.0
"""Seconds without a change after which the list is read again.

A watch may be lost. DistributedLog's readers also list the segments again when nothing changes
(`readerIdleWarnThresholdMillis`).
"""


class SegmentList:
    """The segments of a stream, as they were last read and in ascending order. Use `async with`.

    All reads belong to one life of the stream. Once another stream has its name, they raise
    NoSuchStreamError.
    """

    def __init__(self, metadata: StreamMetadata, life: str | None = None) -> None:
        """Prepare the list.

        `life` is the id of the expected life, or None for the one that the first read finds.
        """
        self._metadata = metadata
        self._known = KnownSegments(metadata)
        self.life = life
        self.segments: Sequence[StreamSegment] = ()
        self._changed = asyncio.Event()
        self._ended: QuireError | None = None

    async def __aenter__(self) -> SegmentList:
        end_with_client(self._metadata.client, self)
        path = self._metadata.paths.segments
        self._watch = self._metadata.tree.watch_children(path, self._on_children)
        try:
            await self.look()
        except BaseException:
            self._watch.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.close()

    def end(self, error: QuireError) -> None:
        """Raise `error` in `changed` from now on, also in a call that waits."""
        self._ended = error
        self._changed.set()

    async def _client_closed(self, error: ClientClosedError) -> None:
        self.end(error)

    def _on_children(self, names: list[str] | None) -> None:
        self._changed.set()

    async def look(self, *, anew: bool = False) -> Sequence[StreamSegment]:
        """Read the list again. With `anew`, nothing that was read before is reused.

        Raises the errors of `KnownSegments.look`, and NoSuchStreamError if another stream has the
        name.
        """
        self._changed.clear()
        if anew:
            self._known.forget()
        try:
            life, segments = await self._known.look()
            if self.life is not None and life != self.life:
                raise self._metadata.replaced()
            self.life, self.segments = life, segments
        except BaseException:
            self._changed.set()  # the next call must not wait for another change
            raise
        return self.segments

    async def changed(self) -> Sequence[StreamSegment]:
        """Wait for a change, or for `LIST_AGAIN_S`, and read the list again. Cancel-safe.

        Raises the error of `end`, and those of `look`.
        """
        await came(self._changed, asyncio.timeout(LIST_AGAIN_S))
        if self._ended is not None:
            raise self._ended
        return await self.look()
