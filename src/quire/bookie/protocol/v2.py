"""Requests of protocol v2 on one connection (docs/reference/protocol.md).

Adds take the fast path. Consecutive ADD frames of one size become columns, the columns become runs,
and the bytes go to the log as they were received. All other frames are handled one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import eq

from quire.bookie.protocol.add_batcher import MIN_ENTRY_BYTES, AddBatcher
from quire.bookie.protocol.service import ClientConnection, PendingRead
from quire.codec.entry.frame_runs import packed
from quire.codec.wire.v2 import (
    ADD_HEAD,
    ADD_WORD,
    BATCH_READ_REQUEST,
    FRAME_HEADER_BYTES,
    KEY_BYTES,
    LAST_ENTRY,
    MAX_VERSION,
    READ_REQUEST,
    Buffer,
    Code,
    Flag,
    Opcode,
    add_columns,
    add_response,
    add_responses,
    add_responses_each,
    add_responses_of,
    auth_frame,
    auth_message,
    batch_read_head,
    batch_read_response,
    equal_frames,
    read_response,
    split_word,
)
from quire.errors import ProtocolError, StorageError
from quire.storage.segment.batch import LogBatch

ADD_KIND = ADD_WORD >> 16
"""The upper half of the header word of an ADD frame of version 2, without the flags."""
MIN_ANSWERABLE_BYTES = 16
LAC_AT = FRAME_HEADER_BYTES + 16
BATCH_WAIT_S = 0.02
"""The most seconds that a batch read waits if its first entry is not here and the reader asks to
wait. The next entry of a busy writer may take this long."""
NOTHING = memoryview(b"")
AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
AUTH_DISABLED = auth_message(AUTH_DISABLED_PLUGIN, b"")


class RequestsV2:
    """The handler of the v2 requests of one connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._service = connection.service
        self._batcher = AddBatcher(connection.service)
        self._spans: list[tuple[int, int]] = []
        """The offsets (start, stop) of the accepted adds in the current buffer, ascending. Adjacent
        ranges are joined."""
        self._carried: list[Buffer] = []
        """The accepted adds of earlier buffers that belong to the same batch. A chunk has two
        buffers if its first frame began in an earlier chunk."""
        self._view = NOTHING

    @property
    def view(self) -> memoryview:
        return self._view

    def begin(self, view: memoryview) -> None:
        """Make `view` the buffer that the offsets in the other calls refer to."""
        if self._spans:
            self._carried += self._take_spans()
        self._view = view

    def end(self) -> None:
        """Release the current buffer, because the next request may arrive much later.

        All accepted adds must have been submitted.
        """
        self._view = NOTHING

    # -- adds ---------------------------------------------------------------------------------

    def adds(self, at: int, end: int, size: int) -> int:
        """Take adjacent ADD frames of `size` bytes from `at` on, and return the offset after them.

        At least the first frame is taken, but not necessarily all of them.
        """
        count = min(equal_frames(self._view, at, end, size), self._batcher.most(size))
        if not self._batcher.has_room(count * size):
            self.submit()
        if count == 1:
            _, word, key, ledger, entry = ADD_HEAD.unpack_from(self._view, at)
            self._take(word, key, ledger, (entry,), at, size)
            return at + size
        prefixes, ledgers, entries, lacs = add_columns(self._view[at : at + count * size], size)
        if prefixes.count(prefixes[0]) == count:
            self._take_rows(prefixes, ledgers, entries, lacs, at, size)
            return at + count * size
        length = prefixes[0][:4]
        start = 0
        while start < count:
            prefix = prefixes[start]
            if prefix[:4] != length or int.from_bytes(prefix[4:6], "big") != ADD_KIND:
                break
            stop = start + 1
            while stop < count and prefixes[stop] == prefix:
                stop += 1
            rows = slice(start, stop)
            self._take_rows(
                prefixes[rows], ledgers[rows], entries[rows], lacs[rows], at + start * size, size
            )
            start = stop
        return at + start * size

    def _take_rows(
        self,
        prefixes: Sequence[bytes],
        ledgers: Sequence[int],
        entries: Sequence[int],
        lacs: Sequence[int],
        at: int,
        size: int,
    ) -> None:
        """Accept or refuse adds of equal size with one key and the same flags.

        Their `prefixes` are equal. The adds belong to one ledger, or to several ledgers that
        alternate.
        """
        prefix = prefixes[0]
        word, key = int.from_bytes(prefix[4:8], "big"), prefix[8:]
        count, row = len(ledgers), 0
        ledger, first = ledgers[0], entries[0]
        if (
            entries[-1] - first == count - 1
            and ledgers.count(ledger) == count
            and entries == tuple(range(first, first + count))
        ):
            self._take(word, key, ledger, range(first, first + count), at, size)
            return
        if 2 * sum(map(eq, ledgers[1:], ledgers)) < count:
            self._take_each(word, key, ledgers, entries, lacs, at, size)
            return
        while row < count:
            ledger, start = ledgers[row], row
            row += 1
            while row < count and ledgers[row] == ledger and entries[row] > entries[row - 1]:
                row += 1
            self._take(word, key, ledger, entries[start:row], at + start * size, size)

    def _take_each(
        self,
        word: int,
        key: bytes,
        ledgers: Sequence[int],
        entries: Sequence[int],
        lacs: Sequence[int],
        at: int,
        size: int,
    ) -> None:
        """Accept or refuse adds whose ledgers alternate. The arguments are those of `_take`."""
        refused = self._batcher.take_each(word & 0xFFFF, key, ledgers, entries, lacs, size)
        start = 0
        for row, code in refused:
            self._connection.out.append(add_response(code, ledgers[row], entries[row]))
            self._accept(at + start * size, at + row * size)
            start = row + 1
        self._accept(at + start * size, at + len(ledgers) * size)

    def _take(
        self,
        word: int,
        key: bytes,
        ledger: int,
        entries: Sequence[int],
        at: int,
        size: int,
        version: int = 2,
    ) -> None:
        """Accept or refuse adds of one ledger with ascending entry ids.

        A refusal is queued as the answer to all of them.

        Args:
            word: The header word of each frame, with the flags of the adds.
            key: The ledger's master key, which each add contains.
            ledger: The id of the ledger.
            entries: The entry ids.
            at: The offset of the first frame in the chunk.
            size: The bytes of each frame.
            version: The version of the protocol in the frames, which a refusal repeats.
        """
        if entries[0] < 0 <= entries[-1]:
            # Only the negative ids are refused, whatever arrives together with them.
            bad = sum(entry < 0 for entry in entries)
            self._take(word, key, ledger, entries[:bad], at, size, version)
            self._take(word, key, ledger, entries[bad:], at + bad * size, size, version)
            return
        stop = at + len(entries) * size
        last_lac = stop - size + LAC_AT
        lac = int.from_bytes(self._view[last_lac : last_lac + 8], "big", signed=True)
        code = self._batcher.take(word & 0xFFFF, key, ledger, entries, size, lac)
        if code:
            self._connection.out.append(add_responses_of(ledger, entries, code, version))
            return
        self._accept(at, stop)

    def _accept(self, at: int, stop: int) -> None:
        spans = self._spans
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], stop)
        elif stop > at:
            spans.append((at, stop))

    def _short_add(self, version: int, flags: int, at: int, size: int) -> None:
        """Handle an ADD frame that the fast path does not take.

        The frame has another version of the protocol, or is too short to be an entry.
        """
        if size < FRAME_HEADER_BYTES + MIN_ANSWERABLE_BYTES:
            raise ProtocolError(
                f"the client sent an add request of {size} bytes, which is too short"
            )
        _, _, key, ledger, entry = ADD_HEAD.unpack_from(self._view, at)
        out = self._connection.out
        if version > MAX_VERSION:
            out.append(add_response(Code.BAD_VERSION, ledger, entry, version))
        elif size < FRAME_HEADER_BYTES + MIN_ENTRY_BYTES:
            out.append(add_response(Code.BAD_REQUEST, ledger, entry, version))
        else:
            self._take(ADD_WORD | flags, key, ledger, (entry,), at, size, version)
            self.submit(version)

    def _take_spans(self) -> list[memoryview]:
        spans, self._spans = self._spans, []
        return [self._view[start:stop] for start, stop in spans]

    def submit(self, version: int = 2) -> None:
        """Pass the adds accepted so far to the store.

        `version` is the version of the protocol in their frames.
        """
        if self._batcher.empty:
            return
        buffers = [*self._carried, *self._take_spans()]
        self._carried.clear()
        done = self._synced if version == 2 else partial(self._synced_old, version)
        self._batcher.submit(buffers, done)

    def _synced_old(self, version: int, batch: LogBatch, error: StorageError | None) -> None:
        if error is not None:
            self._service.add_failed(batch)
        run = batch.runs[0]
        code = self._service.code_of(error) if error else Code.OK
        self._connection.write(add_response(code, run.ledger_id, run.first, version))

    def _synced(self, batch: LogBatch, error: StorageError | None) -> None:
        """Answer a batch that is durable or has failed, in one write."""
        if batch.columns is not None and error is None:
            self._connection.write(add_responses_each(*batch.columns[:2]))
            return
        parts: list[bytes] = []
        for run in batch.runs:
            if error is not None:
                code = self._service.code_of(error)
                entries = run.ids or range(run.first, run.first + run.count)
                parts.append(add_responses_of(run.ledger_id, entries, code))
            elif run.ids is None:
                parts.append(add_responses(run.ledger_id, run.first, run.count))
            else:
                parts.append(add_responses_of(run.ledger_id, run.ids))
        self._connection.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if error is not None:
            self._service.add_failed(batch)

    # -- everything else ----------------------------------------------------------------------

    def other(self, word: int, at: int, size: int) -> None:
        """Handle one frame at `at` that `adds` does not take.

        `word` is its header word, and `size` its length in bytes. Raises ProtocolError if protocol
        v2 does not allow it.
        """
        version, opcode, flags = split_word(word)
        if opcode not in (Opcode.ADD, Opcode.READ, Opcode.BATCH_READ, Opcode.AUTH):
            raise ProtocolError(
                "the client sent a request that protocol v2 does not have (header word "
                f"{word:#010x})"
            )
        if opcode == Opcode.AUTH:
            self._connection.out.append(auth_frame(AUTH_DISABLED))
            return
        if opcode == Opcode.ADD:
            self._short_add(version, flags, at, size)
            return
        minimum = READ_REQUEST.size if opcode == Opcode.READ else BATCH_READ_REQUEST.size
        if size < minimum:
            raise ProtocolError(
                f"the client sent a read request of {size} bytes, which is too short"
            )
        key = bytes(self._view[at + minimum : min(at + minimum + KEY_BYTES, at + size)])
        if version < 2:
            key = b""
        elif flags & Flag.DO_FENCING and len(key) < KEY_BYTES:
            raise ProtocolError(
                "the client sent a read request that fences, but without a master key"
            )
        self._read(version, opcode, flags, key, at)

    def refuse(self, word: int, at: int, size: int) -> None:
        """Refuse one frame of a peer that is not served, as Apache's `AuthHandler` does.

        The frame has `size` bytes from `at` on, and the header word `word`. AUTH is answered as for
        any peer, and all other requests are answered as unauthorised. A request for which no such
        answer exists raises ProtocolError, which ends the connection.
        """
        version, opcode, _ = split_word(word)
        out = self._connection.out
        if opcode == Opcode.AUTH:
            out.append(auth_frame(AUTH_DISABLED))
            return
        self._connection.refused()
        if opcode == Opcode.ADD and size >= FRAME_HEADER_BYTES + MIN_ANSWERABLE_BYTES:
            _, _, _, ledger, entry = ADD_HEAD.unpack_from(self._view, at)
            out.append(add_response(Code.UNAUTHORIZED, ledger, entry, version))
        elif opcode == Opcode.READ and size >= READ_REQUEST.size:
            _, _, ledger, entry = READ_REQUEST.unpack_from(self._view, at)
            out.append(read_response(Code.UNAUTHORIZED, ledger, entry, version=version))
        else:
            raise ProtocolError(
                "the client is not authorised, and its request is of a kind that protocol v2 "
                "cannot refuse"
            )

    def _read(self, version: int, opcode: int, flags: int, key: bytes, at: int) -> None:
        connection = self._connection
        if opcode == Opcode.READ:
            _, _, ledger, entry = READ_REQUEST.unpack_from(self._view, at)
            request: PendingRead = ReadOne(connection, version, ledger, entry)
        else:
            _, _, ledger, entry, request_id, count, size = BATCH_READ_REQUEST.unpack_from(
                self._view, at
            )
            request = ReadBatch(connection, ledger, entry, request_id, count, size)
        if version > MAX_VERSION:
            connection.out.append(request.failed(Code.BAD_VERSION))
        elif flags & Flag.DO_FENCING:
            code = self._service.fence(ledger, key, request.answer_fenced)
            if code:
                connection.out.append(request.failed(code))
        elif opcode == Opcode.READ or not flags & Flag.WAIT or not self._wait(request):
            answer = self._service.answer(request)
            if answer is not None:
                connection.out.append(answer)

    def _wait(self, request: PendingRead) -> bool:
        """Return whether a batch read is answered later.

        If its first entry is here, it is answered after this event-loop iteration. Otherwise it is
        answered when the LAC of the ledger moves or after `BATCH_WAIT_S`, with the entries that are
        here then.
        """
        service, ledger = self._service, request.ledger_id
        info = service.store.ledgers.get(ledger)
        if info is None or info.fenced or service.loading or not self._connection.may_wait:
            return False
        if request.entry_id <= service.store.last_entry_id(ledger):
            # Answer after the adds that other connections have received meanwhile. They carry the
            # LAC.
            asyncio.get_running_loop().call_soon(request.ready, True)
            return True
        self._connection.wait(request, info.last_add_confirmed, BATCH_WAIT_S)
        return True


class ReadOne(PendingRead):
    """A READ request that has not been answered yet."""

    __slots__ = ("version",)

    def __init__(
        self, connection: ClientConnection, version: int, ledger_id: int, entry_id: int
    ) -> None:
        super().__init__(connection, ledger_id, entry_id)
        self.version = version

    def failed(self, code: int) -> bytes:
        return read_response(code, self.ledger_id, self.entry_id, version=self.version)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        return read_response(
            Code.OK, self.ledger_id, self.entry_id, entries[0], version=self.version
        )


class ReadBatch(PendingRead):
    """A BATCH_READ request that has not been answered yet."""

    __slots__ = ("max_bytes", "max_count", "request_id")

    def __init__(
        self,
        connection: ClientConnection,
        ledger_id: int,
        first: int,
        request_id: int,
        max_count: int,
        max_size: int,
    ) -> None:
        super().__init__(connection, ledger_id, first)
        self.request_id = request_id
        self.max_count = max_count if max_count > 0 else 2**31
        self.max_bytes = min(max_size, connection.service.config.max_batch_read_bytes)
        if first == LAST_ENTRY:
            self.max_count = 1

    def failed(self, code: int) -> bytes:
        return batch_read_response(code, self.ledger_id, self.entry_id, self.request_id)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        return b"".join(self.parts(entries))

    def parts(self, entries: Sequence[Buffer]) -> Sequence[Buffer]:
        body = packed(entries)
        size = sum(map(len, body))
        head = batch_read_head(Code.OK, self.ledger_id, self.entry_id, self.request_id, size)
        return head, *body
