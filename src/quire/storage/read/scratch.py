"""Memory for the frames of which an answer is made at once: the same for one piece after the other.

It stays in the processor's cache, and so do the places of the entries in it: as long as frames have
one size, a view of each entry is made once. To join views takes a quarter of the time that it takes
to make an object of each entry first.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.codec.entry.frame_runs import FrameRun
from quire.codec.log.state_records import BLOCK_BYTES
from quire.codec.wire.v2 import FRAME_HEADER_BYTES
from quire.storage.interfaces import File

FRAMES_AT = BLOCK_BYTES
"""Where the first frame lies, wherever it lies in its block."""
VIEWS_MAX = 4096
"""Kept, of 200 bytes each."""


class Desk:
    """Used on the event loop, by one piece at a time: until its run is packed."""

    def __init__(self, size_bytes: int) -> None:
        """For pieces of so many bytes, and two blocks."""
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
