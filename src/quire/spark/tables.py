"""Tables of metadata: `spark.read.format("quire").option("table", "segments").load()`.

| table         | one row for                                                     |
|---------------|-----------------------------------------------------------------|
| ledgers       | each ledger                                                     |
| fragments     | each part of a ledger that has its own ensemble                 |
| bookies       | each bookie that is registered, or that once was                |
| streams       | each stream                                                     |
| segments      | each segment of a stream                                        |
| subscriptions | each position that a reader stores with a stream                |
| lag           | each such position, with the records between it and the end     |

The last four cover one namespace if the option `namespace` is set, and all namespaces otherwise.
Items that disappear while a table is read are left out. A ledger, stream or namespace that cannot
be read has one row with the reason in the column `error`, which is null in all other rows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quire._runtime.tasks import each
from quire.blocking.background import call
from quire.client import Client
from quire.errors import (
    BookieError,
    ClientClosedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuireError,
    StreamDamagedError,
    UsageError,
)
from quire.spark import worker
from quire.spark.streams.options import TableOptions
from quire.spark.streams.query import lag
from quire.spark.streams.view import StreamView
from quire.streams import DLSN, Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.tree_search import namespaces
from quire.streams.read.positions import TIME_MAX_MS
from quire.streams.read.statistics import SegmentStatistics, segment_statistics

LEDGERS_PER_TASK = 20_000
"""The number of ledgers that one task reads."""
ROWS_AT_ONCE = 256
"""The number of rows that are read together and passed to Spark as one batch."""

UNAVAILABLE = (MetadataUnavailableError, ClientClosedError)
"""The errors that end the read of a table, because they do not concern a single item in it."""

STRING, LONG, TIME = StringType(), LongType(), TimestampType()
BOOLEAN = BooleanType()

SCHEMAS: dict[str, dict[str, DataType]] = {
    "ledgers": {
        "ledger": LONG, "state": STRING, "ensemble": LONG, "write_quorum": LONG,
        "ack_quorum": LONG, "last_entry": LONG, "bytes": LONG, "digest": STRING, "created": TIME,
        "fragments": LONG, "custom": MapType(STRING, STRING), "error": STRING,
    },
    "fragments": {
        "ledger": LONG, "fragment": LONG, "first_entry": LONG, "last_entry": LONG,
        "bookies": ArrayType(STRING), "error": STRING,
    },
    "bookies": {
        "bookie": STRING, "state": STRING, "host": STRING, "port": LONG, "tls": BOOLEAN,
        "total_bytes": LONG, "free_bytes": LONG,
    },
    "streams": {
        "namespace": STRING, "stream": STRING, "segments": LONG, "records": LONG, "bytes": LONG,
        "first": STRING, "last": STRING, "ended": BOOLEAN, "txids": STRING,
        "error": STRING,
    },
    "segments": {
        "namespace": STRING, "stream": STRING, "segment": LONG, "ledger": LONG, "state": STRING,
        "records": LONG, "bytes": LONG, "first_sequence": LONG, "first": STRING, "last": STRING,
        "first_txid": LONG, "last_txid": LONG, "created": TIME, "completed": TIME,
        "error": STRING,
    },
    "subscriptions": {
        "namespace": STRING, "stream": STRING, "subscription": STRING, "position": STRING,
        "error": STRING,
    },
    "lag": {
        "namespace": STRING, "stream": STRING, "subscription": STRING, "position": STRING,
        "records": LONG, "bytes": LONG, "seconds": DoubleType(), "error": STRING,
    },
}  # fmt: skip
"""The columns of each table. A value that is unknown or does not exist is null."""

Row = dict[str, Any]
Rows = AsyncGenerator[list[Row], None]


def table_schema(table: str) -> StructType:
    """Return the schema of a table, which is named as in `SCHEMAS`."""
    return StructType([StructField(name, kind) for name, kind in SCHEMAS[table].items()])


@dataclass(frozen=True, slots=True)
class TablePartition(InputPartition):  # type: ignore[misc]
    """One task that reads a table, or the ledgers from id `first` to id `last` in it."""

    first: int = 0
    last: int = 2**63 - 1


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Spark's reader of one table of metadata."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        known = SCHEMAS[options.table]
        for field in schema.fields:
            if known.get(field.name) != field.dataType:
                raise UsageError(
                    f"the schema names column {field.name!r} of type "
                    f"{field.dataType.simpleString()}, which table {options.table!r} does not "
                    "have. Its columns are "
                    f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in known.items())}"
                )
        self._schema = to_arrow_schema(schema, timezone="UTC")

    @worker.plainly
    def partitions(self) -> list[TablePartition]:
        """Return the tasks that read the table. Raises MetadataUnavailableError."""
        options = self._options
        if options.table not in ("ledgers", "fragments"):
            return [TablePartition()]
        with worker.client(options.metadata, options.tls) as client:
            ids = client.list_ledgers()
        starts = ids[::LEDGERS_PER_TASK]
        ends = [start - 1 for start in starts[1:]] + ids[-1:]
        return [TablePartition(first, last) for first, last in zip(starts, ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises MetadataUnavailableError, and NoSuchNamespaceError if the option `namespace` names a
        namespace that does not exist.
        """
        if not isinstance(partition, TablePartition):  # Spark's placeholder for "no partitions"
            return
        worker.prepare()
        with worker.client(self._options.metadata, self._options.tls) as client:
            rows = _READERS[self._options.table](client.aio, self._options, partition)
            try:
                while (some := _next(rows)) is not None:
                    yield pa.RecordBatch.from_pylist(
                        [{name: row.get(name) for name in self._schema.names} for row in some],
                        schema=self._schema,
                    )
            finally:
                call(rows.aclose())


@worker.plainly
def _next(rows: Rows) -> list[Row] | None:
    async def upcoming() -> list[Row] | None:
        return await anext(rows, None)

    return call(upcoming())


# -- ledgers ----------------------------------------------------------------------------------


async def _ledgers(client: Client, options: TableOptions, part: TablePartition) -> Rows:
    async with aclosing(_metadata(client, part)) as found:
        async for some in found:
            yield [
                {"ledger": ledger_id, "error": metadata}
                if isinstance(metadata, str)
                else {
                    "ledger": ledger_id,
                    "state": metadata.state.name.lower().replace("_", " "),
                    "ensemble": metadata.ensemble_size,
                    "write_quorum": metadata.write_quorum,
                    "ack_quorum": metadata.ack_quorum,
                    "last_entry": metadata.last_entry_id if metadata.closed else None,
                    "bytes": metadata.length if metadata.closed else None,
                    "digest": metadata.digest.name.lower() if metadata.digest else None,
                    "created": _time(metadata.ctime_ms),
                    "fragments": len(metadata.segments),
                    "custom": [
                        (key, value.decode(errors="replace"))
                        for key, value in metadata.custom.items()
                    ],
                }
                for ledger_id, metadata in some
            ]


async def _fragments(client: Client, options: TableOptions, part: TablePartition) -> Rows:
    async with aclosing(_metadata(client, part)) as found:
        async for some in found:
            rows: list[Row] = []
            for ledger_id, metadata in some:
                if isinstance(metadata, str):
                    rows.append({"ledger": ledger_id, "error": metadata})
                    continue
                firsts = [segment.first_entry_id for segment in metadata.segments]
                end = metadata.last_entry_id if metadata.closed else None
                lasts: list[int | None] = [first - 1 for first in firsts[1:]]
                for at, last in enumerate([*lasts, end]):
                    rows.append(
                        {
                            "ledger": ledger_id,
                            "fragment": at,
                            "first_entry": firsts[at],
                            "last_entry": last,
                            "bookies": list(metadata.segments[at].ensemble),
                        }
                    )
            yield rows


async def _metadata(
    client: Client, part: TablePartition
) -> AsyncGenerator[list[tuple[int, Any]], None]:
    """Yield lists of (ledger id, metadata) for the ledgers of a task.

    If the metadata cannot be read, its place has the reason as a text. Deleted ledgers are left
    out.
    """

    async def read(ledger_id: int) -> tuple[int, Any]:
        try:
            return ledger_id, await client.ledger_metadata(ledger_id)
        except NoSuchLedgerError:
            return ledger_id, None
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            return ledger_id, str(error)

    async def some(ids: list[int]) -> list[tuple[int, Any]]:
        return [(i, metadata) for i, metadata in await each(ids, read) if metadata is not None]

    ids: list[int] = []
    async for ledger_id in client.list_ledgers(part.first):
        if ledger_id > part.last:
            break
        ids.append(ledger_id)
        if len(ids) == ROWS_AT_ONCE:
            yield await some(ids)
            ids = []
    if ids:
        yield await some(ids)


async def _bookies(client: Client, options: TableOptions, part: TablePartition) -> Rows:
    registered = await client.bookies()
    writable, readonly = registered.writable, registered.readonly
    known = sorted({*writable, *readonly, *await client.metadata.list_cookies()})

    async def row(bookie_id: str) -> Row:
        address = registered.find(bookie_id)
        total = free = None
        if address is not None:
            try:
                info = await client.bookie_info(bookie_id)
                total, free = info.total_bytes, info.free_bytes
            except BookieError:
                pass  # the bookie is registered but does not answer
        state = "writable" if bookie_id in writable else "read-only"
        return {
            "bookie": bookie_id,
            "state": state if address is not None else "absent",
            "host": address.host if address else None,
            "port": address.port if address else None,
            "tls": address.tls if address else None,
            "total_bytes": total,
            "free_bytes": free,
        }

    yield await each(known, row)


# -- streams ----------------------------------------------------------------------------------


async def _streams(streams: Namespace, view: StreamView) -> list[Row]:
    facts = await segment_statistics(streams.client, view.segments, streams.password)
    left = [fact for fact in facts if not fact.truncated]
    oldest = await view.mark(view.oldest)
    records = view.records_between(oldest, await view.frontier())
    newest = next((fact.last for fact in reversed(left) if fact.last), None)
    return [
        {
            "namespace": streams.path,
            "stream": view.name,
            "segments": len(facts),
            "records": records,
            "bytes": sum(fact.size_bytes for fact in left),
            "first": str(view.oldest) if records else None,
            "last": str(newest) if records and newest else None,
            "ended": any(fact.ended for fact in facts),
            "txids": "time" if view.txid_is_time else "given",
        }
    ]


async def _segments(streams: Namespace, view: StreamView) -> list[Row]:
    facts = await segment_statistics(streams.client, view.segments, streams.password)
    return [_segment_row(streams.path, view.name, fact) for fact in facts]


def _segment_row(namespace: str, stream: str, fact: SegmentStatistics) -> Row:
    segment = fact.segment
    return {
        "namespace": namespace,
        "stream": stream,
        "segment": segment.lssn,
        "ledger": segment.ledger_id,
        **fact.described(),
        "created": _time(fact.ctime_ms),
        "completed": None if segment.in_progress else _time(segment.completion_time_ms),
    }


async def _subscriptions(streams: Namespace, view: StreamView) -> list[Row]:
    rows = []
    for name in await streams.subscriptions(view.name):
        row: Row = {"namespace": streams.path, "stream": view.name, "subscription": name}
        try:
            position = await streams.subscription(view.name, name).position()
            row["position"] = None if position is None else str(position)
        except StreamDamagedError as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


async def _lag(streams: Namespace, view: StreamView) -> list[Row]:
    rows = await _subscriptions(streams, view)
    frontier = await view.frontier() if rows else None
    for row in rows:
        assert frontier is not None
        if "error" in row:
            continue
        position = row["position"]
        at = await view.mark(view.oldest if position is None else DLSN.parse(position))
        row |= await lag(view, at, frontier)
    return rows


def _of_each(
    rows: Callable[[Namespace, StreamView], Awaitable[list[Row]]],
) -> Callable[[Client, TableOptions, TablePartition], Rows]:
    """Return a function that yields the rows of one stream after another."""

    async def of_all(client: Client, options: TableOptions, part: TablePartition) -> Rows:
        paths = [options.namespace] if options.namespace else await namespaces(client)
        for path in paths:
            async with AsyncExitStack() as stack:
                try:
                    opened = await open_namespace(client, path, password=options.password)
                    streams = await stack.enter_async_context(opened)
                    names = await streams.streams()
                except UNAVAILABLE:
                    raise
                except QuireError as error:
                    if options.namespace is not None:
                        raise
                    yield [{"namespace": path, "error": str(error)}]
                    continue
                for name in names:
                    yield await of_one(streams, name)

    async def of_one(streams: Namespace, name: str) -> list[Row]:
        view = StreamView(streams, name)
        try:
            await view.open()
            return await rows(streams, view)
        except NoSuchStreamError:
            return []  # the stream was deleted since it was listed
        except UNAVAILABLE:
            raise
        except QuireError as error:
            return [{"namespace": streams.path, "stream": name, "error": str(error)}]
        finally:
            view.close()

    return of_all


def _time(time_ms: int) -> datetime | None:
    if not 0 <= time_ms <= TIME_MAX_MS:  # Other implementations may store anything.
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


_READERS: dict[str, Callable[[Client, TableOptions, TablePartition], Rows]] = {
    "ledgers": _ledgers,
    "fragments": _fragments,
    "bookies": _bookies,
    "streams": _of_each(_streams),
    "segments": _of_each(_segments),
    "subscriptions": _of_each(_subscriptions),
    "lag": _of_each(_lag),
}
