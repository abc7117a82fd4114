"""What reads fetch of a segment's file, whoever reads it."""

from __future__ import annotations

from typing import NamedTuple

from quire.codec.entry.digest import crc32c_of
from quire.codec.log.state_records import BLOCK_BYTES, Buffer
from quire.storage.read.scratch import Desk
from quire.storage.segment.segment import Segment

Fetched = tuple[Segment, int, int]
"""What of a segment's file: offset and size. After a compaction the segment is another object."""


class Piece(NamedTuple):
    """What was read of a segment's file, off the event loop."""

    data: Buffer
    """Fewer bytes at the end of the file, none where the disk failed: that checks nowhere."""
    checksums: list[int] | None = None
    """Of its blocks, where they are wanted: see `checksums_of`."""
    waited: bool = False
    """The device had to be waited for."""


Have = dict[Fetched, Piece] | Desk | None
"""What has been fetched, all else being a `WouldBlock`. Else what the system has cached is read on
the event loop: of a desk, onto it, where it is to be packed."""


def checksums_of(data: Buffer) -> list[int]:
    """Of its blocks; the first begins with it."""
    view = memoryview(data)
    return [crc32c_of(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]
