"""A start must not end at one bad sector: what cannot be read is read as what does not check."""

from __future__ import annotations

import errno

from quire.codec.log.state_records import BLOCK_BYTES, Buffer
from quire.storage.interfaces import Readable

UNREADABLE = {errno.EIO, errno.EBADMSG}
"""Of the device, and of a file system with checksums of its own."""
UNREADABLE_BLOCKS_MAX = 16
"""Of one file. Where more cannot be read it is not a sector that is bad, but the disk."""
_NO_BLOCK = b"\xbd" * BLOCK_BYTES
"""Not zeros: those may not have been written yet, and what is lost was."""


class Tolerant:
    """Reads a file of the log; a block that the device cannot read is one of which no checksum is
    right."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.unreadable: set[int] = set()
        """Where the blocks begin that could not be read."""

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None:
        """`OSError` where the disk fails as a whole."""
        try:
            return self._file.read(offset, size, wait=wait)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        pieces: list[Buffer] = []
        end = min(offset + size, self._file.size())
        while offset < end:
            block = offset - offset % BLOCK_BYTES
            stop = min(block + BLOCK_BYTES, end)
            pieces.append(self._part(block, offset, stop - offset))
            offset = stop
        return b"".join(pieces)

    def _part(self, block: int, offset: int, size: int) -> Buffer:
        try:
            return self._file.read(offset, size) or b""
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            self.unreadable.add(block)
            if len(self.unreadable) > UNREADABLE_BLOCKS_MAX:
                raise
        return _NO_BLOCK[:size]
