"""Assembly of whole frames from received chunks. Frames that arrive in one piece are not copied."""

from __future__ import annotations

from quire.codec.wire.v2 import LENGTH, MAX_FRAME_BYTES
from quire.errors import ProtocolError

Buffer = bytes | bytearray | memoryview


class FrameBuffer:
    """A buffer that keeps the beginning of a frame until the rest arrives, at most one frame.

    For each received chunk use `for buffer in frames.feed(chunk)`. Parse the whole frames at the
    start of the buffer, and pass the offset of the unfinished frame to `keep`.
    """

    __slots__ = ("_have", "_limit", "_need", "_pieces")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = max_frame_bytes
        self._pieces: list[Buffer] = []
        self._have = 0
        self._need = 0

    @property
    def held_bytes(self) -> int:
        """The number of bytes of the incomplete frame that are kept."""
        return self._have

    def feed(self, chunk: bytes) -> list[Buffer]:
        """Return the buffers to parse after a chunk has arrived: none, one or two.

        A kept beginning of a frame is part of the first buffer. While the frame is incomplete, the
        result is empty.
        """
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
        """Drop the kept beginning of a frame."""
        self._pieces.clear()
        self._have = 0

    def keep(self, buffer: Buffer, at: int) -> None:
        """Keep the incomplete frame that begins at offset `at` of a buffer.

        Nothing is kept if the buffer ends at `at`. Raises ProtocolError for an invalid length.
        """
        rest = len(buffer) - at
        if rest == 0:
            return
        self._need = frame_size(buffer, at, self._limit) if rest >= 4 else 4
        # Copy them, because otherwise a few bytes would keep the whole received chunk in memory.
        self._pieces.append(bytes(memoryview(buffer)[at:]))
        self._have = rest


def frame_size(buffer: Buffer, at: int, limit: int = MAX_FRAME_BYTES) -> int:
    """Return the number of bytes of the frame at offset `at`, including its length word.

    Raises ProtocolError if the frame claims more than `limit` bytes, or fewer than 8.
    """
    size = int(LENGTH.unpack_from(buffer, at)[0]) + LENGTH.size
    if size > limit or size < 8:
        raise ProtocolError(
            f"a received frame claims to have {size} bytes, but 8 to {limit} are allowed. The "
            "sender does not speak BookKeeper's protocol, or the data was damaged on the way"
        )
    return size
