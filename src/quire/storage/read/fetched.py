"""The parts of a segment's file that a read has fetched, and the memory that they are read into.

Off the event loop, threads fetch extents of the file and compute the checksums of their blocks. On
the event loop, frames of which an answer is made at once are read into a scratch buffer. It stays
in the processor's cache, and so do the places of the entries in it: as long as frames have one
size, a view of each entry is made once. Joining views takes a quarter of the time that it takes to
make an object of each entry first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.codec.entry.digest import crc32c_of
from quire.codec.entry.frame_runs import FrameRun
from quire.codec.log.state_records import BLOCK_BYTES, Buffer
from quire.codec.wire.v2 import FRAME_HEADER_BYTES
from quire.storage.interfaces import File
from quire.storage.segment.segment import LogSegment

FRAMES_AT = BLOCK_BYTES
"""Where the first frame lies, wherever it lies in its block."""
VIEWS_MAX = 4096
"""Kept, of 200 bytes each."""


class ScratchBuffer:
    """Memory that the frames of one extent at a time are read into, until their run is packed.

    Used on the event loop.
    """

    def __init__(self, size_bytes: int) -> None:
        """The buffer holds an extent of `size_bytes`, and two blocks more."""
        self._memory = bytearray(FRAMES_AT + size_bytes + 2 * BLOCK_BYTES)
        self.view = memoryview(self._memory)
        self._frame_size = 0
        self._bodies: list[memoryview] = []

    def read(self, file: File, low: int, size: int, skip: int) -> memoryview | None:
        """The bytes of the file from `low` on, so that the frame that begins `skip` bytes behind it
        lies at `FRAMES_AT`. None: they are not cached, or too many. `OSError`."""
        begin = FRAMES_AT - skip
        part = self.view[begin : begin + size]
        if len(part) < size or not file.read_into(low, part):
            return None
        return part

    def pack(self, run: FrameRun) -> None:
        """`run.pack()`, of a run that may lie here."""
        run.pack(self._bodies_of(run) if run.lies_in(self._memory) else ())

    def _bodies_of(self, run: FrameRun) -> Sequence[memoryview]:
        size, count = run.frame_size, run.count
        if not size or count > VIEWS_MAX:
            return ()
        if size != self._frame_size:
            self._frame_size, self._bodies = size, []
        bodies = self._bodies
        for number in range(len(bodies), count):
            at = FRAMES_AT + number * size
            bodies.append(self.view[at + FRAME_HEADER_BYTES : at + size])
        return bodies if count == len(bodies) else bodies[:count]


ExtentKey = tuple[LogSegment, int, int]
"""What of a segment's file: offset and size. After a compaction the segment is another object."""


class FetchedExtent(NamedTuple):
    """What was read of a segment's file, off the event loop."""

    data: Buffer
    """Fewer bytes at the end of the file, none where the disk failed: that checks nowhere."""
    checksums: list[int] | None = None
    """Of its blocks, where they are wanted: see `checksums_of`."""
    waited: bool = False
    """The device had to be waited for."""


FetchedExtents = dict[ExtentKey, FetchedExtent] | ScratchBuffer | None
"""What was fetched off the event loop, all else being a `WouldBlock`. Or, if cached bytes are to be
read on the event loop: the scratch buffer to read them into, or None for memory of their own."""


def checksums_of(data: Buffer) -> list[int]:
    """Of its blocks; the first begins with it."""
    view = memoryview(data)
    return [crc32c_of(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]
