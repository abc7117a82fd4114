"""The handle of the one client that writes a ledger."""

from __future__ import annotations

from collections.abc import Sequence

from quire.client.write.write_handle import WriteHandle, payload_bytes
from quire.codec.wire.v2 import Buffer


class LedgerWriter(WriteHandle):
    """Appends entries to one open ledger. Made by `Client.create_ledger`.

    An entry is *acknowledged* when `append` (or a call that waits for it) returns: it is written
    and fsynced on at least `ack_quorum` bookies, and so are all entries before it. When a call
    raises, the entries it was about may or may not be in the ledger: open it with recovery and
    look. After LedgerFencedError or any other final error the handle is dead.

    With deferred sync (`create_ledger(deferred_sync=True)`) "acknowledged" means less: `ack_quorum`
    bookies have *accepted* the entry, and a crash of those machines loses it. It is durable, part
    of `last_add_confirmed`, and there for readers once `force` or `close` has returned.

    Use as `async with`: leaving the block closes the ledger.
    """

    # -- appending ----------------------------------------------------------------------------

    async def append(self, payload: Buffer) -> int:
        """Append one entry and wait until it is acknowledged; its entry id.

        Calls made in one turn of the event loop travel together: thousands may be outstanding.
        Waits first while `ClientConfig.max_unacked_bytes` are unacknowledged. If cancelled after
        it began, the entry may still become part of the ledger.

        Raises EntryTooLargeError, UsageError (nothing was sent); LedgerFencedError,
        LedgerClosedError, NotEnoughBookiesError, WriteError (outcome unknown).
        """
        session = self._session
        if session.full:
            await session.room()
        entry_id = self.submit(payload)
        return await session.wait_for(entry_id)

    def submit(self, payload: Buffer) -> int:
        """Hand over one entry without waiting; its entry id. Nothing is durable on return: `wait`
        or `flush` tell. The caller minds the bound: `await room()` from time to time."""
        session = self._session
        if session.failure is not None:
            raise session.failure
        if self._closing is not None:
            raise self._closed_error()
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        size = len(payload)
        if size > session.max_payload_bytes:
            session.check_payload(payload)
        turn = self._turn
        if not turn:
            self._begin_turn()
        turn.append(payload)
        entry_id = session.pipeline.last_pushed + len(turn)
        self._turn_bytes += size
        if self._turn_bytes >= self._max_turn_bytes:
            self._send_turn()
        return entry_id

    async def append_many(self, payloads: Sequence[Buffer]) -> int:
        """Append entries with consecutive ids and wait until all are acknowledged; the id of the
        last one (`last_add_pushed` if there are none). Errors and cancellation as for `append`;
        on an error a prefix of them may be in the ledger."""
        session = self._session
        first = self.last_add_pushed
        last = first
        for chunk in self._chunks(payloads):
            if session.full:
                await session.room()
            if self._closing is not None:
                raise self._closed_error()
            self._send_turn()
            last = session.push(chunk)
        if last == first:
            return last
        return await session.wait_for(last)

    def _chunks(self, payloads: Sequence[Buffer]) -> list[Sequence[Buffer]]:
        """Pieces of about `max_turn_bytes`, after checking every payload: all or none is sent."""
        chunks: list[Sequence[Buffer]] = []
        if not {bytes}.issuperset(map(type, payloads)):
            payloads = [payload_bytes(payload) for payload in payloads]
        start = size = 0
        for at, payload in enumerate(payloads):
            size += len(payload)
            if size >= self._max_turn_bytes:
                chunks.append(payloads[start : at + 1])
                start, size = at + 1, 0
        if start < len(payloads):
            chunks.append(payloads[start:])
        if payloads:
            self._session.check_payload(max(payloads, key=len))
        return chunks
