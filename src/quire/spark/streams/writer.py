"""Streams as a sink of Spark, for batch jobs and for streaming queries in append mode.

The writer of a batch job is built once on the driver, and pickled for the tasks, for `commit` and
for `abort`. For a streaming query Spark builds one writer in the process that plans a micro-batch,
and another one in the process that commits it. Only the tasks learn the query and the number of the
batch. The plan is therefore made when the writer is pickled for the tasks. The tasks complete it,
and their messages bring it to the commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quire import blocking
from quire._runtime.tasks import each
from quire.blocking.background import call
from quire.client import Client
from quire.errors import QuireError, UsageError
from quire.spark import worker
from quire.spark.streams.sink import (
    Committer,
    SinkColumns,
    StreamMessage,
    WritePlan,
    check_streams,
    check_topic,
    metadata_of,
    open_streams,
    write_partition,
    written_by,
)
from quire.spark.streams.write_options import StreamWriteOptions
from quire.streams.publish import publishing
from quire.streams.publish.publishing import BatchKey, StreamBatch

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
"""The property in which Spark tells the tasks of a micro-batch the number of the micro-batch.

`QUERY_PROPERTY` has the id of the query.
"""
NOT_KNOWN_YET = ""

_seen: set[tuple[str, str, str]] = set()
"""The (cluster, namespace, writer) of each query for which this process has made a plan before."""


def refuse_overwrite(overwrite: bool) -> None:
    """Raise UsageError if a stream is to be overwritten."""
    if overwrite:
        raise UsageError(
            "a stream cannot be overwritten, because its readers could not distinguish that "
            "from lost records. Nothing was changed",
            remedy=(
                "Write in mode 'append', and then delete older records with `quire stream truncate`"
            ),
        )


class StreamBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Spark's writer of one batch job to streams."""

    def __init__(self, options: StreamWriteOptions, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite)
        self._options = options
        self._columns = SinkColumns.of(schema, options)
        self.key = BatchKey.of_job(options.txn_id or f"job:{uuid.uuid4().hex}")
        self.committer = Committer(options)
        with worker.writing(options) as client:
            self._plan = call(self._make_plan(client.aio))

    async def _make_plan(self, client: Client) -> WritePlan:
        streams = await open_streams(client, self._options)
        batches: dict[str, StreamBatch] = {}
        done: list[str] = []
        try:
            for name in await check_streams(streams, self._options, self._columns):
                batch = await publishing.begin(
                    streams, name, self.key,
                    token=self._options.token, fence_writers=self._options.fence_writers,
                )  # fmt: skip
                if batch is None:
                    done.append(name)
                else:
                    batches[name] = batch
            await check_topic(streams, self._options, [*batches, *done])
        except QuireError:
            for name, batch in batches.items():
                await publishing.withdraw(streams, name, batch)
            raise
        return WritePlan(batches, frozenset(done), sweep=self._options.txn_id is not None)

    @worker.plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamMessage:
        """Write the rows of one partition to closed ledgers, with the errors of `write_partition`.

        On return all rows are durable on an ack quorum, and no reader sees them.
        """
        worker.prepare()
        with worker.writing(self._options) as client:
            return write_partition(client, self._options, self._columns, self._plan, iterator)

    @worker.plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the job wrote, each stream in one step, as `Committer.commit` does."""
        self.committer.commit(messages, self._plan.batches)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the ledgers that are not published, and end the plan of the job."""
        self.committer.abort(messages, self._plan.batches)


class StreamQueryWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Spark's writer of one micro-batch of a streaming query to streams."""

    def __init__(self, options: StreamWriteOptions, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite)
        self._options = options
        self._columns = SinkColumns.of(schema, options)
        self._plan: WritePlan | None = None
        self._failure: QuireError | None = None
        self.committer = Committer(options)
        with worker.writing(options) as client:
            self._names = call(self._check(client.aio))

    async def _check(self, client: Client) -> list[str]:
        streams = await open_streams(client, self._options)
        return await check_streams(streams, self._options, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Plan the micro-batch, and return what is pickled.

        Spark pickles the writer only for the tasks, so this is the moment to make the plan.
        Pickling must not fail, so the tasks report what went wrong.
        """
        if self._plan is None and self._failure is None:
            try:
                with worker.writing(self._options) as client:
                    self._plan = call(self.make_plan(client.aio))
            except QuireError as error:
                self._failure = error
        return self.__dict__.copy()

    async def make_plan(self, client: Client) -> WritePlan:
        """Return the plan of `plan_query`, whose key the tasks complete.

        The first plan of this process for the query also requires a sweep. Raises the errors of
        `plan_query`.
        """
        options = self._options
        me = (options.metadata, options.namespace, options.writer)
        plan = await plan_query(client, options, self._names, sweep=me not in _seen)
        _seen.add(me)
        return plan

    # -- in the tasks -------------------------------------------------------------------------

    @worker.plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamMessage:
        """Write the rows of one partition, as for a batch job.

        Rows for streams that have this micro-batch already are dropped. Raises the error with which
        the plan could not be made, or those of `write_partition`.
        """
        worker.prepare()
        if self._failure is not None:
            raise self._failure
        with worker.writing(self._options) as client:
            plan = self._plan_of_batch(client)
            return write_partition(client, self._options, self._columns, plan, iterator)

    def _plan_of_batch(self, client: blocking.Client) -> WritePlan:
        assert self._plan is not None
        key = BatchKey(self._options.writer, *query_and_batch())
        return call(plan_of_batch(client.aio, self._options, self._plan, key))

    # -- on the driver ------------------------------------------------------------------------

    @worker.plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the micro-batch, each stream in one step.

        A stream that has the micro-batch already is not changed. Raises UsageError, before anything
        is published, if tasks wrote for another micro-batch, and the errors of `Committer.commit`.
        """
        for message in written_by(messages):
            for batch in message.batches.values():
                if batch.key.number != batchId:
                    raise UsageError(
                        f"the tasks of micro-batch {batchId} wrote for micro-batch "
                        f"{batch.key.number}, because Spark gave them that number. Nothing was "
                        "published",
                        remedy="Restart the query from its checkpoint. If the error returns, "
                        "report it with the version of Spark",
                    )
        self.committer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the ledgers that are not published. An error is only logged."""
        self.committer.abort(messages)


async def plan_query(
    client: Client, options: StreamWriteOptions, names: Sequence[str], *, sweep: bool
) -> WritePlan:
    """Fence the writers of these streams, and return a plan without the key of the micro-batch.

    Raises NoSuchNamespaceError, NoSuchStreamError if the topic was replaced, and the errors of
    `quire.streams.publish.publishing.take`.
    """
    streams = await open_streams(client, options)
    key = BatchKey(options.writer, NOT_KNOWN_YET, 0)
    batches = {
        name: await publishing.take(
            streams,
            name,
            key,
            takeover=options.takeover,
            token=options.token,
            fence_writers=options.fence_writers,
        )
        for name in names
    }
    await check_topic(streams, options, names)
    return WritePlan(batches, sweep=sweep)


async def plan_of_batch(
    client: Client, options: StreamWriteOptions, plan: WritePlan, key: BatchKey
) -> WritePlan:
    """Return a query's plan with the key of its micro-batch, and which streams have it already.

    Raises the errors of `quire.streams.publish.publishing.is_published`.
    """

    async def is_published(name: str) -> bool:
        metadata = metadata_of(client, options, name)
        return await publishing.is_published(metadata, key, takeover=options.takeover)

    names = list(plan.batches)
    found = await each(names, is_published)
    done = frozenset(name for name, there in zip(names, found) if there)
    batches = {name: replace(b, key=key) for name, b in plan.batches.items() if name not in done}
    return WritePlan(batches, done, plan.sweep)


def query_and_batch() -> tuple[str, int]:
    """Return the query and the number of the micro-batch to which the running task belongs.

    Raises UsageError if Spark did not tell the task.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context else None
    number = context.getLocalProperty(BATCH_PROPERTY) if context else None
    if query is None or number is None:
        raise UsageError(
            "Spark did not tell this task to which micro-batch it belongs, so nothing was written",
            remedy=(
                "Use Spark 4.2.1 to 4.3, which Quire was tested with. If you do, report this error"
            ),
        )
    return query, int(number)
