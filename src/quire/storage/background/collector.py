"""Free disk space: remove the segments that have no live ledgers.

State records that are still needed are logged again first, together with a record that the segment
is dropped. The file is removed only after these records are synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from quire.codec.log.state_records import (
    Deleted,
    FormatError,
    RecordKind,
    StateRecord,
    segment_value,
)
from quire.errors import DiskFullError, StorageError
from quire.storage.background.job import BackgroundJob, JobContext
from quire.storage.background.salvage import read_groups
from quire.storage.directory import naming
from quire.storage.log.preallocation import may_pass
from quire.storage.segment.catalogue import TOMBSTONE_TTL_MS
from quire.storage.segment.footer import load_records
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment, SegmentState

LogRecords = Callable[[Sequence[StateRecord], Callable[[StorageError | None], None]], None]
"""A function that logs state records and then calls its second argument with the error or None, as
`Appender.note` does."""

READ_AGAIN_S = 600.0
"""Seconds to wait before a segment without live ledgers is tried again after its state records
could not be read."""


class Collector(BackgroundJob):
    """The garbage collector of one store: it drops ledgers, and segments without live ledgers."""

    def __init__(self, context: JobContext, log_records: LogRecords) -> None:
        super().__init__(context)
        self._log_records = log_records
        self._unlogged: list[StateRecord] = []
        """The deletion records that are not logged yet, because the log had no space for them."""
        self._on_the_way = 0
        """The number of `drop` and `refuse` calls whose records are not durable yet."""
        self._busy: set[int] = set()
        self._read_again_s: dict[int, float] = {}
        """The monotonic time in seconds of the next attempt to read the state records of a segment,
        by segment number, if the last attempt failed."""
        self.removed = 0
        self.error: str | None = None
        """The error of the last removal if it failed, or None. The collector tries again."""
        self.on_log_full: Callable[[], None] = lambda: None
        """A function that is called when the log has no space for the records of a deletion or
        removal."""
        self.on_removed: Callable[[], None] = lambda: None
        """A function that is called when the file of a segment was removed, so that there is space
        again."""

    def drop(self, ledger_ids: Iterable[int]) -> None:
        """Drop ledgers that the metadata store no longer has; see `LedgerStore.drop_ledgers`."""
        now = self._now_ms()
        alive = self._catalogue.ledgers
        records = [one for one in self._unlogged if one.ledger_id not in alive]
        self._unlogged = []
        for ledger_id in ledger_ids:
            info = self._catalogue.forget(ledger_id)
            if info is None:
                continue
            if info.fenced:
                self._catalogue.tombstones[ledger_id] = now + TOMBSTONE_TTL_MS
            value = Deleted(now, info.fenced).encode()
            records.append(StateRecord(RecordKind.DELETED, ledger_id, value))
        if records:
            self._on_the_way += 1
            self._log_records(records, partial(self._on_deletions, records))
            self.collect()

    def refuse(self, ledger_id: int) -> None:
        """Refuse adds to a ledger that is not here; see `LedgerStore.refuse_ledger`."""
        now = self._now_ms()
        self._catalogue.tombstones[ledger_id] = now + TOMBSTONE_TTL_MS
        value = Deleted(now, fenced=True).encode()
        records = [StateRecord(RecordKind.DELETED, ledger_id, value)]
        self._on_the_way += 1
        self._log_records(records, partial(self._on_deletions, records))

    def _on_deletions(self, records: list[StateRecord], error: StorageError | None) -> None:
        self._on_the_way -= 1
        if error is not None:
            # The log is full, including the reserve, so try again with the next pass. But leave out
            # ledgers that exist again. A deletion record after their return would delete them.
            alive = self._catalogue.ledgers
            # Keep what an earlier failure left: several of these calls can be under way.
            self._unlogged += [one for one in records if one.ledger_id not in alive]
            self._note_full(error)

    def take_unlogged(self, ledger_id: int) -> list[StateRecord]:
        """Return the deletion records of a ledger that are not logged yet, and forget them.

        The caller creates the ledger again, and logs them before its records. Otherwise a start
        would find what the former ledger had here as a part of the new one.
        """
        found = [one for one in self._unlogged if one.ledger_id == ledger_id]
        if found:
            self._unlogged = [one for one in self._unlogged if one.ledger_id != ledger_id]
        return found

    def _note_full(self, error: Exception | None) -> None:
        if isinstance(error, DiskFullError):
            self.on_log_full()

    @property
    def deletions_logged(self) -> bool:
        """Whether the deletions of all dropped or refused ledgers are durable."""
        return not self._unlogged and not self._on_the_way

    def retry(self) -> None:
        """Log the deletions for which the log had no space, and remove segments without live data.

        Refusals whose time is over are forgotten. The work goes on in the background.
        """
        self._forget_refusals()
        self.drop(())
        self.collect()

    def _forget_refusals(self) -> None:
        """Forget the oldest refusals that are over. After a start, a few may be behind others."""
        now, refused, over = self._now_ms(), self._catalogue.tombstones, list[int]()
        for ledger_id, expires_ms in refused.items():
            if expires_ms > now + TOMBSTONE_TTL_MS:
                continue  # The clock was ahead then. The refusals behind it may end long before.
            if expires_ms > now:
                break
            over.append(ledger_id)
        for ledger_id in over:
            del refused[ledger_id]

    def collect(self) -> None:
        """Start to remove every sealed segment that has no live ledgers.

        Nothing is removed while the deletion of a ledger waits for space in the log. A crash would
        bring that ledger back, and its fence, which may be in one of these segments, must come back
        too.
        """
        if self._unlogged:
            return
        vouchers = self._catalogue.vouchers()
        for segment in list(self._catalogue.segments.values()):
            if (
                segment.state is SegmentState.SEALED
                and segment.live_ledgers == 0
                and not segment.compacting
                and segment.number not in vouchers
                and segment.number not in self._busy
                and self._read_again_s.get(segment.number, 0.0) <= self._monotonic()
            ):
                self._busy.add(segment.number)
                self._jobs.run(
                    partial(self._load_records, segment), partial(self._on_records, segment)
                )

    def _load_records(self, segment: LogSegment) -> list[StateRecord]:
        assert segment.trailer is not None
        file = self._disk.open(segment.name)
        try:
            with naming(self._disk, segment.name):
                try:
                    return load_records(file, segment.trailer)
                except FormatError:
                    # The index is damaged. Read the records from the groups instead.
                    return read_groups(file, segment.trailer).records
        except FormatError as error:
            raise StorageError(
                f"the segment {self._disk.path}/{segment.name} cannot be removed, because its "
                f"state records cannot be read: {error}",
                remedy="The bookie keeps the segment, and tries again later. The scrub reports the "
                "damage: see `quire explain`",
            ) from None
        finally:
            file.close()

    def _on_records(
        self, segment: LogSegment, records: list[StateRecord] | None, error: Exception | None
    ) -> None:
        if records is None:
            if error is None or not may_pass(error):
                # Do not read the whole damaged segment again each time that something is deleted.
                self._read_again_s[segment.number] = self._monotonic() + READ_AGAIN_S
            self._give_up(segment, error)
            return
        if self._unlogged:
            # The log had no space for a deletion since the removal began; see `collect`.
            self._busy.discard(segment.number)
            return
        needed = self._still_needed(segment, records)
        needed.append(StateRecord(RecordKind.DROPPED, value=segment_value(segment.number)))
        self._log_records(needed, partial(self._on_logged, segment))
        if segment.number in self._busy:
            # Headers of later segments do not name this one any more, because they come after the
            # DROPPED record. A header that was written between the two still names it.
            segment.state = SegmentState.RETIRED

    def _on_logged(self, segment: LogSegment, error: StorageError | None) -> None:
        if error is not None:
            segment.state = SegmentState.SEALED
            self._give_up(segment, error)
            self._note_full(error)
            return
        self._remove(segment)

    def _remove(self, segment: LogSegment) -> None:
        self._jobs.run(partial(self._remove_file, segment), partial(self._on_removed, segment))

    def _remove_file(self, segment: LogSegment) -> None:
        self._disk.remove(segment.name)
        self._disk.sync_directory(LOG_DIRECTORY)

    def _on_removed(self, segment: LogSegment, result: None, error: Exception | None) -> None:
        # If the removal has failed, the next start does it, because the log says that it is
        # dropped.
        if error is not None:
            self.error = str(error)
        self._files.close(segment)
        del self._catalogue.segments[segment.number]
        self._read_again_s.pop(segment.number, None)
        self._busy.discard(segment.number)
        self.removed += 1
        if error is None:
            self.error = None
            self.on_removed()

    def _give_up(self, segment: LogSegment, error: Exception | None) -> None:
        self.error = str(error)
        self._busy.discard(segment.number)

    # -- what must survive ------------------------------------------------------------------------

    def _still_needed(
        self, segment: LogSegment, records: Sequence[StateRecord]
    ) -> list[StateRecord]:
        """Return the state records of a segment to be removed that must be logged again."""
        ledgers = self._catalogue.ledgers
        needed: list[StateRecord] = []
        seen: set[tuple[RecordKind, int]] = set()
        for record in records:
            if record.kind is RecordKind.DELETED:
                kept = self._deletion(segment, record)
                if kept is not None:
                    needed.append(kept)
                continue
            # For all other kinds, log the present state once.
            info = ledgers.get(record.ledger_id)
            if info is None or (record.kind, record.ledger_id) in seen:
                continue
            seen.add((record.kind, record.ledger_id))
            if record.kind is RecordKind.MASTER_KEY:
                needed.append(StateRecord(record.kind, info.ledger_id, info.master_key))
            elif record.kind is RecordKind.FENCE and info.fenced:
                needed.append(StateRecord(record.kind, info.ledger_id))
            elif record.kind is RecordKind.EXPLICIT_LAC and info.explicit_lac is not None:
                needed.append(StateRecord(record.kind, info.ledger_id, info.explicit_lac))
        return needed

    def _deletion(self, segment: LogSegment, record: StateRecord) -> StateRecord | None:
        """Return a deletion record to log again in place of `record`, or None if it is not needed.

        It is needed as long as adds to the ledger must be refused, or an older segment mentions the
        ledger.
        """
        deleted = Deleted.decode(record.value)
        expired = deleted.time_ms + TOMBSTONE_TTL_MS <= self._now_ms()
        before = deleted.before_segment or segment.number
        spoken_of = any(
            other.number < before and other.mentions_ledger(record.ledger_id)
            for other in self._catalogue.segments.values()
            if other is not segment and other.state is not SegmentState.RETIRED
        )
        if not spoken_of and (expired or not deleted.fenced):
            return None
        value = Deleted(deleted.time_ms, deleted.fenced, before).encode()
        return StateRecord(RecordKind.DELETED, record.ledger_id, value)
