"""The handle that reads one version of an object."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType

from quire._runtime.opening import open_or_closed, represented
from quire._runtime.units import counted
from quire.client import LedgerReader
from quire.errors import (
    NoSuchLedgerError,
    NoSuchObjectError,
    ObjectDamagedError,
    UsageError,
    whole_number,
)
from quire.streams.objects.format import ObjectInfo


class ObjectReader:
    """A reader of one version of an object. `Objects.get` opens it.

    The reader always reads the version that it found. When that version is replaced or deleted, its
    ledger is deleted. Reads continue until the bookies have freed the ledger (their
    `gc_interval_s`), and then raise NoSuchObjectError. A read never returns bytes of another
    version.

    Use it with `async with`, or call `close`.
    """

    info: ObjectInfo
    """The name, size, digest and metadata of this version."""

    def __init__(self, info: ObjectInfo, ledger: LedgerReader) -> None:
        self.info = info
        self._ledger = ledger
        if not ledger.ledger_closed or ledger.last_add_confirmed + 1 != info.chunks:
            state = "closed" if ledger.ledger_closed else "not closed"
            raise self._damaged(
                f"its ledger is {state} and has {counted(ledger.last_add_confirmed + 1, 'entry')}, "
                f"but the object was put with {counted(info.chunks, 'chunk')}"
            )

    def __repr__(self) -> str:
        state = open_or_closed(self._ledger.closed)
        return represented(self, state, name=self.info.name, size_bytes=self.info.size_bytes)

    async def read(
        self, first_byte: int = 0, size: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a range of the object's bytes, in pieces.

        Only the chunks that hold the range are read. Every chunk is checked against its digest. A
        read of the whole object is also checked against its SHA-256, and fails before the last
        piece if that differs. Cancelling is safe. Memory is bounded by `ClientConfig.read_windows`.

        Args:
            first_byte: The offset of the first byte.
            size: The number of bytes. None, or a larger number than remains, reads to the end.

        Yields:
            The next bytes of the range.

        Raises:
            UsageError: The range is not valid, or the reader is closed.
            ObjectDamagedError: The SHA-256 differs, or a chunk has the wrong size.
            NoSuchObjectError: This version was deleted or replaced.
            ReadError: A chunk could not be read from any replica.
            DigestError: At least one replica of a chunk is damaged, and the others are damaged or
                deny the chunk.
            MetadataError: A chunk could not be read, and the metadata store refuses this client, or
                the metadata of the ledger cannot be decoded.
            ClientClosedError: The client is closed.
        """
        info = self.info
        if self._ledger.closed:
            raise UsageError(
                f"the reader of object {info.name!r} is closed", remedy="Get the object again"
            )
        first_byte = whole_number("first_byte", first_byte)
        if size is not None:
            size = whole_number("size", size)
        if first_byte < 0 or (size is not None and size < 0):
            raise UsageError(
                f"first_byte and size must not be negative, but they are {first_byte} and {size} "
                f"for object {info.name!r}"
            )
        if first_byte > info.size_bytes:
            raise UsageError(
                f"object {info.name!r} has {counted(info.size_bytes, 'byte')}, so byte "
                f"{first_byte} is after its end"
            )
        end = info.size_bytes if size is None else min(first_byte + size, info.size_bytes)
        if first_byte == 0 and end == info.size_bytes:
            pieces = self._whole()
        else:
            pieces = self._range(first_byte, end)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def read_all(self, first_byte: int = 0, size: int | None = None) -> bytes:
        """Return a range of the object's bytes. The whole range is held in memory.

        Cancelling this call is safe.

        Args:
            first_byte: The offset of the first byte.
            size: The number of bytes. None, or a larger number than remains, reads to the end.

        Returns:
            The bytes.

        Raises:
            QuireError: See `read`.
        """
        async with aclosing(self.read(first_byte, size)) as pieces:
            return b"".join([piece async for piece in pieces])

    def close(self) -> None:
        """Close the reader. Nothing is held on bookies, and later reads raise UsageError."""
        self._ledger.close()

    async def __aenter__(self) -> ObjectReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------

    async def _whole(self) -> AsyncGenerator[bytes, None]:
        hashed = hashlib.sha256()
        last: bytes | None = None
        async with aclosing(self._chunks(0, self.info.chunks - 1)) as chunks:
            async for chunk in chunks:
                hashed.update(chunk)
                if last is not None:
                    yield last
                last = chunk
        if hashed.hexdigest() != self.info.sha256:
            raise self._damaged(
                f"its SHA-256 is {hashed.hexdigest()} instead of {self.info.sha256}, although "
                "every entry matches its digest"
            )
        if last is not None:
            yield last

    async def _range(self, first_byte: int, end: int) -> AsyncGenerator[bytes, None]:
        if first_byte == end:
            return
        size = self.info.chunk_bytes
        at = first_byte // size * size
        async with aclosing(self._chunks(first_byte // size, (end - 1) // size)) as chunks:
            async for chunk in chunks:
                yield chunk[max(first_byte - at, 0) : end - at]
                at += size

    async def _chunks(self, first: int, last: int) -> AsyncGenerator[bytes, None]:
        chunk = first
        try:
            async with aclosing(self._ledger.read_runs(first, last)) as runs:
                async for run in runs:
                    for payload in run.payloads():
                        if len(payload) != self.info.bytes_of_chunk(chunk):
                            raise self._damaged(
                                f"chunk {chunk} has {counted(len(payload), 'byte')} instead of "
                                f"{self.info.bytes_of_chunk(chunk):,}"
                            )
                        yield payload
                        chunk += 1
        except NoSuchLedgerError as error:
            raise NoSuchObjectError(
                f"object {self.info.name!r} was deleted or replaced while its version in ledger "
                f"{self.info.ledger_id} was read",
                remedy="Get the object again to read its present version, if there is one",
            ) from error

    def _damaged(self, why: str) -> ObjectDamagedError:
        return ObjectDamagedError(
            f"object {self.info.name!r} (ledger {self.info.ledger_id}) is damaged: {why}",
            remedy="Put the object again, and replace it (--replace, replace=True)",
        )
