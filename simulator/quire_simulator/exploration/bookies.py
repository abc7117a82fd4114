"""The rules of a bookie for one ledger, in a few lines, and a disk that may be rolled back.

The rules stand for `BookieService.may_add`, `fence` and `code_of_missing` in
`quire.bookie.protocol.service`. Every answer waits until its effect is durable (rule 33), so a
bookie here is its disk.

The start of a bookie whose disk went back is that of `quire.bookie.directories.rollback`: if it is
noticed, the bookie counts as lost. `quire.bookie.background.damage` lets it answer "no such entry"
again when `is_complete` agrees about every ledger. That real function is called here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from quire.bookie.background import complete_ledger
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.append.quorum import in_write_set
from quire.core.ranges import Range
from quire.storage.directories import Store
from quire.storage.log.appender import Done
from quire.storage.read.read_exceptions import NoLedger
from quire_simulator.exploration.bounds import Bounds, Rollback, Rules
from quire_simulator.exploration.metadata import LEDGER
from quire_simulator.exploration.values import NOTHING, Add, Bookie, Copy

FENCED = "fenced"
READ_ONLY = "read-only"


def add(bookie: Bookie, rules: Rules, what: Add) -> tuple[Bookie, str]:
    """Apply the add of a writer. Return the bookie after it, and its refusal or ''."""
    if bookie.lost and rules.lost_takes_no_adds:
        return bookie, READ_ONLY
    if bookie.fenced:
        return bookie, FENCED
    return bookie.with_entry(*what), ""


def recovery_add(bookie: Bookie, what: Add) -> Bookie:
    """Apply the add of a recovery, which ignores fences and is accepted after a loss."""
    return bookie.with_entry(*what)


def fence(bookie: Bookie, rules: Rules) -> Bookie:
    """Apply a request that fences."""
    return bookie._replace(fenced=rules.fences_are_kept)


def last_entry(bookie: Bookie, rules: Rules) -> int | None:
    """Return the LAC in the last entry, -1 if there is no entry, or None if that is unknown."""
    lac = bookie.last_lac
    if lac is not None:
        return lac
    return None if bookie.lost and rules.lost_is_unknown else -1


def has(bookie: Bookie, entry: int, rules: Rules) -> bool | None:
    """Return whether the bookie has an entry, or None if that is unknown."""
    if bookie.has(entry):
        return True
    return None if bookie.lost and rules.lost_is_unknown else False


def empty(entries: int) -> Bookie:
    """Return a bookie that knows nothing of the ledger."""
    return Bookie((NOTHING,) * entries)


# -- disks that go back in time ------------------------------------------------------------------


def restored(bounds: Bounds, copy: Copy) -> Bookie:
    """Return a bookie that has started on a restored copy of its disk."""
    return Bookie(copy.lacs, copy.fenced, bounds.rollback is Rollback.NOTICED)


def healed(bounds: Bounds, name: str, bookie: Bookie, metadata: LedgerMetadata) -> Bookie | None:
    """Return a lost bookie as an ordinary one again, or None while its loss has not ended."""
    if not bounds.rules.heals_when_complete:
        return bookie._replace(lost=False)
    store = _Store(bookie)
    complete = complete_ledger.is_complete(cast(Store, store), LEDGER, metadata, name)
    return Bookie(bookie.lacs, store.fenced) if asyncio.run(complete) else None


def repaired(
    name: str, bookie: Bookie, others: Sequence[Bookie], metadata: LedgerMetadata
) -> Bookie:
    """Return a bookie with the entries of a closed ledger that others have and it lacks.

    It stands for `quire.replication.repair.repair_findings`.
    """
    shape = metadata.ensemble_size, metadata.write_quorum
    for entry in range(metadata.last_entry_id + 1):
        ensemble = metadata.segment_of(entry).ensemble
        if name not in ensemble or bookie.has(entry):
            continue
        lacs = [one.lacs[entry] for one in others if one.has(entry)]
        if lacs and in_write_set(ensemble.index(name), entry, *shape):
            bookie = bookie.with_entry(entry, max(lacs))
    return bookie


def _info(fenced: bool) -> SimpleNamespace:
    return SimpleNamespace(fenced=fenced, master_key=b"key")


class _Store:
    """The part of a bookie's store that `is_complete` uses, with one ledger at most.

    The key of the ledger is never lost alone.
    """

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self.fenced = bookie.fenced
        known = bookie.fenced or any(lac != NOTHING for lac in bookie.lacs)
        self.ledgers = {LEDGER: _info(self.fenced)} if known else {}

    def lacking(self, ledgers: Sequence[int]) -> dict[int, list[Range]]:
        return {}

    def is_lost(self, ledger_id: int) -> bool:
        return False

    async def entry_ranges(self, ledger_id: int) -> list[Range]:
        if ledger_id not in self.ledgers:
            raise NoLedger
        return [
            (entry, entry) for entry in range(len(self._bookie.lacs)) if self._bookie.has(entry)
        ]

    def create_ledger(self, ledger_id: int, master_key: bytes, *, again: bool = False) -> None:
        self.ledgers[ledger_id] = _info(fenced=False)

    def fence(self, ledger_id: int, done: Done) -> None:
        self.fenced = True
        done(None)

    def refuse_ledger(self, ledger_id: int) -> None:
        self.fenced = True
