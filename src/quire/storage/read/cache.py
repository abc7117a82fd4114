"""Caches for reads: a bounded number of open segment files, and recently used parts of footers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from quire.storage.interfaces import Disk, File
from quire.storage.segment.segment import LogSegment, SegmentState

ENTRY_OVERHEAD_BYTES = 400
"""The bytes of memory that Python needs for a cached value in addition to the value itself."""


class ByteCache:
    """A cache with a limit in bytes, which removes the least recently used values first.

    The newest value stays, even if it alone exceeds the limit.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Any:
        """Return the value for this key, or None if it is not cached."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Add a value of `size_bytes`, and remove the least recently used ones beyond the limit."""
        self.discard(key)
        size_bytes += ENTRY_OVERHEAD_BYTES
        self._values[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes and len(self._values) > 1:
            _, (_, size) = self._values.popitem(last=False)
            self.size_bytes -= size

    def discard(self, key: Hashable) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.size_bytes -= found[1]


class SegmentFiles:
    """The open files of segments. The files of sealed segments are opened when they are needed."""

    def __init__(self, disk: Disk, max_open: int) -> None:
        self._disk = disk
        self._max_open = max_open
        self._open: OrderedDict[int, LogSegment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, segment: LogSegment) -> File:
        """Return the open file of a segment, after opening it if necessary.

        A later call for another segment may close the file. `borrow` keeps it open. Raises
        `OSError` if it cannot be opened.
        """
        if segment.state is not SegmentState.SEALED:
            if segment.file is None:
                segment.file = self._disk.open(segment.name)
            return segment.file
        if segment.file is None:
            segment.file = self._disk.open(segment.name)
        self._open[segment.number] = segment
        self._open.move_to_end(segment.number)
        self._trim()
        return segment.file

    def borrow(self, segment: LogSegment) -> File:
        """Return the file of a segment, which stays open until `give_back`, for use on a thread.

        Raises `OSError` if it cannot be opened.
        """
        file = self.get(segment)
        segment.readers += 1
        return file

    def give_back(self, segment: LogSegment, *, close: bool = False) -> None:
        """Release the borrowed file of a segment.

        With `close`, the file is closed as well, because the store is closed and opens no more
        files.
        """
        segment.readers -= 1
        if close or segment.state is SegmentState.RETIRED:
            self.close(segment)

    def close(self, segment: LogSegment) -> None:
        """Close the file of a segment, unless it is still borrowed."""
        if self._open.get(segment.number) is segment:
            del self._open[segment.number]
        if segment.file is not None and not segment.readers:
            segment.file.close()
            segment.file = None

    def _trim(self) -> None:
        for number in list(self._open):
            if len(self._open) <= self._max_open:
                return
            segment = self._open[number]
            if not segment.readers and number != next(reversed(self._open)):
                self.close(segment)
