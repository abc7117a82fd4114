"""Where the entries of a segment that came in turn with those of other ledgers lie."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from quire.storage.log.batch import Batch


class Chunks:
    """The batches of entries that came in turn (`ColumnarBatch`): rows of one column, by their
    number in the segment."""

    __slots__ = ("_batches", "_starts", "rows")

    def __init__(self) -> None:
        self._batches: list[tuple[Batch, int]] = []
        """With the size of their frames."""
        self._starts = array("Q")
        """Of each batch, its first row."""
        self.rows = 0

    def add(self, batch: Batch, count: int, frame_size: int) -> range:
        """The numbers of its rows."""
        first = self.rows
        self._batches.append((batch, frame_size))
        self._starts.append(first)
        self.rows = first + count
        return range(first, self.rows)

    def find(self, row: int) -> tuple[Batch, int, int]:
        """Its batch, where it lies in that, and the size of its frame."""
        at = bisect_right(self._starts, row) - 1
        batch, size = self._batches[at]
        return batch, (row - self._starts[at]) * size, size

    @property
    def frame_size(self) -> int:
        """Of all rows; 0: they have several, or there are none."""
        sizes = {size for _, size in self._batches}
        return sizes.pop() if len(sizes) == 1 else 0

    def offsets(self) -> list[int]:
        """Of each row, in the file, once all batches are written."""
        found: list[int] = []
        stops = (*self._starts[1:], self.rows)
        for (batch, size), start, stop in zip(self._batches, self._starts, stops):
            base = batch.file_offset
            found.extend(range(base, base + (stop - start) * size, size))
        return found
