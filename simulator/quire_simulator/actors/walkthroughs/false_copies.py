"""Copies of entries about which a bookie says something else than what it has.

A script chooses them, so it knows which copies reports must call bad. They are false only in the
answers of the bookies, and only until `release`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence

from quire.bookie.server import Bookie
from quire.codec.entry.entry import META, EntryCodec
from quire.codec.wire.v2 import Buffer
from quire.errors import DamagedError
from quire.storage.read.read_exceptions import NoEntry
from quire_simulator.faults.byzantine import garbled
from quire_simulator.invariants.checker import EXAMINING
from quire_simulator.world.world import World, bookie_id


class Lie(enum.StrEnum):
    """What a bookie says of an entry that it has."""

    MISSING = "missing"
    """It denies the entry."""
    DAMAGED = "damaged"
    """It says that it cannot read the entry."""
    GARBLED = "garbled"
    """It gives bytes that the digest does not match."""
    OTHER = "other"
    """It gives another payload of the same size, with a valid digest."""


class FalseCopies:
    """The false copies of one ledger, by bookie id and entry id."""

    def __init__(self, world: World, ledger_id: int, codec: EntryCodec) -> None:
        self.copies: dict[tuple[str, int], Lie] = {}
        self.told: Counter[tuple[str, Lie]] = Counter()
        """How often each bookie was asked for a bad copy, as the first entry of a request.

        A request may count twice, because a bookie that finds nothing in memory asks its disk.
        """
        self.ledger_id = ledger_id
        self._codec = codec
        self._undo: list[Callable[[], None]] = []
        for name, bookie in world.bookies.items():
            world.pretending.add(name)
            self._hold(bookie_id(name), bookie)

    def release(self) -> None:
        """Let all bookies tell the truth again."""
        for undo in self._undo:
            undo()

    def lies(self, bookie: str) -> dict[int, Lie]:
        """Return the false copies on a bookie, by entry id."""
        return {entry: lie for (name, entry), lie in self.copies.items() if name == bookie}

    def _hold(self, me: str, bookie: Bookie) -> None:
        store = bookie.store
        service = bookie.service
        usual = store.read, store.read_blocking
        read, read_blocking, entry_ranges = *usual, service.entry_ranges

        def false_read(ledger_id: int, first: int, *how: int) -> Sequence[Buffer]:
            self._asked(me, ledger_id, first)
            return self._told(me, ledger_id, first, read(ledger_id, first, *how))

        async def false_read_blocking(ledger_id: int, first: int, *how: int) -> Sequence[Buffer]:
            self._asked(me, ledger_id, first)
            return self._told(me, ledger_id, first, await read_blocking(ledger_id, first, *how))

        async def false_ranges(ledger_id: int) -> tuple[int, list[tuple[int, int]]]:
            code, ranges = await entry_ranges(ledger_id)
            denied = sorted(n for n, lie in self.lies(me).items() if lie is Lie.MISSING)
            for entry in denied if ledger_id == self.ledger_id else ():
                ranges = [
                    part
                    for first, last in ranges
                    for part in ((first, min(last, entry - 1)), (max(first, entry + 1), last))
                    if part[0] <= part[1]
                ]
            return code, ranges

        def undo() -> None:
            store.read, store.read_blocking = usual  # type: ignore[method-assign]
            service.entry_ranges = entry_ranges  # type: ignore[method-assign]

        store.read = false_read  # type: ignore[method-assign, assignment]
        store.read_blocking = false_read_blocking  # type: ignore[method-assign, assignment]
        service.entry_ranges = false_ranges  # type: ignore[method-assign]
        self._undo.append(undo)

    def _asked(self, me: str, ledger_id: int, first: int) -> None:
        lie = self.copies.get((me, first))
        if lie is not None and ledger_id == self.ledger_id and not EXAMINING.get():
            self.told[me, lie] += 1

    def _told(
        self, me: str, ledger_id: int, first: int, entries: Sequence[Buffer]
    ) -> Sequence[Buffer]:
        if ledger_id != self.ledger_id or EXAMINING.get():
            return entries
        found: list[Buffer] = []
        for entry_id, entry in enumerate(map(bytes, entries), first):
            lie = self.copies.get((me, entry_id))
            if lie is Lie.MISSING:
                if not found:
                    raise NoEntry
                break
            if lie is Lie.DAMAGED:
                if not found:
                    raise DamagedError(f"entry {entry_id} of ledger {ledger_id} is damaged")
                break
            if lie is Lie.GARBLED:
                entry = garbled(entry)
            elif lie is Lie.OTHER:
                _, _, lac, length = META.unpack_from(entry)
                size = len(entry) - self._codec.head_bytes
                payload = bytes(byte ^ 1 for byte in entry[len(entry) - size :])
                entry = self._codec.pack(entry_id, lac, length, payload)
            found.append(entry)
        return found
