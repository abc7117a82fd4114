"""One client's connection to a bookie: received chunks in, one answer a chunk out.

    chunk -> whole frames -> protocol_v2 or protocol_v3 -> intake -> LedgerStore.append
    synced -> the answers of the batch as one bytes object -> one write

A chunk may hold anything: adds of many ledgers, reads between them, refused adds, half a frame.
Which protocol a client speaks shows its first frame; v2 may follow v3 on one connection, not the
other way round (wire-protocol spec, 1.3).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from quire.bookie.intake import MIN_ENTRY_BYTES
from quire.bookie.protocol_v2 import ADD_KIND, RequestsV2
from quire.bookie.protocol_v3 import RequestsV3
from quire.codec.frames import FRAME_HEADER_BYTES, Buffer
from quire.codec.v3 import FIRST_BYTE
from quire.errors import ProtocolError
from quire.net.frame_buffer import FrameBuffer, frame_size

if TYPE_CHECKING:
    from quire.bookie.long_polls import LongPoll
    from quire.bookie.service import BookieService

MIN_ADD_BYTES = FRAME_HEADER_BYTES + MIN_ENTRY_BYTES


class Connection(asyncio.Protocol):
    def __init__(self, service: BookieService) -> None:
        self.service = service
        self.peer = "?"
        self.out: list[Buffer] = []
        """Answers that leave at the end of this turn of the loop."""
        self.polls: dict[LongPoll, None] = {}
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._v2 = RequestsV2(self)
        self._v3: RequestsV3 | None = None
        self._only_v2 = False
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
        view = memoryview(buffer)
        v2 = self._v2
        v2.begin(view)
        at, end = 0, len(view)
        while at + 8 <= end and not self._closing:
            size = frame_size(view, at)
            if at + size > end:
                break
            word = int.from_bytes(view[at + 4 : at + 8], "big")
            if word >> 16 == ADD_KIND and size >= MIN_ADD_BYTES:
                self._only_v2 = True
                at = v2.adds(at, end, size)
            elif word >> 24 == FIRST_BYTE and not self._only_v2:
                if self._v3 is None:
                    self._v3 = RequestsV3(self)
                v2.submit()
                self._v3.handle(view[at + 4 : at + size])
                at += size
            else:
                self._only_v2 = True
                self._submit()  # a read behind an add of one chunk sees it
                v2.other(word, at, size)
                at += size
        self._submit()
        return at

    def _submit(self) -> None:
        if self._v3 is not None:
            self._v3.submit()
        self._v2.submit()

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Answers that are ready now; they leave together at the end of this turn of the loop."""
        if self._transport is None:
            return
        if not self.out:
            asyncio.get_running_loop().call_soon(self._send_out)
        self.out.append(data)

    def _send_out(self) -> None:
        out = self.out
        if out and self._transport is not None:
            self.out = []
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _close(self, why: str) -> None:
        """Give up on a peer that does not keep to the protocol."""
        self.service.log("connection_refused", peer=self.peer, reason=why)
        self._send_out()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
