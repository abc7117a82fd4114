"""The blocking twin of `quire.streams.objects.objects`, for a `quire.blocking` client."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Protocol, TypeVar, runtime_checkable

from quire._runtime.clock import Clock
from quire.client.background import call
from quire.client.blocking import Client
from quire.client.client import DEFAULT_ACK_QUORUM, DEFAULT_ENSEMBLE_SIZE, DEFAULT_WRITE_QUORUM
from quire.codec.entry.digest import DigestType
from quire.codec.wire.v2 import Buffer
from quire.errors import UsageError
from quire.streams.objects.format import CHUNK_BYTES_DEFAULT, ObjectInfo
from quire.streams.objects.objects import DEFAULT_BUCKET, Objects, Orphan
from quire.streams.objects.reader import ObjectReader

T = TypeVar("T")

FILE_READ_BYTES = 1024 * 1024
"""Asked of a file at a time."""


@runtime_checkable
class ReadableFile(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


async def pieces_of_file(file: ReadableFile) -> AsyncGenerator[bytes, None]:
    """What a file opened for reading bytes has from its position on. A thread reads it, so that the
    event loop goes on meanwhile."""
    while piece := await asyncio.to_thread(file.read, FILE_READ_BYTES):
        yield piece


async def _pieces(source: Iterable[Buffer]) -> AsyncGenerator[Buffer, None]:
    upcoming = iter(source)
    while (piece := await asyncio.to_thread(next, upcoming, None)) is not None:
        yield piece


class BlockingObjects:
    """See `Objects`: the same calls, for a `quire.blocking` client."""

    def __init__(
        self, client: Client, bucket: str = DEFAULT_BUCKET, *, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._clock = clock
        self.bucket = Objects(client.aio, bucket).bucket

    @property
    def aio(self) -> Objects:
        """The asyncio twin, of this process."""
        return Objects(self._client.aio, self.bucket, clock=self._clock)

    def put(
        self,
        name: str,
        source: Buffer | ReadableFile | Iterable[Buffer],
        *,
        replace: bool = False,
        metadata: Mapping[str, str] | None = None,
        chunk_bytes: int = CHUNK_BYTES_DEFAULT,
        ensemble_size: int = DEFAULT_ENSEMBLE_SIZE,
        write_quorum: int = DEFAULT_WRITE_QUORUM,
        ack_quorum: int = DEFAULT_ACK_QUORUM,
        digest: DigestType | str = DigestType.CRC32C,
    ) -> ObjectInfo:
        """See `Objects.put`. The source is a buffer, a file opened for reading bytes (what is left
        in it), or an iterable of buffers; threads of their own read the latter two."""
        pieces: Buffer | AsyncGenerator[Buffer, None]
        if isinstance(source, bytes | bytearray | memoryview):
            pieces = source
        elif isinstance(source, ReadableFile):
            pieces = pieces_of_file(source)
        else:
            pieces = _pieces(source)
        return call(
            self.aio.put(
                name,
                pieces,
                replace=replace,
                metadata=metadata,
                chunk_bytes=chunk_bytes,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=digest,
            )
        )

    def info(self, name: str) -> ObjectInfo:
        """See `Objects.info`."""
        return call(self.aio.info(name))

    def get(self, name: str) -> BlockingObjectReader:
        """See `Objects.get`."""
        return BlockingObjectReader(call(self.aio.get(name)))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `Objects.list`."""
        pages = self.aio.pages(prefix, after=after)
        try:
            while (page := call(_next(pages))) is not None:
                yield from page
        finally:
            call(pages.aclose())

    def delete(self, name: str) -> bool:
        """See `Objects.delete`."""
        return call(self.aio.delete(name))

    def orphans(self, older_than_s: float, *, first: int = 0) -> Iterator[Orphan]:
        """See `Objects.orphans`."""
        found = self.aio.orphans(older_than_s, first=first)
        try:
            while (orphan := call(_next(found))) is not None:
                yield orphan
        finally:
            call(found.aclose())

    def sweep(self, older_than_s: float, *, first: int = 0) -> builtins.list[int]:
        """See `Objects.sweep`."""
        return call(self.aio.sweep(older_than_s, first=first))


class BlockingObjectReader:
    """See `ObjectReader`. It belongs to the process that made it."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._pid = os.getpid()
        self.info = reader.info

    @property
    def aio(self) -> ObjectReader:
        """The asyncio handle behind this one."""
        if self._pid != os.getpid():
            raise UsageError(
                f"the reader of object {self.info.name!r} belongs to process {self._pid}",
                remedy="Get the object in this process",
            )
        return self._reader

    def read(self, first_byte: int = 0, size: int | None = None) -> Iterator[bytes]:
        """See `ObjectReader.read`."""
        pieces = self.aio.read(first_byte, size)
        try:
            while (piece := call(_next(pieces))) is not None:
                yield piece
        finally:
            call(pieces.aclose())

    def read_all(self, first_byte: int = 0, size: int | None = None) -> bytes:
        """See `ObjectReader.read_all`."""
        return call(self.aio.read_all(first_byte, size))

    def close(self) -> None:
        """See `ObjectReader.close`."""

        async def close() -> None:
            self._reader.close()

        if self._pid == os.getpid():
            call(close())

    def __enter__(self) -> BlockingObjectReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)
