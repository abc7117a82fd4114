"""The source of an object: buffers of any size in, chunks of one size out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from quire.codec.wire.v2 import Buffer
from quire.errors import ArgumentTypeError

Source = Buffer | AsyncIterable[Buffer]
"""The bytes of an object: a buffer, or an async iterator of buffers.

A buffer must not change until `put` has returned. An iterator may reuse its buffers.
"""


def check_source(source: object) -> None:
    """Check that a value can be the source of an object.

    Args:
        source: The argument of the caller.

    Raises:
        ArgumentTypeError: It is neither a buffer nor an async iterable.
    """
    if not isinstance(source, bytes | bytearray | memoryview | AsyncIterable):
        raise ArgumentTypeError(
            "the source of an object must be bytes, bytearray, memoryview or an async iterator "
            f"of these, not {type(source).__name__}"
        )


async def chunks_of(source: Source, chunk_bytes: int) -> AsyncGenerator[Buffer, None]:
    """Yield all bytes of a source in chunks, and close the source if it is an async generator.

    Args:
        source: The source.
        chunk_bytes: The size of every chunk but the last, in bytes.

    Yields:
        The next chunk.

    Raises:
        ArgumentTypeError: A piece of the source is not a buffer.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        view = _bytes_of(source)
        for at in range(0, len(view), chunk_bytes):
            yield view[at : at + chunk_bytes]
        return
    held = bytearray()
    try:
        async for piece in source:
            try:
                view = _bytes_of(piece)
            except TypeError:
                raise ArgumentTypeError(
                    f"the source of an object yielded {type(piece).__name__}, but it must yield "
                    "bytes, bytearray or memoryview"
                ) from None
            if type(view.obj) is not bytes:
                # A view that is read-only for us may still show a buffer that its owner changes.
                view = memoryview(bytes(view))
            while len(held) + len(view) >= chunk_bytes:
                cut = chunk_bytes - len(held)
                if held:
                    held += view[:cut]
                    yield held
                    held = bytearray()  # the previous buffer now belongs to the caller
                else:
                    yield view[:cut]
                view = view[cut:]
            held += view
        if held:
            yield held
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


def _bytes_of(buffer: Buffer) -> memoryview:
    """Return a view of the bytes of a buffer, or of a copy if they are not in one piece."""
    view = memoryview(buffer)
    if not view.nbytes:
        return memoryview(b"")  # a view of no items cannot be cast
    return (view if view.c_contiguous else memoryview(view.tobytes())).cast("B")
