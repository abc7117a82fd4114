"""The store of a bookie: a write-once log with an index in memory and at rest.

Order of visibility: what `append` and `fence` say is in force, and readable, when they return; it
is durable when `done` is called. Callbacks come on the event loop, in the order of the calls.

An entry id that the store has already is accepted again. Of several copies the newest is served
first, an older one where it is damaged; the payloads are equal, for an entry id is written with one
payload only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.clock import Clock
from quire.codec.log_format import CleanMark
from quire.codec.log_parts import Buffer, RecordKind, StateRecord, segment_value
from quire.errors import StorageError, UsageError
from quire.storage.appender import Appender, Done, Schedule
from quire.storage.batch import Batch
from quire.storage.blocking import BlockingReader, InlineReader
from quire.storage.cache import ByteCache, SegmentFiles
from quire.storage.catalogue import TOMBSTONE_TTL_MS, Catalogue
from quire.storage.cold_reads import ColdReads
from quire.storage.collector import Collector
from quire.storage.compactor import Compaction, Compactor
from quire.storage.config import StorageConfig
from quire.storage.directory import read_identity, write_small_file
from quire.storage.log import LogWriter
from quire.storage.maintenance import Maintenance
from quire.storage.quarantine import Quarantine
from quire.storage.quarantine_record import SegmentDamage
from quire.storage.read_ahead import ReadAhead
from quire.storage.reader import DEFAULT_OVERHEAD_BYTES, Reader
from quire.storage.recovery import CLEAN_NAME, RecoveryReport
from quire.storage.scrubber import Scrubber
from quire.storage.sealer import Sealer
from quire.storage.seams import Disk, Worker
from quire.storage.segment import LedgerInfo, SegmentState
from quire.storage.signals import NoLedger
from quire.storage.spares import Spares
from quire.storage.startup import find_master_key, start_log
from quire.storage.stats import (
    DirectoryState,
    SegmentUsage,
    StorageStats,
    collect_stats,
    collect_usage,
)
from quire.storage.times import StorageTimes

__all__ = ["TOMBSTONE_TTL_MS", "BlockingReader", "LedgerStore"]


class LedgerStore:
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
        self._maintenance = Maintenance(maintenance_worker)
        self._cache = ByteCache(config.footer_cache_bytes)
        self._files = SegmentFiles(disk, config.max_open_files)
        self._ahead = ReadAhead(self._files, self._blocking)
        self._reader = Reader(self._catalogue.segments, self._files, self._cache, self._ahead)
        self._cold = ColdReads(self._reader, self._files, self._blocking, self._info)
        self._spares = Spares(
            disk, self._maintenance, config.segment_bytes, config.reserve_bytes,
            config.min_free_bytes, self._space_changed, self._disk_failed,
        )  # fmt: skip
        self._directory_id = b""
        self._appender: Appender
        self._collector: Collector
        self._compactor: Compactor
        self._quarantine: Quarantine
        self._scrubber: Scrubber
        self._sealer: Sealer
        self._first_number = 0
        self._started = False
        self._was_writable = True
        self.on_writable_changed: Callable[[bool], None] | None = None
        """Called with the new value of `writable`, and by `start` where that is False."""
        self.on_failure: Callable[[StorageError], None] | None = None
        """Called once, when a write or a sync has failed."""
        self.on_compaction: Callable[[Compaction], None] | None = None
        """Called when a compaction has come to its end, or failed."""
        self.on_damage: Callable[[str, SegmentDamage, bool], None] | None = None
        """Called with the directory's path when a segment is found damaged, and (True) when it is
        so no more."""
        self.on_drained: Callable[[], None] | None = None
        """Called when the queue, having been full, is half empty."""

    # -- life -------------------------------------------------------------------------------------

    def recover(self) -> RecoveryReport:
        """Read the log, decide what is torn or damaged, make all that counts durable. Blocks; call
        it once, before anything is served. On return the log has a fresh segment.

        `StorageError`: not formatted, or the disk fails. `DiskFullError`: no room to begin."""
        try:
            identity = read_identity(self._disk)
            if identity is None:
                raise StorageError(
                    f"{self._disk.path} was never formatted", remedy="Format it first"
                )
            self._directory_id = identity.directory_id
            writer = LogWriter(
                self._log_worker, identity.directory_id, self._config.max_group_bytes,
                lambda group: self._appender.on_written(group),
                lambda batches, error: self._appender.on_failed(batches, error),
                self._clock.monotonic,
            )  # fmt: skip
            started = start_log(
                self._disk, identity, self._catalogue, self._config, writer, self._spares
            )
            self._spares.look()
            self._watch_for_damage(started.report)
        except OSError as error:
            raise StorageError(
                f"the start of the log in {self._disk.path} failed: {error}",
                remedy="Check the disk; nothing that was stored was changed",
            ) from error
        self._writer = writer
        self._sealer = Sealer(
            self._disk, self._directory_id, self._catalogue, self._files, self._maintenance,
            self._schedule, lambda: self._collector.collect(), self._disk_failed,
        )  # fmt: skip
        self._appender = Appender(
            self._catalogue, self._config, self._spares, writer, self._schedule,
            self._sealer.seal, self._times,
        )  # fmt: skip
        self._appender.on_failure = self._report_failure
        self._appender.on_drained = self._report_drained
        self._collector = Collector(
            self._disk, self._catalogue, self._files, self._maintenance, self._appender.note,
            self._clock.now_ms,
        )  # fmt: skip
        self._compactor = Compactor(
            self._disk, self._directory_id, self._catalogue, self._files, self._maintenance,
            self._spares, self._collector, self._quarantine, self._config, self._schedule,
            self._clock.now_ms, self._clock.monotonic, self._disk_failed,
        )  # fmt: skip
        self._compactor.on_done = self._report_compaction
        self._collector.on_log_full = self._compactor.log_is_full
        self._appender.resume(started.segment, started.sequence)
        self._first_number = started.segment.number
        for info in started.keyless:
            key = find_master_key(self._reader, self._files, info)
            if key is not None:
                info.master_key = key
                self._appender.add_pending(StateRecord(RecordKind.MASTER_KEY, info.ledger_id, key))
        return started.report

    def _watch_for_damage(self, report: RecoveryReport) -> None:
        """Take up what earlier starts, and this one, have found damaged. `OSError`."""
        now_ms, monotonic = self._clock.now_ms, self._clock.monotonic
        self._quarantine = Quarantine(
            self._disk, self._catalogue, self._maintenance, now_ms, monotonic, self._disk_failed
        )
        self._quarantine.on_change = self._report_damage
        self._scrubber = Scrubber(
            self._disk, self._directory_id, self._catalogue, self._files, self._maintenance,
            self._quarantine, self._config, self._schedule, now_ms, monotonic, self._disk_failed,
        )  # fmt: skip
        self._scrubber.load()
        for number in self._quarantine.load():
            self._scrubber.suspect(number)
        if report.damaged_blocks:
            for segment in self._catalogue.segments.values():
                if segment.state is SegmentState.CLOSED:
                    self._scrubber.suspect(segment.number)
        self._reader.on_damage = lambda segment: self._scrubber.suspect(segment.number)

    def start(self) -> None:
        """Start the workers: from here on what is appended becomes durable."""
        self._writer.start()
        self._maintenance.start()
        self._started = True
        self._appender.start()
        self._space_changed()
        for segment in list(self._catalogue.segments.values()):
            if segment.state is SegmentState.CLOSED:
                self._sealer.seal(segment)
        self._spares.ensure()
        self._spares.check()
        self._collector.collect()

    async def close(self) -> None:
        """Clean stop: all that was appended is durable or has failed, the last segment is sealed,
        and a mark says so. Where there is no room for footer or mark the next start just looks
        closer. Not to be cancelled; a store that is not closed recovers."""
        if not self._started:
            self._close_files()
            return
        self._started = False
        self._spares.closed = self._quarantine.closed = True
        self._scrubber.cancel()
        self._compactor.cancel()
        self._appender.finish()
        self._writer.draining = True
        await self._log_worker.stop()
        last = self._appender.current
        assert last is not None
        durable = self._appender.failed is None and self._appender.drained
        if durable:
            last.state = SegmentState.CLOSED
            self._sealer.seal(last)
        self._maintenance.draining = True
        await self._maintenance_worker.stop()
        self._compactor.close()
        self._sealer.closed = True
        try:
            if durable:
                mark = CleanMark(self._directory_id, last.number, last.end_group).encode()
                write_small_file(self._disk, CLEAN_NAME, mark)
        except OSError:
            pass  # All is durable nevertheless.
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._cold.closed = self._ahead.closed = True
        self._spares.close()
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
        """Keep the packet of an explicit LAC; readable at once. `done(error)` when durable.

        `NoLedger`: create it first."""
        self._info(ledger_id).explicit_lac = packet
        self._appender.note([StateRecord(RecordKind.EXPLICIT_LAC, ledger_id, packet)], done)

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
        self._collector.drop(ledger_ids)

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        batch: Batch,
        done: Callable[[Batch, StorageError | None], None],
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
        ledgers = self.ledgers
        try:
            for run in batch.runs:
                info = ledgers[run.ledger_id]
                part = info.tail
                first, ids = run.first, run.ids
                last = first + run.count - 1 if ids is None else ids[-1]
                run.batch = batch
                if part is None or part.segment is not segment:
                    part = self._catalogue.new_part(info, segment, first)
                if first > part.last and part.span < 0:
                    part.runs.append(run)
                    part.last = last
                else:
                    part.insert(run)
                if last > info.last_entry_id:
                    info.last_entry_id = last
        except KeyError as error:
            self._take_back(batch)
            raise UsageError(f"ledger {error} is not in the store: create it first") from None
        appender.submit(batch)

    def _take_back(self, batch: Batch) -> None:
        """Of a batch that names an unknown ledger: what has been indexed of it. It is written all
        the same, without runs, for it has its place in the order and may carry records."""
        for run in batch.runs:
            info = self.ledgers.get(run.ledger_id)
            if info is None:
                break
            if info.tail is not None:
                info.tail.remove_batch(batch)
        batch.runs, batch.buffers, batch.size_bytes, batch.done = (), (), 0, None
        self._appender.submit(batch)

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
    def writable(self) -> bool:
        """Whether plain adds should be taken. Not on a full disk, where fences and recovery adds
        are taken as long as the reserve lasts. Not where something was lost either, for fences may
        be among it; that is for the caller to refuse, `append` does not look at it."""
        return (
            self._spares.space
            and self._appender.failed is None
            and not self._catalogue.negatives_unknown
        )

    @property
    def all_writable(self) -> bool:
        """The same: this is the only directory (see `LedgerDirectories`)."""
        return self.writable

    def takes(self, ledger_id: int) -> bool:
        """Whether plain adds to this ledger should be taken."""
        return self.writable

    @property
    def disk_full(self) -> bool:
        """Whether there is too little room to take adds."""
        return not self._spares.space

    def check_space(self) -> None:
        """Look at the free space, in the background, and begin a compaction where one is due; call
        it every few seconds."""
        if self._started:
            self._spares.check()
            self._sealer.retry()
            self._collector.retry()
            self._quarantine.tick()
            self._compactor.tick()
            self._scrubber.tick()

    def _disk_failed(self, error: Exception) -> None:
        """Not in the log itself, but a disk that fails anywhere is not trusted with more."""
        self._writer.halt(
            StorageError(
                f"the disk under {self._disk.path} failed: {error}",
                remedy="Check the disk and restart the bookie",
            )
        )

    def _report_failure(self, error: StorageError) -> None:
        if self.on_failure is not None:
            self.on_failure(error)

    def _report_compaction(self, one: Compaction) -> None:
        if self.on_compaction is not None:
            self.on_compaction(one)

    def _report_damage(self, damage: SegmentDamage, healed: bool) -> None:
        if self.on_damage is not None:
            self.on_damage(self._disk.path, damage, healed)

    def _report_drained(self) -> None:
        if self.on_drained is not None:
            self.on_drained()

    def _space_changed(self) -> None:
        self._appender.on_prepared()
        writable = self.writable
        if writable != self._was_writable:
            self._was_writable = writable
            if self.on_writable_changed is not None:
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
    ) -> list[Buffer]:
        """Consecutive entries from `first` on, without frame headers: up to the first that is
        missing, to `max_count`, or before the one with which entries and `overhead_bytes` for each
        pass `max_bytes`. The first is returned whatever its size.

        `NoLedger`; `NoEntry` (see `negatives_unknown`); `DamagedError`: no copy of the first entry
        checks; `WouldBlock`: use `read_blocking`."""
        info = self._info(ledger_id)
        return self._reader.read(info, first, max_count, max_bytes, overhead_bytes, {})

    async def read_blocking(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead_bytes: int = DEFAULT_OVERHEAD_BYTES,
    ) -> list[Buffer]:
        """Like `read`, but waits for the device, off the event loop, and takes several turns of the
        loop for more than a megabyte. May be cancelled."""
        return await self._cold.read(ledger_id, first, max_count, max_bytes, overhead_bytes)

    async def entry_ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """Ascending ranges (first, last) of the entries that the index names, damaged or not.

        `NoLedger`; `DamagedError` where a part of the index cannot be read."""
        return await self._cold.ranges(ledger_id)

    def _info(self, ledger_id: int) -> LedgerInfo:
        info = self.ledgers.get(ledger_id)
        if info is None:
            raise NoLedger
        return info

    def total_bytes(self) -> int:
        """Of the file system under the directory. `OSError`."""
        return self._disk.total_bytes()

    def free_bytes(self) -> int:
        """Not used on that file system. `OSError`."""
        return self._disk.free_bytes()

    @property
    def room_bytes(self) -> int:
        """Free when it was last looked at, but for what is kept for a compaction."""
        return max(0, self._spares.free_bytes - self._spares.held_bytes)

    # -- repair and numbers -----------------------------------------------------------------------

    def mark_repaired(self, done: Done) -> None:
        """What the start found lost has been replicated again from elsewhere: absence counts from
        now on. Fences may have been lost as well: the caller has closed every ledger that was open
        with this bookie in it. `done(error)` when that is durable; `negatives_unknown` falls at
        once."""
        self._catalogue.repaired_before = self._first_number
        value = segment_value(self._first_number)
        self._appender.note([StateRecord(RecordKind.REPAIRED, value=value)], done)
        self._space_changed()

    def lacking(self) -> dict[int, list[tuple[int, int]]]:
        """Ledgers, and ranges (first, last) of entries of them, that were damaged here and of which
        there is no other copy: another bookie's must be brought back. Adding them again heals."""
        return self._quarantine.lacking()

    def stats(self) -> StorageStats:
        return collect_stats(
            self._catalogue, self._appender, self._collector, self._compactor, self._sealer,
            self._reader, self._quarantine, self._scrubber, self._cache, self._files, self.writable,
        )  # fmt: skip

    @property
    def path(self) -> str:
        return self._disk.path

    @property
    def deletions_logged(self) -> bool:
        """Whether all that was dropped stays dropped after a crash."""
        return self._collector.deletions_logged

    def directories(self) -> list[DirectoryState]:
        """What has become of the data directory."""
        state, reason = "writable", ""
        if self._appender.failed is not None:
            state, reason = "failed", str(self._appender.failed)
        elif self._catalogue.negatives_unknown:
            state, reason = "read-only", "something that was in it is lost"
        elif not self._spares.space:
            state, reason = "read-only", self._spares.error
        return [DirectoryState(self.path, state, reason, self.room_bytes, len(self.ledgers))]

    def usage(self) -> list[SegmentUsage]:
        """Each segment, oldest first."""
        return collect_usage(self._catalogue, self._compactor)
