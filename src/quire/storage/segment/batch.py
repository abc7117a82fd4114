"""What is handed to the log: batches of frames, described by runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter

from quire.codec.log.group import GROUP_HEADER_BYTES, RUN_ROW, ColumnarBatch
from quire.codec.log.state_records import BLOCK_BYTES, Buffer, StateRecord
from quire.errors import StorageError

_IN_MEMORY = -1


class Run:
    """Entries of one ledger whose frames lie back to back in one batch.

    Ids are consecutive from `first` on where `ids` is None, else ascending as listed. Frames have
    `frame_size` bytes each, or where that is 0 the `sizes` listed. Sizes include the frame header.
    """

    __slots__ = ("batch", "count", "first", "frame_size", "ids", "ledger_id", "offset", "sizes")

    batch: LogBatch
    """Set by the store."""

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
        return self.first + self.count - 1 if self.ids is None else self.ids[-1]

    @property
    def size_bytes(self) -> int:
        return self.frame_size * self.count if self.sizes is None else sum(self.sizes)


def runs_of(columns: ColumnarBatch, offset: int = 0) -> list[Run]:
    """Each of them as a run, the first of which begins at `offset`."""
    ledger_ids, entry_ids, size = columns
    offsets = range(offset, offset + size * len(ledger_ids), size)
    return [
        Run(ledger_id, entry_id, 1, at, size)
        for ledger_id, entry_id, at in zip(ledger_ids, entry_ids, offsets)
    ]


class LogBatch:
    """One received chunk: complete ADD frames back to back, and what they are.

    `buffers` belong to the store from `append` on and must not change. They are dropped once the
    batch is synced; the runs live on as the index.
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
    """Ascends in the order of appends."""
    done: Callable[[LogBatch, StorageError | None], None] | None
    cost_bytes: int
    """The most that it can take in its segment."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        runs: Sequence[Run] | ColumnarBatch,
        records: Sequence[StateRecord] = (),
    ) -> None:
        self.buffers: Sequence[Buffer] | None = buffers
        self.columns = runs if isinstance(runs, ColumnarBatch) else None
        """Instead of runs: entries of ledgers in turn."""
        self._runs: Sequence[Run] = () if isinstance(runs, ColumnarBatch) else runs
        self.records = records
        self.size_bytes = sum(map(len, buffers))
        self.file_offset = _IN_MEMORY
        """Where the first buffer lies in the segment's file, once written."""
        self.done = None
        self.entries = 0
        """For measuring only, as `received_s`: set by whoever took it from the network."""
        self.received_s = 0.0
        """When its chunk came, by the store's monotonic clock."""
        self.partial = False
        """A part of what was handed in: the rest went to another directory."""
        self.patient = False
        """No writer or reader waits for it: see `Appender.submit`."""

    @property
    def runs(self) -> Sequence[Run]:
        """Made anew at each call where there are `columns`."""
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
        """Those of the index name their batch: a ring that nothing but a look at all objects would
        free."""
        self._runs, self.columns = (), None

    def cost(self) -> int:
        """The most that it can take in a segment: as a group of its own, with sizes and ids.

        An entry takes 52 bytes at least, its size and its id in the table 12: a quarter will do.
        """
        size = self.size_bytes
        table = self.run_count * RUN_ROW.size + size // 4 + size // 1024 + 8
        for record in self.records:
            table += record.size_bytes
        return -(-(GROUP_HEADER_BYTES + table + size) // BLOCK_BYTES) * BLOCK_BYTES

    def memory(self, at: int, size: int) -> Buffer:
        """Bytes [at, at + size) of the buffers; a copy only where they straddle two of them."""
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
    """Sorts runs in the order of their arrival."""
    return run.batch.sequence, run.offset
