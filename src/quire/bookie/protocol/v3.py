"""Requests of protocol v3 on one connection (docs/reference/protocol.md).

The log has a single format, so an accepted add becomes a v2 frame in the log. The ids inside the
entry's body count. The ids in the request are only repeated in the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial

from quire.bookie.protocol.add_batcher import MIN_ENTRY_BYTES, AddBatcher
from quire.bookie.protocol.service import ClientConnection
from quire.bookie.protocol.v2 import AUTH_DISABLED_PLUGIN
from quire.bookie.protocol.v3_answers import (
    AddAnswers,
    Echoed,
    Piggyback,
    ReadLac,
    ReadV3,
    WriteLacAnswer,
)
from quire.codec.entry.entry import LAC_PACKET
from quire.codec.protobuf_wire import encode_varint
from quire.codec.wire.availability import encode_availability
from quire.codec.wire.messages_pb2 import Request
from quire.codec.wire.v2 import (
    ADD_PREFIX,
    ADD_WORD,
    FRAME_HEADER_BYTES,
    KEY_BYTES,
    LAST_ENTRY,
    MAX_FRAME_BYTES,
    Buffer,
    Code,
    Flag,
    equal_frames,
)
from quire.codec.wire.v3 import (
    DEFERRED_SYNC,
    VERSION,
    BadMessageError,
    Op,
    ReadFlag,
    RequestedInfo,
    frame,
    parse_request,
    response,
)
from quire.codec.wire.v3_adds import AddStretch, add_responses, stretch_of
from quire.errors import ProtocolError, StorageError
from quire.net.frame_buffer import frame_size
from quire.storage.read.read_exceptions import NoLedger

ADD = int(Op.ADD)  # comparing plain integers is faster than comparing enumeration members
HEAD = struct.Struct(">qqq")  # ledger, entry, last add confirmed
RECOVERY = int(Flag.RECOVERY_ADD)
PRIORITY = int(Flag.HIGH_PRIORITY)
MAX_LAC_PACKET_BYTES = 1024
"""The most bytes of an explicit LAC packet. A real one has 36 bytes at most. The bookie keeps the
newest packet of each ledger in memory, so that a larger one would be a way to fill its memory."""
MIN_STRETCH = 4
"""The least number of adjacent requests of one size that are parsed together."""

BASE_BYTES = FRAME_HEADER_BYTES - 4
"""The number of bytes of an ADD frame without its length word and its entry."""
MAX_LIST_BYTES = MAX_FRAME_BYTES - 1024

_IDS = ("ledgerId", "entryId")
_PARTS: dict[int, tuple[str, str, Sequence[str]]] = {
    Op.ADD: ("addResponse", "addRequest", _IDS),
    Op.READ: ("readResponse", "readRequest", _IDS),
    Op.WRITE_LAC: ("writeLacResponse", "writeLacRequest", _IDS[:1]),
    Op.READ_LAC: ("readLacResponse", "readLacRequest", _IDS[:1]),
    Op.FORCE: ("forceLedgerResponse", "forceLedgerRequest", _IDS[:1]),
    Op.BOOKIE_INFO: ("getBookieInfoResponse", "", ()),
    Op.LIST_ENTRIES: (
        "getListOfEntriesOfLedgerResponse", "getListOfEntriesOfLedgerRequest", _IDS[:1]
    ),
}  # fmt: skip
"""The names of fields for each operation: the part of the answer, the part of the request, and the
fields of the request that a refusal repeats."""


class RequestsV3:
    """The handler of the v3 requests of one connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._service = connection.service
        self._batcher = AddBatcher(connection.service)
        self._pieces: list[Buffer] = []
        """The buffers with the v2 frames of the current batch, as alternating heads and bodies."""
        self._answers = AddAnswers(connection)
        self._handlers: dict[int, Callable[[Request, int], None]] = {
            Op.READ: self._read,
            Op.AUTH: self._auth,
            Op.START_TLS: self._start_tls,
            Op.WRITE_LAC: self._write_lac,
            Op.READ_LAC: self._read_lac,
            Op.BOOKIE_INFO: self._bookie_info,
            Op.FORCE: self._force,
            Op.LIST_ENTRIES: self._list_entries,
        }

    def take(self, view: memoryview, at: int, end: int, size: int) -> int:
        """Handle the request of `size` bytes at `at`, and return the offset after it.

        Adjacent requests of the same size and shape may be handled in the same call. Raises
        ProtocolError if the bytes are not a request.
        """
        count = min(equal_frames(view, at, end, size), self._batcher.most(size))
        if count >= MIN_STRETCH:
            stretch = stretch_of(view, at, size, count)
            if stretch is not None and not stretch.entry_ids[0] < 0 <= stretch.entry_ids[-1]:
                self._add_stretch(stretch)
                return at + size * count
            stop = at + size * count
            while at < stop and frame_size(view, at) == size and not self._connection.interrupted:
                self._handle(view[at + 4 : at + size])
                at += size
            return at
        self._handle(view[at + 4 : at + size])
        return at + size

    @staticmethod
    def _parsed(payload: memoryview) -> Request:
        try:
            return parse_request(payload)
        except BadMessageError as error:
            raise ProtocolError(str(error)) from error

    def _handle(self, payload: memoryview) -> None:
        request = self._parsed(payload)
        header = request.header
        op: int = header.operation
        txn: int = header.txnId
        if header.version != VERSION:
            self._connection.out.append(self._failed(request, txn, Code.BAD_VERSION))
        elif op == ADD:
            self._add(request, txn)
        else:
            self.submit()  # a request after an add in the same chunk sees that add
            handler = self._handlers.get(op)
            if handler is not None:
                handler(request, txn)
            else:
                self._connection.out.append(frame(response(op, txn, Code.BAD_REQUEST)))

    def refuse(self, payload: memoryview) -> None:
        """Refuse a request of a peer that is not served, as Apache's `AuthHandler` does.

        The peer may still authenticate and secure the connection. Raises ProtocolError if the bytes
        are not a request.
        """
        request = self._parsed(payload)
        op: int = request.header.operation
        txn: int = request.header.txnId
        if op == Op.AUTH:
            self._auth(request, txn)
        elif op == Op.START_TLS and request.HasField("startTLSRequest"):
            self._start_tls(request, txn)
        else:
            self._connection.refused()
            self._connection.out.append(frame(response(op, txn, Code.UNAUTHORIZED)))

    def _failed(self, request: Request, txn: int, code: int) -> bytes:
        """Return the frame that refuses a request with this code and repeats its ids."""
        op: int = request.header.operation
        answer = response(op, txn, code)
        if op in _PARTS:
            own, asked, echoed = _PARTS[op]
            part = getattr(answer, own)
            part.status = answer.status
            for field in echoed:
                setattr(part, field, getattr(getattr(request, asked), field))
        return frame(answer)

    # -- adds ---------------------------------------------------------------------------------

    def _add(self, request: Request, txn: int) -> None:
        add = request.addRequest
        body, key = add.body, add.masterKey
        flags = PRIORITY if request.header.priority else 0
        recovery = add.HasField("flag")  # the only flag is that of a recovery add
        if recovery:
            flags |= RECOVERY
        ledger: int = add.ledgerId
        if len(body) < MIN_ENTRY_BYTES:
            code: int = Code.BAD_REQUEST
        elif len(key) != KEY_BYTES:
            code = Code.UNAUTHORIZED  # a key is a SHA-1, so no ledger has a key of another length
        else:
            ledger, entry, lac = HEAD.unpack_from(body)
            size = FRAME_HEADER_BYTES + len(body)
            self._make_room(size)
            code = self._batcher.take(flags, key, ledger, (entry,), size, lac)
        self._answer_later(
            code,
            bool(add.writeFlags & DEFERRED_SYNC) and not recovery,
            ledger,
            ((encode_varint(txn),), encode_varint(add.ledgerId), (encode_varint(add.entryId),)),
        )
        if not code:
            self._pieces.append(ADD_PREFIX.pack(BASE_BYTES + len(body), ADD_WORD, key))
            self._pieces.append(body)

    def _add_stretch(self, stretch: AddStretch) -> None:
        shape, bodies = stretch.shape, stretch.bodies
        size = FRAME_HEADER_BYTES + len(bodies[0])
        flags = RECOVERY * shape.recovery | PRIORITY * shape.high_priority
        self._make_room(size * len(bodies))
        code = self._batcher.take(
            flags, shape.key, stretch.ledger_id, stretch.entry_ids, size, stretch.last_lac
        )
        self._answer_later(
            code,
            bool(shape.write_flags & DEFERRED_SYNC) and not shape.recovery,
            stretch.ledger_id,
            (stretch.txns, shape.ledger, stretch.echoed_entries),
        )
        if not code:
            prefix = ADD_PREFIX.pack(size - 4, ADD_WORD, shape.key)
            self._pieces.append(prefix)
            self._pieces.append(prefix.join(bodies))

    def _make_room(self, size_bytes: int) -> None:
        if not self._batcher.has_room(size_bytes):
            self.submit()

    def _answer_later(self, code: int, deferred: bool, ledger: int, echoed: Echoed) -> None:
        if code:
            self._connection.out.append(add_responses(code, *echoed))
        elif deferred:
            self._answers.deferred.append((ledger, echoed))
        else:
            self._answers.waiting.append((ledger, echoed))

    def submit(self) -> None:
        """Pass the adds accepted so far to the store."""
        if self._batcher.empty:
            return
        pieces, self._pieces = self._pieces, []
        answers, self._answers = self._answers, AddAnswers(self._connection)
        self._batcher.submit([b"".join(pieces)], answers.synced)
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
        asked.is_poll = True
        info = service.store.ledgers.get(ledger)
        timeout_s = min(read.timeOut / 1000, service.config.max_long_poll_s)
        if piggyback and read.entryId != LAST_ENTRY:
            self._connection.out.append(self._failed(request, txn, Code.BAD_REQUEST))
        elif info is None:
            self._connection.out.append(asked.failed(service.code_of_missing(NoLedger(), ledger)))
        elif info.last_add_confirmed > previous or timeout_s <= 0 or info.fenced:
            self._answer(asked)
        elif not self._connection.may_wait:
            self._connection.out.append(asked.failed(Code.TOO_MANY_REQUESTS))
        else:
            service.counters.long_polls += 1
            self._connection.wait(asked, previous, timeout_s)

    # -- last add confirmed ---------------------------------------------------------------------

    def _write_lac(self, request: Request, txn: int) -> None:
        write = request.writeLacRequest
        answer = WriteLacAnswer(self._connection, txn, write.ledgerId)
        if not LAC_PACKET.size <= len(write.body) <= MAX_LAC_PACKET_BYTES:
            answer(Code.BAD_REQUEST)
            return
        ledger, lac = LAC_PACKET.unpack_from(write.body)
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

        self._service.store.force(ledger, done)

    def _bookie_info(self, request: Request, txn: int) -> None:
        requested = request.getBookieInfoRequest.requested
        answer = response(Op.BOOKIE_INFO, txn, Code.OK)
        answer.getBookieInfoResponse.status = answer.status
        try:
            if requested & RequestedInfo.TOTAL_CAPACITY:
                total = self._service.store.total_bytes()
                answer.getBookieInfoResponse.totalDiskCapacity = total
            if requested & RequestedInfo.FREE_SPACE:
                answer.getBookieInfoResponse.freeDiskSpace = self._service.store.free_bytes()
        except OSError:
            answer = response(Op.BOOKIE_INFO, txn, Code.IO_ERROR)
            answer.getBookieInfoResponse.status = answer.status
        self._connection.out.append(frame(answer))

    def _list_entries(self, request: Request, txn: int) -> None:
        self._service.background(
            self._connection.account, MAX_LIST_BYTES, partial(self._list, request, txn)
        )

    async def _list(self, request: Request, txn: int) -> None:
        try:
            await self._list_ranges(request, txn)
        except Exception:  # reported as an error of background work
            self._connection.write(self._failed(request, txn, Code.IO_ERROR))
            raise

    async def _list_ranges(self, request: Request, txn: int) -> None:
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
        data = frame(answer)
        self._service.answers.settle(self._connection.account, len(data))
        self._connection.write(data)

    def _start_tls(self, request: Request, txn: int) -> None:
        if self._connection.may_secure():
            answer = response(Op.START_TLS, txn, Code.OK)
            answer.startTLSResponse.SetInParent()
            self._connection.start_tls(frame(answer))
        else:
            self._connection.out.append(frame(response(Op.START_TLS, txn, Code.BAD_REQUEST)))

    def _auth(self, request: Request, txn: int) -> None:
        """Answer as Apache's bookies do if authentication is disabled."""
        answer = response(Op.AUTH, txn, Code.OK)
        answer.authResponse.authPluginName = AUTH_DISABLED_PLUGIN
        answer.authResponse.payload = b""
        self._connection.out.append(frame(answer))
