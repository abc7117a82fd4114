"""The blocking twin of the client: the same names without `await`, for scripts, notebooks and
Spark's Python workers.

All handles of a process share the loop of `background`. After a fork the child gets a loop and
connections of its own: clients and readers go on, a writer belongs to the process that created it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, overload

from quire.client import client as asynchronous
from quire.client.background import call
from quire.client.cluster.quarantine import Suspect
from quire.client.read.reader import LedgerReader as AsyncReader
from quire.client.write.caller_ids import CallerIdWriter as AsyncCallerIdWriter
from quire.client.write.write_handle import WriteHandle
from quire.client.write.writer import LedgerWriter as AsyncWriter
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import Entry, EntryRun
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import Buffer
from quire.config import ClientConfig
from quire.errors import ClientClosedError, UsageError
from quire.metadata import ZooKeeperOptions
from quire.metadata.interface import Bookies
from quire.net.control import BookieInfo

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    from opentelemetry.trace import Tracer

    from quire.client.blocking_datasets import BlockingDatasets

T = TypeVar("T")


def connect(
    uri: str,
    *,
    config: ClientConfig | None = None,
    zookeeper: ZooKeeperOptions | None = None,
    tracer: Tracer | None = None,
) -> Client:
    """Connect to a cluster; see `quire.connect`."""
    client = Client(uri, config, zookeeper, tracer)
    client.aio  # noqa: B018 - connects now, so that a wrong URI shows here
    return client


class Client:
    """See `quire.Client`. Safe to use from several threads, and in a child after fork."""

    def __init__(
        self,
        uri: str,
        config: ClientConfig | None = None,
        zookeeper: ZooKeeperOptions | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._uri = uri
        self._config = config
        self._zookeeper = zookeeper
        self._tracer = tracer
        self._pid = -1
        self._client: asynchronous.Client | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def aio(self) -> asynchronous.Client:
        """The asyncio client behind this one, of this process."""
        if self._closed:
            raise ClientClosedError("the client is closed")
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._client = None
        with self._lock:
            if self._client is None:
                self._client = call(self._connect())
                self._pid = os.getpid()
            return self._client

    async def _connect(self) -> asynchronous.Client:
        return await asynchronous.connect(
            self._uri, config=self._config, zookeeper=self._zookeeper, tracer=self._tracer
        )

    @overload
    def create_ledger(
        self,
        *,
        ensemble_size: int = ...,
        write_quorum: int = ...,
        ack_quorum: int = ...,
        digest: DigestType | str = ...,
        password: bytes = ...,
        custom: Mapping[str, bytes] | None = ...,
        ledger_id: int | None = ...,
        deferred_sync: bool = ...,
        caller_ids: Literal[False] = ...,
    ) -> LedgerWriter: ...

    @overload
    def create_ledger(
        self,
        *,
        ensemble_size: int = ...,
        write_quorum: int = ...,
        ack_quorum: int = ...,
        digest: DigestType | str = ...,
        password: bytes = ...,
        custom: Mapping[str, bytes] | None = ...,
        ledger_id: int | None = ...,
        deferred_sync: bool = ...,
        caller_ids: Literal[True],
    ) -> CallerIdWriter: ...

    def create_ledger(
        self,
        *,
        ensemble_size: int = asynchronous.DEFAULT_ENSEMBLE_SIZE,
        write_quorum: int = asynchronous.DEFAULT_WRITE_QUORUM,
        ack_quorum: int = asynchronous.DEFAULT_ACK_QUORUM,
        digest: DigestType | str = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
        caller_ids: bool = False,
    ) -> LedgerWriter | CallerIdWriter:
        """See `quire.Client.create_ledger`."""
        writer = call(
            self.aio.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=digest,
                password=password,
                custom=custom,
                ledger_id=ledger_id,
                deferred_sync=deferred_sync,
                caller_ids=caller_ids,
            )
        )
        return (
            CallerIdWriter(writer)
            if isinstance(writer, AsyncCallerIdWriter)
            else LedgerWriter(writer)
        )

    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = False,
        assume_liars: int | None = None,
        unverified_password: bool = False,
    ) -> LedgerReader:
        """See `quire.Client.open_ledger`."""
        return LedgerReader(self, ledger_id, password, recover, assume_liars, unverified_password)

    def suspects(self) -> list[Suspect]:
        """See `quire.Client.suspects`."""
        return self.aio.suspects()

    def metrics(self) -> str:
        """See `quire.Client.metrics`."""
        return self.aio.metrics()

    def delete_ledger(self, ledger_id: int) -> None:
        """See `quire.Client.delete_ledger`."""
        call(self.aio.delete_ledger(ledger_id))

    def list_ledgers(self, first: int = 0) -> list[int]:
        """See `quire.Client.list_ledgers`."""

        async def collect() -> list[int]:
            return [ledger_id async for ledger_id in self.aio.list_ledgers(first)]

        self.aio  # noqa: B018 - connects before the loop thread needs it
        return call(collect())

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """See `quire.Client.ledger_metadata`."""
        return call(self.aio.ledger_metadata(ledger_id))

    def bookies(self) -> Bookies:
        """See `quire.Client.bookies`."""
        return call(self.aio.bookies())

    def bookie_info(self, bookie_id: str) -> BookieInfo:
        """See `quire.Client.bookie_info`."""
        return call(self.aio.bookie_info(bookie_id))

    def list_entries(self, bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
        """See `quire.Client.list_entries`."""
        return call(self.aio.list_entries(bookie_id, ledger_id))

    @property
    def datasets(self) -> BlockingDatasets:
        """See `quire.Client.datasets`."""
        from quire.client.blocking_datasets import BlockingDatasets

        return BlockingDatasets(self)

    def close(self) -> None:
        """See `quire.Client.close`."""
        client, self._client = self._client, None
        self._closed = True
        if client is not None and self._pid == os.getpid():
            call(client.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


W = TypeVar("W", bound=WriteHandle)


class _Writer(Generic[W]):
    """What both kinds of writers share."""

    def __init__(self, writer: W) -> None:
        self._writer = writer
        self._pid = os.getpid()

    @property
    def aio(self) -> W:
        """The asyncio handle behind this one."""
        if self._pid != os.getpid():
            raise UsageError(
                f"the writer of ledger {self._writer.ledger_id} belongs to process {self._pid}",
                remedy="Create a ledger in this process",
            )
        return self._writer

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._writer.last_add_confirmed

    @property
    def length(self) -> int:
        return self._writer.length

    def wait(self, entry_id: int) -> int:
        """See `quire.LedgerWriter.wait`."""
        return call(self.aio.wait(entry_id))

    def flush(self) -> int:
        """See `quire.LedgerWriter.flush`."""
        return call(self.aio.flush())

    def force(self) -> int:
        """See `quire.LedgerWriter.force`."""
        return call(self.aio.force())

    def close(self) -> int:
        """See `quire.LedgerWriter.close`."""
        return call(self.aio.close())

    def abandon(self) -> None:
        """See `quire.LedgerWriter.abandon`."""

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


class LedgerWriter(_Writer[AsyncWriter]):
    """See `quire.LedgerWriter`."""

    def append(self, payload: Buffer) -> int:
        """See `quire.LedgerWriter.append`."""
        return call(self.aio.append(payload))

    def append_many(self, payloads: Sequence[Buffer]) -> int:
        """See `quire.LedgerWriter.append_many`."""
        return call(self.aio.append_many(payloads))


class CallerIdWriter(_Writer[AsyncCallerIdWriter]):
    """See `quire.CallerIdWriter`."""

    def append_at(self, entry_id: int, payload: Buffer) -> int:
        """See `quire.CallerIdWriter.append_at`: behind a missing id it waits for another thread to
        append that."""
        return call(self.aio.append_at(entry_id, payload))

    def submit_at(self, entry_id: int, payload: Buffer) -> None:
        """See `quire.CallerIdWriter.submit_at`."""

        async def submit() -> None:
            self._writer.submit_at(entry_id, payload)

        self.aio  # noqa: B018 - of this process?
        call(submit())


class LedgerReader:
    """See `quire.LedgerReader`."""

    def __init__(
        self,
        client: Client,
        ledger_id: int,
        password: bytes,
        recover: bool,
        assume_liars: int | None = None,
        unverified_password: bool = False,
    ) -> None:
        self._client = client
        self._password = password
        self._liars = assume_liars
        self.ledger_id = ledger_id
        self._pid = os.getpid()
        self._reader = call(
            client.aio.open_ledger(
                ledger_id,
                password=password,
                recover=recover,
                assume_liars=assume_liars,
                unverified_password=unverified_password,
            )
        )

    @property
    def aio(self) -> AsyncReader:
        if self._pid != os.getpid():
            self._reader = call(
                self._client.aio.open_ledger(
                    self.ledger_id, password=self._password, assume_liars=self._liars
                )
            )
            self._pid = os.getpid()
        return self._reader

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def custom(self) -> Mapping[str, bytes]:
        return self._reader.custom

    @property
    def ledger_closed(self) -> bool:
        return self._reader.ledger_closed

    @property
    def last_add_confirmed(self) -> int:
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int:
        return self._reader.length

    def refresh(self) -> int:
        """See `quire.LedgerReader.refresh`."""
        return call(self.aio.refresh())

    def read(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """See `quire.LedgerReader.read`."""
        for run in self.read_runs(first, last):
            entry_id = run.first
            for payload, length in zip(run.payloads(), run.ledger_lengths):
                yield Entry(self.ledger_id, entry_id, length, payload)
                entry_id += 1

    def read_runs(self, first: int = 0, last: int | None = None) -> Iterator[EntryRun]:
        """See `quire.LedgerReader.read_runs`."""
        runs = self.aio.read_runs(first, last)
        try:
            while (run := call(_next(runs))) is not None:
                yield run
        finally:
            call(runs.aclose())

    def read_unconfirmed(self, first: int, last: int | None = None) -> Iterator[Entry]:
        """See `quire.LedgerReader.read_unconfirmed`."""
        entries = self.aio.read_unconfirmed(first, last)
        try:
            while (entry := call(_next(entries))) is not None:
                yield entry
        finally:
            call(entries.aclose())

    def tail(self, first: int | None = None) -> Iterator[Entry]:
        """See `quire.LedgerReader.tail`: the iterator waits for the next entry."""
        for run in self.tail_runs(first):
            entry_id = run.first
            for payload, length in zip(run.payloads(), run.ledger_lengths):
                yield Entry(self.ledger_id, entry_id, length, payload)
                entry_id += 1

    def tail_runs(self, first: int | None = None) -> Iterator[EntryRun]:
        """See `quire.LedgerReader.tail_runs`."""
        runs = self.aio.tail_runs(first)
        try:
            while (run := call(_next(runs))) is not None:
                yield run
        finally:
            call(runs.aclose())

    def read_entry(self, entry_id: int) -> Entry:
        """See `quire.LedgerReader.read_entry`."""
        return call(self.aio.read_entry(entry_id))

    def read_last(self) -> Entry:
        """See `quire.LedgerReader.read_last`."""
        return call(self.aio.read_last())

    def to_arrow(self, first: int = 0, last: int | None = None) -> pa.Table:
        """See `quire.LedgerReader.to_arrow`."""
        return call(self.aio.to_arrow(first, last))

    def to_pandas(self, first: int = 0, last: int | None = None) -> pandas.DataFrame:
        """See `quire.LedgerReader.to_pandas`."""
        return call(self.aio.to_pandas(first, last))

    def to_polars(self, first: int = 0, last: int | None = None) -> polars.DataFrame:
        """See `quire.LedgerReader.to_polars`."""
        return call(self.aio.to_polars(first, last))

    def close(self) -> None:
        """See `quire.LedgerReader.close`."""

        async def close() -> None:
            self._reader.close()

        if self._pid == os.getpid():
            call(close())

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next(runs: AsyncGenerator[T, None]) -> T | None:
    return await anext(runs, None)
