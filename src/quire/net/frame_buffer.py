"""From received chunks to buffers of whole frames, without copying what arrives whole."""

from __future__ import annotations

from quire.codec.wire.v2 import LENGTH, MAX_FRAME_BYTES
from quire.errors import ProtocolError

Buffer = bytes | bytearray | memoryview


class FrameBuffer:
    """Holds the beginning of a frame until the rest arrives: at most one frame.

    For each received chunk: `for buffer in frames.feed(chunk)`, parse whole frames from its start
    and hand the offset where an unfinished one begins to `keep`.
    """

    __slots__ = ("_have", "_limit", "_need", "_pieces")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = max_frame_bytes
        self._pieces: list[Buffer] = []
        self._have = 0
        self._need = 0

    @property
    def held_bytes(self) -> int:
        return self._have

    def feed(self, chunk: bytes) -> list[Buffer]:
        if not self._pieces:
            return [chunk]
        if self._have < 4:
            chunk = b"".join((*self._pieces, chunk))
            self._pieces.clear()
            self._have = 0
            return [chunk]
        missing = self._need - self._have
        if len(chunk) < missing:
            self._pieces.append(chunk)
            self._have += len(chunk)
            return []
        view = memoryview(chunk)
        frame = b"".join((*self._pieces, view[:missing]))
        self._pieces.clear()
        self._have = 0
        if len(chunk) == missing:
            return [frame]
        return [frame, view[missing:]]

    def drop(self) -> None:
        """Drop the buffered bytes."""
        self._pieces.clear()
        self._have = 0

    def keep(self, buffer: Buffer, at: int) -> None:
        """The frame that begins at `at` is not whole yet."""
        rest = len(buffer) - at
        if rest == 0:
            return
        self._need = frame_size(buffer, at, self._limit) if rest >= 4 else 4
        # A copy: otherwise a few bytes would hold the whole received chunk.
        self._pieces.append(bytes(memoryview(buffer)[at:]))
        self._have = rest


def frame_size(buffer: Buffer, at: int, limit: int = MAX_FRAME_BYTES) -> int:
    """Bytes of the frame at `at`, its length word included. `ProtocolError` when it lies."""
    size = int(LENGTH.unpack_from(buffer, at)[0]) + LENGTH.size
    if size > limit or size < 8:
        raise ProtocolError(
            f"a frame claims {size} bytes, allowed are 8 to {limit}",
        )
    return size
