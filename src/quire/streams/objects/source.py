"""Buffers of any size in, chunks of one size out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from quire.codec.wire.v2 import Buffer
from quire.errors import ArgumentTypeError

Source = Buffer | AsyncIterable[Buffer]
"""What an object is made of. A buffer must not change until `put` has returned; the buffers of an
iterator may be used again for the next one."""


def check_source(source: object) -> None:
    """Raise ArgumentTypeError unless it is a buffer, or an async iterable."""
    if not isinstance(source, bytes | bytearray | memoryview | AsyncIterable):
        raise ArgumentTypeError(
            "the source of an object is a buffer, or an async iterator of buffers, not "
            f"{type(source).__name__}"
        )


async def chunks_of(source: Source, chunk_bytes: int) -> AsyncGenerator[Buffer, None]:
    """All bytes of `source` in pieces of `chunk_bytes`; the last one has what is left."""
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        for at in range(0, len(view), chunk_bytes):
            yield view[at : at + chunk_bytes]
        return
    held = bytearray()
    try:
        async for piece in source:
            try:
                view = memoryview(piece).cast("B")
            except TypeError:
                raise ArgumentTypeError(
                    f"a piece of an object is a buffer, not {type(piece).__name__}"
                ) from None
            if not view.readonly:
                view = memoryview(bytes(view))
            while len(held) + len(view) >= chunk_bytes:
                cut = chunk_bytes - len(held)
                if held:
                    held += view[:cut]
                    yield held
                    held = bytearray()  # the other one is on its way
                else:
                    yield view[:cut]
                view = view[cut:]
            held += view
        if held:
            yield held
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
