"""The handle of a writer that chooses its entry ids: Apache's WriteAdvHandle.

An entry behind a missing id cannot be acknowledged before that id comes, wherever it is stored. So
such entries are held here, within a bound, and the ordinary pipeline is fed in the order of ids:
recovery and readers see a ledger like any other. (Apache's client sends them at once and holds the
callbacks; what the bookies then have behind a gap is never part of the ledger.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from quire._runtime.units import counted
from quire.client.write.writer import HowToWrite, WriteHandle, payload_bytes
from quire.codec.entry.entry import MAX_ENTRY_ID
from quire.codec.wire.v2 import Buffer
from quire.errors import LedgerClosedError, QuireError, UsageError, check_type

HELD_ENTRY_BYTES = 200
"""The bytes that a held entry counts in addition to its payload."""


class CallerIdWriter(WriteHandle):
    """Appends entries under ids that the caller chooses, in any order, each id once, from 0 on and
    without gaps in the end. Made by `Client.create_ledger(caller_ids=True)`.

    Entries are acknowledged strictly in the order of their ids: `append_at` of an entry behind a
    missing id returns once that id was appended too. What "acknowledged" means, the errors and
    deferred sync are as for `LedgerWriter`.
    """

    def __init__(self, **how: Unpack[HowToWrite]) -> None:
        super().__init__(**how)
        self._held: dict[int, Buffer] = {}
        self._held_bytes = 0
        self._max_held_bytes = how["config"].max_held_bytes

    async def append_at(self, entry_id: int, payload: Buffer) -> int:
        """Append one entry under this id and wait until it, and so every one before it, is
        acknowledged; its id.

        If cancelled after it began, the entry may still become part of the ledger, and the id is
        taken. Raises UsageError (negative or taken id; or too much is held behind a missing one)
        and EntryTooLargeError, then nothing was sent and the id is free; else what
        `LedgerWriter.append` raises.
        """
        session = self._session
        if session.full:
            await session.room()
        self.submit_at(entry_id, payload)
        return await session.wait_for(entry_id)

    def submit_at(self, entry_id: int, payload: Buffer) -> None:
        """Hand over one entry without waiting: `wait` tells. Nothing is durable on return. Raises
        what `append_at` raises before it waits."""
        session = self._session
        if session.failure is not None:
            raise session.failure
        if self._closing is not None:
            raise self._closed_error()
        if type(entry_id) is not int:
            check_type("an entry id", entry_id, int)
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
        """The ids that wait for a smaller one, ascending."""
        return sorted(self._held)

    def _check_id(self, entry_id: int, upcoming: int) -> None:
        problem = ""
        if entry_id < 0:
            problem = "ids begin at 0"
        elif entry_id > MAX_ENTRY_ID:
            problem = f"ids end at {MAX_ENTRY_ID}"
        elif entry_id < upcoming or entry_id in self._held:
            problem = "this id was appended already"
        if problem:
            raise UsageError(
                f"entry {entry_id} of ledger {self.ledger_id}: {problem}. Nothing was sent"
            )

    def _hold(self, entry_id: int, payload: Buffer, missing: int) -> None:
        size = len(payload) + HELD_ENTRY_BYTES
        if self._held_bytes + size > self._max_held_bytes:
            raise UsageError(
                f"entry {entry_id} of ledger {self.ledger_id} is too far ahead: entry {missing} is "
                f"waited for by {counted(len(self._held), 'entry')} ({self._held_bytes} bytes) "
                "already. Nothing was sent",
                remedy=f"Append entry {missing} first, or raise max_held_bytes",
            )
        self._held[entry_id] = payload
        self._held_bytes += size

    def _feed(self, payload: Buffer) -> None:
        """The next id in order, as `LedgerWriter.submit` has it."""
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
        """Entries behind a missing id do not become part of the ledger (replication spec, 10.1)."""
        if self._held and error is None:
            missing = self.last_add_pushed + 1
            error = LedgerClosedError(
                f"ledger {self.ledger_id} was closed while entry {missing} was missing: the "
                f"entries behind it ({len(self._held)}) are not part of it",
                ledger_id=self.ledger_id,
            )
            error.outcome_known = True
        self._held.clear()
        self._held_bytes = 0
        super()._stop(error)
