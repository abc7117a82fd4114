"""A client's connection to one bookie, protocol v3: what v2 has no words for.

Calls have a future each, matched by transaction id: every one of them is a batch or a slow path.
Deferred-sync adds go the way of adds (see `link`), with their entry id as transaction id: their
answers name ledger and entry, and are handed on by the chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from quire.codec.wire import v3
from quire.codec.wire.availability import BadAvailabilityError, decode_availability
from quire.codec.wire.messages_pb2 import Response
from quire.codec.wire.v2 import LENGTH, MAX_FRAME_BYTES, Buffer, Code
from quire.errors import BookieBusyError, ProtocolError
from quire.net.answer_codes import error_of
from quire.net.frame_buffer import frame_size
from quire.net.link import Link

MAX_OUTSTANDING_CALLS = 4_096
"""On one connection; long polls count too. Behind it calls fail, as if the bookie were busy."""
MAX_ANSWER_BYTES = MAX_FRAME_BYTES + 4_096
"""An answer that carries the largest entry has a LAC packet and a longer head around it."""


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """A bookie's answer about the LAC. Nothing in it is verified yet."""

    packet: bytes
    """The explicit LAC packet that it has; empty: none."""
    last_entry: bytes
    """The bytes of the last entry that it has; empty: none."""


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """The end of a long poll. Nothing in it is verified yet."""

    max_lac: int
    """The LAC according to the bookie; -1 if it knows none."""
    entry: bytes
    """The entry behind the LAC that was known; empty: it has none to give."""
    packet: bytes = b""
    """The explicit LAC packet that proves `max_lac`; empty: there is none, or the bookie is not of
    Quire."""


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """The disk space of a bookie, as the bookie reports it.

    Attributes:
        total_bytes: The size of its disks.
        free_bytes: The free space on its disks.
    """

    total_bytes: int
    free_bytes: int


class ControlChannel(Link):
    """One connection. Made by `BookiePool`, which connects it."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id, MAX_ANSWER_BYTES)
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._txn_id = 0

    # -- requests -----------------------------------------------------------------------------
    # All raise what the bookie answers (`error_of`), BookieUnavailableError when the connection is
    # lost and BookieBusyError at the bound of calls; none has a time-out. All are cancel-safe: an
    # answer that nobody waits for is dropped.

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """NoEntryAnswer if the bookie knows neither a LAC nor an entry of the ledger."""
        answer = await self._call(lambda txn: v3.read_lac_request(txn, ledger_id))
        own = answer.readLacResponse
        code = v3.status_of(answer, own.status)
        # An explicit LAC without any entry is told as an I/O error (wire-protocol spec, 6.6).
        if code and not (code == Code.IO_ERROR and own.lacBody):
            raise error_of(code, ledger_id, -1, self.bookie_id)
        return LacAnswer(own.lacBody, own.lastEntryBody)

    async def write_lac(self, ledger_id: int, lac: int, key: bytes, packet: bytes) -> None:
        """Store an explicit LAC packet."""
        answer = await self._call(
            lambda txn: v3.write_lac_request(txn, ledger_id, lac, key, packet)
        )
        self._check(v3.status_of(answer, answer.writeLacResponse.status), ledger_id)

    async def long_poll(
        self, ledger_id: int, previous_lac: int, timeout_ms: int, *, last_entry: bool = False
    ) -> PollAnswer:
        """Wait on the bookie until its LAC passes `previous_lac`, at most `timeout_ms`; with the
        entry behind that, if there is one, or with the last entry that the bookie has."""
        answer = await self._call(
            lambda txn: v3.long_poll_request(
                txn, ledger_id, previous_lac, timeout_ms, last_entry=last_entry
            )
        )
        own = answer.readResponse
        self._check(v3.status_of(answer, own.status), ledger_id)
        return PollAnswer(own.maxLAC if own.HasField("maxLAC") else -1, own.body, own.explicitLac)

    async def force(self, ledger_id: int) -> None:
        """On return every add of the ledger that the bookie had answered on this connection before
        the call is durable on it."""
        answer = await self._call(lambda txn: v3.force_request(txn, ledger_id))
        self._check(v3.status_of(answer, answer.forceLedgerResponse.status), ledger_id)

    async def bookie_info(self) -> BookieInfo:
        wanted = v3.RequestedInfo.TOTAL_CAPACITY | v3.RequestedInfo.FREE_SPACE
        answer = await self._call(lambda txn: v3.bookie_info_request(txn, wanted))
        own = answer.getBookieInfoResponse
        self._check(v3.status_of(answer, own.status), -1)
        return BookieInfo(own.totalDiskCapacity, own.freeDiskSpace)

    async def probe(self) -> None:
        await self._call(lambda txn: v3.bookie_info_request(txn, 0))

    async def list_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """Ascending ranges (first, last) of the entries that the bookie has."""
        answer = await self._call(lambda txn: v3.list_entries_request(txn, ledger_id))
        own = answer.getListOfEntriesOfLedgerResponse
        self._check(v3.status_of(answer, own.status), ledger_id)
        try:
            return decode_availability(own.availabilityOfEntriesOfLedger)
        except BadAvailabilityError as error:
            raise ProtocolError(f"bookie {self.bookie_id}, ledger {ledger_id}: {error}") from error

    # -- inside -------------------------------------------------------------------------------

    async def _call(self, request: Callable[[int], bytes]) -> Response:
        await self._writable.wait()
        if self.lost is not None:
            raise self.lost
        if len(self._calls) >= MAX_OUTSTANDING_CALLS:
            raise BookieBusyError(
                f"{MAX_OUTSTANDING_CALLS} calls to bookie {self.bookie_id} wait for their answers"
            )
        self._txn_id += 1
        txn_id = self._txn_id
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._calls[txn_id] = future
        self._write(request(txn_id))
        try:
            return await future
        finally:
            self._calls.pop(txn_id, None)

    def _check(self, code: int, ledger_id: int) -> None:
        if code:
            raise error_of(code, ledger_id, -1, self.bookie_id)

    def _take_outstanding(self) -> list[asyncio.Future[Response]]:
        futures = list(self._calls.values())
        self._calls.clear()
        return futures

    # -- answers ------------------------------------------------------------------------------

    def _parse(self, buffer: Buffer) -> int:
        acked: dict[int, list[int]] = {}
        failed: list[tuple[int, int, int]] = []
        view = memoryview(buffer)
        at, end = 0, len(buffer)
        while at + LENGTH.size <= end:
            stop = at + frame_size(buffer, at, MAX_ANSWER_BYTES)
            if stop > end:
                break
            answer = self._parsed(view[at + LENGTH.size : stop])
            at = stop
            operation: int = answer.header.operation
            if operation != v3.Op.ADD:
                self._answered(answer)
                continue
            own = answer.addResponse
            code = v3.status_of(answer, own.status)
            if code:
                failed.append((own.ledgerId, own.entryId, code))
            else:
                acked.setdefault(own.ledgerId, []).append(own.entryId)
        self._tell_sinks(acked, failed)
        return at

    def _parsed(self, payload: memoryview) -> Response:
        try:
            return v3.parse_response(payload)
        except v3.BadMessageError:
            raise ProtocolError("the bookie does not answer in protocol v3") from None

    def _answered(self, answer: Response) -> None:
        future = self._calls.get(answer.header.txnId)
        if future is not None and not future.done():
            future.set_result(answer)
