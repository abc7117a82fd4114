"""Compaction: decide when to compact which segments, at what pace, and update the catalogue.

    idle -> listing -> copying (a group, a pause, a group ...) -> finishing -> idle

This part runs on the event loop. The reading and writing is done on the maintenance worker (see
`rewrite`). The output replaces the newest of its sources and keeps its number. So everything that
is logged later, above all a deletion, still comes after it. The other sources have no live data any
more and are removed like all dead segments (see `collector`). A crash at any point leaves the old
file or the new one. At worst, other sources also remain, so entries exist twice, which is harmless.

Compaction decides what is alive only while no deletion waits to be logged. If a crash brings a
ledger back, everything that was known about it must come back too.

The space for one compaction is preallocated, so that a full disk can be compacted as well. The
output is written into that file, which then replaces a segment. The space that this frees becomes
the next reserve first. While the reserve is missing, its size does not count as free space.
Otherwise adds could fill that space too.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from quire.codec.log.state_records import (
    Deleted,
    RecordKind,
    StateRecord,
    Superseded,
)
from quire.core.compaction import Choice, CompactionCandidate, alone, choose, why_not
from quire.errors import LaterStorageError
from quire.storage.background.collector import Collector
from quire.storage.background.job import BackgroundJob, JobContext, PacedJob
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.rewrite import Rewrite, RewriteResult, RewriteSource
from quire.storage.background.salvage import (
    BadSegmentError,
    Salvage,
    copies_between,
    is_original_deletion,
)
from quire.storage.background.suspension import Suspension, resumed, suspended, write_note
from quire.storage.log.preallocation import may_pass
from quire.storage.segment.catalogue import TOMBSTONE_TTL_MS
from quire.storage.segment.segment import (
    LOG_DIRECTORY,
    SPARE_NAME,
    LedgerInfo,
    LogSegment,
    SegmentState,
)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of one compaction."""

    segments: tuple[int, ...]
    position: int
    """The number of the segment that the output replaces."""
    before_bytes: int
    """The size of the files of the compacted segments together."""
    after_bytes: int
    copied_bytes: int
    """The number of bytes of frames that were copied to the output."""
    duplicate_bytes: int
    """The number of bytes of frames that were not copied because another of the compacted segments
    has the same entries."""
    error: str = ""
    """The reason why the compaction failed and changed nothing, or "" if it succeeded."""


@dataclass(slots=True)
class _Work:
    """A compaction that is running."""

    choice: Choice
    rewrite: Rewrite
    last: LogSegment
    alive: set[int]
    """The ids of the ledgers that the newest source mentions and that still exist."""
    living: dict[int, LedgerInfo]
    """The ledgers whose entries are copied, by id."""
    records: Sequence[StateRecord] = ()


class CompactionReserve(BackgroundJob):
    """The preallocated file for the output of the next compaction."""

    def __init__(self, context: JobContext, size_bytes: int) -> None:
        super().__init__(context)
        self._wanted_bytes = size_bytes
        self._busy = False
        self._given = False
        """Whether the space of the file was given to the log. It stays True until the disk has
        enough free space for adds again."""
        self.size_bytes = 0
        """The size of the preallocated file, or 0 if there is none."""

    def keep(self, *, wanted: bool) -> None:
        """Create or extend the file in the background, if it is too small and there is space.

        Without `wanted`, no file is created, and no free space is set aside for one.
        """
        if self._preallocated.space:
            self._given = False
        if self._busy or self._given or self.size_bytes >= self._wanted_bytes:
            return
        if not wanted:
            self._preallocated.held_bytes = 0
            return
        self._preallocated.held_bytes = self._wanted_bytes
        self._busy = True
        self._jobs.run(self._make, self._on_made)

    def used(self) -> None:
        """Note that a compaction has taken the preallocated file for its output.

        The next space that becomes free is used for a new such file, before anything else.
        """
        self.size_bytes = 0
        self._preallocated.held_bytes = self._wanted_bytes

    def release(self) -> None:
        """Remove the file, so that the log can use its space to log a deletion."""
        if self._busy or self._given or not self.size_bytes:
            return
        self._given = self._busy = True
        self._preallocated.held_bytes = 0
        self._jobs.run(self._remove, self._on_removed, urgent=True)

    def _make(self) -> int:
        """Create or extend the file, and return its size. This runs on the maintenance worker."""
        disk, size = self._disk, self._wanted_bytes
        new = not disk.exists(SPARE_NAME)
        file = disk.create(SPARE_NAME) if new else disk.open(SPARE_NAME)
        try:
            lacking = size - file.size()
            if lacking > 0:
                # Some file systems do not give back what a failed attempt has allocated.
                free = disk.free_bytes()
                if free < lacking:
                    raise OSError(
                        errno.ENOSPC, f"only {free} bytes are free, too few for a compaction"
                    )
                file.preallocate(size)
            file.sync()
            disk.sync_directory(LOG_DIRECTORY)
            return file.size()
        finally:
            file.close()

    def _on_made(self, size: int | None, error: Exception | None) -> None:
        self._busy = False
        if size is not None:
            self.size_bytes = size
            self._preallocated.held_bytes = 0
        self._look_at(error)

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(SPARE_NAME)
        self._disk.sync_directory(LOG_DIRECTORY)

    def _on_removed(self, _: None, error: Exception | None) -> None:
        self._busy = False
        self.size_bytes = 0
        self._look_at(error)
        self._preallocated.check()


class Compactor(PacedJob):
    """The background job that compacts the segments of one store when that is worth it."""

    def __init__(self, context: JobContext, collector: Collector, quarantine: Quarantine) -> None:
        super().__init__(context)
        self._collector = collector
        self._quarantine = quarantine
        config = context.config
        self._reserve = CompactionReserve(
            context, min(config.compact_reserve_bytes, config.segment_bytes)
        )
        self._work: _Work | None = None
        self._next_minor_s = self._next_major_s = self._monotonic()
        self.on_done: Callable[[Compaction], None] = lambda one: None
        self.done = 0
        self.done_major = 0
        self._major = False
        self.requested = False
        """Whether a compaction that was requested is not completed yet."""
        self.copied_bytes = 0
        self.written_bytes = 0
        """The number of bytes of the log groups that compactions wrote: copied frames with group
        headers, tables and padding. Segment headers and footers are not counted."""
        self.freed_bytes = 0
        self.error: str = ""
        """The error of the last compaction if it failed, or "". The next compaction that succeeds
        clears it."""
        self.suspended: Suspension | None = None
        """The kinds of compaction that an operator has suspended, or None. A running compaction is
        completed."""

    # -- suspended by an operator -----------------------------------------------------------------

    def load(self) -> None:
        """Remove the note of a suspension by an earlier process. This blocks.

        Raises `OSError` if the note cannot be removed.
        """
        write_note(self._disk, None)

    def suspend(self, *, minor: bool, major: bool, by: str) -> None:
        """Begin no compactions of these kinds from now on, not even on a full disk.

        Damaged segments are still rewritten once their entries are restored. A note in the data
        directory shows the suspension. If there is no space for the note, the suspension applies
        without it. `by` is the name of the operator. If something is suspended already, the first
        name and time are kept.
        """
        now_ms = self._now_ms()
        self._hold(suspended(self.suspended, minor=minor, major=major, by=by, now_ms=now_ms))

    def resume(self, *, minor: bool, major: bool) -> None:
        """Allow compactions of these kinds again, and begin one if it is due."""
        self._hold(resumed(self.suspended, minor=minor, major=major))
        self.tick()

    def _hold(self, one: Suspension | None) -> None:
        if one == self.suspended or self.closed:
            return
        self.suspended = one
        noted = partial(write_note, self._disk, one)
        self._jobs.run(noted, lambda _, error: self._look_at(error))

    # -- when and which ---------------------------------------------------------------------------

    def request(self, *, minor: bool, major: bool) -> None:
        """Begin compactions of these kinds without waiting for their intervals.

        Ratios, the rate and a suspension apply. A compaction that is under way is completed first.
        """
        if major:
            self._next_major_s = self._monotonic()
        if minor:
            self._next_minor_s = self._monotonic()
        self.requested = self.requested or minor or major
        self.tick()

    def tick(self) -> None:
        """Begin the next compaction, if one is due and none is under way."""
        if self._work is not None or self.closed:
            return
        self._reserve.keep(wanted=self._enabled and any(self._sealed()))
        if self._collector.deletions_logged and self._write_anew():
            return
        ratio = self._due()
        if ratio <= 0:
            self.requested = False
            return
        if not self._collector.deletions_logged:
            return
        choice = self._choose(ratio)
        if choice is not None:
            self._major = 0 < self._config.compact_major_ratio <= ratio
            self._begin(choice)
            return
        self.requested = False
        if not self._short:
            now = self._monotonic()
            self._next_minor_s = now + self._config.compact_minor_interval_s
            if ratio >= self._config.compact_major_ratio:
                self._next_major_s = now + self._config.compact_major_interval_s

    def _write_anew(self) -> bool:
        """Begin to rewrite a damaged segment whose entries are restored. Return whether one began.

        This also happens if compaction is switched off, because its purpose is not to free space.
        """
        for segment in self._quarantine.ready():
            choice = alone(candidate_of(segment))
            if choice.output_bytes <= self._available_bytes():
                self._major = False
                self._begin(choice, self._quarantine.salvage(segment))
                return self._work is not None
        return False

    def log_is_full(self) -> None:
        """Give the space of the reserve to the log, which has no space left even for a deletion.

        Nothing happens while a compaction is running, because it uses the reserve.
        """
        if self._work is None and not self.closed:
            self._reserve.release()

    @property
    def reserve_bytes(self) -> int:
        """The number of bytes that are preallocated for the next compaction."""
        return self._reserve.size_bytes

    @property
    def _enabled(self) -> bool:
        return self._config.compact_ratio > 0

    @property
    def _short(self) -> bool:
        return not self._preallocated.space

    def _due(self) -> float:
        """Return the share of live data below which segments are compacted now, or 0 for none."""
        now, held, major_ratio = self._monotonic(), self.suspended, self._config.compact_major_ratio
        major_due = major_ratio > 0 and (self._short or now >= self._next_major_s)
        if major_due and not (held and held.major):
            return major_ratio
        if (self._short or now >= self._next_minor_s) and not (held and held.minor):
            return self._config.compact_minor_ratio
        return 0.0

    def _available_bytes(self) -> int:
        return max(self._reserve.size_bytes, self._preallocated.free_bytes)

    def _sealed(self) -> Iterator[LogSegment]:
        for segment in self._catalogue.segments.values():
            if segment.state is SegmentState.SEALED:
                yield segment

    def _choose(self, ratio: float) -> Choice | None:
        """Return the segments to compact now, or None if compacting would gain too little."""
        vouchers = self._catalogue.vouchers()
        candidates = [
            candidate_of(segment)
            for segment in self._sealed()
            if segment.live_ledgers and not segment.damage and not segment.compacting
            if segment.number not in vouchers
        ]
        pick = partial(
            choose,
            below_ratio=ratio,
            available_bytes=self._available_bytes(),
            together_bytes=self._config.segment_bytes,
        )
        if not self._short:
            parts = [pick(part) for part in self._undamaged_parts(candidates)]
            return max(filter(None, parts), key=lambda one: one.freed_bytes, default=None)
        # Compact one segment at a time. When its own file is replaced, that gives back the space
        # that the output has taken.
        worth = [choice for choice in (pick([one]) for one in candidates) if choice is not None]
        return max(worth, key=lambda one: one.freed_bytes, default=None)

    def _undamaged_parts(
        self, candidates: Sequence[CompactionCandidate]
    ) -> list[list[CompactionCandidate]]:
        """Divide the candidates at each damaged segment, and return the parts that are not empty.

        The output of a compaction has the number of its newest source. An older copy from before a
        damaged segment must not come after it, because it is unknown which newer copies are there.
        """
        damaged = sorted(one.number for one in self._catalogue.segments.values() if one.damage)
        parts: dict[int, list[CompactionCandidate]] = {}
        for one in candidates:
            parts.setdefault(bisect_left(damaged, one.number), []).append(one)
        return list(parts.values())

    def is_worth_it(self, segment: LogSegment) -> bool:
        """Return whether the segment can be removed, or rewritten by itself with a gain.

        This is also True while the segment is being compacted. A suspension by an operator does not
        matter.
        """
        if not segment.live_ledgers or segment.compacting:
            return True
        candidate, ratio = candidate_of(segment), self._config.compact_ratio
        reason = why_not(candidate, below_ratio=ratio, available_bytes=segment.file_bytes)
        return not reason and not segment.damage

    def why_not(self, segment: LogSegment) -> str:
        """Return in words why the space of dead entries in a sealed segment is not freed yet."""
        if segment.damage:
            return f"quarantined: {segment.damage}"
        if segment.compacting:
            return "it is being compacted"
        if not self._enabled:
            return "compaction is switched off"
        config = self._config
        now = self._monotonic()
        candidate = candidate_of(segment)
        available_bytes = self._available_bytes()
        reason = why_not(
            candidate, below_ratio=config.compact_ratio, available_bytes=available_bytes
        )
        if reason:
            return reason
        if not self._collector.deletions_logged:
            return "deletions wait to be logged"
        minor, major = candidate.live_ratio < config.compact_minor_ratio, config.compact_major_ratio
        if self.suspended is not None and self.suspended.stops(minor=minor, major=major > 0):
            return self.suspended.describe()
        due_s = [self._next_minor_s] if minor else []
        due_s += [self._next_major_s] if major else []
        wait_s = min(due_s) - now
        if wait_s > 0 and not self._short:
            return f"it is compacted in {wait_s:.0f} s, when the next compaction is due"
        return "it waits for another compaction" if self._work else "it is compacted next"

    # -- one compaction ---------------------------------------------------------------------------

    def _begin(self, choice: Choice, salvage: Salvage | None = None) -> None:
        """Begin to compact the chosen segments, or to rewrite a damaged one with `salvage`."""
        ledgers, segments = self._catalogue.ledgers, self._catalogue.segments
        last = segments[choice.position]
        living: dict[int, LedgerInfo] = {}
        sources = []
        for number in choice.numbers:
            segment = segments[number]
            here = [
                info
                for ledger_id in segment.mentions
                if (info := ledgers.get(ledger_id)) is not None and info.lives_in(number)
            ]
            assert segment.trailer is not None
            living.update((info.ledger_id, info) for info in here)
            ids = array("q", [info.ledger_id for info in here])
            newer = {}
            for info in here:
                found = copies_between(segments, info, number, choice.numbers)
                if found is not None:
                    newer[info.ledger_id] = found
            sources.append(RewriteSource(number, segment.trailer, ids, salvage, newer))
        try:
            # Open the old file before the new one takes its name. Running reads continue with it.
            self._files.borrow(last)
        except OSError as error:
            self.error = f"{last.name} cannot be opened: {error}"
            if not may_pass(error):
                last.damage = f"the file cannot be opened ({error})"
                self._quarantine.recheck(last.number)
            return
        for number in choice.numbers:
            segments[number].compacting = True
        rewrite = Rewrite(self._disk, self._directory_id, sources)
        alive = {ledger_id for ledger_id in last.mentions if ledger_id in ledgers}
        self._work = work = _Work(choice, rewrite, last, alive, living)
        self._jobs.run(rewrite.begin, partial(self._on_listed, work))

    def _on_listed(
        self, work: _Work, records: list[StateRecord] | None, error: Exception | None
    ) -> None:
        if records is None or self.closed:
            self._give_up(work, error)
            return
        work.records = self._still_needed(work, records)
        available_bytes = max(work.choice.output_bytes, self._reserve.size_bytes)
        begin = partial(work.rewrite.write_header, work.records, available_bytes)
        if self._enabled:
            self._reserve.used()
        self._jobs.run(begin, partial(self._on_begun, work))

    def _on_begun(self, work: _Work, _: None, error: Exception | None) -> None:
        if error is not None or self.closed:
            self._give_up(work, error)
        else:
            self._copy(work)

    def _copy(self, work: _Work) -> None:
        self._timer = None
        if self.closed:
            return
        self._jobs.run(work.rewrite.copy, partial(self._on_copied, work))

    def _on_copied(self, work: _Work, size: int | None, error: Exception | None) -> None:
        if size is None or self.closed:
            self._give_up(work, error)
        elif size == 0:
            lacs = {number: info.last_add_confirmed for number, info in work.living.items()}
            finish = partial(work.rewrite.finish, lacs)
            self._jobs.run(finish, partial(self._on_finished, work))
        else:
            self.written_bytes += size
            rate = 0 if self._short else self._config.compact_bytes_per_s
            if rate:
                self._timer = self._schedule(size / rate, partial(self._copy, work))
            else:
                self._copy(work)

    def _on_finished(
        self, work: _Work, result: RewriteResult | None, error: Exception | None
    ) -> None:
        """Replace the sources in the catalogue by the output, which is durable.

        `result` is None if the output could not be finished.
        """
        if result is None:
            self._give_up(work, error)
            return
        last = work.last
        made = self._made(work, result)
        segments = self._catalogue.segments
        ledgers = result.sealed.ledgers
        # Everything that these ledgers had was damaged.
        for ledger_id in work.living.keys() - set(ledgers.ledger_ids):
            if self._catalogue.ledgers.get(ledger_id) is (info := work.living[ledger_id]):
                for number in work.choice.numbers:
                    self._catalogue.unindex(info, number)
        for ledger_id, first, end, size_bytes in zip(
            ledgers.ledger_ids, ledgers.firsts, ledgers.lasts, ledgers.size_bytes
        ):
            info = work.living[ledger_id]
            if self._catalogue.ledgers.get(ledger_id) is not info:
                continue  # It was deleted in the meantime, and may have been created again.
            for number in work.choice.numbers:
                self._catalogue.unindex(info, number)
            info.add_sealed(made.number, first, end, size_bytes)
            made.live_ledgers += 1
            made.live_bytes += size_bytes
        segments[made.number] = made
        last.state = SegmentState.RETIRED
        self._release(work)
        self._files.close(last)
        if last.damage:
            self._quarantine.release(made.number)
        self.done += 1
        self.done_major += self._major
        self.copied_bytes += result.copied_bytes
        self.freed_bytes += work.choice.file_bytes - made.file_bytes
        self.error = ""
        self._report(work, made.file_bytes, result, "")
        self._collector.collect()
        self._preallocated.check()
        self.tick()

    def _made(self, work: _Work, result: RewriteResult) -> LogSegment:
        """Return the segment object of the new file, without anything in its index yet."""
        trailer, last = result.sealed.trailer, work.last
        made = LogSegment(last.number, None, trailer.file_bytes)
        made.generation = last.generation + 1
        made.state = SegmentState.SEALED
        made.trailer = trailer
        made.groups_at, made.end = result.groups_at, result.end
        made.head_bytes = trailer.head_bytes
        made.first_group, made.end_group = last.first_group, last.end_group
        made.previous, made.live = last.previous, last.live
        made.payload_bytes = result.copied_bytes
        made.mentions = result.sealed.mentions
        return made

    def _give_up(self, work: _Work, error: Exception | None) -> None:
        """End a compaction that has failed, or that is stopped. Nothing has changed.

        A damaged source is not compacted again before it is repaired. The other sources are.
        """
        self._release(work)
        work.rewrite.close()
        if error is None:
            return
        if self.error != str(error):
            self.error = str(error)
            self._report(work, work.choice.file_bytes, None, self.error)
        if isinstance(error, BadSegmentError):
            bad = self._catalogue.segments.get(error.number)
            if bad is not None:
                bad.damage = bad.damage or str(error)
                self._quarantine.recheck(bad.number)
            self.tick()
        elif isinstance(error, LaterStorageError):
            self.cancel()  # The segment stays as it is, and reads go on.
        elif not may_pass(error):
            self.cancel()  # It is unknown what is on the disk now.
            self._broken(error)

    def _release(self, work: _Work) -> None:
        self._work = None
        for number in work.choice.numbers:
            self._catalogue.segments[number].compacting = False
        work.last.compacting = False
        work.last.readers -= 1

    def _report(self, work: _Work, after: int, result: RewriteResult | None, error: str) -> None:
        copied, duplicates = 0, 0
        if result is not None:
            copied, duplicates = result.copied_bytes, result.duplicate_bytes
        choice = work.choice
        numbers, before = choice.numbers, choice.file_bytes
        self.on_done(Compaction(numbers, choice.position, before, after, copied, duplicates, error))

    def close(self) -> None:
        """Close the files of a compaction that was stopped, whose output is not used.

        Call this after `cancel`, when no job runs any more.
        """
        if self._work is not None:
            self._give_up(self._work, None)

    # -- what must survive ------------------------------------------------------------------------

    def _still_needed(self, work: _Work, records: Sequence[StateRecord]) -> list[StateRecord]:
        """Return the state records that the output needs.

        These are the records of the newest source that are still needed, in their order. Then
        follow the keys of all copied ledgers, and a SUPERSEDED record for each of the other
        sources.
        """
        void: dict[int, int] = {}
        newest: dict[int, int] = {}
        for at, record in enumerate(records):
            if record.kind is RecordKind.EXPLICIT_LAC:
                newest[record.ledger_id] = at
            elif is_original_deletion(record):
                void[record.ledger_id] = at
        kept = []
        for at, record in enumerate(records):
            kind, ledger_id = record.kind, record.ledger_id
            if kind is RecordKind.DELETED:
                needed = self._is_deletion_needed(work, record)
            elif kind is RecordKind.SUPERSEDED:
                needed = Superseded.decode(record.value).segment in self._catalogue.segments
            elif kind is RecordKind.DROPPED:
                needed = True
            elif kind is RecordKind.REPAIRED:
                needed = False
            else:
                needed = ledger_id in work.alive and at >= void.get(ledger_id, 0)
                if kind is RecordKind.EXPLICIT_LAC:
                    needed = needed and newest[ledger_id] == at
            if needed:
                kept.append(record)
        # Whole frames contain their ledger's key, but bare frames do not.
        known = {one.ledger_id for one in kept if one.kind is RecordKind.MASTER_KEY}
        for ledger_id, info in work.living.items():
            lives = self._catalogue.ledgers.get(ledger_id) is info
            if lives and info.master_key and ledger_id not in known:
                kept.append(StateRecord(RecordKind.MASTER_KEY, ledger_id, info.master_key))
        for number in work.choice.numbers[:-1]:
            trailer = self._catalogue.segments[number].trailer
            assert trailer is not None
            value = Superseded(number, trailer.crc).encode()
            kept.append(StateRecord(RecordKind.SUPERSEDED, value=value))
        return kept

    def _is_deletion_needed(self, work: _Work, record: StateRecord) -> bool:
        """Return whether a deletion record is still needed.

        The record is needed as long as adds to the ledger must be refused, or an older segment
        mentions the ledger. A segment that is about to be removed still counts.
        """
        deleted = Deleted.decode(record.value)
        if deleted.fenced and deleted.time_ms + TOMBSTONE_TTL_MS > self._now_ms():
            return True
        before = deleted.before_segment or work.last.number
        return any(
            other.number < before and other.mentions_ledger(record.ledger_id)
            for other in self._catalogue.segments.values()
        )


def candidate_of(segment: LogSegment) -> CompactionCandidate:
    """Return a sealed segment as a candidate for compaction."""
    trailer = segment.trailer
    assert trailer is not None
    return CompactionCandidate(
        segment.number,
        trailer.file_bytes,
        trailer.file_bytes - trailer.footer_at,
        segment.live_bytes,
    )
