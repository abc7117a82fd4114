"""The store of a bookie: a write-once log with an index in memory and at rest.

Order of visibility: what `append` and `fence` say is in force, and readable, when they return; it
is durable when `done` is called. Callbacks come on the event loop, in the order of the calls.

An entry id that the store has already is accepted again. Of several copies the newest is served
first, an older one where it is damaged; the payloads are equal, for an entry id is written with one
payload only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from quire._runtime.clock import Clock
from quire.codec.entry.frame_runs import Entries
from quire.codec.log.segment_header import CleanMark
from quire.codec.log.state_records import RecordKind, StateRecord, segment_value
from quire.errors import StorageError, UsageError
from quire.storage.background.compactor import Compaction
from quire.storage.background.job import JobContext
from quire.storage.background.maintenance import BackgroundMaintenance
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.background.suspension import Suspension
from quire.storage.config import StorageConfig
from quire.storage.directory import read_identity, write_small_file
from quire.storage.interfaces import BlockingReader, Disk, Worker
from quire.storage.log.appender import Appender, Done, Schedule
from quire.storage.log.group_commit import LogWriter, StorageTimes
from quire.storage.log.job_queue import JobQueue
from quire.storage.log.page_cache import LogPageCache
from quire.storage.log.preallocation import PreallocatedSegments
from quire.storage.read.cache import ByteCache, SegmentFiles
from quire.storage.read.cold_reads import ColdReads
from quire.storage.read.outcomes import NoLedger
from quire.storage.read.read_ahead import ReadAhead
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.reader import DEFAULT_OVERHEAD_BYTES, Reader
from quire.storage.recovery.early_reads import EarlyReads
from quire.storage.recovery.incarnation import ExpectedLog, LogPosition
from quire.storage.recovery.loading import LoadProgress
from quire.storage.recovery.log_recovery import CLEAN_NAME, RecoveryReport
from quire.storage.recovery.startup import find_master_key, start_log
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LedgerInfo, LogSegment, SegmentState
from quire.storage.stats import (
    DirectoryState,
    SegmentUsage,
    StorageStats,
    collect_stats,
    collect_usage,
)
from quire.storage.worker import InlineReader


def _ignore(*_: object) -> None:
    """Nobody has asked to be called."""


class StoreEvents:
    """The callbacks of a store, all of them on the event loop. Set those that you need."""

    def __init__(self) -> None:
        self.on_writable_changed: Callable[[bool], None] = _ignore
        """Called with the new value of `writable`, and by `start` if that is False. With several
        directories: when any of them begins or ceases to take adds."""
        self.on_failure: Callable[[StorageError], None] = _ignore
        """Called once, when a write or a sync has failed in every directory that there is."""
        self.on_compaction: Callable[[Compaction], None] = _ignore
        """Called when a compaction has ended, or failed."""
        self.on_damage: Callable[[str, SegmentDamage, bool], None] = _ignore
        """Called with the directory's path when a segment is found damaged, and with True once it
        is repaired."""
        self.on_drained: Callable[[], None] = _ignore
        """Called when the queue, having been full, is half empty."""


class LedgerStore(StoreEvents):
    """See the module. Used from the event loop's thread only.

    The directory must be formatted (`directory.ensure_directory`) and locked. Call `recover`, then
    `start`, and `close` at the end.
    """

    def __init__(
        self,
        disk: Disk,
        log_worker: Worker,
        maintenance_worker: Worker,
        config: StorageConfig,
        clock: Clock,
        *,
        schedule: Schedule,
        reader: BlockingReader | None = None,
        times: StorageTimes | None = None,
    ) -> None:
        """`schedule` is the loop's `call_later`; `reader` runs cold reads off the loop. `times` is
        told how long the steps of the log take."""
        super().__init__()
        self._times = times or StorageTimes(clock.monotonic)
        self._disk = disk
        self._config = config
        self._clock = clock
        self._log_worker = log_worker
        self._maintenance_worker = maintenance_worker
        self._schedule = schedule
        self._blocking: BlockingReader = reader or InlineReader()
        self._catalogue = Catalogue()
        self.ledgers: dict[int, LedgerInfo] = self._catalogue.ledgers
        """All ledgers, by id. To be looked at, and `last_add_confirmed` to be raised."""
        self._jobs = JobQueue(maintenance_worker)
        self._cache = ByteCache(config.footer_cache_bytes)
        self._page_cache = LogPageCache(disk, config.log_cache_bytes)
        self._files = SegmentFiles(disk, config.max_open_files)
        self._ahead = ReadAhead(self._files, self._blocking)
        self._reader = Reader(self._catalogue.segments, self._files, self._cache, self._ahead)
        self._budget = ReadBudget(config.catch_up_bytes_per_s, lambda: self._appender.taken)
        self._cold = ColdReads(
            self._reader, self._files, self._ahead, self._blocking, self._info, self._budget
        )
        self._preallocated = PreallocatedSegments(
            disk, self._jobs, config, clock.monotonic, self._space_changed,
            self._disk_failed,
        )  # fmt: skip
        self._directory_id = b""
        self._appender: Appender
        self._maintenance: BackgroundMaintenance
        self._first_number = 0
        self._expected = ExpectedLog()
        self._started = False
        self._was_writable = True
        self._loading = LoadProgress()
        self.early = [EarlyReads(disk, config, self._blocking, self.ledgers, self._loading)]
        """Reads while `recover` runs on another thread; none after `end_early`."""

    # -- life -------------------------------------------------------------------------------------

    def expect(self, path: str, expected: ExpectedLog) -> None:
        """Set how far the log of the directory at `path` should go. Call this before `recover`."""
        assert path == self.path
        self._expected = expected

    def positions(self) -> dict[str, LogPosition]:
        """Return the position of the log, by the path of the directory. Call `recover` first."""
        current = self._appender.current
        assert current is not None
        newest = max(current.number, self._preallocated.prepared_number)
        return {self.path: LogPosition(newest, self._appender.end_group)}

    def recover(self) -> RecoveryReport:
        """Read the log, decide what is torn or damaged, make all that counts durable. Blocks; call
        it once, on any thread, before anything is served. On return the log has a fresh segment.

        `StorageError`: not formatted, or the disk fails. `DiskFullError`: no room to begin.
        `LoadStopped`: see `stop_loading`."""
        try:
            identity = read_identity(self._disk)
            if identity is None:
                raise StorageError(
                    f"{self._disk.path} holds no data of a bookie",
                    remedy="Start a bookie on it, which prepares an empty directory. If it should "
                    "hold data, the wrong disk may be mounted",
                )
            self._directory_id = identity.directory_id
            writer = LogWriter(
                self._log_worker, self._page_cache, identity.directory_id,
                self._config.max_group_bytes, self._clock.monotonic,
            )  # fmt: skip
            started = start_log(
                self._disk, identity, self._catalogue, self._config, writer, self._preallocated,
                self._loading, self._expected,
            )  # fmt: skip
            self._preallocated.look()
            context = JobContext(
                self._disk, self._directory_id, self._catalogue, self._files, self._jobs,
                self._preallocated, self._config, self._schedule, self._clock.now_ms,
                self._clock.monotonic, self._disk_failed,
            )  # fmt: skip
            self._maintenance = maintenance = BackgroundMaintenance(
                context,
                lambda records, done: self._appender.note(records, done),
                lambda: self._appender.end_group,
                self.barrier,
            )
            maintenance.load(damaged=started.report.damaged_blocks > 0)
        except OSError as error:
            raise StorageError(
                f"the start of the log in {self._disk.path} failed: {error}",
                remedy="Check the disk; nothing that was stored was changed",
            ) from error
        self._writer = writer
        self._appender = Appender(
            self._catalogue, self._config, self._preallocated, writer, self._schedule,
            maintenance.sealer.seal, self._times,
        )  # fmt: skip
        self._appender.on_failure = self._log_failed
        self._appender.on_drained = lambda: self.on_drained()
        maintenance.compactor.on_done = lambda one: self.on_compaction(one)
        maintenance.quarantine.on_change = lambda damage, repaired: self.on_damage(
            self._disk.path, damage, repaired
        )
        maintenance.index_cache.loaded(started.cached)
        self._reader.on_damage = lambda segment: maintenance.scrubber.suspect(segment.number)
        found = self._find_keys(started.keyless)
        self._appender.resume(started.segment, started.sequence, found)
        self._first_number = started.segment.number
        return started.report

    def _find_keys(self, keyless: Iterable[LedgerInfo]) -> list[StateRecord]:
        """The records of the master keys that were lost and can be had from entries."""
        found = []
        for info in keyless:
            key = find_master_key(self._reader, self._files, info)
            if key is not None:
                info.master_key = key
                found.append(StateRecord(RecordKind.MASTER_KEY, info.ledger_id, key))
        return found

    def stop_loading(self) -> None:
        """From any thread: `recover` ends with the segment that it is at, by `LoadStopped`. One
        that has loaded all comes to its end."""
        self._loading.stop()

    def end_early(self) -> None:
        """`early` is not used any more."""
        for one in self.early:
            one.close()
        self.early = []
        self._loading.sealed = {}

    def give_up(self) -> None:
        """One that was recovered is not to be started: its files are closed."""
        self._close_files()

    def start(self) -> None:
        """Start the workers: from here on what is appended becomes durable."""
        self._writer.start()
        self._jobs.start()
        self._started = True
        self._appender.start()
        self._space_changed()
        self._maintenance.start()
        self._preallocated.ensure()
        self._preallocated.check()
        self._maintenance.collector.collect()

    async def close(self) -> None:
        """Clean stop: all that was appended is durable or has failed, the last segment is sealed,
        and a mark says so. Where there is no room for footer or mark the next start just looks
        closer. Not to be cancelled; a store that is not closed recovers."""
        if not self._started:
            self._close_files()
            return
        self._started = False
        self._preallocated.closed = True
        self._maintenance.cancel()
        self._appender.finish()
        self._writer.draining = True
        await self._log_worker.stop()
        last = self._appender.current
        assert last is not None
        durable = self._appender.failed is None and self._appender.drained
        if durable:
            last.state = SegmentState.CLOSED
            self._maintenance.sealer.seal(last)
        self._jobs.draining = True
        await self._maintenance_worker.stop()
        self._maintenance.close()
        try:
            if durable:
                await self._blocking.run(self._maintenance.index_cache.write_last)
                mark = CleanMark(self._directory_id, last.number, last.end_group).encode()
                write_small_file(self._disk, CLEAN_NAME, mark)
        except OSError:
            pass  # All is durable nevertheless.
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._cold.closed = self._ahead.closed = True
        self._preallocated.close()
        for segment in self._catalogue.segments.values():
            self._files.close(segment)

    # -- ledgers ----------------------------------------------------------------------------------

    def create_ledger(
        self, ledger_id: int, master_key: bytes, *, again: bool = False
    ) -> LedgerInfo:
        """A new ledger, in memory at once. Its key is logged ahead of the next batch or record, so
        that no entry and no fence of it is durable without it. `again`: one that was fenced and
        dropped (`is_refused`) comes back, as fenced as it was.

        `UsageError` where it exists, or is refused."""
        if ledger_id in self.ledgers:
            raise UsageError(f"ledger {ledger_id} is in the store already")
        refused = self.is_refused(ledger_id)
        if refused and not again:
            raise UsageError(f"ledger {ledger_id} was fenced and deleted")
        current = self._appender.current
        info = self._catalogue.create(ledger_id, master_key, current.number if current else 0)
        self._appender.add_pending(StateRecord(RecordKind.MASTER_KEY, ledger_id, master_key))
        if refused:
            del self._catalogue.tombstones[ledger_id]
            info.fenced = True
            self._appender.add_pending(StateRecord(RecordKind.FENCE, ledger_id))
        return info

    def adopt_key(self, ledger_id: int, master_key: bytes) -> None:
        """Of a ledger whose key was lost. `NoLedger`."""
        self._info(ledger_id).master_key = master_key
        self._appender.add_pending(StateRecord(RecordKind.MASTER_KEY, ledger_id, master_key))

    def is_refused(self, ledger_id: int) -> bool:
        """Whether the ledger was fenced and then deleted, less than `TOMBSTONE_TTL_MS` ago: adds
        to it must be refused as fenced."""
        expires = self._catalogue.tombstones.get(ledger_id)
        if expires is None:
            return False
        if expires <= self._clock.now_ms():
            del self._catalogue.tombstones[ledger_id]
            return False
        return True

    def fence(self, ledger_id: int, done: Done) -> None:
        """Refusing plain adds is the caller's part: `fenced` is set on return. `done(error)` when
        the fence is durable; at once, before this returns, where it is so already.

        `NoLedger`: create it first."""
        info = self._info(ledger_id)
        if info.fence_durable:
            done(None)
            return
        if info.fence_queued:
            self._appender.barrier(done)
            return
        info.fenced = info.fence_queued = True

        def durable(error: StorageError | None) -> None:
            # Where there was no room for it, it stays in force, and the next call tries again.
            info.fence_durable = info.fence_queued = error is None
            done(error)

        self._appender.note([StateRecord(RecordKind.FENCE, ledger_id)], durable)

    def write_explicit_lac(self, ledger_id: int, packet: bytes, done: Done) -> None:
        """Keep the packet of an explicit LAC; readable at once. `done(error)` when durable: with
        the next add, or soon.

        `NoLedger`: create it first."""
        self._info(ledger_id).explicit_lac = packet
        record = StateRecord(RecordKind.EXPLICIT_LAC, ledger_id, packet)
        self._appender.note([record], done, patient=True)

    def barrier(self, done: Done) -> None:
        """`done(error)` when everything appended so far is durable; at once where it is."""
        self._appender.barrier(done)

    def force(self, ledger_id: int, done: Done) -> None:
        """The same, for what was appended to this ledger."""
        self._appender.barrier(done)

    def ledger_ids(self) -> list[int]:
        return sorted(self.ledgers)

    def drop_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """The ledgers are deleted in the metadata store: forget them. One that was fenced stays
        refused for `TOMBSTONE_TTL_MS`. Segments in which nothing lives any more are removed in the
        background. Ids that are not here are ignored."""
        self._maintenance.collector.drop(ledger_ids)

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        batch: LogBatch,
        done: Callable[[LogBatch, StorageError | None], None],
        *,
        reserve: bool = False,
    ) -> None:
        """Index the batch's runs and queue it. The ledgers must exist and its entries have 16
        bytes at least. `done(batch, error)` after the sync, or the failure, of its group.

        `DiskFullError`: no room (with `reserve`, for recovery adds: not even the reserve);
        `UsageError`: larger than a segment, or of an unknown ledger. Nothing has then happened.
        On a store that has failed `done` is called at once with the error."""
        appender = self._appender
        if appender.failed is not None:
            done(batch, appender.failed)
            return
        segment = appender.admit(batch, reserve=reserve)
        batch.done = done
        try:
            self._catalogue.index_batch(batch, segment)
        except KeyError as error:
            self._take_back(batch, segment)
            raise UsageError(f"ledger {error} is not in the store: create it first") from None
        appender.submit(batch, segment)

    def _take_back(self, batch: LogBatch, segment: LogSegment) -> None:
        """Of a batch that names an unknown ledger: what has been indexed of it. It is written all
        the same, without runs, for it has its place in the order and may carry records."""
        for run in batch.runs:
            info = self.ledgers.get(run.ledger_id)
            if info is None:
                break
            if info.tail is not None:
                info.tail.remove_batch(batch)
        batch.forget_runs()
        batch.buffers, batch.size_bytes, batch.done = (), 0, None
        self._appender.submit(batch, segment)

    @property
    def queued_bytes(self) -> int:
        """Appended and not yet durable."""
        return self._appender.queued_bytes

    @property
    def queue_full(self) -> bool:
        """Stop reading from sockets until `on_drained`."""
        return self._appender.full

    @property
    def failed(self) -> StorageError | None:
        """A write or a sync failed, which is final: nothing becomes durable any more."""
        return self._appender.failed

    @property
    def all_writable(self) -> bool:
        """The same: this is the only directory (see `LedgerDirectories`)."""
        return self.writable

    def takes(self, ledger_id: int) -> bool:
        """Whether plain adds to this ledger should be taken."""
        return self.writable

    def check_space(self) -> None:
        """Look at the free space, in the background, and begin a compaction where one is due; call
        it every few seconds."""
        if self._started and self.failed is None:
            self._preallocated.check()
            self._maintenance.tick()

    def suspend_compaction(self, *, minor: bool, major: bool, by: str) -> None:
        """Begin none of these kinds until `resume_compaction` or the next start: space of deleted
        ledgers comes back as whole segments only, on a full disk too. One that is under way goes
        on to its end."""
        self._maintenance.compactor.suspend(minor=minor, major=major, by=by)

    def resume_compaction(self, *, minor: bool, major: bool) -> None:
        """One that is due begins at once."""
        self._maintenance.compactor.resume(minor=minor, major=major)

    def _disk_failed(self, error: Exception) -> None:
        """Not in the log itself, but a disk that fails anywhere is not trusted with more."""
        self._writer.halt(
            StorageError(
                f"the disk under {self._disk.path} failed: {error}",
                remedy="Check the disk and restart the bookie",
            )
        )

    def _log_failed(self, error: StorageError) -> None:
        """Nothing more is begun there: see `docs/explanation/storage.md` on a sync that fails."""
        self._preallocated.closed = True
        self._maintenance.cancel()
        self.on_failure(error)

    def _space_changed(self) -> None:
        self._appender.on_prepared()
        writable = self.writable
        if writable != self._was_writable:
            self._was_writable = writable
            self.on_writable_changed(writable)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def negatives_unknown(self) -> bool:
        """Something was lost: "no such entry" and "no such ledger" must be answered as unknown."""
        return self._catalogue.negatives_unknown

    def is_lost(self, ledger_id: int) -> bool:
        """Whether it may be in another directory, which failed: there is none."""
        return False

    def absence_unknown(self, ledger_id: int) -> bool:
        """`negatives_unknown`, for this ledger."""
        return self._catalogue.negatives_unknown

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id appended, -1 where there is none. `NoLedger`."""
        return self._info(ledger_id).last_entry_id

    def read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
    ) -> Entries:
        """Consecutive entries from `first` on, without frame headers: up to the first that is
        missing, to `max_count`, or before the one with which entries and `overhead_bytes` for each
        pass `max_bytes`. The first is returned whatever its size.

        `NoLedger`; `NoEntry` (see `negatives_unknown`); `DamagedError`: no copy of the first entry
        checks; `WouldBlock`: use `read_blocking`."""
        info = self._info(ledger_id)
        return self._reader.read(info, first, max_count, max_bytes, overhead_bytes)

    async def read_blocking(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
    ) -> Entries:
        """Like `read`, but what is not cached threads read, and the loop takes a turn for each
        megabyte. More than one entry comes packed (`FrameRun.pack`). May be cancelled."""
        return await self._cold.read(ledger_id, first, max_count, max_bytes, overhead_bytes)

    def entry_size(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the size of an entry in bytes, according to the index.

        The size is 0 if the entry is not here, or if `read` need not wait for it. Returns None if
        finding out would mean waiting for the device. Raises NoLedger.
        """
        return self._reader.entry_size(self._info(ledger_id), entry_id)

    async def entry_ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """Ascending ranges (first, last) of the entries that the index names, damaged or not.

        `NoLedger`; `DamagedError` where a part of the index cannot be read."""
        return await self._cold.ranges(ledger_id)

    def _info(self, ledger_id: int) -> LedgerInfo:
        info = self.ledgers.get(ledger_id)
        if info is None:
            raise NoLedger
        return info

    # -- numbers ----------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether plain adds should be taken. Not on a full disk, where fences and recovery adds
        are taken as long as the reserve lasts. Not where something was lost either, for fences may
        be among it; that is for the caller to refuse, `append` does not look at it."""
        return (
            self._preallocated.space
            and self._appender.failed is None
            and not self._catalogue.negatives_unknown
        )

    @property
    def log_lossy(self) -> bool:
        """Whether something of the log is lost, and `mark_repaired` would end that."""
        return self._catalogue.negatives_unknown

    @property
    def path(self) -> str:
        return self._disk.path

    @property
    def loading_percent(self) -> int:
        """How far `recover` is with the segments."""
        return self._loading.percent

    @property
    def disk_full(self) -> bool:
        """Whether there is too little room to take adds."""
        return not self._preallocated.space

    def total_bytes(self) -> int:
        """Of the file system under the directory. `OSError`."""
        return self._disk.total_bytes()

    def free_bytes(self) -> int:
        """Not used on that file system. `OSError`."""
        return self._disk.free_bytes()

    @property
    def available_bytes(self) -> int:
        """Free when it was last looked at, but for what is kept for a compaction."""
        return max(0, self._preallocated.free_bytes - self._preallocated.held_bytes)

    @property
    def deletions_logged(self) -> bool:
        """Whether all that was dropped stays dropped after a crash."""
        return self._maintenance.collector.deletions_logged

    def lacking_ledgers(self) -> Set[int]:
        """Ledgers of which entries were damaged here and have no other copy: another bookie's must
        be brought back. Adding them again heals. Some may be deleted."""
        return self._maintenance.quarantine.lacking_ledgers()

    def lacking(self, ledger_ids: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Of those of these ledgers that lack any, the ranges (first, last) of the entries."""
        return self._maintenance.quarantine.lacking(ledger_ids)

    def stats(self) -> StorageStats:
        return collect_stats(
            self._catalogue, self._appender, self._maintenance, self._reader, self._cache,
            self._files, self._page_cache, self._budget, self.writable,
        )  # fmt: skip

    def directories(self) -> list[DirectoryState]:
        """What has become of the data directory."""
        state, reason = "writable", ""
        if self._appender.failed is not None:
            state, reason = "failed", str(self._appender.failed)
        elif self._catalogue.negatives_unknown:
            state, reason = "read-only", "something that was in it is lost"
        elif not self._preallocated.space:
            state, reason = "read-only", self._preallocated.error
        return [DirectoryState(self.path, state, reason, self.available_bytes, len(self.ledgers))]

    @property
    def compaction_suspended(self) -> Suspension | None:
        """By an operator."""
        return self._maintenance.compactor.suspended

    def usage(self) -> list[SegmentUsage]:
        """Each segment, oldest first."""
        return collect_usage(self._catalogue, self._maintenance.compactor)

    # -- repair ------------------------------------------------------------------------------------

    def mark_repaired(self, done: Done) -> None:
        """What the start found lost has been replicated again from elsewhere: absence counts from
        now on. Fences may have been lost as well: the caller has closed every ledger that was open
        with this bookie in it, and fenced here those that name it. `done(error)` when that is
        durable; `negatives_unknown` falls at once."""
        self._catalogue.repaired_before = self._first_number

        def durable(error: StorageError | None) -> None:
            if error is None:
                self._maintenance.sealer.seal_repaired()
            done(error)

        value = segment_value(self._first_number)
        self._appender.note([StateRecord(RecordKind.REPAIRED, value=value)], durable)
        self._space_changed()
