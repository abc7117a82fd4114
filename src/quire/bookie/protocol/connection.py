"""The connection of a client to a bookie, which handles received chunks of bytes.

    chunk -> whole frames -> RequestsV2 or RequestsV3 -> AddBatcher -> LedgerStore.append
    synced -> the answers of the batch as one bytes object -> one write

A chunk may contain adds of many ledgers, reads between them, refused adds, and half a frame. The
first frame shows which protocol a client speaks. On one connection v2 may follow v3, but v3 may not
follow v2, as on Apache's bookies (docs/reference/protocol.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from quire.bookie.protocol.add_batcher import MIN_ENTRY_BYTES
from quire.bookie.protocol.answer_budget import Account
from quire.bookie.protocol.connection_limits import FREE_PARTIAL_BYTES
from quire.bookie.protocol.long_polls import LongPoll, PollTarget
from quire.bookie.protocol.service import BookieService, PendingRead
from quire.bookie.protocol.v2 import ADD_KIND, RequestsV2
from quire.bookie.protocol.v3 import RequestsV3
from quire.codec.wire.v2 import CONNECTION_REFUSED, FRAME_HEADER_BYTES, Buffer
from quire.codec.wire.v3 import FIRST_BYTE
from quire.errors import ProtocolError
from quire.net.frame_buffer import FrameBuffer, frame_size

MIN_ADD_BYTES = FRAME_HEADER_BYTES + MIN_ENTRY_BYTES
MAX_UNSENT_BEFORE_TLS_BYTES = 16 * 1024
"""The number of bytes of clear-text answers that may be unsent when the handshake begins. It must
not exceed asyncio's low-water mark, because asyncio's TLS does not handle a transport that paused
its writer before the handshake."""

SMALL_UNSENT_BYTES = 16 * 1024
"""The number of unsent bytes above which answers to adds count toward `max_answer_bytes`. Smaller
amounts are not counted."""
OWN_REASONS = frozenset(("answers", "client"))
"""The reasons for a pause that the connection's own client causes, by requesting much or by
receiving little."""

MAX_POLLS = 4_096
"""The most requests of one connection that may wait for a new LAC. `max_long_polls` limits the
requests of all connections."""
JOINED_MAX_BYTES = 256 * 1024
"""The most bytes of answers that are joined into one write. An answer that is larger by itself is
written without a copy."""


class Connection(asyncio.Protocol):
    """The connection of one client, as an asyncio protocol."""

    def __init__(self, service: BookieService) -> None:
        self.service = service
        self.peer = "?"
        self.out: list[Buffer] = []
        """The answers to be sent after this event-loop iteration."""
        self.polls: dict[PollTarget, LongPoll] = {}
        """The requests of this connection that wait for a new LAC, each with its long poll."""
        self._transport: asyncio.Transport | None = None
        self._max_frame_bytes = service.config.max_frame_bytes
        self._frames = FrameBuffer(self._max_frame_bytes)
        self._v2 = RequestsV2(self)
        self._v3: RequestsV3 | None = None
        self._only_v2 = False
        self._paused_for: set[str] = set()
        self.account = Account(self)
        """The memory that the answers of this connection use."""
        self.opened_s = self.heard_s = 0.0
        self.partial_bytes = 0
        self.partial_since_s = 0.0
        self._proven = False
        """Whether this connection has completed a request."""
        self._unparsed: bytes = b""
        """The received bytes that are parsed later, once fewer requests of the connection wait."""
        self._sent_bytes = 0
        """The number of bytes handed to the transport."""
        self._closing = False
        self.secured = False
        self._securing: bytes | None = None
        """The answer to START_TLS from the request until the TLS handshake is done, and None
        otherwise. While it is set, nothing else may be received or sent."""
        self._served = True
        """Whether requests of this client are served. If not, they are refused."""
        self._told_refusal = False

    # -- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        transport.set_write_buffer_limits(high=self.service.config.max_unsent_bytes)
        if self._securing is not None:
            self._go_on_secured(transport)
            return
        self._served = self.service.security.clear_text_served
        self.opened_s = self.heard_s = self.service.clock.monotonic()
        if not self.service.admit(self):
            self._turn_away(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        # A connection that has ended is part of reference cycles, which stay until the garbage
        # collector finds them. It must not hold on to anything large.
        self.out, self._unparsed = [], b""
        self._frames.drop()
        self._v2.end()
        self.service.forget(self)

    def pause_writing(self) -> None:
        self.pause("client")

    def resume_writing(self) -> None:
        self.resume("client")

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data  # TLS may deliver bytes that it held when reading was paused.
            return
        service = self.service
        service.received_s = self.heard_s = service.clock.monotonic()
        frames, completed = self._frames, False
        counters = service.counters
        reads, from_disk = counters.reads, counters.reads_from_disk
        bad = counters.reads_failed + counters.reads_missing
        try:
            for buffer in frames.feed(data):
                at = self._parse(buffer)
                if self._securing is not None and at < len(buffer):
                    raise ProtocolError("the client sent bytes in clear text after START_TLS")
                if self.account.full:
                    self._unparsed += bytes(memoryview(buffer)[at:])
                else:
                    frames.keep(buffer, at)
                completed = completed or at > 0
                if self._closing:
                    break
            self._submit()
            self._v2.end()
            if frames.held_bytes or self.partial_since_s or self._unparsed:
                self._note_unfinished(completed)
        except ProtocolError as error:
            self._submit()
            self._close(str(error))
        finally:
            self._send_out()
        if self._securing is not None:
            self._secure()
        if counters.reads != reads:
            service.answered(reads, from_disk, bad)
        if service.store.queue_full:
            service.hold(self)

    # -- back-pressure ------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading from the socket for this reason, so that TCP slows the client down.

        Reading continues when `resume` was called for every reason.
        """
        if not self._paused_for and self._transport is not None:
            self._transport.pause_reading()
        self._paused_for.add(reason)

    def resume(self, reason: str) -> None:
        self._paused_for.discard(reason)
        if self._paused_for or self._transport is None:
            return
        if self.partial_since_s:
            self.partial_since_s = self.service.clock.monotonic()
        if self._unparsed:
            # This may be called while earlier requests are being completed. The next requests must
            # not begin inside that call.
            asyncio.get_running_loop().call_soon(self._parse_rest)
        else:
            self._transport.resume_reading()

    def _parse_rest(self) -> None:
        if self._paused_for or self._transport is None or self._closing:
            return
        rest, self._unparsed = self._unparsed, b""
        if rest:
            self.data_received(rest)
        if not self._paused_for and self._transport is not None:
            self._transport.resume_reading()

    def _note_unfinished(self, completed: bool) -> None:
        """Update the accounting of unfinished requests after a chunk.

        `completed` means that the chunk completed a request, so that the request that is unfinished
        now began in it.
        """
        held = self._frames.held_bytes + len(self._unparsed)
        if completed or not held or not self.partial_since_s:
            self.partial_since_s = self.heard_s if held else 0.0
        if held > FREE_PARTIAL_BYTES or self.partial_bytes:
            self.service.limits.partial(self, held)

    @property
    def paused(self) -> bool:
        return bool(self._paused_for)

    @property
    def excused(self) -> bool:
        return not self._paused_for <= OWN_REASONS

    @property
    def busy(self) -> bool:
        return self._securing is not None or bool(self.polls) or self.account.busy

    @property
    def unsent_size(self) -> int:
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return size + sum(map(len, self.out)) if self.out else size

    def progress(self) -> tuple[int, int]:
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._sent_bytes, self._sent_bytes - size

    def cut_off(self, event: str = "", why: str = "") -> None:
        if event and not self._closing:
            self.service.log(event, peer=self.peer, reason=why)
        self._closing = True
        self.abort()

    def _turn_away(self, transport: asyncio.Transport) -> None:
        """Refuse this connection because the limits of connections do not admit it.

        The frame tells a client of Quire why. Apache's client ignores the frame and finds the
        connection closed.
        """
        self._closing = True
        transport.write(CONNECTION_REFUSED)
        transport.close()

    def close(self) -> None:
        self._send_out()
        # Closing a secured transport twice would discard what `abort` needs (asyncio before
        # 3.11.4).
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- frames -------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether the received bytes after the current request must not be parsed now."""
        return self.account.full or self._closing or self._securing is not None

    def _parse(self, buffer: Buffer) -> int:
        """Handle the whole frames of `buffer`, and return the offset of the first unfinished one.

        The last adds are taken, but not yet submitted.
        """
        view = memoryview(buffer)
        v2 = self._v2
        v2.begin(view)
        at, end = 0, len(view)
        account = self.account
        while at + 8 <= end and not (account.full or self._closing or self._securing is not None):
            size = frame_size(view, at, self._max_frame_bytes)
            if at + size > end:
                break
            word = int.from_bytes(view[at + 4 : at + 8], "big")
            if not self._served:
                self._refuse(word, at, size)
                at += size
            elif word >> 16 == ADD_KIND and size >= MIN_ADD_BYTES:
                self._only_v2 = True
                at = v2.adds(at, end, size)
            elif word >> 24 == FIRST_BYTE and not self._only_v2:
                v2.submit()
                at = self._requests_v3().take(view, at, end, size)
            else:
                self._only_v2 = True
                self._submit()  # a read after an add of the same chunk sees that add
                v2.other(word, at, size)
                at += size
        if self._v3 is not None:
            self._v3.submit()
        return at

    def _refuse(self, word: int, at: int, size: int) -> None:
        """Refuse one request of a peer that is not served.

        The request came in clear text, or the peer has no authorised role.
        """
        if word >> 24 == FIRST_BYTE and not self._only_v2:
            self._requests_v3().refuse(self._v2.view[at + 4 : at + size])
        else:
            self._only_v2 = True
            self._v2.refuse(word, at, size)

    def refused(self) -> None:
        """Count a request that was refused because of missing TLS or a missing role.

        The first one without TLS is logged.
        """
        self.service.counters.requests_refused += 1
        if not self.secured and not self._told_refusal:
            self._told_refusal = True
            self.service.log("clear_text_refused", peer=self.peer)

    def _requests_v3(self) -> RequestsV3:
        if self._v3 is None:
            self._v3 = RequestsV3(self)
        return self._v3

    def _submit(self) -> None:
        if self._v3 is not None:
            self._v3.submit()
        self._v2.submit()
        self.service.long_polls.tell()

    # -- TLS ----------------------------------------------------------------------------------

    def may_secure(self) -> bool:
        """Whether the client may begin TLS now."""
        return self.service.security.offers_tls and not self.secured

    def start_tls(self, answer: bytes) -> None:
        """Begin the handshake that the client asked for with START_TLS.

        START_TLS is the last request in clear text, and `answer` is the last answer in clear text.
        Earlier requests are answered before it, or over TLS.
        """
        self._securing = answer

    def _secure(self) -> None:
        transport = self._transport
        assert self._securing is not None
        if transport is None or self._closing:
            return
        if transport.get_write_buffer_size() > MAX_UNSENT_BEFORE_TLS_BYTES:
            self._close("the client sent START_TLS, but does not receive earlier answers")
            return
        self.pause("tls")
        transport.write(self._securing)
        self.service.security.secure(self.peer, transport)

    def _go_on_secured(self, transport: asyncio.Transport) -> None:
        self._securing = None
        self.secured = True
        self._served = self.service.security.accepts(
            self.peer, transport.get_extra_info("peercert")
        )
        self._paused_for.discard("tls")
        if self._paused_for:
            transport.pause_reading()
        self._send_out()

    # -- waiting requests ---------------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        """Whether one more request of this connection may wait for a new LAC."""
        return not self.service.long_polls.full and len(self.polls) < MAX_POLLS

    def wait(self, request: PendingRead, previous_lac: int, timeout_s: float) -> None:
        """Call `request.ready` once the LAC of its ledger is greater than `previous_lac`.

        It is also called after `timeout_s`, when the ledger is fenced or dropped, and when the
        bookie stops. It is not called if the client disconnects.
        """
        self._prove()  # A waiting client knows a ledger, which proves as much as an answer.
        polls = self.service.long_polls
        self.polls[request] = polls.wait(request.ledger_id, previous_lac, timeout_s, request)
        self.service.answers.one_waits(self.account)

    def answer(self, request: PendingRead) -> None:
        """Answer a request that had to wait, at once or when the disk has delivered its entries."""
        self.polls.pop(request, None)
        answer = self.service.answer(request)
        if answer is not None:
            self.write(answer)

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Queue an answer that is ready.

        All answers of this event-loop iteration leave together after it. If the client has
        disconnected, the answer is dropped.
        """
        if self._transport is None:
            return
        if not self.out:
            asyncio.get_running_loop().call_soon(self._send_out)
        self.out.append(data)

    def _send_out(self) -> None:
        out = self.out
        if out and self._transport is not None and "tls" not in self._paused_for:
            self.out = []
            transport = self._transport
            for data in _joined(out):
                self._sent_bytes += len(data)
                transport.write(data)
            unsent = transport.get_write_buffer_size()
            if unsent > SMALL_UNSENT_BYTES or self.account.unsent_bytes:
                self.service.answers.sent(self.account, unsent)
            if not self._proven and self._served:
                self._prove()

    def _prove(self) -> None:
        if not self._proven:
            self._proven = True
            self.service.limits.proven(self)

    def _close(self, why: str) -> None:
        """Disconnect a client that violates the protocol, after sending the answers that are ready.

        `why` says what the client did. The log has at most one such event a second.
        """
        # Throttled: anybody who can connect can send nonsense, and must not fill the disk.
        self.service.limits.tell("connection_refused", peer=self.peer, reason=why)
        self._send_out()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
            # The client must not keep the connection open by not receiving its last answers.
            self.service.answers.sent(self.account, self.unsent_size)


def _joined(answers: list[Buffer]) -> Iterator[Buffer]:
    """Yield the answers joined into few buffers of at most `JOINED_MAX_BYTES` each."""
    start = size = 0
    for at, data in enumerate(answers):
        if size + len(data) > JOINED_MAX_BYTES and at > start:
            yield answers[start] if at == start + 1 else b"".join(answers[start:at])
            start, size = at, 0
        size += len(data)
    yield answers[start] if start + 1 == len(answers) else b"".join(answers[start:])
