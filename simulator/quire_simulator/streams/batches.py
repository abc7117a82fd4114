"""The facts about the batches that are published to one stream, and their invariants.

Each check returns a description of what is wrong, or None.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from quire.streams.publish.publishing import BatchKey


@dataclass(slots=True, eq=False)
class BatchFacts:
    """One batch. It has the same rows in each attempt to publish it."""

    key: BatchKey
    parts: tuple[tuple[bytes, ...], ...]
    """The rows of each task, in order."""
    rows: tuple[bytes, ...]
    first: int | None = None
    """The sequence id of its first row, once a reader has received one of its rows."""
    tried_at: int | None = None
    """The moment when a driver began to publish it for the first time."""
    told: tuple[int, ...] | None = None
    """The numbers of its segments, once a driver has learned that it is published."""
    told_at: int | None = None
    """The moment when a driver learned this for the first time."""


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The state of one query that outlives its drivers."""

    writer: str
    query: str
    committed: int = -1
    """The last batch that a driver noted as published."""
    batches: dict[int, BatchFacts] = field(default_factory=dict)
    """The batches that were planned, by number."""


@dataclass(slots=True)
class PublishedFacts:
    """Everything known about the batches of one life of a stream."""

    checkpoints: dict[tuple[str, str], Checkpoint] = field(default_factory=dict)
    """The checkpoints by writer and query."""
    places: dict[bytes, tuple[BatchFacts, int]] = field(default_factory=dict)
    """The batch of each row, and the index of the row in it."""
    given_up: dict[int, str] = field(default_factory=dict)
    """The ledgers that may never be published, because their batch was aborted, and this batch."""

    def checkpoint(self, writer: str, query: str) -> Checkpoint:
        return self.checkpoints.setdefault((writer, query), Checkpoint(writer, query))

    def every(self) -> Iterator[BatchFacts]:
        for checkpoint in self.checkpoints.values():
            yield from checkpoint.batches.values()

    def planned(self, batch: BatchFacts) -> None:
        """Note the rows of a batch before any of them is written."""
        for index, row in enumerate(batch.rows):
            self.places[row] = (batch, index)

    # -- invariants ---------------------------------------------------------------------------

    def in_one_piece(self, row: bytes, sequence: int) -> str | None:
        """Check a record that a reader received: the rows of a batch follow each other."""
        found = self.places.get(row)
        if found is None:
            return None
        batch, index = found
        if batch.first is None:
            batch.first = sequence - index
        if batch.first == sequence - index:
            return None
        return f"row {index} of {batch.key} is record {sequence}, but row 0 is {batch.first}"

    def cut_off(self, last: bytes) -> str | None:
        """Check the last record before the end that a reader reached: no batch is cut off."""
        found = self.places.get(last)
        if found is None or found[1] == len(found[0].rows) - 1:
            return None
        return f"the stream ends after row {found[1]} of {len(found[0].rows)} of {found[0].key}"

    def incomplete(self, there: Container[bytes], *, truncated: bool) -> str | None:
        """Check at the end that each batch is there whole, or not at all.

        `there` has the records of the stream. If it was truncated, the first rows may be missing.
        """
        for batch in self.every():
            found = [row in there for row in batch.rows]
            begin = found.index(True) if True in found else len(found)
            if not all(found[begin:]) or (begin and True in found and not truncated):
                missing = found.index(False, 0 if not truncated else begin)
                return f"row {missing} of {batch.key} is missing"
        return None

    def in_order(self) -> str | None:
        """Check at the end that the batches of each query are in the order of their numbers."""
        for checkpoint in self.checkpoints.values():
            upcoming = -1
            for number, batch in sorted(checkpoint.batches.items()):
                if batch.first is None:
                    continue
                if batch.first < upcoming:
                    return f"batch {number} of query {checkpoint.query} is before an earlier one"
                upcoming = batch.first
        return None
