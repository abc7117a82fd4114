"""The store of one data directory: a write-once log, with its index in memory and on disk.

The effect of `append` and `fence` can be read when they return. An effect is durable when `done` is
called without an error. Callbacks run on the event loop, in the order of the calls.

An entry id that the store already has is accepted again. If there are several copies, the newest is
served, or an older one if the newest is damaged. A writer never reuses an entry id, so the copies
have the same payload, with two exceptions: a repair replaces a wrong copy, and the id of a deleted
ledger may be used again before this bookie has noticed the deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set

from quire._runtime.clock import Clock
from quire._runtime.shortages import shortage
from quire.codec.entry.frame_runs import Entries
from quire.codec.log.segment_header import CleanMark
from quire.codec.log.state_records import RecordKind, StateRecord
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
from quire.storage.read.read_ahead import ReadAhead
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.read_exceptions import NoLedger
from quire.storage.read.reader import DEFAULT_OVERHEAD_BYTES, Reader
from quire.storage.recovery.early_reads import EarlyReads
from quire.storage.recovery.incarnation import ExpectedLog, LogPosition
from quire.storage.recovery.later_versions import refuse_later_files, refuse_later_version
from quire.storage.recovery.loading import LoadProgress
from quire.storage.recovery.log_recovery import CLEAN_NAME, RecoveryReport
from quire.storage.recovery.startup import find_master_key, start_log
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LedgerInfo, LogSegment, SegmentState
from quire.storage.stats import (
    DirectoryState,
    SegmentTotals,
    SegmentUsage,
    StorageStats,
    collect_stats,
    collect_totals,
    collect_usage,
)
from quire.storage.worker import InlineReader


def _ignore(*_: object) -> None:
    """Do nothing. This is the default of all callbacks."""


class StoreEvents:
    """The callbacks of a store, which are all called on the event loop.

    Set those that you need.
    """

    def __init__(self) -> None:
        self.on_writable_changed: Callable[[bool], None] = _ignore
        """A function that is called with the new value of `writable`, and by `start` if it is
        False. With several directories, it is called when any of them begins or ceases to take
        adds."""
        self.on_failure: Callable[[StorageError], None] = _ignore
        """A function that is called once, after a write or a sync has failed in every directory."""
        self.on_compaction: Callable[[Compaction], None] = _ignore
        """A function that is called when a compaction has succeeded or failed."""
        self.on_damage: Callable[[str, SegmentDamage, bool], None] = _ignore
        """A function that is called with the directory's path, the damage and False when a segment
        is found to be damaged, and with True instead once it is repaired."""
        self.on_drained: Callable[[], None] = _ignore
        """A function that is called when the queue of adds was full and is at most half full
        again."""


class LedgerStore(StoreEvents):
    """The store of one data directory. It belongs to the event loop.

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
        """Create a store that is not started.

        Args:
            disk: The data directory.
            log_worker: Writes the log.
            maintenance_worker: Runs the background jobs.
            config: The limits.
            clock: The clock.
            schedule: The event loop's `call_later`.
            reader: Runs cold reads off the event loop. If it is None, they run on the event loop.
            times: Observes the latencies of the log.
        """
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
        """All ledgers, by id. Callers may read them and raise `last_add_confirmed`."""
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
        self._expected = ExpectedLog()
        self._started = False
        self._was_writable = True
        self._loading = LoadProgress()
        self.early = [EarlyReads(disk, config, self._blocking, self.ledgers, self._loading)]
        """The objects that serve reads while `recover` runs on another thread. The list is empty
        after `end_early`."""

    # -- life -------------------------------------------------------------------------------------

    def expect(self, path: str, expected: ExpectedLog) -> None:
        """Set how far the log must reach, or else it counts as one that has lost something.

        `path` is the path of the data directory. Call this before `recover`.
        """
        assert path == self.path
        self._expected = expected

    def positions(self) -> dict[str, LogPosition]:
        """Return the end of the durable log, by the path of the data directory.

        Call `recover` first.
        """
        current = self._appender.current
        assert current is not None
        newest = max(current.number, self._preallocated.prepared_number)
        # A start begins after the newest segment that has a durable group, and removes the files
        # after the one that it begins. The start after it must not miss them.
        newest = min(newest, self._appender.written_number + 1)
        return {self.path: LogPosition(newest, self._appender.end_group)}

    def refuse_later_version(self) -> None:
        """Raise LaterStorageError if a later version of Quire wrote a file of the directory.

        This reads the small files and the header of each segment, and changes nothing. `recover`
        checks the rest. A directory that cannot be read passes, because `recover` reports it.

        Raises:
            LaterStorageError: A later version wrote a file.
        """
        refuse_later_version(self._disk)

    def recover(self) -> RecoveryReport:
        """Read the log, decide what is torn or damaged, and make everything that counts durable.

        This blocks. Call it once, on any thread, before anything is served. When it returns, the
        log has a new segment.

        Raises:
            LaterStorageError: A later version wrote a part of the log. Nothing was changed.
            StorageError: The directory is not formatted, its identity or its log cannot be used, or
                the disk fails.
            DiskFullError: There is no space for a new segment.
            LoadStopped: `stop_loading` was called.
        """
        try:
            refuse_later_files(self._disk)
            identity = read_identity(self._disk)
            if identity is None:
                raise StorageError(
                    f"the directory {self._disk.path} is not a data directory of a Quire bookie",
                    remedy="Start a bookie on it, which prepares an empty directory. If it should "
                    "have data, check whether the right disk is mounted",
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
                f"reading the log in {self._disk.path} failed: {shortage(error) or error}",
                remedy="No stored entry was changed. Check the disk and start the bookie again",
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
        return started.report

    def _find_keys(self, keyless: Iterable[LedgerInfo]) -> list[StateRecord]:
        """Set those lost master keys that can be found in entries, and return their records."""
        found = []
        for info in keyless:
            key = find_master_key(self._reader, self._files, info)
            if key is not None:
                info.master_key = key
                found.append(StateRecord(RecordKind.MASTER_KEY, info.ledger_id, key))
        return found

    def stop_loading(self) -> None:
        """Make `recover` end with `LoadStopped` after the segment that it is reading.

        This may be called from any thread. If everything is loaded already, `recover` succeeds.
        """
        self._loading.stop()

    def end_early(self) -> None:
        """End the early reads: close the objects in `early`, and drop them."""
        for one in self.early:
            one.close()
        self.early = []
        self._loading.sealed = {}

    def give_up(self) -> None:
        """Close the files of a store that was recovered but will not be started."""
        self._close_files()

    def start(self) -> None:
        """Start the workers. From now on, appended batches become durable."""
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
        """Stop the store: finish all adds, seal the last segment, and note the clean stop.

        When this returns, everything that was appended is durable or has failed. If there is no
        space for the footer or the note, the next start reads more of the log. Do not cancel this.
        A store that was not closed recovers at its next start.
        """
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
            pass  # Everything is durable anyway.
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
        """Create a ledger, which exists in memory at once, and return it.

        Its key is logged before the next batch or record, so that no entry or fence of it becomes
        durable without the key. With `again`, a ledger that was fenced and dropped (`is_refused`)
        is created again, and is still fenced.

        Raises:
            UsageError: The ledger exists, or it is refused and `again` is False.
        """
        if ledger_id in self.ledgers:
            raise UsageError(
                f"ledger {ledger_id} is in this bookie's store already",
                remedy="This is a bug in Quire: please report it",
            )
        refused = self.is_refused(ledger_id)
        if refused and not again:
            raise UsageError(
                f"ledger {ledger_id} was fenced and deleted on this bookie, so an ordinary add "
                "cannot create it again"
            )
        current = self._appender.current
        info = self._catalogue.create(ledger_id, master_key, current.number if current else 0)
        for deletion in self._maintenance.collector.take_unlogged(ledger_id):
            # The deletion may be logged in the next segment. A copy of it then removes a ledger
            # that was touched only before that segment, and must not remove this one.
            info.touched = info.born + 1
            self._appender.add_pending(deletion)
        self._appender.add_pending(StateRecord(RecordKind.MASTER_KEY, ledger_id, master_key))
        if refused:
            del self._catalogue.tombstones[ledger_id]
            info.fenced = True
            self._appender.add_pending(StateRecord(RecordKind.FENCE, ledger_id))
        return info

    def adopt_key(self, ledger_id: int, master_key: bytes) -> None:
        """Set the master key of a ledger whose key was lost.

        The key is durable with the next batch, or soon after if no batch arrives.

        Raises:
            NoLedger: The ledger is unknown.
        """
        self._info(ledger_id).master_key = master_key
        self._appender.add_pending(StateRecord(RecordKind.MASTER_KEY, ledger_id, master_key))

    def is_refused(self, ledger_id: int) -> bool:
        """Return whether the ledger was fenced and then deleted within `TOMBSTONE_TTL_MS`.

        Adds to such a ledger must be refused, as if it were still fenced.
        """
        expires = self._catalogue.tombstones.get(ledger_id)
        if expires is None:
            return False
        if expires <= self._clock.now_ms():
            del self._catalogue.tombstones[ledger_id]
            return False
        return True

    def refuse_ledger(self, ledger_id: int) -> None:
        """Refuse a ledger that is not here, as if it had been fenced and then deleted.

        Ordinary adds to it are refused for `TOMBSTONE_TTL_MS`. The refusal is durable with the next
        `barrier`, unless the log has no space. It is then logged later (`deletions_logged`).

        Raises:
            UsageError: The ledger is here.
        """
        if ledger_id in self.ledgers:
            raise UsageError(f"ledger {ledger_id} is in the store: it must be fenced")
        if not self.is_refused(ledger_id):
            self._maintenance.collector.refuse(ledger_id)

    def fence(self, ledger_id: int, done: Done) -> None:
        """Fence a ledger. Its `fenced` is True on return, and the caller must refuse ordinary adds.

        `done` is called with None when the fence is durable, or with the error if it could not be
        logged. It may be called before this returns. After an error, `fenced` stays set, and the
        next call tries again.

        Raises:
            NoLedger: The ledger does not exist. Create it first.
        """
        info = self._info(ledger_id)
        if info.fence_durable:
            done(None)
            return
        if info.fence_queued:
            self._appender.barrier(done)
            return
        info.fenced = info.fence_queued = True

        def durable(error: StorageError | None) -> None:
            # If there was no space for the record, the ledger stays fenced in memory, and the next
            # call tries again.
            info.fence_durable = info.fence_queued = error is None
            done(error)

        self._appender.note([StateRecord(RecordKind.FENCE, ledger_id)], durable)

    def write_explicit_lac(self, ledger_id: int, packet: bytes, done: Done) -> None:
        """Store the packet of an explicit LAC, which can be read at once.

        The LAC becomes durable with the next add, or soon after. `done` is then called with None,
        or with the error if it could not be logged.

        Raises:
            NoLedger: The ledger does not exist. Create it first.
        """
        self._info(ledger_id).explicit_lac = packet
        record = StateRecord(RecordKind.EXPLICIT_LAC, ledger_id, packet)
        self._appender.note([record], done, patient=True)

    def barrier(self, done: Done) -> None:
        """Call `done(None)` when everything appended so far is durable, possibly at once.

        If the log fails before, call `done(error)`.
        """
        self._appender.barrier(done)

    def force(self, ledger_id: int, done: Done) -> None:
        """Call `done(None)` when everything appended so far to this ledger is durable.

        If the log fails before, call `done(error)`.
        """
        self._appender.barrier(done)

    def ledger_ids(self) -> list[int]:
        return sorted(self.ledgers)

    def drop_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Drop ledgers that were deleted in the metadata store. Unknown ids are ignored.

        The ledgers are gone at once. Their deletion is durable when `deletions_logged` is True
        again. A ledger that was fenced stays refused for `TOMBSTONE_TTL_MS`. Segments without live
        ledgers are removed in the background.
        """
        self._maintenance.collector.drop(ledger_ids)

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        batch: LogBatch,
        done: Callable[[LogBatch, StorageError | None], None],
        *,
        reserve: bool = False,
    ) -> None:
        """Index the runs of a batch, and queue it to be written.

        The ledgers must exist, and each entry must have at least 16 bytes. `done(batch, error)` is
        called after the batch was synced or has failed. If the store has failed, it is called at
        once with the error. With `reserve`, the batch may use the reserve, as the adds of
        recoveries may.

        Raises:
            DiskFullError: There is no space. Nothing has changed.
            UsageError: The batch is larger than a segment, or a ledger is unknown. Nothing has
                changed.
            StorageError: The store is being closed. Nothing has changed.
        """
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
            raise UsageError(
                f"ledger {error} is not in this bookie's store, so nothing can be appended to it",
                remedy="This is a bug in Quire: please report it",
            ) from None
        appender.submit(batch, segment)

    def _take_back(self, batch: LogBatch, segment: LogSegment) -> None:
        """Remove a batch with an unknown ledger from the index.

        The batch is still written, without its runs, because it has its place in the order and may
        have state records.
        """
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
        """The number of bytes of frames that are appended but not durable yet."""
        return self._appender.queued_bytes

    @property
    def queue_full(self) -> bool:
        """Whether to stop reading from connections until `on_drained` is called."""
        return self._appender.full

    @property
    def failed(self) -> StorageError | None:
        """The error that stopped the log, or None. After it, nothing more becomes durable."""
        return self._appender.failed

    @property
    def all_writable(self) -> bool:
        """Whether ordinary adds to every ledger are accepted. It equals `writable`."""
        return self.writable

    def takes(self, ledger_id: int) -> bool:
        """Return whether ordinary adds to this ledger, not those of recoveries, are accepted."""
        return self.writable

    def check_space(self) -> None:
        """Check the free space in the background, and begin the background jobs that are due.

        Call this every few seconds.
        """
        if self._started and self.failed is None:
            self._preallocated.check()
            self._maintenance.tick()

    def suspend_compaction(self, *, minor: bool, major: bool, by: str) -> None:
        """Begin no compactions of these kinds until `resume_compaction` or the next start.

        If both kinds are suspended, only the removal of segments without live ledgers frees space,
        even on a full disk. A running compaction is completed. Damaged segments are still rewritten
        once their entries are restored.
        """
        self._maintenance.compactor.suspend(minor=minor, major=major, by=by)

    def resume_compaction(self, *, minor: bool, major: bool) -> None:
        """Allow compactions of these kinds again. One that is due begins at once."""
        self._maintenance.compactor.resume(minor=minor, major=major)

    def request_compaction(self, *, minor: bool, major: bool) -> None:
        """Begin compactions of these kinds without waiting for their intervals."""
        self._maintenance.compactor.request(minor=minor, major=major)

    @property
    def compaction_requested(self) -> bool:
        """Whether a compaction that was requested is not completed yet."""
        return self._maintenance.compactor.requested

    def _disk_failed(self, error: Exception) -> None:
        """Stop the log, because a background job found that the disk fails."""
        self._writer.halt(
            StorageError(
                f"the disk of the data directory {self._disk.path} failed: {error}",
                remedy="Check the disk, and restart the bookie",
            )
        )

    def _log_failed(self, error: StorageError) -> None:
        """Begin no more background work, and report that the log has failed.

        `docs/explanation/storage.md` explains why a failed sync is final.
        """
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
        """Whether something was lost and is not repaired yet.

        If so, an entry or ledger that is not found may have existed.
        """
        return self._catalogue.negatives_unknown

    def is_lost(self, ledger_id: int) -> bool:
        """Return False, because no other directory could have the ledger and have failed."""
        return False

    def absence_unknown(self, ledger_id: int) -> bool:
        """Return whether entries of this ledger, or the ledger itself, may have been lost here."""
        return self._catalogue.negatives_unknown

    def last_entry_id(self, ledger_id: int) -> int:
        """Return the highest entry id of a ledger in the store, or -1 if it has no entry.

        Raises:
            NoLedger: The ledger is unknown.
        """
        return self._info(ledger_id).last_entry_id

    def read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
    ) -> Entries:
        """Return consecutive entries from `first` on, without frame headers.

        The result ends at the first missing entry, at `max_count`, or before the entries and
        `overhead_bytes` for each exceed `max_bytes`. The first entry is returned whatever its size.

        Raises:
            NoLedger: The ledger is unknown.
            NoEntry: The first entry is unknown; see `negatives_unknown`.
            DamagedError: All copies of the first entry are damaged.
            WouldBlock: The entries are not cached, or are in many small pieces. Use
                `read_blocking`.
            StorageError: A file cannot be opened for lack of a file descriptor.
        """
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
        """Read entries as `read` does, but wait for the device if necessary.

        Threads read what is not cached. The event loop handles one megabyte in each iteration. If
        `max_count` is more than 1, the entries are packed (`FrameRun.pack`). This may be cancelled.

        The errors are those of `read` without `WouldBlock`. `asyncio.CancelledError` is raised if
        the threads end because the bookie stops.
        """
        return await self._cold.read(ledger_id, first, max_count, max_bytes, overhead_bytes)

    def entry_size(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the size of an entry in bytes, according to the index.

        The size is 0 if no index that can be read has the entry. Return None if an index would have
        to be read from the device.

        Raises:
            NoLedger: The ledger is unknown.
        """
        return self._reader.entry_size(self._info(ledger_id), entry_id)

    async def entry_ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return ascending ranges (first, last) of all entries in the index, damaged or not.

        Raises:
            NoLedger: The ledger is unknown.
            DamagedError: A part of the index cannot be read.
            StorageError: A file cannot be opened for lack of a file descriptor.
        """
        return await self._cold.ranges(ledger_id)

    def _info(self, ledger_id: int) -> LedgerInfo:
        info = self.ledgers.get(ledger_id)
        if info is None:
            raise NoLedger
        return info

    # -- numbers ----------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether ordinary adds should be accepted. `append` does not check this; the caller must.

        It is False on a full disk, where fences and the adds of recoveries are accepted while the
        reserve lasts. It is also False if the log has failed, or if something was lost, because
        fences may be lost too.
        """
        return (
            self._preallocated.space
            and self._appender.failed is None
            and not self._catalogue.negatives_unknown
        )

    @property
    def log_lossy(self) -> bool:
        """Whether a part of the log is lost, so that an entry that is not found may have existed.

        The log is that of this data directory. Call `mark_repaired` once its conditions are met.
        """
        return self._catalogue.negatives_unknown

    @property
    def path(self) -> str:
        return self._disk.path

    @property
    def loading_percent(self) -> int:
        """The progress of `recover`, in percent of the log."""
        return self._loading.percent

    @property
    def disk_full(self) -> bool:
        """Whether the disk has too little space for ordinary adds."""
        return not self._preallocated.space

    def total_bytes(self) -> int:
        """Return the size of the file system in bytes.

        Raises `OSError` if it cannot be determined.
        """
        return self._disk.total_bytes()

    def free_bytes(self) -> int:
        """Return the free bytes of the file system.

        Raises `OSError` if they cannot be determined.
        """
        return self._disk.free_bytes()

    def file_system(self) -> Hashable:
        """Return the identity of the file system, which directories on one disk have in common.

        Raises `OSError` if it cannot be determined.
        """
        return self._disk.file_system()

    @property
    def available_bytes(self) -> int:
        """The free bytes at the last check, without the space set aside for a compaction."""
        return max(0, self._preallocated.free_bytes - self._preallocated.held_bytes)

    @property
    def deletions_logged(self) -> bool:
        """Whether the deletions of all dropped or refused ledgers are durable."""
        return self._maintenance.collector.deletions_logged

    def lacking_ledgers(self) -> Set[int]:
        """Return the ids of the ledgers with entries of which this directory has no good copy.

        Adding another bookie's copies here repairs the ledgers. Some of the ledgers may be deleted
        already. Damage that is still being examined is left out; see `Quarantine.lacking_ledgers`.
        """
        return self._maintenance.quarantine.lacking_ledgers()

    def lacking(self, ledger_ids: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Return the entries of these ledgers of which this directory has no good copy.

        The result has ranges (first, last) by ledger id. Ledgers without such entries are left out.
        """
        return self._maintenance.quarantine.lacking(ledger_ids)

    def damage(self) -> dict[str, list[SegmentDamage]]:
        """Return the damaged segments by the path of their directory.

        A directory that was read is a key even if nothing in it is damaged.
        """
        return {self._disk.path: list(self._maintenance.quarantine.records.values())}

    def stats(self) -> StorageStats:
        return collect_stats(
            self._catalogue, self._appender, self._maintenance, self._reader, self._cache,
            self._files, self._page_cache, self._budget, self.writable,
        )  # fmt: skip

    def directories(self) -> list[DirectoryState]:
        """Return the state of the data directory, in a list of one."""
        state, reason, kind = "writable", "", ""
        if self._appender.failed is not None:
            state, reason, kind = "failed", str(self._appender.failed), "failed"
        elif self._catalogue.negatives_unknown:
            state, reason, kind = "read-only", "a part of its data is lost", "lost"
        elif not self._preallocated.space:
            kind = "failed" if self._preallocated.unreachable else "full"
            state, reason = "read-only", self._preallocated.error
        free, ledgers = self.available_bytes, len(self.ledgers)
        prepared = self._preallocated.ready_bytes + self._maintenance.compactor.reserve_bytes
        return [DirectoryState(self.path, state, reason, free, ledgers, kind, prepared)]

    @property
    def compaction_suspended(self) -> Suspension | None:
        """The kinds of compaction that an operator has suspended, or None."""
        return self._maintenance.compactor.suspended

    def usage(self) -> list[SegmentUsage]:
        """Return the space of each segment, oldest first."""
        return collect_usage(self._catalogue, self._maintenance.compactor)

    def segment_totals(self) -> list[SegmentTotals]:
        """Return the number and sizes of the segments in each state."""
        return collect_totals(self.path, self._catalogue)

    # -- repair ------------------------------------------------------------------------------------

    def mark_repaired(self, done: Done) -> None:
        """Record that everything that the last start found lost is restored.

        From now on, an entry that is not found certainly does not exist. Fences may have been lost
        as well. So before this call, every ledger that was open on this bookie must be closed or
        have moved on to other bookies, and closed ledgers that name this bookie must be fenced
        here. `negatives_unknown` becomes False at once.

        The header of the next segment records that nothing is missing any more. So a segment is
        begun now, and `done(error)` is called when its header is durable. If no segment is
        prepared, as on a full disk, `done` is called when everything appended so far is durable,
        and a segment is begun later. A start that comes before that finds the loss again, and so
        does the next start after an error.
        """
        self._catalogue.lossy.clear()

        def durable(error: StorageError | None) -> None:
            if error is None:
                self._maintenance.sealer.seal_repaired()
            done(error)

        self._appender.begin_segment(durable)
        self._space_changed()
