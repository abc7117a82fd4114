"""Batch writing: every task writes a ledger of its own, and the driver publishes them as a dataset.

Readers of the dataset see nothing before the one compare-and-swap of `commit`. The ledgers of
failed or killed tasks, and of tasks that lost to a speculative copy, are orphans. Their custom
metadata names the job and the dataset. The task itself, the end of the job or
`quire.spark.sweep_orphans` deletes them, whichever can.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from quire import LedgerWriter, blocking
from quire._runtime.units import counted
from quire.blocking import Datasets
from quire.blocking.background import call
from quire.client.datasets.datasets import Publication, other_schema
from quire.client.datasets.format import DatasetLedger
from quire.client.datasets.schema import DatasetSchema
from quire.client.datasets.unpublished import JOB_KEY, OWNER_KEY
from quire.errors import NoSuchKeyError, QuireError, UsageError
from quire.spark import worker
from quire.spark.ledgers.typed_rows import EncodedRows, RowBuffer
from quire.spark.ledgers.typed_schema import (
    arrow_schema,
    dataset_schema,
    fitting,
    has_columns,
    spark_schema,
)
from quire.spark.options import WriteOptions
from quire.streams.read.arrow import COLUMNS, PARTITION_COLUMN

PARTITION_KEY = "quire.partition"
ATTEMPT_KEY = "quire.attempt"
TXN_KEY = "quire.txn"

SWEEP_BEFORE = 1_000
"""The search for a job's failed attempts begins this many ids before the job's first ledger."""
SWEEP_LEDGERS_MAX = 5_000
"""The number of ledgers that the sweep at the end of a job reads. `sweep_orphans` reads all."""

PLACE_COLUMNS = frozenset((*COLUMNS, PARTITION_COLUMN)) - {"value"}
"""The columns in which Quire's own source says where a row comes from. A copy has places of its
own, so these columns are not lost."""
SOURCE_COLUMNS = frozenset(("ledger", "entry"))
"""Columns of every row of that source. Without them, a column such as `time` is the user's."""
ALL_COLUMNS = "To write all columns with their types, set the option 'typed' to 'true'. "

logger = logging.getLogger("quire.spark")


@dataclass(frozen=True, slots=True)
class LedgerMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports to the driver: the ledger that it wrote."""

    partition: int
    """The number of the task's Spark partition."""
    attempt: int
    """The number of the attempt, from 0."""
    ledger_id: int | None = None
    """The id of the ledger, or None if the task had no rows."""
    last_entry: int = -1
    """The id of the last entry, or -1 without a ledger."""
    rows: int = 0
    bytes: int = 0
    parts: tuple[DatasetLedger, ...] = ()
    """The parts of the ledger, in the order of their entries."""


class QuireWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """One write job.

    It is built once on the driver. Spark pickles it for the tasks, for `commit` and for `abort`, so
    that `job` identifies the job in all of them.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self.job = uuid.uuid4().hex
        self.txn = options.txn_id or f"job:{self.job}"
        self._column = -1
        self._places: Sequence[int] = ()
        self.schema: DatasetSchema | None = None
        with worker.writing(options) as client:
            self._done = options.txn_id is not None and (
                client.datasets.find_transaction(options.dataset, self.txn) is not None
            )
            if not self._done:
                self._choose(client, schema)

    def _choose(self, client: blocking.Client, schema: StructType) -> None:
        """Decide which columns are written, and how. Raises UsageError if they do not fit."""
        options, name = self._options, self._options.dataset
        wanted = options.typed
        if wanted is None and (options.partition_columns or options.value_column):
            wanted = bool(options.partition_columns)
        try:
            known, exists = client.datasets.read_schema(name), True
        except NoSuchKeyError:
            known, exists = None, False
        partition_by = options.partition_columns
        if partition_by is None and known is not None:
            partition_by = known.partition_by if has_columns(schema, known.partition_by) else ()
        if exists and not self._overwrite:
            typed = known is not None
            if wanted not in (None, typed):
                raise other_schema(
                    name, known, dataset_schema(schema, partition_by or ()) if wanted else None
                )
        elif wanted is not None:
            typed = wanted
        else:
            typed = known is not None or not has_value_column(schema)
        if not typed:
            self._column = value_column(schema, options.value_column)
            if options.value_column is None and options.typed is None:
                others = "" if exists and not self._overwrite else ALL_COLUMNS
                check_none_is_lost(schema, self._column, (), others)
            return
        given = dataset_schema(schema, partition_by or ())
        if known is None or self._overwrite:
            self.schema, self._places = given, range(len(schema.fields))
        else:
            self.schema, self._places = known, fitting(name, known, given)

    # -- on the workers -----------------------------------------------------------------------

    @worker.plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> LedgerMessage:
        """Write the rows of one partition to a new ledger, and close it.

        On return all rows are durable on an ack quorum. Without rows there is no ledger, nor if the
        dataset has the transaction id already: the rows are dropped then. After an error the ledger
        is deleted, or left for a sweep. Raises UsageError if a row cannot be stored, and the errors
        of creating and writing a ledger.
        """
        worker.prepare()
        partition, attempt = task()
        if self._done:
            for _ in iterator:
                pass
            return LedgerMessage(partition, attempt)
        with worker.writing(self._options) as client:
            output = LedgerTaskOutput(client, self, partition, attempt)
            try:
                for part in self._encoded(iterator):
                    output.append(part)
                return output.close()
            except BaseException:
                output.discard()
                raise

    def _encoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[EncodedRows]:
        """Yield the rows of a task as entries."""
        filled = (batch for batch in batches if batch.num_rows)
        if self.schema is None:
            for batch in filled:
                entries = payloads(batch, self._column)
                yield EncodedRows((), entries, len(entries))
            return
        buffer = RowBuffer(
            arrow_schema(spark_schema(self.schema)),
            self._places,
            self.schema.partition_by,
            self._options.compression,
        )
        for batch in filled:
            yield from buffer.add(batch)
        yield from buffer.rest()

    def create_ledger(
        self, client: blocking.Client, partition: int, attempt: int
    ) -> blocking.LedgerWriter:
        """Create the ledger of a task, with metadata that says which job and task it belongs to.

        Raises the errors of `Client.create_ledger`.
        """
        options = self._options
        custom = {
            OWNER_KEY: options.dataset,
            JOB_KEY: self.job,
            TXN_KEY: self.txn,
            PARTITION_KEY: str(partition),
            ATTEMPT_KEY: str(attempt),
        }
        return client.create_ledger(
            ensemble_size=options.ensemble,
            write_quorum=options.write_quorum,
            ack_quorum=options.ack_quorum,
            digest=options.digest,
            password=options.password,
            custom={key: value.encode() for key, value in custom.items()},
        )

    # -- on the driver ------------------------------------------------------------------------

    @worker.plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all ledgers of the job in one step, and then clean up as far as possible.

        On return the job's rows are durably part of the dataset. Raises the errors of
        `Datasets.publish`.
        """
        if self._done:
            return
        written = _written(messages)
        with worker.writing(self._options) as client:
            datasets = client.datasets
            published = self.publish(datasets, written)
            try:
                self._clean_up(datasets, published, written, messages)
            except QuireError as error:
                logger.warning(
                    "dataset %s was published, but some ledgers are left for a later sweep: %s",
                    self._options.dataset,
                    error,
                )

    def publish(self, datasets: Datasets, written: Sequence[LedgerMessage]) -> Publication:
        """Publish the ledgers of the job. Raises the errors of `Datasets.publish`."""
        return datasets.publish(
            self._options.dataset,
            [part for message in written for part in message.parts],
            overwrite=self._overwrite,
            txn=self.txn,
            schema=self.schema,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what is not published.

        Spark also calls this after a `commit` that raised, which may have published everything.
        Ledgers that the dataset holds are therefore never deleted. An error is only logged.
        """
        name = self._options.dataset
        try:
            with worker.writing(self._options) as client:
                datasets = client.datasets
                written = _written(messages)
                datasets.discard(name, _ids(written))
                self._sweep(datasets, written, messages)
        except QuireError as error:
            logger.warning("dataset %s: ledgers are left for a later sweep: %s", name, error)

    def _clean_up(
        self,
        datasets: Datasets,
        published: Publication,
        written: Sequence[LedgerMessage],
        messages: Sequence[WriterCommitMessage | None],
    ) -> None:
        name = self._options.dataset
        if published.repeated:
            # Another driver with this transaction id published it, or an earlier attempt did.
            # `discard` keeps what the dataset names.
            datasets.discard(name, _ids(written))
        if published.replaced:
            datasets.discard(name, [ledger.ledger_id for ledger in published.replaced])
        self._sweep(datasets, written, messages)

    def _sweep(
        self,
        datasets: Datasets,
        written: Sequence[LedgerMessage],
        messages: Sequence[WriterCommitMessage | None],
    ) -> None:
        """Delete the ledgers of failed attempts of this job, if there may be some."""
        retried = any(message is None or message.attempt for message in messages)
        if retried and written:
            datasets.sweep_orphans(
                0,
                name=self._options.dataset,
                job=self.job,
                first=max(0, min(_ids(written)) - SWEEP_BEFORE),
                keep=_ids(written),
                look_at_most=SWEEP_LEDGERS_MAX,
            )


class LedgerTaskOutput:
    """The ledger of one task, which is created with its first rows.

    One batch is being written while the next is taken from Spark.
    """

    def __init__(
        self, client: blocking.Client, job: QuireWriter, partition: int, attempt: int
    ) -> None:
        self._client = client
        self._job = job
        self._partition = partition
        self._attempt = attempt
        self._ledger: blocking.LedgerWriter | None = None
        self._pending: asyncio.Future[int] | None = None
        self._parts: list[DatasetLedger] = []

    def append(self, rows: EncodedRows) -> None:
        """Append rows to the ledger, which is created if there is none.

        The rows are not durable on return. Raises the errors of creating the ledger, and those of
        writing the rows of earlier calls.
        """
        if self._ledger is None:
            self._ledger = self._job.create_ledger(self._client, self._partition, self._attempt)
        call(self._append(self._ledger.aio, rows.entries))
        first = self._parts[-1].last + 1 if self._parts else 0
        part = DatasetLedger(
            self._ledger.ledger_id,
            first,
            first + len(rows.entries) - 1,
            rows.rows,
            sum(map(len, rows.entries)),
            rows.partition,
        )
        if self._parts and self._parts[-1].partition == part.partition:
            before = self._parts.pop()
            part = replace(
                part,
                first=before.first,
                rows=before.rows + part.rows,
                bytes=before.bytes + part.bytes,
            )
        self._parts.append(part)

    async def _append(self, ledger: LedgerWriter, values: Sequence[bytes]) -> None:
        await self._settle()
        self._pending = asyncio.ensure_future(ledger.append_many(values))

    async def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            await pending

    def close(self) -> LedgerMessage:
        """Wait until all rows are written, and close the ledger. Without rows there is no ledger.

        Raises QuireError if the ledger has another number of entries than this task wrote to it.
        """
        if self._ledger is None:
            return LedgerMessage(self._partition, self._attempt)
        call(self._settle())
        last = self._ledger.close()
        if last != self._parts[-1].last:
            raise QuireError(
                f"ledger {self._ledger.ledger_id} has {counted(last + 1, 'entry')}, but this "
                f"Spark task wrote {counted(self._parts[-1].last + 1, 'entry')} to it. Nothing of "
                "this task was published",
                remedy="Run the job again. If the error returns, report it",
            )
        return LedgerMessage(
            self._partition,
            self._attempt,
            self._ledger.ledger_id,
            last,
            sum(part.rows for part in self._parts),
            sum(part.bytes for part in self._parts),
            tuple(self._parts),
        )

    def discard(self) -> None:
        """Delete the ledger, which nothing names. If that fails, a sweep deletes it."""
        if self._ledger is None:
            return
        try:
            call(self._cancel())
            self._ledger.abandon()
            self._client.delete_ledger(self._ledger.ledger_id)
        except QuireError as error:
            logger.warning("ledger %d is left for a sweep: %s", self._ledger.ledger_id, error)

    async def _cancel(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)


def has_value_column(schema: StructType) -> bool:
    """Return whether it is clear which column becomes the entries."""
    try:
        value_column(schema, None)
    except UsageError:
        return False
    return True


def value_column(
    schema: StructType, wanted: str | None, *, stream: int | None = None, used: Iterable[int] = ()
) -> int:
    """Return the index of the column that becomes the entries.

    This is the wanted column, or `value`, or the only column. Columns that are `used` for something
    else and the one that names the `stream` do not count. `check_none_is_lost` looks at the others.

    Raises:
        UsageError: It is not clear which column is meant, or it is not binary or a string.
    """
    fields = [(at, field) for at, field in enumerate(schema.fields) if at != stream]
    name = (wanted or "value").lower()
    found = [one for one in fields if str(one[1].name).lower() == name]
    if wanted is None and not found:
        found = fields if len(fields) == 1 else [one for one in fields if one[0] not in used]
    if len(found) == 1:
        [(at, field)] = found
        if isinstance(field.dataType, BinaryType | StringType):
            return at
        raise UsageError(
            f"column {field.name!r} is {field.dataType.simpleString()}, but an entry must be "
            "binary or string",
            remedy="Cast or encode the column, for example with to_json",
        )
    have = ", ".join(f"{field.name} {field.dataType.simpleString()}" for _, field in fields)
    what = (
        f"there is no column {wanted!r} to write"
        if wanted
        else "it is not clear which column to write"
    )
    raise UsageError(
        f"{what}. The columns are: {have or 'none'}",
        remedy="Name a binary or string column with the option 'valueColumn', or combine all "
        "columns into one: df.selectExpr('to_json(struct(*)) AS value')",
    )


def check_none_is_lost(
    schema: StructType, value: int, used: Iterable[int | None], others: str
) -> None:
    """Check that no column is left out although no option says so.

    Call this if the user has not named the value column. `others` says how to write the other
    columns. The places of rows that were read from Quire need not be written.

    Raises:
        UsageError: There are columns besides the one at `value` and those that are `used`.
    """
    named = {value, *used}
    places = PLACE_COLUMNS if SOURCE_COLUMNS.issubset(schema.names) else ()
    lost = [
        str(name) for at, name in enumerate(schema.names) if at not in named and name not in places
    ]
    if lost:
        name = schema.names[value]
        raise UsageError(
            f"column {name!r} would be written, but no option says what to do with "
            f"{'column' if len(lost) == 1 else 'the columns'} {', '.join(map(repr, lost))}. "
            "Nothing was written",
            remedy=f"{others}To write only {name!r}, select it (df.select({name!r})), or set the "
            f"option 'valueColumn' to {name!r}",
        )


def payloads(rows: pa.RecordBatch, at: int) -> list[bytes]:
    """Return the values of the column at `at` as bytes. Raises UsageError for a null."""
    column = rows.column(at)
    if column.null_count:
        raise UsageError(
            f"column {rows.schema.field(at).name!r}, which is to be written, has a null, but an "
            "entry must have a value. Nothing was published",
            remedy="Filter such rows, or replace the nulls",
        )
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    values: list[bytes] = column.to_pylist()
    return values


def task() -> tuple[int, int]:
    """Return the partition and the attempt of the task that runs here."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.attemptNumber())


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[LedgerMessage]:
    """Return the messages that name a ledger, in the order of the partitions."""
    found = [m for m in messages if isinstance(m, LedgerMessage) and m.ledger_id is not None]
    return sorted(found, key=lambda message: message.partition)


def _ids(written: Sequence[LedgerMessage]) -> list[int]:
    return [message.ledger_id for message in written if message.ledger_id is not None]
