"""The base class of a client's connections to a bookie, for both protocols.

A link receives chunks, sends adds in one write for each event-loop iteration, passes the answers to
adds on to their receivers, and ends the connection.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Protocol, cast

from quire.codec.wire.v2 import CONNECTION_REFUSED, MAX_FRAME_BYTES, Buffer
from quire.errors import (
    BookieUnavailableError,
    ProtocolError,
    QuireError,
    SilentConnectionError,
)
from quire.net.answer_codes import error_of
from quire.net.certificates import peer_expires_ms
from quire.net.frame_buffer import FrameBuffer
from quire.net.network import close_client_side, has_unacknowledged

WRITE_BUFFER_HIGH_BYTES = 8 * 1024 * 1024
"""The number of unsent bytes on one connection above which reads and other calls wait. Adds have a
limit of their own (`max_unacked_bytes`)."""

CLOSE_DRAIN_S = 2.0
"""The longest time, in seconds, that closing a client waits until its bookies have read what it has
sent. An acknowledged entry may still be on the way to a bookie that was not needed for its ack
quorum."""

DIED_SILENTLY = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))
"""The `errno` values with which the system reports that the other side of a connection stopped
acknowledging."""

SPENT_KEPT_S = 3_600.0
"""The seconds for which a connection remembers a ledger whose adds were not all answered when its
handle left. A bookie that does not answer for so long has lost the connection. A client of a month
creates very many ledgers, and every third is left while one of its bookies has yet to answer."""

PROBE_LEDGER = 2**63 - 1
"""The ledger that a probe asks for: the largest id, which no ledger gets."""
_CHECK_ADDRESS = "Check that the address and the port are those of a bookie"


def refusal(who: str) -> BookieUnavailableError:
    """Return the error for a bookie that refuses a connection because it has too many.

    `who` names the bookie in the message.
    """
    return BookieUnavailableError(
        f"{who} refuses the connection: it is at its limit of connections",
        remedy="Try again later, close unused clients, or raise bookie.max_connections there",
    )


class ExpectedAnswers(Protocol):
    """The answers that a bookie sends if it stores all adds of a batch, one add for each ledger.

    `CoalescedAdds` implements it. A *row* is one add of the batch.
    """

    @property
    def answers(self) -> bytes: ...

    @property
    def over(self) -> bool:
        """Whether the batch no longer handles its answers.

        Answers that still arrive go to the sinks of their ledgers.
        """
        ...

    @property
    def detached_rows(self) -> Collection[int]:
        """The numbers of the rows whose answers also go to the sinks of their ledgers."""
        ...

    @property
    def ledger_ids(self) -> Sequence[int]: ...

    @property
    def entry_ids(self) -> Sequence[int]: ...

    def acked(self, place: int, count: int) -> None: ...

    def end_in_disorder(self) -> None: ...


class AddSink(Protocol):
    """The receiver of the answers to the adds of one ledger on one connection."""

    def on_acked_run(self, first: int, last: int) -> None:
        """Handle OK answers to the adds of all entries first..last."""
        ...

    def on_acked(self, entries: Sequence[int]) -> None:
        """Handle OK answers to the adds of these entries, in any order."""
        ...

    def on_add_error(self, entry_id: int, error: QuireError) -> None:
        """Handle an answer that refuses the add of an entry, with the error it stands for."""
        ...

    def on_lost(self, error: BookieUnavailableError) -> None:
        """Handle the end of the connection. No other call follows."""
        ...


class Link(asyncio.Protocol):
    """One connection to one bookie.

    Subclasses implement how a buffer of frames is parsed (`_parse`) and which calls are outstanding
    (`_take_outstanding`).
    """

    def __init__(self, bookie_id: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.bookie_id = bookie_id
        self.lost: BookieUnavailableError | None = None
        """The error with which the connection ended, or None while it has not ended."""
        self.received_bytes = 0
        self.writes = 0
        """The number of writes so far. A change shows that something was sent."""
        self.trusted = True
        """Whether new requests may use this connection. `quire.client.cluster.link_watch` clears it
        while it is unknown whether data still arrives."""
        self.address: tuple[str, int] | None = None
        """The host and the port of the bookie, or None before the pool has connected the link."""
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer(max_frame_bytes)
        self._sinks: dict[int, AddSink] = {}
        self._expected: deque[tuple[ExpectedAnswers, int]] = deque()
        """The expected answers, in the order in which the adds were sent, each with the place of
        this connection in its group. The senders limit their number: adds that wait too long for an
        answer are taken back."""
        self._spent: dict[int, float] = {}
        """The loop time at which the sink of a ledger was detached while answers to its adds were
        outstanding, by ledger id, the longest ago first."""
        self._ended = asyncio.Event()
        self._ending = False
        """Whether `end` was called, after which nothing can be sent."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._outgoing: list[Buffer] = []
        """The buffers that will be sent after this event-loop iteration, as one write."""

    # -- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else ""
        silent = isinstance(exc, OSError) and exc.errno in DIED_SILENTLY
        kind = SilentConnectionError if silent else BookieUnavailableError
        self._ended.set()
        self._fail(kind(f"connection to bookie {self.bookie_id} lost{why}"))

    def data_received(self, data: bytes) -> None:
        if not self.received_bytes and data.startswith(CONNECTION_REFUSED):
            self._refused()
            return
        self.received_bytes += len(data)
        try:
            for buffer in self._frames.feed(data):
                end = self._parse(buffer)
                self._frames.keep(buffer, end)
        except ProtocolError as error:
            self.abort(f"protocol error: {error.args[0]}", remedy=error.remedy or _CHECK_ADDRESS)

    def _refused(self) -> None:
        """Fail the connection because the bookie has sent the message that it refuses it."""
        self._fail(refusal(f"bookie {self.bookie_id}"))
        if self._transport is not None:
            self._transport.abort()

    # -- adds ---------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return self.lost is None and self._transport is not None and not self._ending

    def takes_adds_of(self, ledger_id: int) -> bool:
        """Return whether a new handle may add to this ledger over this connection.

        Answers contain only the ledger and the entry. They could not be told apart if another
        handle adds to the ledger here, or did so and left before all of its answers had arrived.
        """
        return ledger_id not in self._sinks and ledger_id not in self._spent

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        """Register `sink` as the receiver of the answers to the adds of a ledger."""
        assert ledger_id not in self._sinks
        self._sinks[ledger_id] = sink

    def detach(self, ledger_id: int, sink: AddSink, *, unanswered: bool) -> None:
        """Remove `sink` as the receiver of the answers to the adds of a ledger.

        `unanswered` says that answers to its adds may still arrive. No other handle can then add to
        the ledger over this connection.
        """
        if self._sinks.get(ledger_id) is sink:
            del self._sinks[ledger_id]
            if unanswered:
                now_s = asyncio.get_running_loop().time()
                while self._spent and next(iter(self._spent.values())) <= now_s - SPENT_KEPT_S:
                    del self._spent[next(iter(self._spent))]
                self._spent.pop(ledger_id, None)
                self._spent[ledger_id] = now_s

    def expect(self, expected: ExpectedAnswers, place: int) -> None:
        """Expect the answers to the frames that were just passed to `send`.

        `place` is the place of this connection in its connection group.
        """
        if self.lost is None:
            self._expected.append((expected, place))

    def send(self, frames: Buffer) -> None:
        """Send ADD frames after this event-loop iteration, in one write with all others of it.

        With thousands of ledgers, one write for each would cost more than everything else. The
        caller's limit on unacknowledged bytes also limits the frames that wait here.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write_outgoing)
        self._outgoing.append(frames)

    def _write_outgoing(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if not outgoing or self._ending:
            return
        self.writes += 1
        if self._transport is not None and self.lost is None:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection at once.

        The bookie may never read data that was sent shortly before. Use `end` for a connection
        whose adds may be unanswered.
        """
        self._write_outgoing()
        if self._transport is not None:
            close_client_side(self._transport)

    def end(self) -> None:
        """Send nothing more, and close the connection when the bookie has read everything.

        `drained` waits for that. If no add is unanswered, the connection is closed at once.
        """
        self._write_outgoing()
        self._ending = True
        if self._transport is None or self.lost is not None or self._ended.is_set():
            return
        if not self._unanswered:
            close_client_side(self._transport)
        elif self._transport.can_write_eof():
            # A closed socket answers the next packet with a reset, and drops what the bookie's
            # kernel has not taken yet. So the bookie closes first, when it has read the end of the
            # data.
            try:
                self._transport.write_eof()
            except (OSError, RuntimeError):
                # The connection has ended, and the event loop has not said so yet.
                self._transport.abort()
        else:
            self._transport.close()  # With TLS, it waits until the bookie ends TLS as well.

    @property
    def _unanswered(self) -> bool:
        """Whether adds that were sent may have no answer yet."""
        return bool(self._expected or self._spent)

    async def drained(self, deadline: float) -> None:
        """Wait after `end` until the connection is closed, and abort it at loop time `deadline`.

        Without a deadline, a bookie that cannot be reached would hold the connection for as long as
        TCP tries. Returns at once if no add was unanswered and all data has left.
        """
        if self._transport is None or not (
            self._unanswered or self._transport.get_write_buffer_size()
        ):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._ended.wait()
        except TimeoutError:
            self._transport.abort()
            await self._ended.wait()

    def abort(self, why: str, *, remedy: str | None = None) -> None:
        """End the connection at once. All outstanding requests fail with BookieUnavailableError.

        `why` is the reason that the error message gives, and `remedy` its advice.
        """
        what = f"the connection to bookie {self.bookie_id} ended: {why}"
        self._fail(BookieUnavailableError(what, remedy=remedy))
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, why: str) -> None:
        """Abort a connection over which no data arrives any more.

        All outstanding requests fail with SilentConnectionError: their outcome is unknown, and they
        may be repeated.
        """
        self._fail(SilentConnectionError(f"the connection to bookie {self.bookie_id} ended: {why}"))
        if self._transport is not None:
            self._transport.abort()

    @property
    def flows(self) -> bool:
        """Whether the bookie's TCP stack has certainly acknowledged everything that was sent.

        If it has and no answer arrives, the bookie itself, or a proxy in front of it, hangs.
        """
        return self._transport is not None and not has_unacknowledged(self._transport)

    @property
    def certificate_expires_ms(self) -> int | None:
        """The Unix time in milliseconds at which the bookie's certificate expires.

        None without TLS.
        """
        return None if self._transport is None else peer_expires_ms(self._transport)

    async def probe(self) -> None:
        """Send a harmless request that a bookie answers at once, and wait for any answer.

        Raises BookieError if no answer can arrive. Cancel-safe.
        """
        raise NotImplementedError

    # -- inside -------------------------------------------------------------------------------

    def _parse(self, buffer: Buffer) -> int:
        """Handle the whole frames of `buffer`, and return the offset of the first unfinished
        one."""
        raise NotImplementedError

    def _take_outstanding(self) -> Sequence[asyncio.Future[Any]]:
        """Return the futures of all outstanding calls, and forget them.

        They fail because the connection is lost.
        """
        raise NotImplementedError

    def _tell_sinks(self, acked: dict[int, list[int]], failed: list[tuple[int, int, int]]) -> None:
        """Pass answers to adds on to the sinks of their ledgers.

        `acked` has the ids of the stored entries by ledger id. `failed` has the (ledger id, entry
        id, answer code) of each add that was refused.
        """
        for ledger, entries in acked.items():
            sink = self._sinks.get(ledger)
            if sink is not None:
                sink.on_acked(entries)
        for ledger, entry, code in failed:
            sink = self._sinks.get(ledger)
            if sink is not None:
                sink.on_add_error(entry, error_of(code, ledger, entry, self.bookie_id))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if self._ending:
            raise BookieUnavailableError(
                f"the connection to bookie {self.bookie_id} ended: the client was closed"
            )
        self.writes += 1
        if self._outgoing:
            self._outgoing.append(data)  # after the adds that were sent before
        else:
            self._transport.write(data)

    def _fail(self, error: BookieUnavailableError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._writable.set()
        for future in self._take_outstanding():
            if not future.done():
                future.set_exception(error)
                future.exception()  # a cancelled caller never retrieves it, so avoid a warning
        self._expected.clear()  # the sinks are told below
        for sink in list(self._sinks.values()):
            try:
                sink.on_lost(error)
            except Exception as raised:  # noqa: BLE001 - one ledger must not keep the others
                message = f"handling the end of the connection to bookie {self.bookie_id} failed"
                asyncio.get_running_loop().call_exception_handler(
                    {"message": message, "exception": raised}
                )
        self._sinks.clear()
