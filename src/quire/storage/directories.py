"""Several data directories of one bookie: a store in each, with its own log, threads and space.

`LedgerDirectories` is used like a `LedgerStore`. A ledger lives in one directory, with its entries,
key, fence and explicit LAC. It stays in the directory where it was first added. There is no list of
ledgers and directories, because each store knows what it has. A new ledger goes to a directory that
takes adds. They take turns, weighted by their free space.

The ledgers of a directory that failed are *lost* until it is back, not absent. If it failed while
this process was running, its ledgers are known. All others continue, and new ledgers are accepted.
If it could not be read at the start, nobody knows its ledgers, so every ledger that is not in the
other directories may be lost. A lost ledger is never created again in another directory, because
its fence may be in the one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from quire.codec.entry.frame_runs import Entries
from quire.errors import LaterStorageError, StorageError, UsageError
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.background.suspension import Suspension
from quire.storage.interfaces import BlockingReader, Disk, Worker
from quire.storage.log.appender import Done
from quire.storage.read.read_exceptions import NoLedger
from quire.storage.read.reader import DEFAULT_OVERHEAD_BYTES
from quire.storage.recovery.early_reads import EarlyReads
from quire.storage.recovery.incarnation import ExpectedLog, LogPosition
from quire.storage.recovery.loading import LoadStopped
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.segment import LedgerInfo
from quire.storage.stats import (
    DirectoryState,
    SegmentTotals,
    SegmentUsage,
    StorageStats,
    space_of,
    total_stats,
)
from quire.storage.store import LedgerStore, StoreEvents

MAX_DIRECTORIES = 64
"""The most directories of one bookie. Some calls ask each of them in turn."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """One data directory, with the workers and the reader that only its store uses."""

    disk: Disk
    log_worker: Worker
    maintenance_worker: Worker
    reader: BlockingReader | None = None


class LedgersOfAll(Mapping[int, LedgerInfo]):
    """The ledgers of all data directories in use, by id, without those in `disputed`.

    This is a view. The ledgers are never copied, because there may be a million.
    """

    def __init__(self) -> None:
        self.of: list[Mapping[int, LedgerInfo]] = []
        self.disputed: set[int] = set()
        """The ids of the ledgers that were found in two directories, if nobody can tell which copy
        is right."""

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


class ServedDirectory:
    """One data directory of a bookie, and whether it can be used."""

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.error: StorageError | None = None
        """The error because of which the directory is no longer used, or None."""
        self.read = False
        """Whether this process has read the log of the directory."""
        self.writable = True
        """The last value of `writable` that the store of the directory has reported."""
        self.turn_bytes = 0
        """A balance in bytes by which the directories take turns. Each new ledger adds the free
        space of every directory to its balance, and goes to the directory with the highest one."""
        self._leaving: set[int] = set()

    def leave(self, ledger_ids: Iterable[int]) -> None:
        """Note that these ledgers are being dropped from the directory.

        Until their deletion is durable, a crash would bring them back. So if one of them is added
        again in the meantime, it must go to this directory.
        """
        if self.store.deletions_logged:
            self._leaving.clear()
        self._leaving.update(one for one in ledger_ids if one in self.store.ledgers)

    def is_leaving(self, ledger_id: int) -> bool:
        """Return whether the ledger was dropped and its deletion here may not be durable yet."""
        if self._leaving and self.store.deletions_logged:
            self._leaving.clear()
        return ledger_id in self._leaving

    @property
    def lossy(self) -> bool:
        """Whether a part of the directory's log is lost. Any ledger may have been in that part.

        A store that lost something is not writable. `writable` is checked first, because the losses
        of a store are found only by looking at all of its segments.
        """
        return not self.writable and self.store.negatives_unknown

    def may_hold(self, ledger_id: int) -> bool:
        """Return whether anything of the ledger may be on the disk of this directory."""
        store = self.store
        return (
            not self.read
            or store.negatives_unknown
            or ledger_id in store.ledgers
            or ledger_id in self._leaving
            or store.is_refused(ledger_id)
        )


class LedgerDirectories(StoreEvents):
    """All data directories of a bookie, used like a single store. They belong to the event loop.

    `LedgerStore` documents the calls that both classes have.
    """

    def __init__(self, stores: Sequence[LedgerStore]) -> None:
        if not 1 <= len(stores) <= MAX_DIRECTORIES:
            raise UsageError(
                f"a bookie must have 1 to {MAX_DIRECTORIES} data directories, not {len(stores)}"
            )
        super().__init__()
        self._places = [ServedDirectory(store) for store in stores]
        self._serving = list(self._places)
        self._ledgers = LedgersOfAll()
        self.ledgers: Mapping[int, LedgerInfo] = self._ledgers
        self._sync_ledgers()
        self._outdated: dict[LedgerStore, list[int]] = {}
        """The ids of the ledgers to drop from each store at its start. Another directory has these
        ledgers as well, so this one has lost their deletion."""
        for place in self._places:
            store = place.store
            store.on_failure = partial(self._failed_now, place)
            store.on_writable_changed = partial(self._writable_changed, place)
            store.on_compaction = lambda one: self.on_compaction(one)
            store.on_damage = lambda *damage: self.on_damage(*damage)
            store.on_drained = self._drained
        self.on_directory_changed: Callable[[DirectoryState], None] = lambda one: None
        """A function that is called with the new state of a directory, before `on_writable_changed`
        and `on_failure`."""

    # -- life -------------------------------------------------------------------------------------

    def refuse(self, path: str, error: StorageError) -> None:
        """Do not use the directory at `path`, because of `error`.

        Call this before `recover`.
        """
        for place in self._places:
            if place.store.path == path:
                self._put_aside(place, error)

    def expect(self, path: str, expected: ExpectedLog) -> None:
        """Set how far the log of the directory at `path` must reach, or else it counts as lossy.

        Call this before `recover`.
        """
        for place in self._places:
            if place.store.path == path:
                place.store.expect(path, expected)

    def positions(self) -> dict[str, LogPosition]:
        """Return the end of the durable log of each directory that was read, by its path."""
        found: dict[str, LogPosition] = {}
        for place in self._places:
            if place.read:
                found |= place.store.positions()
        return found

    def recover(self) -> RecoveryReport:
        """Recover each directory, and return one report about all of them.

        A directory that cannot be read is not used, and `directories` shows its error. A directory
        that a later version of Quire wrote can be read by that version. So the bookie does not
        start without it, and this raises an error.

        Raises:
            LaterStorageError: A later version wrote a directory.
            StorageError: No directory can be read.
            LoadStopped: `stop_loading` was called.
        """
        for place in self._serving:
            place.store.refuse_later_version()  # before anything is changed in another directory
        reports = []
        for place in list(self._serving):
            try:
                report = place.store.recover()
                place.read = True
                problems = tuple(f"{place.store.path}: {what}" for what in report.problems)
                reports.append(replace(report, problems=problems))
            except (LaterStorageError, LoadStopped):
                for other in self._places:
                    if other.read:
                        other.store.give_up()
                raise
            except StorageError as error:
                self._put_aside(place, error)
        if not self._serving:
            raise self._first_error()
        self._look_for_disputes()
        return joined(reports, self._problems())

    def stop_loading(self) -> None:
        for place in self._places:
            place.store.stop_loading()

    @property
    def early(self) -> list[EarlyReads]:
        return [one for place in self._places for one in place.store.early]

    def end_early(self) -> None:
        for place in self._places:
            place.store.end_early()

    @property
    def loading_percent(self) -> int:
        """The mean progress of loading the logs of the directories, in percent."""
        serving = self._serving
        return sum(place.store.loading_percent for place in serving) // max(1, len(serving))

    def _problems(self) -> list[str]:
        found = [f"{one.store.path} does not serve: {one.error}" for one in self._aside()]
        disputed = sorted(self._ledgers.disputed)
        found += [f"ledger {one} is in two directories" for one in disputed]
        return found

    def _look_for_disputes(self) -> None:
        """Find ledgers that are in two directories, and decide which directory is right."""
        of = self._ledgers.of
        twice: set[int] = set()
        for number, ledgers in enumerate(of):
            before = of[:number]
            twice.update(one for one in ledgers if any(one in other for other in before))
        for ledger_id in sorted(twice):
            holders = [place for place in self._serving if ledger_id in place.store.ledgers]
            whole = [place for place in holders if not place.store.negatives_unknown]
            if len(whole) != 1:
                self._ledgers.disputed.add(ledger_id)
                continue
            # The others have lost a deletion, because only then could the ledger be created again.
            for place in holders:
                if place is not whole[0]:
                    self._outdated.setdefault(place.store, []).append(ledger_id)

    def start(self) -> None:
        for place in list(self._serving):
            place.store.start()
        for store, ledger_ids in self._outdated.items():
            store.drop_ledgers(ledger_ids)
        self._outdated.clear()

    async def close(self) -> None:
        """Close the stores of all directories, even if some fail. Then raise the first error."""
        errors: list[Exception] = []
        for place in self._places:
            if place.read:
                try:
                    await place.store.close()
                except Exception as error:  # noqa: BLE001 - raised below
                    errors.append(error)
        if errors:
            raise errors[0]

    def _put_aside(self, place: ServedDirectory, error: StorageError) -> None:
        place.error = error
        if place in self._serving:
            self._serving.remove(place)
        self._sync_ledgers()

    def _sync_ledgers(self) -> None:
        self._ledgers.of = [place.store.ledgers for place in self._serving]
        self._homes = [(place.store.ledgers, place.store) for place in self._serving]

    def _aside(self) -> list[ServedDirectory]:
        return [place for place in self._places if place.error is not None]

    def _first_error(self) -> StorageError:
        return next(place.error for place in self._places if place.error is not None)

    # -- what becomes of a directory --------------------------------------------------------------

    def _failed_now(self, place: ServedDirectory, error: StorageError) -> None:
        self._put_aside(place, error)
        self._report(place)
        if not self._serving:
            self.on_failure(error)
            return
        self.on_writable_changed(self.writable)
        self._drained()

    def _writable_changed(self, place: ServedDirectory, writable: bool) -> None:
        place.writable = writable
        if place.error is not None:
            return
        self._report(place)
        self.on_writable_changed(self.writable)

    def _report(self, place: ServedDirectory) -> None:
        self.on_directory_changed(state_of(place))

    def _drained(self) -> None:
        if not self.queue_full:
            self.on_drained()

    def directories(self) -> list[DirectoryState]:
        """Return the state of each directory, in the order in which they were configured."""
        return [state_of(place) for place in self._places]

    # -- where a ledger lives ---------------------------------------------------------------------

    def _home(self, ledger_id: int) -> LedgerStore | None:
        if ledger_id in self._ledgers.disputed:
            return None
        for ledgers, store in self._homes:
            if ledger_id in ledgers:
                return store
        return None

    def _home_of(self, ledger_id: int) -> LedgerStore:
        home = self._home(ledger_id)
        if home is None:
            raise NoLedger
        return home

    def is_lost(self, ledger_id: int) -> bool:
        """Return whether the ledger may be in a directory that has failed, or is disputed.

        A ledger is disputed if two directories have it and nobody can tell which copy is right.
        This is about whole directories. `log_lossy` is about a log that has lost segments or
        groups, and `lacking` about entries that are damaged.
        """
        if self._home(ledger_id) is not None:
            return False
        if ledger_id in self._ledgers.disputed:
            return True
        return any(place.may_hold(ledger_id) for place in self._aside())

    def absence_unknown(self, ledger_id: int) -> bool:
        """Return whether entries of this ledger, or the ledger itself, may have been lost here."""
        home = self._home(ledger_id)
        if home is not None:
            return home.negatives_unknown
        return self.is_lost(ledger_id) or any(p.store.negatives_unknown for p in self._serving)

    @property
    def negatives_unknown(self) -> bool:
        """Whether something was lost, a directory does not serve, or a ledger is disputed."""
        return (
            bool(self._ledgers.disputed)
            or len(self._serving) < len(self._places)
            or any(place.store.negatives_unknown for place in self._serving)
        )

    @property
    def log_lossy(self) -> bool:
        """Whether a part of a serving directory's log is lost.

        Call `mark_repaired` once its conditions are met.
        """
        return any(place.store.log_lossy for place in self._serving)

    def takes(self, ledger_id: int) -> bool:
        """Return whether ordinary adds to this ledger, not those of recoveries, are accepted."""
        if ledger_id not in self._ledgers.disputed:
            for place in self._serving:
                if ledger_id in place.store.ledgers:
                    return place.writable
        return self.writable and not self.is_lost(ledger_id)

    def _place_for(self, ledger_id: int) -> ServedDirectory:
        """Choose the directory for a new ledger, which is in none of them."""
        serving = self._serving
        for place in serving:
            if place.is_leaving(ledger_id) or place.store.is_refused(ledger_id):
                return place  # What this directory still knows of it must not be forgotten.
        for place in serving:
            if place.lossy:
                return place  # It may have been here.
        candidates = [place for place in serving if place.writable] or serving
        total_bytes = 0
        for place in candidates:
            # Let the directories take turns, weighted by their free space. So equal disks get equal
            # work, and a new disk fills faster. This needs no random numbers and no memory.
            free = max(1, place.store.available_bytes)
            place.turn_bytes += free
            total_bytes += free
        chosen = max(candidates, key=lambda place: place.turn_bytes)
        chosen.turn_bytes -= total_bytes
        return chosen

    # -- ledgers ----------------------------------------------------------------------------------

    def create_ledger(
        self, ledger_id: int, master_key: bytes, *, again: bool = False
    ) -> LedgerInfo:
        """Create a ledger in one of the directories, as `LedgerStore.create_ledger` does.

        Raises:
            UsageError: The ledger exists, or it is refused and `again` is False.
            StorageError: The ledger may be in a directory that has failed, or every directory has.
        """
        if ledger_id in self.ledgers:
            raise UsageError(
                f"ledger {ledger_id} is in this bookie's store already",
                remedy="This is a bug in Quire: please report it",
            )
        if not self._serving:
            raise self._first_error()
        if self.is_lost(ledger_id):
            raise StorageError(
                f"the bookie does not create ledger {ledger_id}, because it may be in a data "
                "directory that failed",
                remedy="Repair or mount the directory and restart the bookie, or replace it with "
                "`quire bookie disk replace`",
            )
        return self._place_for(ledger_id).store.create_ledger(ledger_id, master_key, again=again)

    def adopt_key(self, ledger_id: int, master_key: bytes) -> None:
        self._home_of(ledger_id).adopt_key(ledger_id, master_key)

    def is_refused(self, ledger_id: int) -> bool:
        return any(place.store.is_refused(ledger_id) for place in self._serving)

    def refuse_ledger(self, ledger_id: int) -> None:
        if not self._serving:
            raise self._first_error()
        if not self.is_refused(ledger_id):
            self._place_for(ledger_id).store.refuse_ledger(ledger_id)

    def fence(self, ledger_id: int, done: Done) -> None:
        self._home_of(ledger_id).fence(ledger_id, done)

    def write_explicit_lac(self, ledger_id: int, packet: bytes, done: Done) -> None:
        self._home_of(ledger_id).write_explicit_lac(ledger_id, packet, done)

    def force(self, ledger_id: int, done: Done) -> None:
        """Call `done(None)` when everything appended so far to this ledger is durable.

        If it cannot be made durable, or the ledger may be in a directory that failed, call
        `done(error)`.
        """
        home = self._home(ledger_id)
        if home is not None:
            home.force(ledger_id, done)
        elif self.is_lost(ledger_id):
            done(
                StorageError(
                    f"ledger {ledger_id} may be in a data directory that failed, so it is unknown "
                    "whether its entries are durable",
                    remedy="Repair or mount the directory and restart the bookie, or replace it "
                    "with `quire bookie disk replace`",
                )
            )
        else:
            done(None)

    def barrier(self, done: Done) -> None:
        """Call `done(None)` when everything appended so far is durable, in all directories in use.

        A directory that has failed is not in use. If one fails before everything is durable, or if
        all have failed, call `done` with the first error.
        """
        stores = [place.store for place in self._serving]
        last = last_of(len(stores), done)
        for store in stores:
            store.barrier(last)
        if not stores:
            done(self._first_error())

    def ledger_ids(self) -> list[int]:
        return sorted({*self.ledgers, *self._ledgers.disputed})

    def drop_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Drop these ledgers in the directories in use, as `LedgerStore.drop_ledgers` does.

        A directory that is not in use keeps its ledgers. They can be dropped once it is back.
        """
        ids = list(ledger_ids)
        for place in self._serving:
            here = [one for one in ids if one in place.store.ledgers]
            if here:
                place.leave(here)
                place.store.drop_ledgers(here)
        self._ledgers.disputed.difference_update(ids)

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        batch: LogBatch,
        done: Callable[[LogBatch, StorageError | None], None],
        *,
        reserve: bool = False,
    ) -> None:
        """Index and queue a batch, as `LedgerStore.append` does.

        A batch with ledgers of several directories is divided. `done` is called with each part
        (`LogBatch.partial`) after it was synced or has failed. It is also called if a part does not
        fit or there is no space for it, because other parts may be queued already.

        Raises:
            DiskFullError: The batch was not divided, and there is no space. Nothing has changed.
            UsageError: A ledger is unknown, or the batch was not divided and is larger than a
                segment. Nothing has changed.
            StorageError: The batch was not divided, and its directory is being closed. Nothing has
                changed.
        """
        parts: dict[LedgerStore, list[Run]] = {}
        for run in batch.runs:
            home = self._home(run.ledger_id)
            if home is None:
                raise UsageError(
                    f"ledger {run.ledger_id} is not in this bookie's store, so nothing can be "
                    "appended to it",
                    remedy="This is a bug in Quire: please report it",
                )
            parts.setdefault(home, []).append(run)
        if len(parts) == 1:
            next(iter(parts)).append(batch, done, reserve=reserve)
            return
        assert batch.buffers is not None
        buffers = batch.buffers
        whole = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        for store, runs in parts.items():
            part = cut(whole, runs, batch.received_s)
            part.patient = batch.patient
            try:
                store.append(part, done, reserve=reserve)
            except StorageError as error:
                done(part, error)
            except UsageError as error:  # The part is larger than a segment.
                done(part, StorageError(str(error)))

    @property
    def queued_bytes(self) -> int:
        return sum(place.store.queued_bytes for place in self._serving)

    @property
    def queue_full(self) -> bool:
        """Whether any directory's queue is full, so that connections wait for the slowest disk."""
        return any(place.store.queue_full for place in self._serving)

    @property
    def failed(self) -> StorageError | None:
        """The error of the first directory if all directories have failed, or None."""
        return None if self._serving else self._first_error()

    @property
    def writable(self) -> bool:
        """Whether ordinary adds to new ledgers should be accepted."""
        return all(place.read and not place.lossy for place in self._places) and any(
            place.writable for place in self._serving
        )

    @property
    def all_writable(self) -> bool:
        """Whether ordinary adds to all ledgers in the directories in use should be accepted."""
        return all(place.writable for place in self._serving)

    @property
    def disk_full(self) -> bool:
        """Whether any directory has too little space for adds."""
        return any(place.store.disk_full for place in self._serving)

    def check_space(self) -> None:
        for place in list(self._serving):
            place.store.check_space()

    # -- reading ----------------------------------------------------------------------------------

    def last_entry_id(self, ledger_id: int) -> int:
        return self._home_of(ledger_id).last_entry_id(ledger_id)

    def read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
    ) -> Entries:
        home = self._home_of(ledger_id)
        return home.read(ledger_id, first, max_count, max_bytes, overhead_bytes)

    async def read_blocking(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
    ) -> Entries:
        home = self._home_of(ledger_id)
        return await home.read_blocking(ledger_id, first, max_count, max_bytes, overhead_bytes)

    def entry_size(self, ledger_id: int, entry_id: int) -> int | None:
        return self._home_of(ledger_id).entry_size(ledger_id, entry_id)

    async def entry_ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        return await self._home_of(ledger_id).entry_ranges(ledger_id)

    # -- repair and numbers -----------------------------------------------------------------------

    def total_bytes(self) -> int:
        return self._space()[0]

    def free_bytes(self) -> int:
        return self._space()[1]

    def _space(self) -> tuple[int, int]:
        """Return the total and the free bytes. Raises OSError if no file system answers."""
        if (found := space_of(place.store for place in self._serving)) is None:
            raise OSError("no file system of the bookie's directories answers")
        return found

    @property
    def deletions_logged(self) -> bool:
        """Whether the deletions and refusals of ledgers are durable in all directories in use."""
        return all(place.store.deletions_logged for place in self._serving)

    def mark_repaired(self, done: Done) -> None:
        """Note that everything that the directories in use had lost is restored.

        `done` is called when all directories have logged it, with the first error or None. See
        `LedgerStore.mark_repaired`.
        """
        lossy = [p.store for p in self._serving if p.store.negatives_unknown]
        last = last_of(len(lossy), done)
        for store in lossy:
            store.mark_repaired(last)
        if not lossy:
            done(None)

    def lacking_ledgers(self) -> set[int]:
        return set().union(*(place.store.lacking_ledgers() for place in self._serving))

    def lacking(self, ledger_ids: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for place in self._serving:
            for ledger_id, ranges in place.store.lacking(ledger_ids).items():
                found.setdefault(ledger_id, []).extend(ranges)
        return found

    def damage(self) -> dict[str, list[SegmentDamage]]:
        """Return the damaged segments by the path of their directory.

        A directory that was read is a key even if nothing in it is damaged. One that failed has the
        segments that were damaged at that time.
        """
        found: dict[str, list[SegmentDamage]] = {}
        for place in self._places:
            if place.read:
                found |= place.store.damage()
        return found

    def stats(self) -> StorageStats:
        """Return the sums of the statistics of the directories in use.

        If none is in use, the sums are over all directories that were read. The counters always
        are, because a counter that sinks looks like one of a new process.
        """
        read = [place for place in self._places if place.read]
        places = self._serving or read
        ended = [place.store.stats() for place in read if place not in places]
        total = total_stats([place.store.stats() for place in places], ended)
        return replace(total, writable=self.writable, negatives_unknown=self.negatives_unknown)

    def usage(self) -> list[SegmentUsage]:
        return [one for place in self._serving for one in place.store.usage()]

    def segment_totals(self) -> list[SegmentTotals]:
        """Return the number and sizes of segments by state, for each directory in use."""
        return [one for place in self._serving for one in place.store.segment_totals()]

    # -- compaction -------------------------------------------------------------------------------

    def suspend_compaction(self, *, minor: bool, major: bool, by: str) -> None:
        for place in self._serving:
            place.store.suspend_compaction(minor=minor, major=major, by=by)

    def resume_compaction(self, *, minor: bool, major: bool) -> None:
        for place in self._serving:
            place.store.resume_compaction(minor=minor, major=major)

    def request_compaction(self, *, minor: bool, major: bool) -> None:
        for place in self._serving:
            place.store.request_compaction(minor=minor, major=major)

    @property
    def compaction_requested(self) -> bool:
        """Whether a requested compaction has not been completed in all directories."""
        return any(place.store.compaction_requested for place in self._serving)

    @property
    def compaction_suspended(self) -> Suspension | None:
        """The kinds of compaction that are suspended in the directories in use, or None."""
        return next((place.store.compaction_suspended for place in self._serving), None)


Store = LedgerStore | LedgerDirectories
"""The store that a bookie uses."""


def last_of(count: int, done: Done) -> Done:
    """Return a callback that calls `done` once it was called `count` times itself, at least once.

    `done` gets the first error of these calls, or None.
    """
    errors: list[StorageError | None] = []

    def one(error: StorageError | None) -> None:
        errors.append(error)
        if len(errors) == count:
            done(next((error for error in errors if error is not None), None))

    return one


def cut(whole: memoryview, runs: list[Run], received_s: float) -> LogBatch:
    """Return a batch of only these runs, and change their offsets to those in the new batch.

    The frames are not copied. `whole` is the joined buffers of the original batch.
    """
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
    part = LogBatch([whole[start:stop] for start, stop in spans], runs)
    part.partial = True
    part.received_s = received_s
    part.entries = sum(run.count for run in runs)
    return part


def state_of(place: ServedDirectory) -> DirectoryState:
    """Return the state of a directory, from its store or from the error that it failed with."""
    if place.error is not None:
        ledgers = len(place.store.ledgers) if place.read else None
        return DirectoryState(place.store.path, "failed", str(place.error), 0, ledgers, "failed")
    return place.store.directories()[0]


def joined(reports: Sequence[RecoveryReport], problems: Sequence[str]) -> RecoveryReport:
    """Combine the reports of several directories into one, and add further `problems`.

    Groups that were cut off or written again are left out, because each log has its own numbers.
    """
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
