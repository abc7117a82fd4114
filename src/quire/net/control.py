"""A client's connection to one bookie, protocol v3, for requests that v2 does not have.

Each call has a future, matched by transaction id, because every call is a batch or a slow path.
Deferred-sync adds have no future. They are sent with `Link.send`, with their entry id as the
transaction id. Their answers contain ledger and entry, and go to the `AddSink` of the ledger, all
answers of one received chunk together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from quire.codec.wire import v3
from quire.codec.wire.availability import BadAvailabilityError, EntryRanges, decode_availability
from quire.codec.wire.messages_pb2 import Response
from quire.codec.wire.v2 import LENGTH, MAX_FRAME_BYTES, Buffer, Code
from quire.errors import BookieBusyError, ProtocolError, nothing_done
from quire.net.answer_codes import error_of
from quire.net.frame_buffer import frame_size
from quire.net.link import Link

MAX_OUTSTANDING_CALLS = 4_096
"""The largest number of outstanding calls on one connection, including long polls. Further calls
raise BookieBusyError."""
MAX_ANSWER_BYTES = MAX_FRAME_BYTES + 4_096
"""The largest size of an answer, in bytes. An answer with the largest entry also has a LAC packet
and a longer header than in protocol v2."""


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """A bookie's answer to READ_LAC for one ledger. Nothing in it is verified yet."""

    packet: bytes
    """The explicit LAC packet that the bookie has of the ledger, or empty bytes."""
    last_entry: bytes
    """The bytes of the last entry that the bookie has of the ledger, or empty bytes."""


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """A bookie's answer to a long poll of one ledger. Nothing in it is verified yet."""

    max_lac: int
    """The LAC according to the bookie, or -1 if it knows none."""
    entry: bytes
    """The bytes of the entry after the reader's LAC, or of the bookie's last entry if the request
    was for that. They are empty if the bookie sends no entry."""
    packet: bytes = b""
    """The explicit LAC packet that proves `max_lac`. It is empty if there is none, or if the bookie
    is not Quire's."""


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """The disk space of a bookie, as the bookie reports it.

    Attributes:
        total_bytes: The size of all its disks, in bytes.
        free_bytes: The free space on all its disks, in bytes.
    """

    total_bytes: int
    free_bytes: int


class ControlChannel(Link):
    """A connection with protocol v3. `BookiePool` makes and connects it.

    Every call raises the error that the bookie answers (`error_of`), BookieUnavailableError if the
    connection is lost, and BookieBusyError at the limit of calls. No call has a time-out. All are
    cancel-safe: an answer for which nobody waits is dropped.
    """

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id, MAX_ANSWER_BYTES)
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._txn_id = 0

    # -- requests -----------------------------------------------------------------------------

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """Return what the bookie knows about the LAC of a ledger.

        Raises NoEntryAnswer if the bookie knows neither a LAC nor an entry of the ledger. The class
        names the other errors.
        """
        answer = await self._call(lambda txn: v3.read_lac_request(txn, ledger_id))
        own = answer.readLacResponse
        code = v3.status_of(answer, own.status)
        # A bookie reports an explicit LAC without any entry as an I/O error.
        if code and not (code == Code.IO_ERROR and own.lacBody):
            raise error_of(code, ledger_id, -1, self.bookie_id)
        return LacAnswer(own.lacBody, own.lastEntryBody)

    async def write_lac(self, ledger_id: int, lac: int, key: bytes, packet: bytes) -> None:
        """Store an explicit LAC packet of a ledger on the bookie. On return it is durable there.

        `lac` is the LAC in the packet, and `key` is the master key of the ledger. The class names
        the errors.
        """
        answer = await self._call(
            lambda txn: v3.write_lac_request(txn, ledger_id, lac, key, packet)
        )
        self._check(v3.status_of(answer, answer.writeLacResponse.status), ledger_id)

    async def long_poll(
        self, ledger_id: int, previous_lac: int, timeout_ms: int, *, last_entry: bool = False
    ) -> PollAnswer:
        """Ask the bookie to answer once its LAC of a ledger is higher than `previous_lac`.

        It answers after `timeout_ms` milliseconds at the latest. The answer contains the entry
        after `previous_lac`, or with `last_entry` the last entry that the bookie has. The class
        names the errors.
        """
        answer = await self._call(
            lambda txn: v3.long_poll_request(
                txn, ledger_id, previous_lac, timeout_ms, last_entry=last_entry
            )
        )
        own = answer.readResponse
        self._check(v3.status_of(answer, own.status), ledger_id)
        return PollAnswer(own.maxLAC if own.HasField("maxLAC") else -1, own.body, own.explicitLac)

    async def force(self, ledger_id: int) -> None:
        """Make the adds of a ledger durable on the bookie.

        On return every add that the bookie had answered on this connection before the call is
        durable. The class names the errors.
        """
        answer = await self._call(lambda txn: v3.force_request(txn, ledger_id))
        self._check(v3.status_of(answer, answer.forceLedgerResponse.status), ledger_id)

    async def bookie_info(self) -> BookieInfo:
        """Return the total and the free disk space that the bookie reports.

        The class names the errors.
        """
        wanted = v3.RequestedInfo.TOTAL_CAPACITY | v3.RequestedInfo.FREE_SPACE
        answer = await self._call(lambda txn: v3.bookie_info_request(txn, wanted))
        own = answer.getBookieInfoResponse
        self._check(v3.status_of(answer, own.status), -1)
        return BookieInfo(own.totalDiskCapacity, own.freeDiskSpace)

    async def probe(self) -> None:
        """Send a harmless request that the bookie answers at once, and wait for the answer.

        The class names the errors.
        """
        await self._call(lambda txn: v3.bookie_info_request(txn, 0))

    async def list_entries(self, ledger_id: int) -> EntryRanges:
        """Return the entry ids that the bookie has of a ledger, as ascending ranges (first, last).

        Both ends of a range are included. Raises ProtocolError if the answer cannot be decoded. The
        class names the other errors.
        """
        answer = await self._call(lambda txn: v3.list_entries_request(txn, ledger_id))
        own = answer.getListOfEntriesOfLedgerResponse
        self._check(v3.status_of(answer, own.status), ledger_id)
        try:
            return decode_availability(own.availabilityOfEntriesOfLedger)
        except BadAvailabilityError as error:
            raise ProtocolError(
                f"bookie {self.bookie_id} sent a list of the entries of ledger {ledger_id} that "
                f"cannot be used: {error}",
                remedy="The bookie runs an incompatible version, or its answer was damaged on the "
                "way. Read the entries instead",
            ) from error

    # -- inside -------------------------------------------------------------------------------

    async def _call(self, request: Callable[[int], bytes]) -> Response:
        await self._writable.wait()
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        if len(self._calls) >= MAX_OUTSTANDING_CALLS:
            raise nothing_done(
                BookieBusyError(
                    f"bookie {self.bookie_id} was not asked: {MAX_OUTSTANDING_CALLS} calls to it "
                    "are outstanding already",
                    remedy="Try again later",
                )
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
            raise ProtocolError(
                f"bookie {self.bookie_id} sent something that is not an answer of protocol v3: it "
                "does not speak this protocol, or its answer was damaged on the way. Whether it "
                "carried out the request is unknown",
                remedy="Check that the address and the port are those of a bookie",
            ) from None

    def _answered(self, answer: Response) -> None:
        future = self._calls.get(answer.header.txnId)
        if future is not None and not future.done():
            future.set_result(answer)
