"""Batch reading of datasets with typed rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import DataType, DateType, StringType, StructType

from quire import EntryRun, blocking
from quire.client.datasets.rows import decode_rows
from quire.client.datasets.schema import DatasetSchema, Partition, PartitionValue
from quire.errors import UsageError
from quire.spark import worker
from quire.spark.ledgers.plan import Range, WeightedRange
from quire.spark.ledgers.reader import (
    BATCH_BYTES,
    BATCH_ROWS,
    LedgerPartition,
    QuireReader,
    other_columns,
)
from quire.spark.ledgers.typed_schema import arrow_schema, spark_schema
from quire.spark.options import ReadOptions
from quire.spark.schema import our_column

Test = Callable[[Partition], bool]
"""A test of the partition values of a part: whether a filter may select rows of it."""

COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def read_schema(options: ReadOptions, schema: DatasetSchema) -> StructType:
    """Return the columns that the options select. Raises UsageError if one does not exist."""
    every = spark_schema(schema)
    if options.typed_columns is None:
        return every
    fields = {str(field.name).lower(): field for field in every.fields}
    for name in options.typed_columns:
        if name.lower() not in fields:
            raise UsageError(
                f"option 'columns': there is no column {name!r}. The columns are: {schema}"
            )
    return StructType([fields[name.lower()] for name in options.typed_columns])


class TypedReader(QuireReader):
    """Spark's reader of a dataset with typed rows, as it is when the query is planned.

    The schema may be any part of the dataset's columns, in any order.
    """

    def __init__(self, options: ReadOptions, schema: StructType, known: DatasetSchema) -> None:
        super().__init__(options, StructType())
        self._known = known
        self._tests: list[Test] = []
        fields = {str(field.name).lower(): field for field in spark_schema(known).fields}
        types = {name: field.dataType for name, field in fields.items()}
        self._names = [
            str(fields[our_column(field, types, nullable=fields)].name) for field in schema.fields
        ]
        self._schema = arrow_schema(schema)

    # -- on the driver ------------------------------------------------------------------------

    def _extents(self, client: blocking.Client) -> Iterator[WeightedRange]:
        name = str(self._options.dataset)
        dataset = client.datasets.read(name)
        if dataset.schema != self._known:
            raise other_columns(name)
        for part in dataset.ledgers:
            if self.reads(part.partition):
                yield WeightedRange(Range(part.ledger_id, part.first, part.last), part.bytes)

    def reads(self, partition: Partition) -> bool:
        """Return whether parts with these partition values are read."""
        return all(test(partition) for test in self._tests)

    # -- on the workers -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, LedgerPartition):  # Spark's placeholder for "no partitions"
            return iter(())
        worker.prepare()
        return worker.plain_rows(self._rows(partition.ranges))

    def _rows(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        with worker.client(self._options.metadata, self._options.tls) as client:
            for run in self._runs(client, ranges):
                for batch in self._decoded(run):
                    waiting.append(batch)
                    rows += batch.num_rows
                    size += batch.nbytes
                    if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                        yield from self._joined(waiting)
                        waiting, rows, size = [], 0, 0
        yield from self._joined(waiting)

    def _decoded(self, run: EntryRun) -> Iterator[pa.RecordBatch]:
        data = memoryview(run.data)
        for at, (begin, end) in enumerate(zip(run.offsets, run.ends)):
            # A copy is aligned in memory, as Arrow wants its buffers to be.
            payload = bytes(data[begin:end])
            yield from decode_rows(payload, run.ledger_id, run.first + at, self._names)

    def _joined(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        table = pa.Table.from_batches([self._cast(batch) for batch in batches])
        for batch in table.combine_chunks().to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class TypedPushdownReader(TypedReader):
    """A reader that leaves out the parts whose partition values a query does not select.

    It is a separate class because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters on partition columns, and yield all: Spark applies them to rows too."""
        types = {str(field.name): field.dataType for field in spark_schema(self._known).fields}
        for condition in filters:
            place: tuple[str, ...] = getattr(condition, "attribute", ())
            name = _named(place[0], self._known.partition_by) if len(place) == 1 else None
            if name is not None and (test := partition_test(name, types[name], condition)):
                self._tests.append(test)
            yield condition


def partition_test(name: str, kind: DataType, condition: Filter) -> Test | None:
    """Return the test of a condition on a partition column, or None if there is none."""
    if isinstance(kind, StringType) and kind != StringType():
        return None  # Its collation compares strings in another way.

    def value_of(partition: Partition) -> Any:
        return _value(dict(partition)[name], kind)

    wanted: Any = getattr(condition, "value", None)
    if isinstance(condition, IsNull):
        return lambda partition: value_of(partition) is None
    if isinstance(condition, IsNotNull):
        return lambda partition: value_of(partition) is not None
    if isinstance(condition, EqualNullSafe):
        return lambda partition: value_of(partition) == wanted
    if isinstance(condition, In):
        among = tuple(wanted)
        return lambda partition: value_of(partition) in among
    compare = COMPARISONS.get(type(condition))
    if compare is None or wanted is None:
        return None

    def holds(partition: Partition) -> bool:
        value = value_of(partition)
        return value is not None and compare(value, wanted)

    return holds


def _value(value: PartitionValue, kind: DataType) -> Any:
    """Return the value of a partition column as filters of Spark have it."""
    if isinstance(kind, DateType) and isinstance(value, str):
        return date.fromisoformat(value)
    return value


def _named(name: str, columns: Sequence[str]) -> str | None:
    found = [column for column in columns if column.lower() == name.lower()]
    return found[0] if found else None
