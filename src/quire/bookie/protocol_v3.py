"""Requests of protocol v3 on one connection (wire-protocol spec, sections 3 and 6).

An accepted add becomes a v2 frame in the log, whatever it came as: the log has one form. Its body
is what counts, not the ids beside it, which are echoed only (3.4).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quire.bookie.intake import MIN_ENTRY_BYTES, Intake
from quire.bookie.protocol_v2 import AUTH_DISABLED_PLUGIN
from quire.codec.availability import encode_availability
from quire.codec.frames import (
    ADD_PREFIX,
    ADD_WORD,
    FRAME_HEADER_BYTES,
    KEY_BYTES,
    LAST_ENTRY,
    MAX_FRAME_BYTES,
    Buffer,
    Code,
    Flag,
)
from quire.codec.messages_pb2 import Request
from quire.codec.v3 import (
    DEFERRED_SYNC,
    VERSION,
    BadMessageError,
    BookieInfo,
    Op,
    ReadFlag,
    add_response,
    frame,
    parse_request,
    response,
)
from quire.errors import ProtocolError, StorageError
from quire.storage.batch import Batch
from quire.storage.signals import NoLedger

if TYPE_CHECKING:
    from quire.bookie.connection import Connection
    from quire.bookie.long_polls import LongPoll

ADD = int(Op.ADD)  # an enumeration's arithmetic is slow
HEAD = struct.Struct(">qqq")  # ledger, entry, last add confirmed
LAC_HEAD = struct.Struct(">qq")  # ledger, last add confirmed
RECOVERY = int(Flag.RECOVERY_ADD)
PRIORITY = int(Flag.HIGH_PRIORITY)
BASE_BYTES = FRAME_HEADER_BYTES - 4
"""Of an ADD frame without its length word and its entry."""
MAX_LIST_BYTES = MAX_FRAME_BYTES - 1024


class RequestsV3:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._service = connection.service
        self._intake = Intake(connection.service)
        self._pieces: list[Buffer] = []
        """Of the frames of the batch: head, body, head, body."""
        self._answers = AddAnswers(connection)
        self._handlers: dict[int, Callable[[Request, int], None]] = {
            Op.READ: self._read,
            Op.AUTH: self._auth,
            Op.WRITE_LAC: self._write_lac,
            Op.READ_LAC: self._read_lac,
            Op.BOOKIE_INFO: self._bookie_info,
            Op.FORCE: self._force,
            Op.LIST_ENTRIES: self._list_entries,
        }

    def handle(self, payload: memoryview) -> None:
        """One request. ProtocolError: it is none."""
        try:
            request = parse_request(payload)
        except BadMessageError as error:
            raise ProtocolError(str(error)) from error
        header = request.header
        op: int = header.operation
        txn: int = header.txnId
        if header.version != VERSION:
            self._connection.out.append(self._failed(request, txn, Code.BAD_VERSION))
        elif op == ADD:
            self._add(request, txn)
        else:
            self.submit()  # what comes behind an add in one chunk sees it
            handler = self._handlers.get(op)
            if handler is not None:
                handler(request, txn)
            else:
                self._connection.out.append(frame(response(op, txn, Code.BAD_REQUEST)))

    def _failed(self, request: Request, txn: int, code: int) -> bytes:
        """A refusal that does not depend on what the request asks for."""
        op: int = request.header.operation
        answer = response(op, txn, code)
        status = answer.status
        if op == Op.ADD:
            add = request.addRequest
            return add_response(txn, code, add.ledgerId, add.entryId)
        if op == Op.READ:
            read = request.readRequest
            answer.readResponse.status = status
            answer.readResponse.ledgerId = read.ledgerId
            answer.readResponse.entryId = read.entryId
        elif op == Op.WRITE_LAC:
            answer.writeLacResponse.status = status
            answer.writeLacResponse.ledgerId = request.writeLacRequest.ledgerId
        elif op == Op.READ_LAC:
            answer.readLacResponse.status = status
            answer.readLacResponse.ledgerId = request.readLacRequest.ledgerId
        elif op == Op.FORCE:
            answer.forceLedgerResponse.status = status
            answer.forceLedgerResponse.ledgerId = request.forceLedgerRequest.ledgerId
        elif op == Op.BOOKIE_INFO:
            answer.getBookieInfoResponse.status = status
        elif op == Op.LIST_ENTRIES:
            listing = answer.getListOfEntriesOfLedgerResponse
            listing.status = status
            listing.ledgerId = request.getListOfEntriesOfLedgerRequest.ledgerId
        return frame(answer)

    # -- adds ---------------------------------------------------------------------------------

    def _add(self, request: Request, txn: int) -> None:
        add = request.addRequest
        body, key = add.body, add.masterKey
        flags = PRIORITY if request.header.priority else 0
        recovery = add.HasField("flag")  # it has one value only
        if recovery:
            flags |= RECOVERY
        if len(body) < MIN_ENTRY_BYTES:
            code: int = Code.BAD_REQUEST
        elif len(key) != KEY_BYTES:
            code = Code.UNAUTHORIZED  # it is a SHA-1: another length is the key of no ledger
        else:
            ledger, entry, lac = HEAD.unpack_from(body)
            size = FRAME_HEADER_BYTES + len(body)
            code = self._intake.take(flags, key, ledger, (entry,), size, lac)
        if code:
            answer = add_response(txn, code, add.ledgerId, add.entryId)
            self._connection.out.append(answer)
            return
        self._pieces.append(ADD_PREFIX.pack(BASE_BYTES + len(body), ADD_WORD, key))
        self._pieces.append(body)
        waiting = self._answers.waiting
        if add.writeFlags & DEFERRED_SYNC and not recovery:
            waiting = self._answers.deferred
        waiting.append((txn, add.ledgerId, add.entryId))

    def submit(self) -> None:
        """Hand what was accepted so far to the store."""
        if not self._intake.runs:
            return
        pieces, self._pieces = self._pieces, []
        answers, self._answers = self._answers, AddAnswers(self._connection)
        self._intake.submit([b"".join(pieces)], answers.synced)
        answers.accepted()

    # -- reads --------------------------------------------------------------------------------

    def _read(self, request: Request, txn: int) -> None:
        read = request.readRequest
        flag: int = read.flag if read.HasField("flag") else 0
        if flag == ReadFlag.FENCE:
            asked = ReadV3(self._connection, txn, read.ledgerId, read.entryId, with_lac=False)
            code = self._service.fence(read.ledgerId, read.masterKey, asked.answer_fenced)
            if code:
                self._connection.out.append(asked.failed(code))
        elif read.HasField("previousLAC"):
            self._long_poll(request, txn)
        else:
            asked = ReadV3(self._connection, txn, read.ledgerId, read.entryId)
            self._answer(asked)

    def _answer(self, asked: ReadV3) -> None:
        answer = self._service.answer(asked)
        if answer is not None:
            self._connection.out.append(answer)

    def _long_poll(self, request: Request, txn: int) -> None:
        read = request.readRequest
        ledger, previous = read.ledgerId, read.previousLAC
        service = self._service
        flag: int = read.flag if read.HasField("flag") else 0
        piggyback = flag == ReadFlag.PIGGYBACK
        asked: ReadV3
        if piggyback:
            asked = Piggyback(self._connection, txn, ledger, previous)
        else:
            asked = ReadV3(self._connection, txn, ledger, read.entryId)
        info = service.store.ledgers.get(ledger)
        timeout_ms = min(read.timeOut, service.config.max_long_poll_ms)
        if piggyback and read.entryId != LAST_ENTRY:
            self._connection.out.append(self._failed(request, txn, Code.BAD_REQUEST))
        elif info is None:
            self._connection.out.append(asked.failed(service.code_of_missing(NoLedger())))
        elif info.last_add_confirmed > previous or timeout_ms <= 0 or info.fenced:
            self._answer(asked)
        elif service.long_polls.full:
            self._connection.out.append(asked.failed(Code.TOO_MANY_REQUESTS))
        else:
            service.counters.long_polls += 1
            asked.poll = service.long_polls.wait(ledger, previous, timeout_ms / 1000, asked)
            self._connection.polls[asked.poll] = None

    # -- last add confirmed ---------------------------------------------------------------------

    def _write_lac(self, request: Request, txn: int) -> None:
        write = request.writeLacRequest
        answer = WriteLacAnswer(self._connection, txn, write.ledgerId)
        if len(write.body) < LAC_HEAD.size:
            answer(Code.BAD_REQUEST)
            return
        ledger, lac = LAC_HEAD.unpack_from(write.body)
        code = self._service.write_lac(ledger, lac, write.masterKey, write.body, answer)
        if code:
            answer(code)

    def _read_lac(self, request: Request, txn: int) -> None:
        self._answer(ReadLac(self._connection, txn, request.readLacRequest.ledgerId))

    # -- the rest -------------------------------------------------------------------------------

    def _force(self, request: Request, txn: int) -> None:
        ledger: int = request.forceLedgerRequest.ledgerId
        self._service.counters.forces += 1

        def done(error: StorageError | None) -> None:
            answer = response(Op.FORCE, txn, self._service.code_of(error) if error else Code.OK)
            answer.forceLedgerResponse.status = answer.status
            answer.forceLedgerResponse.ledgerId = ledger
            self._connection.write(frame(answer))

        self._service.store.barrier(done)

    def _bookie_info(self, request: Request, txn: int) -> None:
        requested = request.getBookieInfoRequest.requested
        answer = response(Op.BOOKIE_INFO, txn, Code.OK)
        answer.getBookieInfoResponse.status = answer.status
        try:
            if requested & BookieInfo.TOTAL_CAPACITY:
                total = self._service.store.total_bytes()
                answer.getBookieInfoResponse.totalDiskCapacity = total
            if requested & BookieInfo.FREE_SPACE:
                answer.getBookieInfoResponse.freeDiskSpace = self._service.store.free_bytes()
        except OSError:
            answer = response(Op.BOOKIE_INFO, txn, Code.IO_ERROR)
            answer.getBookieInfoResponse.status = answer.status
        self._connection.out.append(frame(answer))

    def _list_entries(self, request: Request, txn: int) -> None:
        self._service.background(self._list(request, txn))

    async def _list(self, request: Request, txn: int) -> None:
        ledger: int = request.getListOfEntriesOfLedgerRequest.ledgerId
        code, ranges = await self._service.entry_ranges(ledger)
        listing = encode_availability(ranges, max_bytes=MAX_LIST_BYTES) if not code else b""
        if len(listing) > MAX_LIST_BYTES:
            self._service.log("list_of_entries_too_long", ledger=ledger, ranges=len(ranges))
            code = Code.IO_ERROR
        answer = response(Op.LIST_ENTRIES, txn, code)
        own = answer.getListOfEntriesOfLedgerResponse
        own.status, own.ledgerId = answer.status, ledger
        if not code:
            own.availabilityOfEntriesOfLedger = listing
        self._connection.write(frame(answer))

    def _auth(self, request: Request, txn: int) -> None:
        """Nobody has to say who they are here, which is how Apache's client understands it."""
        answer = response(Op.AUTH, txn, Code.OK)
        answer.authResponse.authPluginName = AUTH_DISABLED_PLUGIN
        answer.authResponse.payload = b""
        self._connection.out.append(frame(answer))


class AddAnswers:
    """Who is to be told of a batch of adds: (transaction, ledger, entry) as they are echoed."""

    __slots__ = ("_connection", "_refused", "deferred", "waiting")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.waiting: list[tuple[int, int, int]] = []
        """Answered when the batch is synced."""
        self.deferred: list[tuple[int, int, int]] = []
        """Answered when it is queued: durable with the next force only (6.9)."""
        self._refused = False

    def accepted(self) -> None:
        if self.deferred and not self._refused:
            self._send(self.deferred, Code.OK)
            self.deferred = []

    def synced(self, batch: Batch, error: StorageError | None) -> None:
        if error is None:
            self._send(self.waiting, Code.OK)
            return
        self._refused = True
        self._send(self.waiting + self.deferred, self._connection.service.code_of(error))

    def _send(self, answers: list[tuple[int, int, int]], code: int) -> None:
        if answers:
            self._connection.write(
                b"".join([add_response(txn, code, *echoed) for txn, *echoed in answers])
            )


class WriteLacAnswer:
    __slots__ = ("_connection", "_ledger_id", "_txn")

    def __init__(self, connection: Connection, txn: int, ledger_id: int) -> None:
        self._connection = connection
        self._txn = txn
        self._ledger_id = ledger_id

    def __call__(self, code: int) -> None:
        answer = response(Op.WRITE_LAC, self._txn, code)
        answer.writeLacResponse.status = answer.status
        answer.writeLacResponse.ledgerId = self._ledger_id
        self._connection.write(frame(answer))


class ReadV3:
    """A READ request that waits for its answer."""

    __slots__ = ("connection", "entry_id", "ledger_id", "moved_at_ms", "poll", "txn", "with_lac")

    max_count = 1
    max_bytes = 0

    def __init__(
        self,
        connection: Connection,
        txn: int,
        ledger_id: int,
        entry_id: int,
        *,
        with_lac: bool = True,
    ) -> None:
        self.connection = connection
        self.txn = txn
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.with_lac = with_lac
        self.poll: LongPoll | None = None
        self.moved_at_ms = 0
        """When the LAC moved that this long poll waited for (calendar)."""

    def failed(self, code: int) -> bytes:
        return self._build(code, self.entry_id)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        return self._build(Code.OK, self.entry_id, entries[0], with_lac=self.with_lac)

    def _build(
        self, code: int, entry_id: int, body: Buffer | None = None, *, with_lac: bool = False
    ) -> bytes:
        answer = response(Op.READ, self.txn, code)
        read = answer.readResponse
        read.status = answer.status
        read.ledgerId = self.ledger_id
        read.entryId = entry_id
        if body is not None:
            read.body = bytes(body)
        if with_lac:
            read.maxLAC = self.connection.service.last_add_confirmed(self.ledger_id)
        if self.moved_at_ms and code == Code.OK:
            read.lacUpdateTimestamp = self.moved_at_ms
        return frame(answer)

    def answer_fenced(self, code: int) -> None:
        """The fence is durable (code 0), or it failed: now the read may be answered."""
        service = self.connection.service
        answer = self.failed(code) if code else service.answer(self)
        if answer is not None:
            self.connection.write(answer)

    def ready(self, moved: bool) -> None:
        """The end of a long poll's waiting."""
        service = self.connection.service
        if self.poll is not None:
            self.connection.polls.pop(self.poll, None)
        if moved:
            self.moved_at_ms = service.clock.now_ms()
        answer = service.answer(self)
        if answer is not None:
            self.connection.write(answer)


class Piggyback(ReadV3):
    """A long poll that wants the entry behind the LAC it knows. Where there is none to give, it
    gets the LAC alone."""

    __slots__ = ("previous_lac",)

    def __init__(self, connection: Connection, txn: int, ledger_id: int, previous_lac: int) -> None:
        super().__init__(connection, txn, ledger_id, previous_lac + 1)
        self.previous_lac = previous_lac

    @property
    def nothing_new(self) -> bool:
        return self.connection.service.last_add_confirmed(self.ledger_id) <= self.previous_lac

    def failed(self, code: int) -> bytes:
        if code == Code.NO_ENTRY:
            return self._build(Code.OK, LAST_ENTRY, with_lac=True)
        return self._build(code, LAST_ENTRY)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        if self.nothing_new:  # on this bookie already, but nobody knows that it is acknowledged
            return self._build(Code.OK, LAST_ENTRY, with_lac=True)
        return super().found(entries)


class ReadLac(ReadV3):
    """The last entry, and the explicit LAC (6.6)."""

    __slots__ = ()

    def __init__(self, connection: Connection, txn: int, ledger_id: int) -> None:
        super().__init__(connection, txn, ledger_id, LAST_ENTRY)

    def failed(self, code: int) -> bytes:
        packet = self._packet()
        if packet is not None:
            code = Code.IO_ERROR
        elif code == Code.NO_LEDGER:
            code = Code.NO_ENTRY
        return self._build_lac(code, packet, None)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        return self._build_lac(Code.OK, self._packet(), entries[0])

    def _packet(self) -> bytes | None:
        info = self.connection.service.store.ledgers.get(self.ledger_id)
        return None if info is None else info.explicit_lac

    def _build_lac(self, code: int, packet: bytes | None, last_entry: Buffer | None) -> bytes:
        answer = response(Op.READ_LAC, self.txn, code)
        own = answer.readLacResponse
        own.status = answer.status
        own.ledgerId = self.ledger_id
        if packet is not None:
            own.lacBody = packet
        if last_entry is not None:
            own.lastEntryBody = bytes(last_entry)
        return frame(answer)
