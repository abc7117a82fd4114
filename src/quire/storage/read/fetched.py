"""The bytes that a read has fetched from a segment's file, and a reusable buffer for them.

There are two ways to read an extent, which is a range of bytes in the file:

- A thread fetches it and computes the checksums of its blocks. The result is a `FetchedExtent`.
- The event loop reads it from the system's cache into a `ScratchBuffer`, if the answer is built at
  once.

The scratch buffer stays in the processor's cache. As long as all frames have the same size, the
buffer also keeps a view of each entry. Joining such views takes a quarter of the time that it takes
to create an object for each entry first.
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
"""The offset of the first frame in the scratch buffer, wherever it begins in its block in the
file."""
VIEWS_MAX = 4096
"""The most views of entries that are kept. Each takes 200 bytes."""


class ScratchBuffer:
    """Memory that the frames of one extent are read into, and then those of the next one.

    It belongs to the event loop. The entries must be packed before the next extent is read.
    """

    def __init__(self, size_bytes: int) -> None:
        """Allocate memory for an extent of `size_bytes` and two more blocks."""
        self._memory = bytearray(FRAMES_AT + size_bytes + 2 * BLOCK_BYTES)
        self.view = memoryview(self._memory)
        self._frame_size = 0
        self._bodies: list[memoryview] = []

    def read(self, file: File, low: int, size: int, skip: int) -> memoryview | None:
        """Read `size` bytes of the file from `low` on into the buffer, if they are cached.

        Return a view of the bytes in the buffer. They are placed so that the frame that begins
        `skip` bytes after `low` is at `FRAMES_AT`. Return None if the bytes are not cached or do
        not fit. Raises `OSError` if reading fails.
        """
        begin = FRAMES_AT - skip
        part = self.view[begin : begin + size]
        if len(part) < size or not file.read_into(low, part):
            return None
        return part

    def pack(self, run: FrameRun) -> None:
        """Do the same as `run.pack()`, but faster for a run in this buffer."""
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
"""The key of a fetched extent: its segment, its offset in the file, and its size. A compaction
creates a new segment object, so a key never refers to a later file."""


class FetchedExtent(NamedTuple):
    """An extent of a segment's file that a thread has read."""

    data: Buffer
    """The bytes of the extent. There are fewer at the end of the file, and none if the disk failed.
    Data that is too short fails every check."""
    checksums: list[int] | None = None
    """The checksums of the blocks as `checksums_of` returns them, or None if they were not
    computed."""
    waited: bool = False
    """Whether the thread had to wait for the device."""


FetchedExtents = dict[ExtentKey, FetchedExtent] | ScratchBuffer | None
"""The source of a read's bytes: fetched extents, a scratch buffer, or None.

With a dictionary, a read uses only the extents in it, which threads have fetched. It raises
`WouldBlock` for any other extent. With a scratch buffer or None, bytes in the page cache are read
on the event loop, into the scratch buffer or into new memory. The read raises `WouldBlock` if they
are not cached."""


def checksums_of(data: Buffer) -> list[int]:
    """Return the checksum of each block of `data`, which begins with a whole block."""
    view = memoryview(data)
    return [crc32c_of(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]
