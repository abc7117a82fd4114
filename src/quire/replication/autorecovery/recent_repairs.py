"""What a worker has repaired lately, as it writes it into the metadata store for people."""

from __future__ import annotations

from collections.abc import Iterable

from quire._runtime.clock import Clock
from quire.metadata.interface import MetadataStore
from quire.replication.marks.notes import RepairedLedgers, forget_repaired, note_repaired
from quire.replication.repair.bookie_removal import LedgerResult

NOTE_INTERVAL_MS = 10_000
"""Milliseconds between two notes of a worker that repairs one ledger after the other."""
PAUSE_MS = 600_000
"""The time without a repair, in milliseconds, after which a worker begins to count anew."""
NAMED_MAX = 5
"""The largest number of ledgers, and of bookies, that a note names."""


class RecentRepairs:
    """The repairs of one worker since it was last idle for `PAUSE_MS`."""

    def __init__(self, store: MetadataStore, owner: str, clock: Clock) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock
        self._found: RepairedLedgers | None = None
        self._noted: RepairedLedgers | None = None
        """The repairs that the last note tells."""
        self._began = False
        """Whether this worker has removed the old notes of others."""

    def add(self, done: LedgerResult, replicas: Iterable[str]) -> None:
        """Count a repaired ledger. `replicas` has the bookies that its mark named."""
        now_ms, before = self._clock.now_ms(), self._found
        if before is None or now_ms - before.at_ms > PAUSE_MS:
            before = RepairedLedgers(self._owner, now_ms, now_ms, 0, 0, 0, (), ())
        self._found = RepairedLedgers(
            self._owner,
            before.since_ms,
            now_ms,
            before.ledgers + 1,
            before.entries + done.entries,
            before.bytes + done.size_bytes,
            (*before.last, done.ledger)[-NAMED_MAX:],
            tuple(dict.fromkeys((*before.replicas, *replicas)))[:NAMED_MAX],
        )

    async def note(self, *, idle: bool) -> None:
        """Write the note if it is due: at once when the worker is `idle`.

        Raises MetadataError. Then the next call tries again.
        """
        found, noted = self._found, self._noted
        if found is None or found is noted:
            return
        if not idle and noted is not None and found.at_ms - noted.at_ms < NOTE_INTERVAL_MS:
            return
        self._noted = found  # the other tasks of the worker do not write it as well
        try:
            if not self._began:
                await forget_repaired(self._store, self._clock.now_ms())
                self._began = True
            await note_repaired(self._store, found)
        except BaseException:
            self._noted = noted
            raise
