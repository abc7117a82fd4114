"""A client's connection to one bookie, protocol v2.

Adds have no object per request: their answers go, run by run, to the `AddSink` of their ledger.
Reads are matched by (ledger, entry), and batch reads by request id. Each of these requests is a
batch or a slow path already, so it has a future.

The answers to a fencing read and to a plain read of the same entry look alike, and a bookie answers
the plain one before the fence is durable. So the two are never under way at the same time.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from operator import length_hint

from quire.codec.wire.v2 import (
    ADD_RESPONSE_BYTES,
    ADD_WORD,
    BATCH_READ_WORD,
    BATCH_RESPONSE,
    BATCH_RESPONSE_BYTES,
    LAST_ENTRY,
    READ_RESPONSE_BYTES,
    READ_WORD,
    RESPONSE,
    Buffer,
    Flag,
    Opcode,
    add_responses,
    batch_read_request,
    read_request,
    split_word,
)
from quire.errors import BookieUnavailableError, ProtocolError, QuireError
from quire.net.answer_codes import error_of
from quire.net.frame_buffer import frame_size
from quire.net.link import PROBE_LEDGER, AddSink, ExpectedAnswers, Link

_ADD_ANSWER = struct.Struct(">12sqq")  # (length, header word, code), ledger, entry
_OK_HEAD = struct.pack(">IIi", ADD_RESPONSE_BYTES - 4, ADD_WORD, 0)
_LEDGER_AT, _ENTRY_AT = 12, 20
AHEAD_ANSWERS = 1024
"""The largest number of received answers that one search for the next expected answer covers."""


class BookieChannel(Link):
    """A connection with protocol v2. `BookiePool` makes and connects it."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id)
        self._reads: dict[tuple[int, int], deque[asyncio.Future[bytes]]] = {}
        self._fence_keys: dict[tuple[int, int], bytes] = {}
        """The master key with which the reads of `_reads` fence. Plain reads have none."""
        self._turns: dict[tuple[int, int], asyncio.Event] = {}
        """Set when the reads of `_reads` are answered, for reads that must not join them."""
        self._batch_reads: dict[int, asyncio.Future[bytes]] = {}
        self._request_id = 0
        self._expected_done = 0
        """The number of answers that have arrived of the batch that is first in `_expected`."""

    # -- requests -----------------------------------------------------------------------------

    async def read(self, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> bytes:
        """Read one entry, and return its bytes as the bookie stores them, unverified.

        `flags` are the flags of the request (`Flag`). `key` is the master key of the ledger, which
        only a read that fences needs. Raises the error that the bookie answers (`error_of`), or
        BookieUnavailableError if the connection is lost. Cancel-safe.
        """
        fence_key = key if flags & Flag.DO_FENCING else None
        await self._turn(ledger_id, (entry_id,), fence_key)
        future = self._new_read(ledger_id, entry_id, fence_key)
        self._write(read_request(ledger_id, entry_id, flags, key))
        return await future

    async def read_many(
        self, ledger_id: int, entry_ids: list[int], flags: int = 0, key: bytes = b""
    ) -> list[bytes | BaseException]:
        """Send single reads as one buffer, and return the result of each, in order.

        A result is the unverified bytes of an entry, or the error of its read. If the connection is
        lost already, BookieUnavailableError is raised instead. `flags` and `key` are those of
        `read`. Cancel-safe.
        """
        fence_key = key if flags & Flag.DO_FENCING else None
        await self._turn(ledger_id, entry_ids, fence_key)
        futures: list[asyncio.Future[bytes]] = []
        requests = []
        for entry_id in entry_ids:
            futures.append(self._new_read(ledger_id, entry_id, fence_key))
            requests.append(read_request(ledger_id, entry_id, flags, key))
        self._write(b"".join(requests))
        return await asyncio.gather(*futures, return_exceptions=True)

    async def batch_read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_size: int,
        flags: int = 0,
        key: bytes = b"",
    ) -> bytes:
        """Read consecutive entries from `first` on, and return the whole answer frame, unverified.

        Its (length, entry bytes) pairs begin at BATCH_RESPONSE_BYTES. They end before the first
        entry that the bookie lacks, after `max_count` entries, or when the next one would exceed
        `max_size` bytes. `flags` and `key` are those of `read`. Raises the error that the bookie
        reports for entry `first`, or BookieUnavailableError if the connection is lost. Cancel-safe.
        """
        await self._writable.wait()
        self._request_id += 1
        request_id = self._request_id
        future: asyncio.Future[bytes] = self._new_future()
        self._batch_reads[request_id] = future
        self._write(
            batch_read_request(ledger_id, first, request_id, max_count, max_size, flags, key)
        )
        try:
            return await future
        finally:
            self._batch_reads.pop(request_id, None)

    async def probe(self) -> None:
        try:
            await self.read(PROBE_LEDGER, LAST_ENTRY)
        except BookieUnavailableError:
            raise
        except QuireError:
            pass  # any answer will do: no ledger has this id

    # -- answers ------------------------------------------------------------------------------

    def _parse(self, buffer: Buffer) -> int:
        """Handle the whole frames of `buffer`, and return the offset of the first unfinished
        one."""
        at, end = 0, len(buffer)
        while at + 8 <= end:
            size = frame_size(buffer, at)
            stop = at + size
            if stop > end:
                return at
            word = int.from_bytes(buffer[at + 4 : at + 8], "big")
            if word == ADD_WORD and size == ADD_RESPONSE_BYTES:
                at = self._parse_adds(buffer, at, end)
                continue
            self._answer(word, buffer, at, stop)
            at = stop
        return at

    def _parse_adds(self, buffer: Buffer, at: int, end: int) -> int:
        """Handle ADD answers from offset `at` on, and return the offset after those handled."""
        count = (end - at) // ADD_RESPONSE_BYTES
        if self._expected:
            expected, others = self._parse_expected(buffer, at, count)
            if expected:
                return at + expected * ADD_RESPONSE_BYTES
            count = others
        _, _, _, ledger, first = RESPONSE.unpack_from(buffer, at)
        stop = at + count * ADD_RESPONSE_BYTES
        if buffer[at + _LEDGER_AT : at + _ENTRY_AT] == buffer[stop - 16 : stop - 8]:
            sink = self._sinks.get(ledger)
            # OK for consecutive adds of one ledger: one comparison checks them all.
            if sink is not None and buffer[at:stop] == add_responses(ledger, first, count):
                sink.on_acked_run(first, first + count - 1)
                return stop
        view = memoryview(buffer)[at:stop]
        rest = self._parse_ok_adds(view, count)
        if not rest:
            return stop
        used = (count - rest) * ADD_RESPONSE_BYTES
        return self._parse_mixed_adds(view[used:], at + used)

    def _parse_expected(self, buffer: Buffer, at: int, count: int) -> tuple[int, int]:
        """Handle the `count` answers at offset `at` as far as they are the next expected ones.

        Returns (the number of expected answers that were handled, the number of other answers
        before the next expected one). At least one of the two numbers is 0.
        """
        while self._expected and self._expected[0][0].over:
            self._expected.popleft()
            self._expected_done = 0
        if not self._expected:
            return 0, count
        expected, place = self._expected[0]
        answers, before = expected.answers, self._expected_done
        start, rows = before * ADD_RESPONSE_BYTES, len(answers) // ADD_RESPONSE_BYTES
        found = min(count, rows - before)
        wanted = answers[start : start + found * ADD_RESPONSE_BYTES]
        if buffer[at : at + len(wanted)] == wanted:
            done = before + found
            if done == rows:
                self._expected.popleft()
                self._expected_done = 0
            else:
                self._expected_done = done
            if expected.detached_rows:
                self._tell_detached(expected, before, done)
            expected.acked(place, done)
            return found, 0
        count = min(count, AHEAD_ANSWERS)
        stop = at + count * ADD_RESPONSE_BYTES
        ahead = bytes(buffer[at:stop]).find(wanted[:ADD_RESPONSE_BYTES])
        if ahead > 0 and ahead % ADD_RESPONSE_BYTES == 0:
            return 0, ahead // ADD_RESPONSE_BYTES
        if ahead >= 0:  # the expected answer is there, but something unexpected follows it
            expected.end_in_disorder()
        return 0, count

    def _tell_detached(self, expected: ExpectedAnswers, start: int, stop: int) -> None:
        for row in sorted(row for row in expected.detached_rows if start <= row < stop):
            sink = self._sinks.get(expected.ledger_ids[row])
            if sink is not None:
                sink.on_acked_run(expected.entry_ids[row], expected.entry_ids[row])

    def _parse_ok_adds(self, view: memoryview, count: int) -> int:
        """Handle OK answers to adds of several ledgers in one pass.

        Returns the number of answers that are not handled: the first answer that is not OK, and all
        after it. With thousands of ledgers, most have one or few answers in a row, so there are
        almost as many runs as adds.
        """
        sink_of = self._sinks.get
        answers = _ADD_ANSWER.iter_unpack(view)
        ledger = first = -1
        more: list[int] = []
        """The ids of the entries after `first` that were answered next, in the same ledger."""
        rest = 0
        for head, upcoming, entry in answers:
            if head != _OK_HEAD:
                rest = length_hint(answers) + 1
                break
            if upcoming == ledger:
                more.append(entry)
                continue
            sink = sink_of(ledger)
            if sink is not None:
                if more:
                    _tell(sink, [first, *more])
                else:
                    sink.on_acked_run(first, first)
            if more:
                more = []
            ledger, first = upcoming, entry
        if rest < count and (sink := sink_of(ledger)) is not None:
            _tell(sink, [first, *more])
        return rest

    def _parse_mixed_adds(self, view: memoryview, base: int) -> int:
        acked: dict[int, list[int]] = {}
        failed: list[tuple[int, int, int]] = []
        used = 0
        for size, word, code, ledger, entry in RESPONSE.iter_unpack(view):
            if word != ADD_WORD or size != 24:
                break
            used += ADD_RESPONSE_BYTES
            if code:
                failed.append((ledger, entry, code))
            else:
                acked.setdefault(ledger, []).append(entry)
        self._tell_sinks(acked, failed)
        return base + used

    def _answer(self, word: int, buffer: Buffer, at: int, stop: int) -> None:
        if word == READ_WORD and stop - at >= READ_RESPONSE_BYTES:
            _, _, code, ledger, entry = RESPONSE.unpack_from(buffer, at)
            asked = (ledger, entry)
            waiting = self._reads.get(asked)
            if not waiting:
                return
            future = waiting.popleft()
            if not waiting:
                del self._reads[asked]
                self._fence_keys.pop(asked, None)
                if (turn := self._turns.pop(asked, None)) is not None:
                    turn.set()
            if future.done():
                return
            if code:
                future.set_exception(error_of(code, ledger, entry, self.bookie_id))
            else:
                future.set_result(bytes(buffer[at + READ_RESPONSE_BYTES : stop]))
        elif word == BATCH_READ_WORD and stop - at >= BATCH_RESPONSE_BYTES:
            _, _, code, ledger, entry, request_id = BATCH_RESPONSE.unpack_from(buffer, at)
            batch = self._batch_reads.get(request_id)
            if batch is None or batch.done():
                return
            if code:
                batch.set_exception(error_of(code, ledger, entry, self.bookie_id))
            else:
                batch.set_result(bytes(buffer[at:stop]))
        elif split_word(word)[1] not in (Opcode.AUTH, Opcode.ADD, Opcode.READ):
            raise ProtocolError(
                f"bookie {self.bookie_id} sent an answer of an unknown kind (header word "
                f"{word:#010x})"
            )

    # -- inside -------------------------------------------------------------------------------

    async def _turn(
        self, ledger_id: int, entry_ids: Sequence[int], fence_key: bytes | None
    ) -> None:
        """Wait until all these reads may be sent. The caller sends them without a further await."""
        while True:
            await self._writable.wait()
            if fence_key is None and not self._fence_keys and not self._turns:
                return
            for entry_id in entry_ids:
                asked = (ledger_id, entry_id)
                # Behind a read that waits, one of the same kind waits too, so that no read waits
                # for ever.
                if asked in self._turns or (
                    asked in self._reads and self._fence_keys.get(asked) != fence_key
                ):
                    await self._turns.setdefault(asked, asyncio.Event()).wait()
                    break
            else:
                return

    def _new_read(
        self, ledger_id: int, entry_id: int, fence_key: bytes | None
    ) -> asyncio.Future[bytes]:
        future = self._new_future()
        asked = (ledger_id, entry_id)
        self._reads.setdefault(asked, deque()).append(future)
        if fence_key is not None:
            self._fence_keys[asked] = fence_key
        return future

    def _new_future(self) -> asyncio.Future[bytes]:
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        return asyncio.get_running_loop().create_future()

    def _take_outstanding(self) -> list[asyncio.Future[bytes]]:
        futures = [future for waiting in self._reads.values() for future in waiting]
        futures.extend(self._batch_reads.values())
        self._reads.clear()
        self._fence_keys.clear()
        self._batch_reads.clear()
        for turn in self._turns.values():
            turn.set()
        self._turns.clear()
        return futures


def _tell(sink: AddSink, entries: Sequence[int]) -> None:
    """Report to a sink that the bookie has stored `entries`, given in the order of the answers."""
    first, last = entries[0], entries[-1]
    if last - first == len(entries) - 1 and entries == list(range(first, last + 1)):
        sink.on_acked_run(first, last)
    else:
        sink.on_acked(entries)
