"""Batch reading of ledgers.

The driver divides ledgers into tasks, and the workers return entries as Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import BinaryType, DataType, LongType, StructField, StructType

from quire import EntryRun, blocking
from quire.client.read import arrow
from quire.errors import NoSuchLedgerError, ReadError
from quire.spark import worker
from quire.spark.ledgers.plan import Range, WeightedRange, plan
from quire.spark.options import ReadOptions
from quire.spark.schema import our_column

BATCH_ROWS = 1_024
BATCH_BYTES = 1024 * 1024
"""The rows or bytes at which runs are joined into a batch.

With smaller batches Spark takes twice the time per row.
"""
BATCH_BYTES_MAX = 32 * 1024 * 1024
"""The size above which runs are cut, because Spark holds a whole batch in memory."""
ID_BATCH_ROWS = 16_384
"""The number of rows in batches that consist of ids only."""
REFRESH_ATTEMPTS = 3
"""The number of attempts of a task whose view of an open ledger is older than the driver's."""

LEDGER_ID_MAX = 2**63 - 1
TYPES: dict[str, DataType] = {
    name: BinaryType() if name == "value" else LongType() for name in arrow.COLUMNS
}


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of these columns."""
    return StructType([StructField(name, TYPES[name], nullable=False) for name in columns])


@dataclass(frozen=True, slots=True)
class LedgerPartition(InputPartition):  # type: ignore[misc]
    """One task, which reads these ranges one after the other."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ids of ledgers and entries that the filters of a query select."""

    ledger_first: int = 0
    ledger_last: int = LEDGER_ID_MAX
    ledgers: frozenset[int] | None = None
    entry_first: int = 0
    entry_last: int = LEDGER_ID_MAX

    def has_ledger(self, ledger_id: int) -> bool:
        """Return whether the bounds include a ledger."""
        return self.ledger_first <= ledger_id <= self.ledger_last and (
            self.ledgers is None or ledger_id in self.ledgers
        )

    def within(self, column: str, first: int, last: int) -> Bounds:
        """Return the bounds with the ledger ids or the entry ids restricted to first..last.

        Both ends are included. `column` is "ledger_id" or "entry_id".
        """
        if column == "ledger_id":
            first, last = max(first, self.ledger_first), min(last, self.ledger_last)
            return replace(self, ledger_first=first, ledger_last=last)
        first, last = max(first, self.entry_first), min(last, self.entry_last)
        return replace(self, entry_first=first, entry_last=last)

    def among(self, ledgers: Iterable[int]) -> Bounds:
        """Return the bounds restricted to these ledgers."""
        both = frozenset(ledgers)
        return replace(self, ledgers=both if self.ledgers is None else both & self.ledgers)


class QuireReader(DataSourceReader):  # type: ignore[misc]
    """Spark's reader of ledgers by id, or of a dataset as it is when the query is planned.

    The schema may be any part of the columns, in any order. `length` and `value` need the entries.
    The rows of a schema with `ledger_id` and `entry_id` alone are made from the metadata, without
    asking a bookie.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._bounds = Bounds()
        self._columns = tuple(our_column(field, TYPES) for field in schema.fields)
        self._schema = pa.schema(
            [
                pa.field(field.name, arrow.schema([column]).field(0).type, field.nullable)
                for field, column in zip(schema.fields, self._columns)
            ]
        )

    # -- on the driver ------------------------------------------------------------------------

    @worker.plainly
    def partitions(self) -> list[LedgerPartition]:
        """Return the tasks of the query.

        Raises NoSuchLedgerError, UsageError if there would be too many tasks, MetadataError if a
        ledger or the dataset cannot be read, and the errors of reading an open ledger.
        """
        options = self._options
        with worker.client(options.metadata, options.tls) as client:
            extents = list(self._extents(client))
        bounds = self._bounds
        clipped = (extent.clip(bounds.entry_first, bounds.entry_last) for extent in extents)
        return [
            LedgerPartition(ranges)
            for ranges in plan(
                (extent for extent in clipped if extent is not None),
                partition_bytes=options.partition_bytes,
                partition_entries=options.partition_entries,
                min_partitions=options.min_partitions,
            )
        ]

    def _extents(self, client: blocking.Client) -> Iterator[WeightedRange]:
        options, bounds = self._options, self._bounds
        if options.dataset is not None:
            dataset = client.datasets.read(options.dataset)
            if dataset.schema is not None:  # Its entries would be taken for rows.
                raise other_columns(options.dataset)
            for part in dataset.ledgers:
                if bounds.has_ledger(part.ledger_id):
                    yield WeightedRange(Range(part.ledger_id, part.first, part.last), part.bytes)
            return
        for ledger_id in options.ledgers:
            if not bounds.has_ledger(ledger_id):
                continue
            with client.open_ledger(
                ledger_id, password=options.password, recover=options.recover
            ) as ledger:
                last = ledger.last_add_confirmed
                if last >= 0:
                    # Only the last entry of an open ledger knows the ledger's length.
                    length = ledger.length if ledger.ledger_closed else _length_at_end(ledger)
                    yield WeightedRange(Range(ledger_id, 0, last), length)

    # -- on the workers -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, LedgerPartition):  # Spark's placeholder for "no partitions"
            return iter(())
        worker.prepare()
        if {"length", "value"} & set(self._columns):
            return worker.plain_rows(self._batches(partition.ranges))
        return self._ids(partition.ranges)

    def _batches(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        runs: list[EntryRun] = []
        rows = size = 0
        with worker.client(self._options.metadata, self._options.tls) as client:
            for run in self._runs(client, ranges):
                runs.append(run)
                rows += len(run)
                size += len(run.data)
                if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield self._batch(runs)
                    runs, rows, size = [], 0, 0
        if runs:
            yield self._batch(runs)

    def _runs(self, client: blocking.Client, ranges: Sequence[Range]) -> Iterator[EntryRun]:
        for part in ranges:
            with self._open(client, part) as ledger:
                for run in ledger.read_runs(part.first, part.last):
                    yield from cut(run, BATCH_BYTES_MAX)

    def _open(self, client: blocking.Client, part: Range) -> blocking.LedgerReader:
        try:
            ledger = client.open_ledger(part.ledger_id, password=self._options.password)
        except NoSuchLedgerError:
            if self._options.dataset is None:
                raise
            raise ReadError(
                f"ledger {part.ledger_id} was deleted while it was read, because dataset "
                f"{self._options.dataset!r} was overwritten or dropped",
                ledger_id=part.ledger_id,
                remedy="Run the query again",
            ) from None
        for _ in range(REFRESH_ATTEMPTS):
            if ledger.last_add_confirmed >= part.last:
                break
            ledger.refresh()
        return ledger

    def _batch(self, runs: Sequence[EntryRun]) -> pa.RecordBatch:
        batches = [arrow.record_batch(run, self._columns) for run in runs]
        columns = [
            batches[0].column(at)
            if len(batches) == 1
            else pa.concat_arrays([batch.column(at) for batch in batches])
            for at in range(len(self._columns))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _ids(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        for part in ranges:
            for first in range(part.first, part.last + 1, ID_BATCH_ROWS):
                count = min(ID_BATCH_ROWS, part.last + 1 - first)
                run = EntryRun(part.ledger_id, first, b"", [0] * count, [0] * count, [], -1)
                yield self._batch([run])


class QuirePushdownReader(QuireReader):
    """A reader that also uses comparisons of `ledger_id` and `entry_id` with constants.

    It is a separate class because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters that can be used, and yield those that Spark must apply itself."""
        for condition in filters:
            bounds = narrowed(self._bounds, condition)
            if bounds is None:
                yield condition
            else:
                self._bounds = bounds


def narrowed(bounds: Bounds, condition: Filter) -> Bounds | None:
    """Return the bounds with one more condition, or None if they cannot express it exactly."""
    column = condition.attribute[0] if len(getattr(condition, "attribute", ())) == 1 else ""
    if column in TYPES and isinstance(condition, IsNotNull):
        return bounds  # no column is ever null
    if column not in ("ledger_id", "entry_id"):
        return None
    value: Any = getattr(condition, "value", None)
    if isinstance(condition, In):
        if column == "ledger_id" and all(type(v) is int for v in value):
            return bounds.among(value)
        return None
    if type(value) is not int:
        return None
    if isinstance(condition, EqualTo | EqualNullSafe):
        return bounds.within(column, value, value)
    if isinstance(condition, GreaterThan):
        return bounds.within(column, value + 1, LEDGER_ID_MAX)
    if isinstance(condition, GreaterThanOrEqual):
        return bounds.within(column, value, LEDGER_ID_MAX)
    if isinstance(condition, LessThan):
        return bounds.within(column, 0, value - 1)
    if isinstance(condition, LessThanOrEqual):
        return bounds.within(column, 0, value)
    return None


def cut(run: EntryRun, bytes_max: int) -> Iterator[EntryRun]:
    """Cut a run into pieces of about this many bytes. An entry is not cut."""
    if len(run.data) <= bytes_max:
        yield run
        return
    start = 0
    for at in range(1, len(run) + 1):
        full = at < len(run) and run.ends[at] - run.offsets[start] > bytes_max
        if at == len(run) or full:
            yield replace(
                run,
                first=run.first + start,
                offsets=run.offsets[start:at],
                ends=run.ends[start:at],
                ledger_lengths=run.ledger_lengths[start:at],
                contents=None,
            )
            start = at


def other_columns(dataset: str) -> ReadError:
    """Return the error for a dataset that was overwritten after its columns were read."""
    return ReadError(
        f"dataset {dataset!r} was replaced by one with other columns while the query was planned",
        remedy="Load it again",
    )


def _length_at_end(ledger: blocking.LedgerReader) -> int:
    return ledger.read_last().ledger_length
