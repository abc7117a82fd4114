"""Quire's streams, with the common interface of `stream_sides`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import quire
from quire.blocking.background import call
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.read.positions import EARLIEST, AtTxid, Start
from quire.streams.read.reader import StreamReader
from quire.streams.read.records import Record, RecordBatch
from quire.streams.write import writer as writers
from tests.support.interop.sides import CALL_LIMIT_S
from tests.support.interop.stream_sides import Got, Sent, StreamError

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], limit_s: float = CALL_LIMIT_S) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(limit_s):
            return await work

    try:
        return call(bounded())
    except quire.QuireError as error:
        raise StreamError(type(error).__name__, str(error)) from error


def start_of(start: DLSN | int | None) -> Start:
    if start is None:
        return EARLIEST
    return start if isinstance(start, DLSN) else AtTxid(start)


class QuireStreams:
    name = "quire"

    def __init__(self, namespace: Namespace) -> None:
        self.aio = namespace

    @classmethod
    def make(cls, uri: str, path: str, *, password: bytes = b"", **settings: Any) -> QuireStreams:
        """Open a namespace, and create it if it does not exist. Callers give the txids."""

        async def make() -> Namespace:
            client = await quire.connect(uri)
            given = {"txids": "given", **settings}
            return await open_namespace(
                client, path, settings=given, password=password, create=True
            )

        return cls(run(make()))

    @classmethod
    def open(cls, uri: str, path: str) -> QuireStreams:
        async def open_() -> Namespace:
            return await open_namespace(await quire.connect(uri), path)

        return cls(run(open_()))

    # -- the namespace ------------------------------------------------------------------------

    def create(self, stream: str, **settings: Any) -> None:
        run(self.aio.create_stream(stream, settings=settings))

    def delete(self, stream: str) -> None:
        run(self.aio.delete_stream(stream))

    def rename(self, stream: str, new: str) -> None:
        run(self.aio.rename_stream(stream, new))

    def names(self) -> list[str]:
        return run(self.aio.streams())

    def ledgers(self) -> list[int]:
        """Return the ids of all ledgers of the cluster."""

        async def find() -> list[int]:
            return [ledger_id async for ledger_id in self.aio.client.list_ledgers()]

        return run(find())

    def entries(self, ledger_id: int) -> list[bytes]:
        """Return the payloads of the confirmed entries of a ledger."""

        async def find() -> list[bytes]:
            async with await self.aio.client.open_ledger(ledger_id, password=b"") as reader:
                last = reader.last_add_confirmed
                return [bytes(e.payload) async for e in reader.read(0, last)] if last >= 0 else []

        return run(find())

    # -- streams ------------------------------------------------------------------------------

    def writer(self, stream: str, lock: float | None = None) -> QuireStreamWriter:
        return QuireStreamWriter(run(self.aio.open_writer(stream, create=True, lock=lock)))

    def reader(self, stream: str, start: DLSN | int | None = None) -> QuireStreamReader:
        return QuireStreamReader(
            run(self.aio.open_reader(stream, start=start_of(start), follow=True))
        )

    def read(self, stream: str, count: int, start: DLSN | int | None = None) -> list[Got]:
        async def read() -> list[Got]:
            reader = await self.aio.open_reader(stream, start=start_of(start))
            return [_got(record) async for record in reader]

        got = run(read())
        assert len(got) == count
        return got

    def segments(self, stream: str) -> list[StreamSegment]:
        return run(self.aio.segments(stream))

    def find_txid(self, stream: str, txid: int) -> DLSN:
        return run(self.aio.find(stream, AtTxid(txid)))

    def truncate(self, stream: str, before: DLSN) -> None:
        run(self.aio.truncate(stream, before))

    def committed(self, stream: str, subscriber: str) -> DLSN | None:
        return run(self.aio.subscription(stream, subscriber).position())

    def commit(self, stream: str, subscriber: str, position: DLSN) -> None:
        assert run(self.aio.subscription(stream, subscriber).commit(position))

    def close(self) -> None:
        async def close() -> None:
            await self.aio.close()
            await self.aio.client.close()

        run(close())


class QuireStreamWriter:
    def __init__(self, aio: writers.StreamWriter) -> None:
        self.aio = aio

    def write(self, txid: int, payload: bytes) -> DLSN:
        return run(self.aio.append(payload, txid=txid))

    def write_all(self, records: Sequence[Sent]) -> list[DLSN]:
        payloads = [payload for _, payload in records]
        txids = [txid for txid, _ in records]
        return list(run(self.aio.append_many(payloads, txids=txids)))

    def roll(self) -> None:
        run(self.aio.roll())

    def end_stream(self) -> None:
        run(self.aio.end_stream())

    def close(self) -> None:
        run(self.aio.close())

    def abandon(self) -> None:
        async def abandon() -> None:
            self.aio.abandon()

        run(abandon())


class QuireStreamReader:
    def __init__(self, aio: StreamReader) -> None:
        self.aio = aio
        self._batches = aio.batches()
        self._ready: deque[Got] = deque()

    @property
    def ended(self) -> bool:
        return self.aio.ended and not self._ready

    def take(self, count: int) -> list[Got]:
        while len(self._ready) < count and run(self._more()):
            pass
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    async def _more(self) -> bool:
        """Fetch further records, and return False if the stream has ended."""
        batch = await anext(self._batches, None)
        if batch is None:
            return False
        assert isinstance(batch, RecordBatch)
        self._ready.extend(_got(record) for record in batch)
        return True

    def close(self) -> None:
        run(self._batches.aclose())


def _got(record: Record) -> Got:
    return Got(record.position, record.txid, record.payload, record.sequence)
