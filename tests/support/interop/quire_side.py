"""Quire's client, with the common interface of `sides`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import quire
from quire.blocking.background import call
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import WriteHandle
from quire.codec.entry.digest import DigestType
from tests.support.interop.sides import (
    CALL_LIMIT_S,
    DIGEST_BYTES,
    FRAME_BYTES,
    PASSWORD,
    PLAIN,
    V2_ADD_OVERHEAD_BYTES,
    ClientError,
    Described,
    Feature,
    Shape,
)

T = TypeVar("T")

EXPLICIT_LAC_INTERVAL_S = 0.05
DIGEST_NAMES = {
    DigestType.CRC32: "CRC32",
    DigestType.HMAC: "MAC",
    DigestType.CRC32C: "CRC32C",
    DigestType.DUMMY: "DUMMY",
}


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(CALL_LIMIT_S):
            return await work

    try:
        return call(bounded())
    except quire.QuireError as error:
        raise ClientError(error.code, f"{type(error).__name__}: {error}") from error


class QuireClient:
    name = "quire"
    features = frozenset({Feature.DEFERRED_SYNC, Feature.LONG_POLL, Feature.EXPLICIT_LAC})
    close_cuts = False

    def __init__(
        self, uri: str, *, explicit_lac: bool = False, config: quire.ClientConfig | None = None
    ) -> None:
        if explicit_lac:
            config = replace(
                config or quire.ClientConfig(),
                explicit_lac_interval_s=EXPLICIT_LAC_INTERVAL_S,
            )

        async def connect() -> quire.Client:
            return await quire.connect(uri, config=config)

        self.aio = run(connect())

    def create(
        self,
        shape: Shape = PLAIN,
        *,
        custom: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
    ) -> QuireWriter:
        return QuireWriter(
            run(
                self.aio.create_ledger(
                    ensemble_size=shape.ensemble,
                    write_quorum=shape.write_quorum,
                    ack_quorum=shape.ack_quorum,
                    digest=shape.digest,
                    password=shape.password,
                    custom=custom,
                    deferred_sync=deferred_sync,
                )
            )
        )

    def create_adv(self, shape: Shape = PLAIN, ledger_id: int | None = None) -> QuireAdvWriter:
        return QuireAdvWriter(
            run(
                self.aio.create_ledger(
                    ensemble_size=shape.ensemble,
                    write_quorum=shape.write_quorum,
                    ack_quorum=shape.ack_quorum,
                    digest=shape.digest,
                    password=shape.password,
                    ledger_id=ledger_id,
                    caller_ids=True,
                )
            )
        )

    def open(
        self,
        ledger_id: int,
        *,
        recover: bool = False,
        password: bytes = PASSWORD,
        digest: str = "CRC32C",
    ) -> QuireReader:
        """Open a ledger. The digest comes from the ledger's metadata, and `digest` is ignored."""
        return QuireReader(run(self.aio.open_ledger(ledger_id, password=password, recover=recover)))

    def delete(self, ledger_id: int) -> None:
        run(self.aio.delete_ledger(ledger_id))

    def largest_payload(self, ledger_id: int, shape: Shape) -> int:
        return FRAME_BYTES - V2_ADD_OVERHEAD_BYTES - DIGEST_BYTES[shape.digest]

    def describe(self, ledger_id: int) -> Described:
        found = run(self.aio.ledger_metadata(ledger_id))
        assert found.digest is not None
        assert found.password is not None
        return Described(
            state=found.state.name,
            last_entry_id=found.last_entry_id,
            length=found.length,
            shape=Shape(
                found.ensemble_size,
                found.write_quorum,
                found.ack_quorum,
                DIGEST_NAMES[found.digest],
                found.password,
            ),
            segments={s.first_entry_id: tuple(s.ensemble) for s in found.segments},
            custom=dict(found.custom),
        )

    def entries_of(self, bookie_id: str, ledger_id: int) -> list[int]:
        """Return the ids of the ledger's entries that a bookie reports to have."""
        found = run(self.aio.list_entries(bookie_id, ledger_id))
        return [number for first, last in found for number in range(first, last + 1)]

    def disk_space(self, bookie_id: str) -> tuple[int, int]:
        """Return the free and the total bytes of a bookie."""
        found = run(self.aio.bookie_info(bookie_id))
        return found.free_bytes, found.total_bytes

    def close(self) -> None:
        run(self.aio.close())


class _WriteHandle:
    def __init__(self, aio: WriteHandle) -> None:
        self._handle = aio
        self.ledger_id = aio.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    def force(self) -> None:
        run(self._handle.force())

    def close(self) -> None:
        run(self._handle.close())

    def abandon(self) -> None:
        async def abandon() -> None:
            self._handle.abandon()

        run(abandon())


class QuireWriter(_WriteHandle):
    def __init__(self, aio: quire.LedgerWriter) -> None:
        super().__init__(aio)
        self.aio = aio

    def append(self, payload: bytes) -> int:
        return run(self.aio.append(payload))

    def append_all(self, payloads: Sequence[bytes]) -> list[int]:
        done: list[int] = []

        async def gather() -> list[int]:
            begun = (self.aio.append(payload) for payload in payloads)
            for answer in await asyncio.gather(*begun, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
                done.append(answer)
            return done

        try:
            return run(gather())
        except ClientError as error:
            error.done = len(done)
            raise


class QuireAdvWriter(_WriteHandle):
    def __init__(self, aio: CallerIdWriter) -> None:
        super().__init__(aio)
        self.aio = aio

    def write(self, entry_id: int, payload: bytes) -> int:
        return run(self.aio.append_at(entry_id, payload))

    def write_all(self, entries: Sequence[tuple[int, bytes]]) -> list[int]:
        async def gather() -> list[int]:
            begun = (self.aio.append_at(entry_id, payload) for entry_id, payload in entries)
            return await asyncio.gather(*begun)

        return run(gather())

    def begin(self, entry_id: int, payload: bytes) -> Callable[[], int]:
        async def begin() -> asyncio.Task[int]:
            task = asyncio.create_task(self.aio.append_at(entry_id, payload))
            await asyncio.sleep(0)  # Let it submit the entry.
            return task

        begun = run(begin())
        return lambda: run(_outcome(begun))


async def _outcome(task: asyncio.Task[int]) -> int:
    return await task


class QuireReader:
    def __init__(self, aio: quire.LedgerReader) -> None:
        self.aio = aio
        self.ledger_id = aio.ledger_id
        self._entries: AsyncGenerator[quire.Entry, None] | None = None
        self._upcoming = -1
        """The id of the entry that the iterator `_entries` yields next."""
        self._arriving: asyncio.Task[quire.Entry | None] | None = None

    def read(self, first: int, last: int) -> list[bytes]:
        async def read() -> list[bytes]:
            found = [entry async for entry in self.aio.read(first, last)]
            assert [entry.entry_id for entry in found] == list(range(first, last + 1))
            return [bytes(entry.payload) for entry in found]

        return run(read())

    @property
    def last_add_confirmed(self) -> int:
        return self.aio.last_add_confirmed

    def refresh(self) -> int:
        return run(self.aio.refresh())

    def tail(self, entry_id: int, timeout_ms: int) -> bytes | None:
        """Wait for an entry, and return its payload, or None at the timeout.

        One iteration serves consecutive calls as long as the entries are consecutive.
        """
        return run(self._tail(entry_id, timeout_ms))

    async def _tail(self, entry_id: int, timeout_ms: int) -> bytes | None:
        if self._entries is None or self._upcoming != entry_id:
            await self._end_tail()
            self._entries = self.aio.tail(entry_id)
            self._upcoming = entry_id
        if self._arriving is None:
            self._arriving = asyncio.create_task(_next(self._entries))
        done, _ = await asyncio.wait({self._arriving}, timeout=timeout_ms / 1000)
        if not done:
            return None
        found = self._arriving.result()
        self._arriving = None
        if found is None:  # The ledger is closed, and ends before this entry.
            await self._end_tail()
            return None
        assert found.entry_id == entry_id
        self._upcoming += 1
        return bytes(found.payload)

    async def _end_tail(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            await asyncio.wait({self._arriving})
            self._arriving = None
        if self._entries is not None:
            await self._entries.aclose()
            self._entries = None

    @property
    def closed(self) -> bool:
        return self.aio.ledger_closed

    def close(self) -> None:
        async def close() -> None:
            await self._end_tail()
            self.aio.close()

        run(close())


async def _next(entries: AsyncGenerator[quire.Entry, None]) -> quire.Entry | None:
    return await anext(entries, None)
