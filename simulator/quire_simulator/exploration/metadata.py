"""The values of the ledger's metadata, each with a number, and the real compare-and-swap loop.

The metadata store is a few lines: a write succeeds if it names the version that is stored, as every
driver in `quire.metadata` does. `update_ledger` runs to its end at once: it is atomic, because it
decides again after a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.errors import VersionConflictError
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.update import update_ledger
from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.values import Table

LEDGER = 0
Change = Callable[[LedgerMetadata], LedgerMetadata | None]


class Metadata:
    """The metadata of one ledger, and all values that it can have."""

    def __init__(self, bounds: Bounds) -> None:
        self._compares = bounds.rules.compares_versions
        self._keys: Table[tuple[object, ...]] = Table()
        self._values: list[Versioned[LedgerMetadata]] = []
        ensemble = bounds.names[: bounds.ensemble]
        self._first = LedgerMetadata(
            bounds.ensemble, bounds.write_quorum, bounds.ack_quorum, (Segment(0, ensemble),)
        )

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, number: int) -> LedgerMetadata:
        return self._values[number].value

    def first(self) -> int:
        """Return the metadata of a new ledger."""
        return self.number(Versioned(self._first, 0))

    def number(self, stored: Versioned[LedgerMetadata]) -> int:
        """Return the number of a value and its version."""
        value = stored.value
        segments = tuple((one.first_entry_id, one.ensemble) for one in value.segments)
        key = (stored.version, value.state, value.last_entry_id, value.length, segments)
        number = self._keys.number(key)
        if number == len(self._values):
            self._values.append(stored)
        return number

    def renamed(self, number: int, names: Mapping[str, str]) -> int:
        """Return the metadata with other names of bookies, and its ensembles sorted."""
        stored = self._values[number]
        segments = tuple(
            Segment(one.first_entry_id, tuple(sorted(names[name] for name in one.ensemble)))
            for one in stored.value.segments
        )
        return self.number(Versioned(replace(stored.value, segments=segments), stored.version))

    def update(self, stored: int, known: int, change: Change) -> tuple[int, int]:
        """Run `update_ledger` of a client that knows `known`.

        Returns what is stored then, and what the client knows.
        """
        store = _Store(self._values[stored], self._compares)
        update = update_ledger(cast(MetadataStore, store), LEDGER, self._values[known], change)
        result = run(update)
        return self.number(store.stored), self.number(result)

    def ensemble_of(self, number: int, entry: int) -> tuple[str, ...]:
        """Return the ensemble that stores an entry."""
        return self[number].segment_of(entry).ensemble

    def state(self, number: int) -> LedgerState:
        """Return the state of the ledger."""
        return self[number].state


class _Store:
    """The part of a metadata store that `update_ledger` uses."""

    def __init__(self, stored: Versioned[LedgerMetadata], compares: bool) -> None:
        self.stored = stored
        self._compares = compares

    async def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        return self.stored

    async def write_ledger(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, known: object
    ) -> Versioned[LedgerMetadata]:
        if self._compares and version != self.stored.version:
            raise VersionConflictError("the version has changed")
        self.stored = Versioned(metadata, self.stored.version + 1)
        return self.stored


def run(coroutine: Any) -> Any:
    """Run a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the coroutine waits")
