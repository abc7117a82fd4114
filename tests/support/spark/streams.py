"""The data source for streams without Spark around it, as Spark would call it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader

from quire import blocking
from quire.blocking import Namespace
from quire.blocking.background import call
from quire.metadata.tree import Create, Put
from quire.spark.source import QuireDataSource
from quire.spark.streams.source import QuireStreamSource
from quire.streams.mirror.check import MARKER

NAMESPACE = "/spark/tests"

Row = dict[str, Any]


def data_source(options: dict[str, Any]) -> QuireDataSource:
    """Return the data source that Spark would create for a reader or writer."""
    return QuireDataSource({name.lower(): str(value) for name, value in options.items()})


def source(uri: str, options: dict[str, Any]) -> QuireDataSource:
    return data_source({"metadata": uri, "namespace": NAMESPACE, **options})


def batch_reader(uri: str, **options: Any) -> DataSourceReader:
    made = source(uri, options)
    return made.reader(made.schema())


def stream_reader(uri: str, **options: Any) -> QuireStreamSource:
    made = source(uri, options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, QuireStreamSource)
    return reader


def batches(reader: Any, partitions: Any) -> Iterator[pa.RecordBatch]:
    for partition in partitions:
        yield from reader.read(partition)


def rows(uri: str, **options: Any) -> list[Row]:
    """Return the rows of a batch read, in the order of the tasks."""
    reader = batch_reader(uri, **options)
    return [row for b in batches(reader, reader.partitions()) for row in b.to_pylist()]


def values(uri: str, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(uri, columns="value", **options)]


def append(
    streams: Namespace, name: str, payloads: list[bytes], *, segments: int = 1, create: bool = True
) -> None:
    """Append the payloads to a stream in `segments` segments, and close the writer."""
    with streams.open_writer(name, create=create) as writer:
        share = -(-len(payloads) // segments)
        for at in range(0, len(payloads), share):
            if at:
                writer.roll()
            writer.append_many(payloads[at : at + share])


def make_copy(streams: Namespace, name: str) -> None:
    """Mark a stream as a copy that `replicate` has made."""
    metadata = streams.aio.metadata(name)
    call(metadata.tree.commit(Create(f"{metadata.paths.root}/{MARKER}", b"{}")))


def replace_ledger(client: blocking.Client, streams: Namespace, name: str) -> None:
    """Replace the ledger of the only segment of a copy, as each run of `replicate` does."""
    metadata = streams.aio.metadata(name)
    (segment,) = streams.segments(name)
    writer = client.create_ledger()
    with client.open_ledger(segment.ledger_id) as former:
        for run in former.read_runs():
            writer.append_many(list(run.payloads()))
    writer.close()  # Otherwise bookies would not know yet what is acknowledged.
    call(metadata.tree.commit(Put(
        metadata.paths.segment(segment.name),
        replace(segment, ledger_id=writer.ledger_id).to_bytes(),
    )))  # fmt: skip
    client.delete_ledger(segment.ledger_id)


def numbered(first: int, last: int, size: int = 0) -> list[bytes]:
    return [b"%d" % n + b"." * size for n in range(first, last)]


def message_of(error: PySparkException) -> str:
    """Return the last line of the traceback in Spark's error, which is what users look for."""
    return [line for line in str(error).splitlines() if "quire.errors." in line][-1]
