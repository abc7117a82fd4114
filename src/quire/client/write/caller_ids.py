"""The handle of a writer that chooses its entry ids, like Apache's WriteAdvHandle.

An entry after a missing id cannot be acknowledged until that id has been appended, no matter where
the entry is stored. Therefore the client holds such entries, up to a limit, and passes entries to
the ordinary pipeline in the order of their ids. Recovery and readers see a ledger like any other.
Apache's client sends such entries at once and delays their callbacks; entries that bookies store
after a gap never become part of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from quire._runtime.units import are, counted
from quire.client.write.writer import HowToWrite, WriteHandle, payload_bytes
from quire.codec.entry.entry import MAX_ENTRY_ID
from quire.codec.wire.v2 import Buffer
from quire.errors import EntryExistsError, LedgerClosedError, QuireError, UsageError, whole_number

HELD_ENTRY_BYTES = 200
"""The bytes by which a held entry counts towards `max_held_bytes` in addition to its payload."""


class CallerIdWriter(WriteHandle):
    """A handle that appends entries under ids that the caller chooses.

    `Client.create_ledger(caller_ids=True)` returns it. Ids begin at 0, and each is used once. They
    may be appended in any order. An entry after a missing id is *held* in memory until that id is
    appended. Entries that are still held when the handle is closed are not part of the ledger.

    Entries are acknowledged strictly in the order of their ids: `append_at` of a held entry returns
    once the missing id has been appended too. Durability, errors and deferred sync are as for
    `LedgerWriter`.
    """

    def __init__(self, **how: Unpack[HowToWrite]) -> None:
        super().__init__(**how)
        self._held: dict[int, Buffer] = {}
        self._held_bytes = 0
        self._max_held_bytes = how["config"].max_held_bytes

    async def append_at(self, entry_id: int, payload: Buffer) -> int:
        """Append one entry under an id, and wait until it is acknowledged.

        On return the entry and all entries before it are durable on an ack quorum, unless the
        ledger has deferred sync. The call first waits as `room` does. Cancelling the call after
        that does not take the entry back: it may still become part of the ledger, and its id is
        used.

        Args:
            entry_id: The id of the entry, which no other entry of the ledger may have.
            payload: The bytes of the entry. A mutable buffer may be reused when the call returns.

        Returns:
            The id of the entry.

        Raises:
            EntryExistsError: The id is used already. Nothing was sent.
            UsageError: The id or the payload is not valid, or too many bytes wait for a missing id
                (`ClientConfig.max_held_bytes`). Nothing was sent, and the id stays free.
            EntryTooLargeError: The payload does not fit into one frame. Nothing was sent, and the
                id stays free.
            QuireError: The writer has failed. See `LedgerWriter.append`.
        """
        session = self._session
        if session.full:
            await session.room()
        self.submit_at(entry_id, payload)
        return await session.wait_for(entry_id)

    def submit_at(self, entry_id: int, payload: Buffer) -> None:
        """Hand over one entry under an id, without waiting until it is acknowledged.

        Nothing is durable on return: `wait` reports when it is. This call does not limit the
        unacknowledged bytes. Await `room()` from time to time to do so.

        Args:
            entry_id: The id of the entry, which no other entry of the ledger may have.
            payload: The bytes of the entry. A mutable buffer may be reused when the call returns.

        Raises:
            UsageError: As for `append_at`, EntryExistsError included. Nothing was sent.
            EntryTooLargeError: The payload does not fit into one frame. Nothing was sent.
            QuireError: The writer has failed or is closed. Nothing was sent.
        """
        self._check_open()
        session = self._session
        if type(entry_id) is not int:
            entry_id = whole_number("an entry id", entry_id)
        payload = payload_bytes(payload)
        session.check_payload(payload)
        upcoming = self.last_add_pushed + 1
        self._check_id(entry_id, upcoming)
        if entry_id > upcoming:
            self._hold(entry_id, payload, upcoming)
            return
        self._feed(payload)
        held = self._held
        while (upcoming := upcoming + 1) in held:
            payload = held.pop(upcoming)
            self._held_bytes -= len(payload) + HELD_ENTRY_BYTES
            self._feed(payload)

    @property
    def held_entry_ids(self) -> Sequence[int]:
        """The ids of the entries that are held until a smaller id is appended, ascending."""
        return sorted(self._held)

    def _check_id(self, entry_id: int, upcoming: int) -> None:
        problem, kind = "", UsageError
        if entry_id < 0:
            problem = "ids begin at 0"
        elif entry_id > MAX_ENTRY_ID:
            problem = f"ids end at {MAX_ENTRY_ID}"
        elif entry_id < upcoming or entry_id in self._held:
            problem, kind = "this id was appended already", EntryExistsError
        if problem:
            raise kind(f"entry {entry_id} of ledger {self.ledger_id}: {problem}. Nothing was sent")

    def _hold(self, entry_id: int, payload: Buffer, missing: int) -> None:
        size = len(payload) + HELD_ENTRY_BYTES
        if self._held_bytes + size > self._max_held_bytes:
            raise UsageError(
                f"entry {entry_id} of ledger {self.ledger_id} is too far ahead: the client "
                f"already holds {counted(len(self._held), 'entry')} "
                f"({counted(self._held_bytes, 'byte')}) until entry {missing} is appended. "
                "Nothing was sent",
                remedy=f"Append entry {missing} first, or raise max_held_bytes",
            )
        self._held[entry_id] = payload
        self._held_bytes += size

    def _feed(self, payload: Buffer) -> None:
        """Add the payload of the next id to the batch, as `LedgerWriter.submit` does."""
        batch = self._batch
        if not batch:
            self._begin_batch()
        batch.append(payload)
        self._batch_bytes += len(payload)
        if self._batch_bytes >= self._max_batch_bytes:
            self._send_batch()

    def _handed_over(self, entry_id: int) -> bool:
        return super()._handed_over(entry_id) or entry_id in self._held

    def _stop(self, error: QuireError | None = None) -> None:
        """Stop the writer. Entries after a missing id do not become part of the ledger."""
        if self._held and error is None:
            missing = self.last_add_pushed + 1
            error = LedgerClosedError(
                f"the writer of ledger {self.ledger_id} ended while entry {missing} was missing, "
                f"so the {counted(len(self._held), 'entry')} appended after that entry "
                f"{are(len(self._held))} not part of the ledger",
                ledger_id=self.ledger_id,
                remedy="Append them to another ledger",
            )
            error.outcome_known = True
        self._held.clear()
        self._held_bytes = 0
        super()._stop(error)
