"""Keep only the newest part of the log in the operating system's page cache.

Readers that follow a ledger while it is written need this part. Older data is released once it is
synced. Otherwise the log would fill all free memory of the machine, always with pages that no
program has used before. On a virtual machine whose host provides memory at the first touch, that
costs more than the rest of a write (docs/internals/benchmarks.md).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from quire.storage.interfaces import Disk

PIECE_BYTES = 4 * 1024 * 1024
"""The number of bytes to release at once. Pieces begin at multiples of this size, which are also
multiples of the size of a page."""


class LogPageCache:
    """The part of one directory's log that is in the page cache.

    It belongs to the thread that writes the log.
    """

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        """Keep at most `max_bytes` of the log in the cache; 0 means no limit."""
        self._disk = disk
        self._max_bytes = max_bytes
        self._pieces: deque[tuple[str, int, int]] = deque()
        """The name of the file, the offset and the size of each piece that is still cached, oldest
        first."""
        self._pieces_bytes = 0
        self._name = ""
        self._start = self._end = 0
        """The offset in the newest file from which on written data is not in `_pieces` yet. `_end`
        is the end of that data."""
        self.given_back_bytes = 0
        """The number of bytes released from the page cache since the start."""

    def wrote(self, name: str, end: int) -> None:
        """Note that a file is synced up to the offset `end`, and release what exceeds the limit."""
        if not self._max_bytes:
            return
        if name != self._name:
            self._add(self._end)
            self._name, self._start = name, 0
        self._end = end
        whole = end - end % PIECE_BYTES
        if whole > self._start:
            self._add(whole)
        while self._pieces and self._pieces_bytes + end - self._start > self._max_bytes:
            self._give_back(*self._pieces.popleft())

    def _add(self, end: int) -> None:
        if end > self._start:
            self._pieces.append((self._name, self._start, end - self._start))
            self._pieces_bytes += end - self._start
        self._start = end

    def _give_back(self, name: str, offset: int, size: int) -> None:
        self._pieces_bytes -= size
        self.given_back_bytes += size
        # Open the file by its name, because others that have it open may close it at any time. If
        # it was removed, there is nothing to do. If another file has replaced it, a piece of that
        # file is read from the device once more, which is harmless.
        with suppress(OSError):
            file = self._disk.open(name)
            try:
                file.uncache(offset, size)
            finally:
                file.close()
