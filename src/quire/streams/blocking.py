"""The blocking twins of namespaces, writers, readers and subscriptions, for a `quire.blocking`
client: the same names without `await`.

    with quire.blocking.connect(uri) as client, Namespace.open(client, "/streams") as streams:
        with streams.open_writer("orders", create=True) as writer:
            writer.append(b"one")
        for record in streams.open_reader("orders"):
            print(record.payload)

All work is done by the event loop in the background thread of `quire.client.blocking`. Namespaces
and subscriptions go on in a child after fork; writers and readers belong to the process that opened
them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from quire.client.background import call
from quire.client.blocking import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.wire.v2 import Buffer
from quire.errors import UsageError
from quire.streams.namespace import namespace as asynchronous
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.read.positions import EARLIEST, Start
from quire.streams.read.reader import StreamReader as AsyncReader
from quire.streams.read.records import Gap, Record, RecordBatch
from quire.streams.read.subscriptions import Subscription as AsyncSubscription
from quire.streams.write.drafts import Appended
from quire.streams.write.writer import Producer as AsyncProducer
from quire.streams.write.writer import StreamWriter as AsyncWriter

T = TypeVar("T")


class Namespace:
    """See `quire.streams.Namespace`."""

    def __init__(self, client: Client, opened: asynchronous.Namespace, password: bytes) -> None:
        self._client = client
        self._password = password
        self._opened = opened
        self._pid = os.getpid()
        self.path = opened.path

    @classmethod
    def create(
        cls,
        client: Client,
        path: str,
        *,
        settings: Mapping[str, Any] | None = None,
        password: bytes = b"",
    ) -> Namespace:
        """See `quire.streams.Namespace.create`."""
        made = open_namespace(client.aio, path, settings=settings, password=password, create=True)
        return cls(client, call(made), password)

    @classmethod
    def open(cls, client: Client, path: str, *, password: bytes = b"") -> Namespace:
        """See `quire.streams.Namespace.open`."""
        opened = open_namespace(client.aio, path, password=password)
        return cls(client, call(opened), password)

    @property
    def aio(self) -> asynchronous.Namespace:
        """The asyncio twin, of this process."""
        if self._pid != os.getpid():
            again = open_namespace(self._client.aio, self.path, password=self._password)
            self._opened = call(again)
            self._pid = os.getpid()
        return self._opened

    @property
    def settings(self) -> StreamSettings:
        """See `quire.streams.Namespace.settings`."""
        return self._opened.settings

    @property
    def given_settings(self) -> dict[str, Any]:
        """See `quire.streams.Namespace.given_settings`."""
        return self._opened.given_settings

    def own_settings(self) -> dict[str, Any]:
        """See `quire.streams.Namespace.own_settings`."""
        return call(self.aio.own_settings())

    def configure(self, settings: Mapping[str, Any]) -> None:
        """See `quire.streams.Namespace.configure`."""
        call(self.aio.configure(settings))

    def close(self) -> None:
        """See `quire.streams.Namespace.close`."""
        if self._pid == os.getpid():
            call(self._opened.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- streams ------------------------------------------------------------------------------

    def create_stream(self, name: str, *, settings: Mapping[str, Any] | None = None) -> None:
        """See `quire.streams.Namespace.create_stream`."""
        call(self.aio.create_stream(name, settings=settings))

    def streams(self, prefix: str = "") -> list[str]:
        """See `quire.streams.Namespace.streams`."""
        return call(self.aio.streams(prefix))

    def exists(self, name: str) -> bool:
        """See `quire.streams.Namespace.exists`."""
        return call(self.aio.exists(name))

    def stream_settings(self, name: str) -> StreamSettings:
        """See `quire.streams.Namespace.stream_settings`."""
        return call(self.aio.stream_settings(name))

    def own_stream_settings(self, name: str) -> dict[str, Any]:
        """See `quire.streams.Namespace.own_stream_settings`."""
        return call(self.aio.own_stream_settings(name))

    def configure_stream(self, name: str, settings: Mapping[str, Any]) -> None:
        """See `quire.streams.Namespace.configure_stream`."""
        call(self.aio.configure_stream(name, settings))

    def segments(self, name: str) -> list[StreamSegment]:
        """See `quire.streams.Namespace.segments`."""
        return call(self.aio.segments(name))

    def delete_stream(self, name: str) -> None:
        """See `quire.streams.Namespace.delete_stream`."""
        call(self.aio.delete_stream(name))

    def rename_stream(self, name: str, new_name: str) -> None:
        """See `quire.streams.Namespace.rename_stream`."""
        call(self.aio.rename_stream(name, new_name))

    # -- reading and writing ------------------------------------------------------------------

    def open_writer(
        self, name: str, *, create: bool = False, lock: float | None = None
    ) -> StreamWriter:
        """See `quire.streams.Namespace.open_writer`."""
        return StreamWriter(call(self.aio.open_writer(name, create=create, lock=lock)))

    def open_reader(
        self,
        name: str,
        *,
        start: Start = EARLIEST,
        end: DLSN | None = None,
        follow: bool = False,
        on_gap: str = "raise",
    ) -> StreamReader:
        """See `quire.streams.Namespace.open_reader`. With `follow` the iterator waits."""
        reader = self.aio.open_reader(name, start=start, end=end, follow=follow, on_gap=on_gap)
        return StreamReader(call(reader))

    def find(self, name: str, start: Start) -> DLSN:
        """See `quire.streams.Namespace.find`."""
        return call(self.aio.find(name, start))

    def subscription(self, name: str, subscriber: str) -> Subscription:
        """See `quire.streams.Namespace.subscription`."""
        return Subscription(lambda: self.aio.subscription(name, subscriber))

    def subscriptions(self, name: str) -> list[str]:
        """See `quire.streams.Namespace.subscriptions`."""
        return call(self.aio.subscriptions(name))

    # -- giving up the beginning --------------------------------------------------------------

    def truncate(self, name: str, before: DLSN, *, dry_run: bool = False) -> list[StreamSegment]:
        """See `quire.streams.Namespace.truncate`."""
        return call(self.aio.truncate(name, before, dry_run=dry_run))

    def retain(self, name: str, *, dry_run: bool = False) -> list[StreamSegment]:
        """See `quire.streams.Namespace.retain`."""
        return call(self.aio.retain(name, dry_run=dry_run))


class StreamWriter:
    """See `quire.streams.StreamWriter`. Safe to use from several threads."""

    def __init__(self, writer: AsyncWriter) -> None:
        self._writer = writer
        self._pid = os.getpid()
        self.name = writer.name
        self.settings = writer.settings

    @property
    def aio(self) -> AsyncWriter:
        """The asyncio handle behind this one."""
        if self._pid != os.getpid():
            raise UsageError(
                f"the writer of stream {self.name} belongs to process {self._pid}",
                remedy="Open a writer in this process: that one is out then",
            )
        return self._writer

    @property
    def next_sequence(self) -> int:
        """See `quire.streams.StreamWriter.next_sequence`."""
        return self._writer.next_sequence

    @property
    def last_txid(self) -> int:
        """See `quire.streams.StreamWriter.last_txid`."""
        return self._writer.last_txid

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def append(
        self,
        payload: Buffer,
        *,
        txid: int | None = None,
        expect: int | None = None,
        token: str = "",
    ) -> DLSN:
        """See `quire.streams.StreamWriter.append`."""
        return call(self.aio.append(payload, txid=txid, expect=expect, token=token))

    def append_many(
        self,
        payloads: Sequence[Buffer],
        *,
        txids: Sequence[int] | None = None,
        expect: int | None = None,
        token: str = "",
    ) -> Appended:
        """See `quire.streams.StreamWriter.append_many`: much cheaper than one call a record."""
        return call(self.aio.append_many(payloads, txids=txids, expect=expect, token=token))

    def flush(self) -> DLSN | None:
        """See `quire.streams.StreamWriter.flush`."""
        return call(self.aio.flush())

    def producer(self, producer_id: str) -> Producer:
        """See `quire.streams.StreamWriter.producer`."""
        return Producer(self, call(self.aio.producer(producer_id)))

    def set_fencing_token(self, token: str, *, expect: str = "") -> None:
        """See `quire.streams.StreamWriter.set_fencing_token`."""
        call(self.aio.set_fencing_token(token, expect=expect))

    def roll(self) -> None:
        """See `quire.streams.StreamWriter.roll`."""
        call(self.aio.roll())

    def end_stream(self) -> None:
        """See `quire.streams.StreamWriter.end_stream`."""
        call(self.aio.end_stream())

    def close(self) -> None:
        """See `quire.streams.StreamWriter.close`."""
        call(self.aio.close())

    def abandon(self) -> None:
        """See `quire.streams.StreamWriter.abandon`."""

        async def abandon() -> None:
            self._writer.abandon()

        if self._pid == os.getpid():
            call(abandon())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class Producer:
    """See `quire.streams.Producer`."""

    def __init__(self, writer: StreamWriter, producer: AsyncProducer) -> None:
        self._writer = writer
        self._producer = producer
        self.producer_id = producer.producer_id

    @property
    def aio(self) -> AsyncProducer:
        """The asyncio handle behind this one."""
        self._writer.aio  # noqa: B018 - of this process?
        return self._producer

    @property
    def last_sequence(self) -> int:
        """See `quire.streams.Producer.last_sequence`."""
        return self._producer.last_sequence

    def append(
        self, payload: Buffer, sequence: int, *, txid: int | None = None, token: str = ""
    ) -> DLSN | None:
        """See `quire.streams.Producer.append`."""
        return call(self.aio.append(payload, sequence, txid=txid, token=token))

    def append_many(
        self,
        payloads: Sequence[Buffer],
        first_sequence: int,
        *,
        txids: Sequence[int] | None = None,
        token: str = "",
    ) -> Appended:
        """See `quire.streams.Producer.append_many`."""
        return call(self.aio.append_many(payloads, first_sequence, txids=txids, token=token))


class StreamReader:
    """See `quire.streams.StreamReader`."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader
        self._pid = os.getpid()
        self.name = reader.name

    @property
    def aio(self) -> AsyncReader:
        """The asyncio handle behind this one."""
        if self._pid != os.getpid():
            raise UsageError(
                f"the reader of stream {self.name} belongs to process {self._pid}",
                remedy="Open one in this process, from this one's position",
            )
        return self._reader

    @property
    def position(self) -> DLSN | None:
        """See `quire.streams.StreamReader.position`."""
        return self._reader.position

    @property
    def ended(self) -> bool:
        """The end of the stream was reached: nothing will ever follow."""
        return self._reader.ended

    def __iter__(self) -> Iterator[Record]:
        reader = self.aio
        for batch in self.batches():
            if isinstance(batch, RecordBatch):
                yield from reader.one_by_one(batch)

    def batches(self) -> Iterator[RecordBatch | Gap]:
        """See `quire.streams.StreamReader.batches`: much cheaper than record by record."""
        batches = self.aio.batches()
        try:
            while (batch := call(_next(batches))) is not None:
                yield batch
        finally:
            call(batches.aclose())


class Subscription:
    """See `quire.streams.Subscription`."""

    def __init__(self, aio: Callable[[], AsyncSubscription]) -> None:
        self._aio = aio
        self.name = aio().name

    @property
    def aio(self) -> AsyncSubscription:
        """The asyncio twin, of this process."""
        return self._aio()

    def position(self) -> DLSN | None:
        """See `quire.streams.Subscription.position`."""
        return call(self.aio.position())

    def commit(self, position: DLSN) -> bool:
        """See `quire.streams.Subscription.commit`."""
        return call(self.aio.commit(position))

    def delete(self) -> None:
        """See `quire.streams.Subscription.delete`."""
        call(self.aio.delete())


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)
