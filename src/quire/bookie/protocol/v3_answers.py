"""The answers to requests of protocol v3 that have to wait."""

from __future__ import annotations

from collections.abc import Sequence

from quire.bookie.protocol.service import ClientConnection, PendingRead
from quire.codec.entry.entry import LAC_PACKET
from quire.codec.wire.v2 import LAST_ENTRY, Buffer, Code
from quire.codec.wire.v3 import Op, frame, response
from quire.codec.wire.v3_adds import add_responses
from quire.errors import StorageError
from quire.storage.segment.batch import LogBatch

Echoed = tuple[Sequence[bytes], bytes, Sequence[bytes]]
"""The values of adds of one ledger that their answers repeat: the transaction ids, the ledger id
and the entry ids, each encoded as a varint. All varints of a list have the same size."""


class AddAnswers:
    """The answers to the adds of one batch."""

    __slots__ = ("_connection", "deferred", "waiting")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.waiting: list[tuple[int, Echoed]] = []
        """The adds that are answered when the batch is durable: the ledger id of each, and what its
        answer repeats."""
        self.deferred: list[tuple[int, Echoed]] = []
        """The adds with deferred sync, which are answered when the batch is queued. The client can
        be sure that they are durable only after a force."""

    def accepted(self) -> None:
        self._send(self.deferred, Code.OK)
        self.deferred = []

    def synced(self, batch: LogBatch, error: StorageError | None) -> None:
        if error is not None:
            self._connection.service.add_failed(batch)
        waiting, refused = self.waiting, self.deferred
        if batch.partial:
            ledgers = {run.ledger_id for run in batch.runs}
            waiting = [one for one in waiting if one[0] in ledgers]
            refused = [one for one in refused if one[0] in ledgers]
        if error is None:
            self._send(waiting, Code.OK)
            return
        if refused:  # the batch failed before `accepted` was called
            self.deferred = [one for one in self.deferred if one not in refused]
        self._send(waiting + refused, self._connection.service.code_of(error))

    def _send(self, answers: list[tuple[int, Echoed]], code: int) -> None:
        if answers:
            self._connection.write(b"".join([add_responses(code, *one) for _, one in answers]))


class WriteLacAnswer:
    """The answer to a WRITE_LAC request. Calling it with an error code, or 0, sends the answer."""

    __slots__ = ("_connection", "_ledger_id", "_txn")

    def __init__(self, connection: ClientConnection, txn: int, ledger_id: int) -> None:
        self._connection = connection
        self._txn = txn
        self._ledger_id = ledger_id

    def __call__(self, code: int) -> None:
        answer = response(Op.WRITE_LAC, self._txn, code)
        answer.writeLacResponse.status = answer.status
        answer.writeLacResponse.ledgerId = self._ledger_id
        self._connection.write(frame(answer))


class ReadV3(PendingRead):
    """A READ request until it is answered."""

    __slots__ = ("is_poll", "moved_at_ms", "txn", "with_lac")

    def __init__(
        self,
        connection: ClientConnection,
        txn: int,
        ledger_id: int,
        entry_id: int,
        *,
        with_lac: bool = True,
    ) -> None:
        super().__init__(connection, ledger_id, entry_id)
        self.txn = txn
        self.with_lac = with_lac
        self.is_poll = False
        """Whether the request is a long poll. Its answer also contains the explicit LAC of the
        ledger, so that the reader does not have to request it."""
        self.moved_at_ms = 0
        """The Unix time in milliseconds when the LAC moved that this long poll waited for, or 0."""

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
            packet = _explicit_lac(self.connection, self.ledger_id) if self.is_poll else None
            if packet and LAC_PACKET.unpack_from(packet)[1] == read.maxLAC:
                read.explicitLac = packet
        if self.moved_at_ms and code == Code.OK:
            read.lacUpdateTimestamp = self.moved_at_ms
        return frame(answer)

    def ready(self, moved: bool) -> None:
        if moved:
            self.moved_at_ms = self.connection.service.clock.now_ms()
        super().ready(moved)


class Piggyback(ReadV3):
    """A long poll for the entry after the LAC that the reader knows.

    If that entry is not here or not known to be acknowledged, the answer contains only the LAC.
    """

    __slots__ = ("previous_lac",)

    def __init__(
        self, connection: ClientConnection, txn: int, ledger_id: int, previous_lac: int
    ) -> None:
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
        if self.nothing_new:  # the entry is here, but is not known to be acknowledged
            return self._build(Code.OK, LAST_ENTRY, with_lac=True)
        return super().found(entries)


def _explicit_lac(connection: ClientConnection, ledger_id: int) -> bytes | None:
    """Return the packet of the last explicit LAC of the ledger, or None if there is none."""
    info = connection.service.store.ledgers.get(ledger_id)
    return None if info is None else info.explicit_lac


class ReadLac(ReadV3):
    """A READ_LAC request, which is answered with the last entry and the explicit LAC of a ledger.

    If the ledger has an explicit LAC and no entry, the code is an I/O error, as on Apache's
    bookies.
    """

    __slots__ = ()

    def __init__(self, connection: ClientConnection, txn: int, ledger_id: int) -> None:
        super().__init__(connection, txn, ledger_id, LAST_ENTRY)

    def failed(self, code: int) -> bytes:
        packet = _explicit_lac(self.connection, self.ledger_id)
        if packet is not None:
            code = Code.IO_ERROR
        elif code == Code.NO_LEDGER:
            code = Code.NO_ENTRY
        return self._build_lac(code, packet, None)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        packet = _explicit_lac(self.connection, self.ledger_id)
        return self._build_lac(Code.OK, packet, entries[0])

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
