"""Modelled bookies, and a client's connections to them.

A bookie does its reads and adds one after the other, at the rate that was measured for copies. It
remembers which entries it has. An entry of `PAYLOAD_BYTES` stands for one of `ENTRY_BYTES`: all
costs, and the rate limits of the processes that copy, are scaled by `SCALE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quire.client.cluster.pool import BookiePool
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire.availability import EntryRanges
from quire.codec.wire.v2 import LAST_ENTRY, Code
from quire.config import KIB, MIB
from quire.core.ranges import merged
from quire.errors import BookieUnavailableError, ProtocolError, QuireError
from quire.net.answer_codes import error_of
from quire.net.channel import BookieChannel
from quire.net.control import BookieInfo, ControlChannel

PAYLOAD_BYTES = KIB
ENTRY_BYTES = 8 * MIB
SCALE = ENTRY_BYTES // PAYLOAD_BYTES

BOOKIE_S_PER_KIB = 6.5e-6
"""Seconds of a bookie for one KiB of a copy, read or written: half of what the two bookies of a
copy take together (measured: docs/internals/benchmarks.md, "A lost bookie")."""
PROCESS_S_PER_KIB = 10e-6
"""Seconds of the copying process for one KiB (measured: the same section)."""
ROUND_TRIP_S = 0.0005
SYNC_S = 0.005
"""Seconds until a bookie has synced what it received."""
DISK_BYTES = 2**40
PASSWORD = b""


def codec_of(ledger_id: int) -> EntryCodec:
    return EntryCodec(ledger_id, DigestType.CRC32C, PASSWORD)


def entry_of(ledger_id: int, entry_id: int) -> bytes:
    """Return the bytes of an entry as its writer sends them."""
    length = (entry_id + 1) * PAYLOAD_BYTES
    return codec_of(ledger_id).pack(entry_id, entry_id - 1, length, bytes(PAYLOAD_BYTES))


@dataclass(slots=True)
class ModelBookie:
    """One bookie: its entries, and when it has done what it was asked."""

    bookie_id: str
    rack: int
    entries: dict[int, set[int]] = field(default_factory=dict)
    """The ids of the entries of each ledger."""
    alive: bool = True
    read_bytes: int = 0
    written_bytes: int = 0
    links: list[Any] = field(default_factory=list)
    _free_at_s: float = 0.0

    def done_s(self, size_bytes: int, seconds: float = 0.0) -> float:
        """Return when the bookie has done work on this many bytes that arrives now."""
        now_s = asyncio.get_running_loop().time()
        work_s = size_bytes / KIB * BOOKIE_S_PER_KIB + seconds
        self._free_at_s = max(self._free_at_s, now_s + ROUND_TRIP_S) + work_s
        return self._free_at_s

    def die(self) -> None:
        """Lose the bookie with everything that it has."""
        self.alive = False
        self.entries.clear()
        links, self.links = self.links, []
        for link in links:
            link.lose()

    @property
    def stored_bytes(self) -> int:
        return sum(map(len, self.entries.values())) * ENTRY_BYTES


def no_entry(bookie: ModelBookie, ledger_id: int, entry_id: int) -> QuireError:
    return error_of(Code.NO_ENTRY, ledger_id, entry_id, bookie.bookie_id)


async def until(when_s: float) -> None:
    await asyncio.sleep(max(0.0, when_s - asyncio.get_running_loop().time()))


class ModelLink(BookieChannel):
    """A connection with protocol v2 to a modelled bookie."""

    def __init__(self, bookie: ModelBookie, process: ModelProcess) -> None:
        super().__init__(bookie.bookie_id)
        self.bookie = bookie
        self.process = process
        bookie.links.append(self)

    @property
    def usable(self) -> bool:
        return self.lost is None

    def lose(self) -> None:
        self._fail(BookieUnavailableError(f"connection to bookie {self.bookie_id} lost"))

    def close(self) -> None:
        pass

    async def probe(self) -> None:
        await asyncio.sleep(ROUND_TRIP_S)
        self.received_bytes += 1

    async def read(self, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> bytes:
        there = self.bookie.entries.get(ledger_id, set())
        entry = max(there, default=LAST_ENTRY) if entry_id == LAST_ENTRY else entry_id
        found = entry in there
        await until(self.bookie.done_s(ENTRY_BYTES if found and entry_id != LAST_ENTRY else 0))
        self._check()
        if not found:
            raise no_entry(self.bookie, ledger_id, entry_id)
        return entry_of(ledger_id, entry)

    async def read_many(
        self, ledger_id: int, entry_ids: list[int], flags: int = 0, key: bytes = b""
    ) -> list[bytes | BaseException]:
        reads = [self.read(ledger_id, entry, flags, key) for entry in entry_ids]
        return await asyncio.gather(*reads, return_exceptions=True)

    async def batch_read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_size: int,
        flags: int = 0,
        key: bytes = b"",
    ) -> bytes:
        there = self.bookie.entries.get(ledger_id, set())
        found: list[bytes] = []
        while len(found) < max_count and first + len(found) in there:
            found.append(entry_of(ledger_id, first + len(found)))
        size_bytes = len(found) * ENTRY_BYTES
        self.bookie.read_bytes += size_bytes
        await until(self.bookie.done_s(size_bytes))
        self._check()
        self.received_bytes += sum(map(len, found))
        if not found:
            raise no_entry(self.bookie, ledger_id, first)
        return frames.batch_read_response(Code.OK, ledger_id, first, 1, found)

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def send(self, data: Any) -> None:
        """Add entries. The process that copies them is busy with them before the bookie is."""
        data = bytes(data)
        added: dict[int, list[int]] = {}
        for start, _ in frames.frame_bounds(data):
            _, _, _, ledger_id, entry = frames.ADD_HEAD.unpack_from(data, start)
            added.setdefault(ledger_id, []).append(entry)
        for ledger_id, entries in added.items():
            size_bytes = len(entries) * ENTRY_BYTES
            sent_s = self.process.sent_s(size_bytes)
            self._loop().call_at(sent_s, self._arrived, ledger_id, entries, size_bytes)

    @staticmethod
    def _loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _arrived(self, ledger_id: int, entries: list[int], size_bytes: int) -> None:
        self.bookie.written_bytes += size_bytes
        self._loop().call_at(
            self.bookie.done_s(size_bytes) + SYNC_S, self._stored, ledger_id, entries
        )

    def _stored(self, ledger_id: int, entries: list[int]) -> None:
        if self.lost is not None:
            return
        self.bookie.entries.setdefault(ledger_id, set()).update(entries)
        self.received_bytes += len(entries)
        sink = self._sinks.get(ledger_id)
        if sink is not None:
            sink.on_acked(entries)


class ModelControl(ControlChannel):
    """A connection with protocol v3 to a modelled bookie."""

    def __init__(self, bookie: ModelBookie) -> None:
        super().__init__(bookie.bookie_id)
        self.bookie = bookie

    @property
    def usable(self) -> bool:
        return self.bookie.alive

    def close(self) -> None:
        pass

    async def probe(self) -> None:
        await asyncio.sleep(ROUND_TRIP_S)
        self.received_bytes += 1

    async def read_lac(self, ledger_id: int) -> Any:
        raise ProtocolError("The modelled bookie answers READ_LAC as one that speaks only v2.")

    async def force(self, ledger_id: int) -> None:
        await asyncio.sleep(SYNC_S)

    async def bookie_info(self) -> BookieInfo:
        await asyncio.sleep(ROUND_TRIP_S)
        return BookieInfo(DISK_BYTES, max(0, DISK_BYTES - self.bookie.stored_bytes))

    async def list_entries(self, ledger_id: int) -> EntryRanges:
        await asyncio.sleep(ROUND_TRIP_S)
        there = self.bookie.entries.get(ledger_id)
        if not there:
            raise no_entry(self.bookie, ledger_id, LAST_ENTRY)
        ranges = merged((entry, entry) for entry in there)
        return EntryRanges([(first, first, last - first + 1, 0) for first, last in ranges])


class ModelProcess:
    """The processor of one process that copies."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._free_at_s = 0.0

    def sent_s(self, size_bytes: int) -> float:
        """Return when the process has sent this many bytes that it begins with now."""
        self.sent_bytes += size_bytes
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / KIB * PROCESS_S_PER_KIB
        return self._free_at_s


class ModelPool(BookiePool):
    """The connections of a client, which lead to modelled bookies."""

    def __init__(
        self, bookies: dict[str, ModelBookie], process: ModelProcess, *how: Any, lazy: bool
    ) -> None:
        self._models = bookies
        self._process = process
        super().__init__(*how, lazy_addresses=lazy)

    async def _connect(
        self, bookie_id: str, make: Callable[[str], Any], timeout_s: float | None = None
    ) -> Any:
        bookie = self._models[bookie_id]
        await self._address(bookie_id)
        await asyncio.sleep(ROUND_TRIP_S)
        if not bookie.alive:
            raise BookieUnavailableError(f"bookie {bookie_id} is down")
        return ModelLink(bookie, self._process) if make is BookieChannel else ModelControl(bookie)
