"""How much of the log the system keeps in its cache: the newest bytes, for who follows its ledgers.

What is older is given back once it is synced. Else the log takes all the memory that a machine has
free, and each byte of it memory that nobody had before: on a virtual machine whose host hands out
memory when it is first touched, that costs more than all else in a write
(docs/internals/benchmarks.md).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from quire.storage.interfaces import Disk

PIECE_BYTES = 4 * 1024 * 1024
"""Given back at once. Pieces begin at multiples of this, as the pages of the cache do at theirs."""


class LogPageCache:
    """Of one data directory. Used by the thread that writes the log."""

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        """`max_bytes` 0: no bound."""
        self._disk = disk
        self._max_bytes = max_bytes
        self._pieces: deque[tuple[str, int, int]] = deque()
        """Name of the file, offset and size; oldest first."""
        self._pieces_bytes = 0
        self._name = ""
        self._start = self._end = 0
        """Of what was written to the newest file, behind its last piece."""
        self.given_back_bytes = 0
        """Since the start."""

    def wrote(self, name: str, end: int) -> None:
        """Up to `end` the file is written, and synced."""
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
        # By name: who else has it open may close it meanwhile. It may be removed, or another file
        # have taken its place, of which a piece is read from the device once more.
        with suppress(OSError):
            file = self._disk.open(name)
            try:
                file.uncache(offset, size)
            finally:
                file.close()
