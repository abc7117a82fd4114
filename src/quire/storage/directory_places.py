"""The parts of `LedgerDirectories`: one directory, the ledgers of all, a batch that is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from quire.errors import StorageError
from quire.storage.log.appender import Done
from quire.storage.log.batch import Batch, Run
from quire.storage.recovery.recovery import RecoveryReport
from quire.storage.segment.segment import LedgerInfo
from quire.storage.stats import DirectoryState
from quire.storage.store import LedgerStore


class Ledgers(Mapping[int, LedgerInfo]):
    """The ledgers of all directories that serve, by id. Never a copy: there may be a million."""

    def __init__(self) -> None:
        self.of: list[Mapping[int, LedgerInfo]] = []
        self.disputed: set[int] = set()
        """Found in two directories: nobody can tell which of them is right."""

    def get(self, ledger_id: int, default: object = None) -> LedgerInfo | None:  # type: ignore[override]
        if ledger_id not in self.disputed:
            for ledgers in self.of:
                info = ledgers.get(ledger_id)
                if info is not None:
                    return info
        return None

    def __getitem__(self, ledger_id: int) -> LedgerInfo:
        info = self.get(ledger_id)
        if info is None:
            raise KeyError(ledger_id)
        return info

    def __contains__(self, ledger_id: object) -> bool:
        return ledger_id not in self.disputed and any(ledger_id in one for one in self.of)

    def __iter__(self) -> Iterator[int]:
        for ledgers in self.of:
            yield from (one for one in ledgers if one not in self.disputed)

    def __len__(self) -> int:
        return sum(map(len, self.of)) - sum(
            ledger_id in ledgers for ledger_id in self.disputed for ledgers in self.of
        )


class Place:
    """One directory."""

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.error: StorageError | None = None
        """Why it does not serve any more."""
        self.read = False
        """Whether this process has read what it holds."""
        self.writable = True
        """As its store said last."""
        self.turn_bytes = 0
        """The higher, the sooner it gets a new ledger."""
        self._leaving: set[int] = set()

    def leave(self, ledger_ids: Iterable[int]) -> None:
        """These are dropped. Until that is durable a crash would bring them back here, so a ledger
        that is brought here again meanwhile must come to this directory."""
        if self.store.deletions_logged:
            self._leaving.clear()
        self._leaving.update(one for one in ledger_ids if one in self.store.ledgers)

    def is_leaving(self, ledger_id: int) -> bool:
        if self._leaving and self.store.deletions_logged:
            self._leaving.clear()
        return ledger_id in self._leaving

    @property
    def lossy(self) -> bool:
        """Something was lost here, while it was read: any ledger may have been there. (Such a store
        is not writable; to ask it is to look at all its segments.)"""
        return not self.writable and self.store.negatives_unknown

    def may_hold(self, ledger_id: int) -> bool:
        """Whether anything of the ledger may be on its disk."""
        store = self.store
        return (
            not self.read
            or store.negatives_unknown
            or ledger_id in store.ledgers
            or ledger_id in self._leaving
            or store.is_refused(ledger_id)
        )


def last_of(count: int, done: Done) -> Done:
    """Calls `done` with the first error, or None, when it was called `count` times itself."""
    errors: list[StorageError | None] = []

    def one(error: StorageError | None) -> None:
        errors.append(error)
        if len(errors) == count:
            done(next((error for error in errors if error is not None), None))

    return one


def cut(whole: memoryview, runs: list[Run], received_s: float) -> Batch:
    """A batch of just these runs. Frames that lie back to back stay one buffer."""
    spans: list[tuple[int, int]] = []
    size = 0
    for run in runs:
        start, stop = run.offset, run.offset + run.size_bytes
        run.offset = size
        size += stop - start
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    part = Batch([whole[start:stop] for start, stop in spans], runs)
    part.partial = True
    part.received_s = received_s
    part.entries = sum(run.count for run in runs)
    return part


def state_of(place: Place) -> DirectoryState:
    if place.error is not None:
        ledgers = len(place.store.ledgers) if place.read else None
        return DirectoryState(place.store.path, "failed", str(place.error), 0, ledgers)
    return place.store.directories()[0]


def joined(reports: Sequence[RecoveryReport], problems: Sequence[str]) -> RecoveryReport:
    return RecoveryReport(
        all(one.clean for one in reports),
        sum(one.segments for one in reports),
        sum(one.ledgers for one in reports),
        sum(one.groups_scanned for one in reports),
        None,
        None,
        sum(one.damaged_blocks for one in reports),
        (*(what for one in reports for what in one.problems), *problems),
        any(one.negatives_unknown for one in reports),
        "; ".join(one.index_cache for one in reports if one.index_cache),
        tuple(why for one in reports for why in one.went_back),
    )
