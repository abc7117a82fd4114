"""The rows of one task, divided by the values of the partition columns and encoded as entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa

from quire._runtime.units import counted
from quire.client.datasets.rows import ENTRY_BYTES, encode_rows
from quire.client.datasets.schema import Partition, PartitionValue
from quire.errors import UsageError

BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""The size in bytes of the rows that a task holds back to fill entries. Above it, the rows of the
largest partition are written, even if they fill no entry."""
WRITE_BYTES = 4 * ENTRY_BYTES
"""The size in bytes of the rows of one partition at which they are written. Several entries are
sent together, because a task waits for what it sent before it sends more."""
PARTITIONS_MAX = 10_000
"""The largest number of combinations of partition values in the rows of one task."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Entries that follow each other, all of whose rows have the same partition values."""

    partition: Partition
    entries: Sequence[bytes]
    rows: int


class RowBuffer:
    """The rows of a task, collected until they fill entries.

    The rows of each combination of partition values keep their order.
    """

    def __init__(
        self,
        schema: pa.Schema,
        places: Sequence[int],
        partition_by: Sequence[str],
        compression: str,
    ) -> None:
        """Create a buffer.

        Args:
            schema: The Arrow schema of the entries.
            places: For each column of the schema, its place in the batches.
            partition_by: The names of the partition columns.
            compression: The compression of the entries.
        """
        self._schema = schema
        self._places = places
        self._partition_by = tuple(partition_by)
        self._compression = compression
        self._waiting: dict[Partition, list[pa.RecordBatch]] = {}
        self._bytes: dict[Partition, int] = {}
        self._seen: set[Partition] = set()

    def add(self, batch: pa.RecordBatch) -> Iterator[EncodedRows]:
        """Add a batch of Spark, and yield the rows that are to be written now.

        Raises UsageError if the task has more than `PARTITIONS_MAX` partitions.
        """
        columns = [
            _cast(batch.column(place), field.type)
            for place, field in zip(self._places, self._schema)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        for partition, part in self._divided(rows):
            self._note(partition)
            self._waiting.setdefault(partition, []).append(part)
            self._bytes[partition] = self._bytes.get(partition, 0) + part.nbytes
            if self._bytes[partition] >= WRITE_BYTES:
                yield self._encoded(partition)
        while sum(self._bytes.values()) > BUFFER_BYTES_MAX:
            yield self._encoded(max(self._bytes, key=self._bytes.__getitem__))

    def rest(self) -> Iterator[EncodedRows]:
        """Yield all rows that are left."""
        for partition in list(self._waiting):
            yield self._encoded(partition)

    def _encoded(self, partition: Partition) -> EncodedRows:
        table = pa.Table.from_batches(self._waiting.pop(partition), self._schema)
        del self._bytes[partition]
        entries = [entry for entry, _ in encode_rows(table, self._compression)]
        return EncodedRows(partition, entries, table.num_rows)

    def _note(self, partition: Partition) -> None:
        self._seen.add(partition)
        if len(self._seen) > PARTITIONS_MAX:
            raise UsageError(
                f"the rows of one Spark task have more than "
                f"{counted(PARTITIONS_MAX, 'combination')} of values of the partition columns "
                f"{', '.join(self._partition_by)}",
                remedy="Choose partition columns with fewer values, or use "
                "df.repartition() with the partition columns before the write",
            )

    def _divided(self, rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        if not self._partition_by:
            yield (), rows
            return
        groups, count = np.zeros(rows.num_rows, dtype=np.int64), 1
        for name in self._partition_by:
            codes = rows.column(name).dictionary_encode(null_encoding="encode")
            groups = groups * len(codes.dictionary) + codes.indices.to_numpy(zero_copy_only=False)
            _, groups = np.unique(groups, return_inverse=True)
            count = int(groups.max()) + 1
        if count == 1:
            yield self._partition(rows, 0), rows
            return
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=count))
        for start, end in zip([0, *ends[:-1]], ends):
            part = rows.take(pa.array(order[start:end]))
            yield self._partition(part, 0), part

    def _partition(self, rows: pa.RecordBatch, at: int) -> Partition:
        return tuple((name, stored(rows.column(name)[at].as_py())) for name in self._partition_by)


def stored(value: object) -> PartitionValue:
    """Return a value of a partition column as it is stored: a date as a string, others unchanged.

    Raises TypeError for a type that no partition column has.
    """
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{value!r} cannot be the value of a partition column")


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
