"""Batches of entries on their way to the log, and the runs that describe what is in them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter

from quire.codec.log.group import GROUP_HEADER_BYTES, RUN_ROW, ColumnarBatch
from quire.codec.log.state_records import BLOCK_BYTES, Buffer, StateRecord
from quire.errors import StorageError

_IN_MEMORY = -1


class Run:
    """Entries of one ledger whose frames are adjacent in one batch.

    If `ids` is None, the ids are consecutive and begin with `first`. Otherwise `ids` lists them in
    ascending order. The first frame is at `offset` in the joined buffers of the batch. Each frame
    has `frame_size` bytes. If that is 0, `sizes` lists the size of each frame. Sizes include the
    frame header.
    """

    __slots__ = ("batch", "count", "first", "frame_size", "ids", "ledger_id", "offset", "sizes")

    batch: LogBatch
    """The batch that contains this run, which is set when the run is added to the index."""

    def __init__(
        self,
        ledger_id: int,
        first: int,
        count: int,
        offset: int,
        frame_size: int,
        sizes: array[int] | None = None,
        ids: array[int] | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.count = count
        self.offset = offset
        self.frame_size = frame_size
        self.sizes = sizes
        self.ids = ids

    def __repr__(self) -> str:
        return f"Run(ledger {self.ledger_id}, {self.first}..{self.last}, {self.count} entries)"

    @property
    def last(self) -> int:
        """The id of the last entry."""
        return self.first + self.count - 1 if self.ids is None else self.ids[-1]

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all frames."""
        return self.frame_size * self.count if self.sizes is None else sum(self.sizes)


def runs_of(columns: ColumnarBatch, offset: int = 0) -> list[Run]:
    """Return a run of one entry for each row of the columns.

    The first frame is at `offset` in the buffers of the batch.
    """
    ledger_ids, entry_ids, size = columns
    offsets = range(offset, offset + size * len(ledger_ids), size)
    return [
        Run(ledger_id, entry_id, 1, at, size)
        for ledger_id, entry_id, at in zip(ledger_ids, entry_ids, offsets)
    ]


class LogBatch:
    """A chunk of adds: complete, adjacent ADD frames, and a description of their entries.

    From `append` on, the store owns `buffers`, and nobody may change them. `buffers` becomes None
    once the batch is synced. The runs become part of the index.
    """

    __slots__ = (
        "_runs",
        "buffers",
        "columns",
        "cost_bytes",
        "done",
        "entries",
        "file_offset",
        "partial",
        "patient",
        "received_s",
        "records",
        "sequence",
        "size_bytes",
    )  # fmt: skip

    sequence: int
    """The number of the batch in its store. Numbers ascend in the order of appends."""
    done: Callable[[LogBatch, StorageError | None], None] | None
    """A function that is called with this batch and None or an error, once the batch is synced or
    has failed. It is None after the call."""
    cost_bytes: int
    """The most bytes that the batch can take in its segment."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        runs: Sequence[Run] | ColumnarBatch,
        records: Sequence[StateRecord] = (),
    ) -> None:
        self.buffers: Sequence[Buffer] | None = buffers
        self.columns = runs if isinstance(runs, ColumnarBatch) else None
        """The entries as columns instead of runs, if entries of many ledgers are interleaved.
        Otherwise None."""
        self._runs: Sequence[Run] = () if isinstance(runs, ColumnarBatch) else runs
        self.records = records
        self.size_bytes = sum(map(len, buffers))
        self.file_offset = _IN_MEMORY
        """The offset of the first frame in the segment's file, or -1 until the batch is written."""
        self.done = None
        self.entries = 0
        """The number of entries, for metrics. The code that receives the batch from the network
        sets it and `received_s`. Otherwise it is 0."""
        self.received_s = 0.0
        """The monotonic time in seconds when the chunk with the adds was received."""
        self.partial = False
        """Whether other parts of the same chunk went to other data directories."""
        self.patient = False
        """Whether no writer or reader waits for this batch, so that it may wait for others; see
        `Appender.submit`."""

    @property
    def runs(self) -> Sequence[Run]:
        """The runs of the batch. If it has `columns`, each call creates new runs."""
        return self._runs if self.columns is None else runs_of(self.columns)

    @property
    def run_count(self) -> int:
        return len(self._runs if self.columns is None else self.columns.ledger_ids)

    @property
    def entry_count(self) -> int:
        if self.columns is not None:
            return len(self.columns.ledger_ids)
        return sum([run.count for run in self._runs])

    def forget_runs(self) -> None:
        """Drop the references to the runs and columns, so that they can be freed.

        Runs in the index refer to their batch. If the batch referred to its runs as well, only a
        full garbage collection could free them.
        """
        self._runs, self.columns = (), None

    def cost(self) -> int:
        """Return the most bytes that the batch can take in a segment.

        The result is the size of the batch as a group of its own, with tables of sizes and ids. An
        entry takes at least 52 bytes, and its size and id in the tables take 12. So a quarter of
        the size is enough for these tables.
        """
        size = self.size_bytes
        table = self.run_count * RUN_ROW.size + size // 4 + size // 1024 + 8
        for record in self.records:
            table += record.size_bytes
        return -(-(GROUP_HEADER_BYTES + table + size) // BLOCK_BYTES) * BLOCK_BYTES

    def memory(self, at: int, size: int) -> Buffer:
        """Return `size` bytes of the joined buffers from the offset `at` on.

        They are copied only if they are in several buffers.
        """
        assert self.buffers is not None
        pieces: list[Buffer] = []
        for buffer in self.buffers:
            length = len(buffer)
            if at >= length:
                at -= length
                continue
            piece = memoryview(buffer)[at : at + size]
            pieces.append(piece)
            size -= len(piece)
            at = 0
            if not size:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


first_of = attrgetter("first")


def arrival(run: Run) -> tuple[int, int]:
    """Return a sort key that puts runs in the order of their arrival."""
    return run.batch.sequence, run.offset
