"""One client's connection to a bookie: received chunks in, one answer a chunk out.

    chunk -> whole frames -> columns -> runs -> one Batch -> LedgerStore.append
    synced -> the answers of the batch as one bytes object -> one write

A chunk may hold anything: adds of many ledgers, reads between them, refused adds, half a frame. The
fast path takes a stretch of ADD frames of one size; what it cannot take goes frame by frame.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from quire.codec.frames import (
    ADD_HEAD,
    ADD_WORD,
    BATCH_READ_REQUEST,
    FRAME_HEADER_BYTES,
    KEY_BYTES,
    LAST_ENTRY,
    MAX_VERSION,
    READ_REQUEST,
    RESPONSE,
    Buffer,
    Code,
    Flag,
    Opcode,
    add_columns,
    add_response,
    add_responses,
    add_responses_of,
    auth_frame,
    auth_message,
    batch_read_response,
    read_response,
    split_word,
)
from quire.errors import ProtocolError, StorageError, UsageError
from quire.net.frame_buffer import FrameBuffer, frame_size
from quire.storage.batch import Batch, Run

if TYPE_CHECKING:
    from quire.bookie.service import BookieService

ADD_KIND = ADD_WORD >> 16
"""Version 2, opcode ADD, whatever the flags."""
RECOVERY_ADD = int(Flag.RECOVERY_ADD)  # an enumeration's arithmetic is slow
MIN_ENTRY_BYTES = 24
"""Ids and LAC: what a bookie looks at."""
MIN_ANSWERABLE_BYTES = 16
LAC_AT = FRAME_HEADER_BYTES + 16
AUTH_DISABLED = auth_message("AuthDisabledPlugin", b"")


class Connection(asyncio.Protocol):
    def __init__(self, service: BookieService) -> None:
        self.service = service
        self.peer = "?"
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._runs: list[Run] = []
        self._spans: list[tuple[int, int]] = []
        """Accepted parts of the buffer at hand, ascending; neighbours are joined."""
        self._batch_bytes = 0
        self._urgent = False
        """The batch has recovery adds, which may use the reserve of a full disk."""
        self._view = memoryview(b"")
        self._out: list[Buffer] = []
        self._paused_for: set[str] = set()
        self._closing = False

    # -- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        transport.set_write_buffer_limits(high=self.service.config.max_unsent_bytes)
        if not self.service.admit(self):
            self._close("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self.service.forget(self)

    def pause_writing(self) -> None:
        self.pause("client")

    def resume_writing(self) -> None:
        self.resume("client")

    def data_received(self, data: bytes) -> None:
        try:
            for buffer in self._frames.feed(data):
                self._frames.keep(buffer, self._parse(buffer))
                if self._closing:
                    break
        except ProtocolError as error:
            self._submit()
            self._close(str(error))
        finally:
            self._send_out()
        if self.service.store.queue_full:
            self.service.hold(self)

    # -- back-pressure ------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading from the socket; TCP slows the client down."""
        if not self._paused_for and self._transport is not None:
            self._transport.pause_reading()
        self._paused_for.add(reason)

    def resume(self, reason: str) -> None:
        self._paused_for.discard(reason)
        if not self._paused_for and self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        self._send_out()
        if self._transport is not None:
            self._transport.close()

    # -- frames -------------------------------------------------------------------------------

    def _parse(self, buffer: Buffer) -> int:
        """Handle the whole frames of `buffer`; the offset of the first unfinished one."""
        self._view = view = memoryview(buffer)
        at, end = 0, len(view)
        while at + 8 <= end and not self._closing:
            size = frame_size(view, at)
            if at + size > end:
                break
            word = int.from_bytes(view[at + 4 : at + 8], "big")
            if word >> 16 == ADD_KIND and size >= FRAME_HEADER_BYTES + MIN_ENTRY_BYTES:
                at = self._adds(at, end, size)
            else:
                self._other(word, at, size)
                at += size
        self._submit()
        return at

    def _other(self, word: int, at: int, size: int) -> None:
        version, opcode, flags = split_word(word)
        if opcode not in (Opcode.ADD, Opcode.READ, Opcode.BATCH_READ, Opcode.AUTH):
            hint = " (protocol v3 is not served)" if word >> 24 == 0x0A else ""
            raise ProtocolError(f"unknown request (header word {word:#010x}){hint}")
        if opcode == Opcode.AUTH:
            self._out.append(auth_frame(AUTH_DISABLED))
            return
        if opcode == Opcode.ADD:
            self._short_add(version, flags, at, size)
            return
        minimum = READ_REQUEST.size if opcode == Opcode.READ else BATCH_READ_REQUEST.size
        if size < minimum:
            raise ProtocolError(f"a read request of {size} bytes is too short")
        key = bytes(self._view[at + minimum : at + minimum + KEY_BYTES])
        if version < 2:
            key = b""
        elif flags & Flag.DO_FENCING and len(key) < KEY_BYTES:
            raise ProtocolError("a fencing read without a master key")
        self._submit()  # a read behind an add of one chunk sees it
        self._read(version, opcode, flags, key, at)

    # -- adds ---------------------------------------------------------------------------------

    def _adds(self, at: int, end: int, size: int) -> int:
        """Take the ADD frames of `size` bytes that stand back to back from `at` on."""
        count = self._equal_frames(at, end, size)
        if count == 1:
            _, word, key, ledger, entry = ADD_HEAD.unpack_from(self._view, at)
            self._take(word, key, ledger, (entry,), at, size)
            return at + size
        lengths, words, keys, ledgers, entries = add_columns(
            self._view[at : at + count * size], size
        )
        first, word, key, ledger = entries[0], words[0], keys[0], ledgers[0]
        if (
            entries[-1] - first == count - 1
            and lengths.count(size - 4) == count
            and words.count(word) == count
            and ledgers.count(ledger) == count
            and keys.count(key) == count
            and entries == tuple(range(first, first + count))
        ):
            self._take(word, key, ledger, range(first, first + count), at, size)
            return at + count * size
        start = 0
        for row in range(1, count + 1):
            if row < count and (
                ledgers[row] == ledger
                and entries[row] > entries[row - 1]
                and words[row] == word
                and lengths[row] == size - 4
                and keys[row] == key
            ):
                continue
            self._take(word, key, ledger, entries[start:row], at + start * size, size)
            if row == count or lengths[row] != size - 4 or words[row] >> 16 != ADD_KIND:
                return at + row * size
            start, word, key, ledger = row, words[row], keys[row], ledgers[row]
        raise AssertionError("unreachable")

    def _equal_frames(self, at: int, end: int, size: int) -> int:
        """A guess how many frames of one size stand here, from a few length words: at most as
        many as fit, and 1 where the next one has another size. Cheap also for mixed sizes."""
        view, count = self._view, (end - at) // size
        length = view[at : at + 4]
        if count > 1 and view[at + size : at + size + 4] != length:
            return 1
        while count > 2 and view[at + (count - 1) * size : at + (count - 1) * size + 4] != length:
            count //= 2
        return count

    def _take(
        self, word: int, key: bytes, ledger: int, entries: Sequence[int], at: int, size: int
    ) -> None:
        """Accept or refuse ascending entries of one ledger, whose frames begin at `at`."""
        service = self.service
        info = service.store.ledgers.get(ledger)
        if info is None or info.fenced or not service.writable or info.master_key != key:
            code = service.may_add(ledger, key, word & 0xFFFF)
            if code:
                self._out.append(add_responses_of(ledger, entries, code))
                return
            info = service.store.ledgers[ledger]
        count = len(entries)
        first = entries[0]
        if first < 0:
            self._out.append(add_responses_of(ledger, entries, Code.BAD_REQUEST))
            return
        if word & RECOVERY_ADD:
            self._urgent = True
        stop = at + count * size
        lac = int.from_bytes(
            self._view[stop - size + LAC_AT : stop - size + LAC_AT + 8], "big", signed=True
        )
        if lac > info.last_add_confirmed:
            info.last_add_confirmed = lac
        consecutive = entries[-1] - first == count - 1
        if not (consecutive and self._extend_run(ledger, first, count, size)):
            ids = None if consecutive else array("q", entries)
            self._runs.append(Run(ledger, first, count, self._batch_bytes, size, None, ids))
        self._batch_bytes += stop - at
        spans = self._spans
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((at, stop))

    def _extend_run(self, ledger: int, first: int, count: int, size: int) -> bool:
        """Let the last run of this batch go on, where the entries follow it: frames of different
        sizes then make one run, not one each."""
        if not self._runs:
            return False
        run = self._runs[-1]
        if run.ledger_id != ledger or run.ids is not None or run.first + run.count != first:
            return False
        if run.sizes is None and run.frame_size != size:
            run.sizes = array("I", [run.frame_size]) * run.count
            run.frame_size = 0
        if run.sizes is not None:
            run.sizes.extend([size] * count)
        run.count += count
        return True

    def _short_add(self, version: int, flags: int, at: int, size: int) -> None:
        """An ADD that the fast path does not take: an old version, or too short to be an entry."""
        if size < FRAME_HEADER_BYTES + MIN_ANSWERABLE_BYTES:
            raise ProtocolError(f"an add request of {size} bytes is too short")
        _, _, key, ledger, entry = ADD_HEAD.unpack_from(self._view, at)
        if version > MAX_VERSION:
            self._out.append(add_response(Code.BAD_VERSION, ledger, entry, version))
        elif size < FRAME_HEADER_BYTES + MIN_ENTRY_BYTES:
            self._out.append(add_response(Code.BAD_REQUEST, ledger, entry, version))
        else:
            self._take(ADD_WORD | flags, key, ledger, (entry,), at, size)
            self._submit(version)

    def _submit(self, version: int = 2) -> None:
        """Hand what was accepted so far to the store."""
        if not self._runs:
            return
        view = self._view
        batch = Batch([view[start:stop] for start, stop in self._spans], self._runs)
        urgent, self._urgent = self._urgent, False
        self._runs, self._spans, self._batch_bytes = [], [], 0
        self.service.count_adds(batch)
        done = self._synced if version == 2 else partial(self._synced_old, version)
        try:
            self.service.store.append(batch, done, reserve=urgent)
        except StorageError as error:
            done(batch, error)
        except UsageError as error:  # larger than a segment of this bookie
            done(batch, StorageError(str(error)))

    def _synced_old(self, version: int, batch: Batch, error: StorageError | None) -> None:
        run = batch.runs[0]
        code = self.service.code_of(error) if error else Code.OK
        self.write(add_response(code, run.ledger_id, run.first, version))

    def _synced(self, batch: Batch, error: StorageError | None) -> None:
        """The batch is durable (or failed): its answers, in one write."""
        parts: list[bytes] = []
        for run in batch.runs:
            if error is None and run.count == 1:
                parts.append(RESPONSE.pack(24, ADD_WORD, 0, run.ledger_id, run.first))
            elif error is not None:
                code = self.service.code_of(error)
                entries = run.ids or range(run.first, run.first + run.count)
                parts.append(add_responses_of(run.ledger_id, entries, code))
            elif run.ids is None:
                parts.append(add_responses(run.ledger_id, run.first, run.count))
            else:
                parts.append(add_responses_of(run.ledger_id, run.ids))
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    # -- reads --------------------------------------------------------------------------------

    def _read(self, version: int, opcode: int, flags: int, key: bytes, at: int) -> None:
        if opcode == Opcode.READ:
            _, _, ledger, entry = READ_REQUEST.unpack_from(self._view, at)
            request = ReadOne(self, version, ledger, entry)
        else:
            _, _, ledger, entry, request_id, count, size = BATCH_READ_REQUEST.unpack_from(
                self._view, at
            )
            request = ReadBatch(self, version, ledger, entry, request_id, count, size)
        if version > MAX_VERSION:
            self._out.append(request.failed(Code.BAD_VERSION))
        elif flags & Flag.DO_FENCING:
            code = self.service.fence(ledger, key, request.answer_fenced)
            if code:
                self._out.append(request.failed(code))
        else:
            answer = self.service.answer(request)
            if answer is not None:
                self._out.append(answer)

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Answers that are ready now; they leave together at the end of this turn of the loop."""
        if self._transport is None:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self._send_out)
        self._out.append(data)

    def _send_out(self) -> None:
        out = self._out
        if out and self._transport is not None:
            self._out = []
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _close(self, why: str) -> None:
        """Give up on a peer that does not keep to the protocol."""
        self.service.log("connection_refused", peer=self.peer, reason=why)
        self._send_out()
        self._closing = True
        if self._transport is not None:
            self._transport.close()


class ReadOne:
    """A READ request that waits for its answer."""

    __slots__ = ("connection", "entry_id", "ledger_id", "version")

    max_count = 1
    max_bytes = 0

    def __init__(self, connection: Connection, version: int, ledger_id: int, entry_id: int) -> None:
        self.connection = connection
        self.version = version
        self.ledger_id = ledger_id
        self.entry_id = entry_id

    def failed(self, code: int) -> bytes:
        return read_response(code, self.ledger_id, self.entry_id, version=self.version)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        return read_response(
            Code.OK, self.ledger_id, self.entry_id, entries[0], version=self.version
        )

    def answer_fenced(self, code: int) -> None:
        """The fence is durable (code 0), or it failed: now the read may be answered."""
        service = self.connection.service
        answer = self.failed(code) if code else service.answer(self)
        if answer is not None:
            self.connection.write(answer)


class ReadBatch(ReadOne):
    """A BATCH_READ request that waits for its answer."""

    __slots__ = ("max_bytes", "max_count", "request_id")

    def __init__(
        self,
        connection: Connection,
        version: int,
        ledger_id: int,
        first: int,
        request_id: int,
        max_count: int,
        max_size: int,
    ) -> None:
        super().__init__(connection, version, ledger_id, first)
        self.request_id = request_id
        self.max_count = max_count if max_count > 0 else 2**31
        self.max_bytes = min(max_size, connection.service.config.max_batch_read_bytes)
        if first == LAST_ENTRY:
            self.max_count = 1

    def failed(self, code: int) -> bytes:
        return batch_read_response(code, self.ledger_id, self.entry_id, self.request_id)

    def found(self, entries: Sequence[Buffer]) -> bytes:
        return batch_read_response(Code.OK, self.ledger_id, self.entry_id, self.request_id, entries)
