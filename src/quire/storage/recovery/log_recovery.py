"""Read the log at a start: find out what counts, what is torn, damaged or missing.

The rules follow from the order in which the log is written (see `group_commit` and `footer`):

1. The header of a segment is synced before its first group, and each group before the next. A later
   group, a later segment or the mark of a clean stop proves that everything before it was synced.
   If such data fails its check, it is *damaged*. Only the last group of the log can be *torn*. It
   is then cut off. A group after which another one was begun was synced, even if both fail their
   checks. A torn group has sectors that still have their old content, zeros. A bad group without
   such a sector is damaged.
2. The last valid group may never have been synced. If only the process died, it may exist only in
   the page cache. It is written again, to a new segment, before anything is served. The same
   applies to the header of a segment that has only this group, so that segment is removed.
3. The header of segment n names group f as its first. If an older segment has group f or a later
   one, it was such a last group. It counts only if no later segment has its copy.
4. The newest valid header lists the segments that must exist, except those that were dropped since.
   A preallocated file proves that the segment before it was begun.
5. If the extent of damage is known (a block), only the entries in it are affected. If its extent is
   unknown (a table, a segment), an entry that is not found may have been lost, until the loss is
   repaired. A repair is recorded by what comes after it in the log: the header of the next segment
   no longer lists a segment that was missing, and a segment that lost groups gets a footer. So
   every loss that a start finds counts, and no record can hide one that came after the repair.
   Until then, all headers also list segment 0, which never exists, because what showed the loss to
   one start may be gone at the next.
6. A log that ends before the position that its bookie has reported to the metadata store has lost
   everything after its end. It is treated as a log with a missing segment (see `incarnation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire._runtime.units import counted
from quire.codec.log.footer import Trailer
from quire.codec.log.segment_header import CleanMark, SegmentHeader
from quire.codec.log.state_records import (
    FormatError,
    RecordKind,
    StateRecord,
    decode_segment_value,
)
from quire.errors import StorageError
from quire.storage.directory import Identity, naming, read_small_file
from quire.storage.interfaces import Disk
from quire.storage.recovery.incarnation import ExpectedLog, LogPosition
from quire.storage.recovery.index_cache import CachedIndex, open_cache
from quire.storage.recovery.loading import LoadProgress
from quire.storage.recovery.replay import GroupChain, LastGroup, Replayer, UnsealedSegment, judge
from quire.storage.recovery.scan import (
    TolerantReader,
    has_groups,
    read_segment_header,
    scan_groups,
    used_end,
)
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer import (
    Loaded,
    load_behind,
    load_footer,
    load_records,
    load_trailer,
)
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name

CLEAN_NAME = f"{LOG_DIRECTORY}/CLEAN"
UNREPAIRED = 0
"""A number that no segment has. A header that lists it was written while a loss was not repaired,
so the loss counts until a later header does not list it."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a start, as far as an operator should know it."""

    clean: bool
    """Whether the last stop was clean."""
    segments: int
    ledgers: int
    groups_scanned: int
    rewritten_group: int | None
    """The number of the last group, if it was written again because its sync may not have
    finished."""
    torn_group: int | None
    """The number of the last group, if it was incomplete and cut off. It was never acknowledged."""
    damaged_blocks: int
    """The number of damaged blocks in the groups that were scanned."""
    problems: tuple[str, ...]
    """The losses and damage, one description each."""
    negatives_unknown: bool
    """Whether something was lost, so that an entry that is not found may have existed."""
    index_cache: str = ""
    """Whether the index cache was used, and why not. "" if there was none."""
    went_back: tuple[str, ...] = ()
    """The directories that went back in time, with the reason for each."""

    def __str__(self) -> str:
        """Return the report as one line for the bookie's log."""
        stop = "stopped cleanly" if self.clean else "new, or not stopped cleanly"
        parts = [
            f"{counted(self.segments, 'segment')}, {counted(self.ledgers, 'ledger')}",
            f"{stop}: {counted(self.groups_scanned, 'group')} scanned",
            "" if self.rewritten_group is None else f"group {self.rewritten_group} written again",
            "" if self.torn_group is None
            else f"group {self.torn_group}, which was never acknowledged, cut off",
            counted(self.damaged_blocks, "damaged block") if self.damaged_blocks else "",
            *self.problems,
            "entries that are not found may be lost" if self.negatives_unknown else "",
            f"index cache: {self.index_cache}" if self.index_cache else "",
        ]  # fmt: skip
        return "; ".join(filter(None, parts))


@dataclass(slots=True)
class RecoveredLog:
    """The log as a start has found it, and what the start still has to do."""

    replayer: Replayer
    """The replayer, which has the catalogue."""
    next_number: int
    """The number of the next segment."""
    next_group: int
    """The number of the next group. If the last group is written again, this is its number."""
    tail: LastGroup | None
    """The last group, which must be written again before anything is served."""
    stale: list[str]
    """The files of dropped segments, which are not needed any more."""
    prepared: list[str]
    """The preallocated files that were never begun, newest first, except that of the next
    segment."""
    unsealed: list[UnsealedSegment]
    """The segments without footers that count."""
    clean: bool
    groups_scanned: int
    torn_group: int | None
    problems: list[str]
    index_cache: str
    cached: dict[int, Trailer]
    """The trailers of the segments that came from the index cache."""
    emptied: UnsealedSegment | None
    """The newest segment, if nothing in it counts. It is also in `stale`, and its file is
    closed."""
    position: LogPosition
    """The end of the log as it was found."""
    went_back: str = ""
    """Why the log counts as one that went back in time, or ""."""

    @property
    def rewritten_group(self) -> int | None:
        """The number of the group that is written again. None if there is none or it is empty."""
        if self.tail is None or not (self.tail.group.table.runs or self.tail.group.table.records):
            return None
        return self.tail.group.header.number

    def report(self) -> RecoveryReport:
        catalogue = self.replayer.catalogue
        return RecoveryReport(
            self.clean, len(catalogue.segments), len(catalogue.ledgers), self.groups_scanned,
            self.rewritten_group, self.torn_group,
            self.replayer.damaged_blocks, tuple(self.problems), catalogue.negatives_unknown,
            self.index_cache, (self.went_back,) if self.went_back else (),
        )  # fmt: skip


def missing_problem(number: int) -> str:
    """Return the description of a segment that must exist but does not."""
    if number == UNREPAIRED:
        return "an earlier start has found a loss, which is not repaired yet"
    return f"{segment_name(number)} is missing"


class _BadFooterError(Exception):
    """A segment's trailer is valid, but the rest of its footer fails its check."""


class LogRecovery:
    """Reads the log once and changes nothing. `startup` then acts on the result.

    All trailers are read first, because which parts of the log count depends on all of them. The
    rest of a footer is read when its segment is indexed, because all footers together may not fit
    into memory. If one of them is damaged, the recovery begins again, and checks each footer
    completely before it relies on the trailer.
    """

    def __init__(
        self,
        disk: Disk,
        identity: Identity,
        catalogue: Catalogue,
        progress: LoadProgress | None = None,
        *,
        use_cache: bool = False,
        expected: ExpectedLog | None = None,
    ) -> None:
        """Prepare to read the log into the empty `catalogue`, which `run` does.

        With `use_cache`, the index cache is used if it belongs to these segments. `expected` has
        what the metadata store knows about the end of the log.
        """
        self._catalogue = catalogue
        self._disk = disk
        self._identity = identity
        self._id = identity.directory_id
        self._progress = progress or LoadProgress()
        self._use_cache = use_cache
        self._expected = expected or ExpectedLog()
        self._cache: CachedIndex | None = None
        self._cache_state = ""
        self._whole_footers = False
        """Whether footers are checked completely when their trailers are read."""
        self._forget()

    def _forget(self) -> None:
        self._headers: dict[int, SegmentHeader | None] = {}
        self._trailers: dict[int, Trailer] = {}
        self._unsealed: dict[int, UnsealedSegment] = {}
        self._problems: list[str] = []
        self._mark: CleanMark | None = None
        self._loaded: dict[int, Loaded] = {}
        """The footer of the newest segment, which is needed before that segment is indexed."""

    def run(self) -> RecoveredLog:
        """Read the log.

        Raises:
            LaterStorageError: A later version wrote a part of the log.
            StorageError: The log cannot be used.
            OSError: The disk fails.
            LoadStopped: The start was stopped.
        """
        try:
            return self._look_once()
        except _BadFooterError:
            self._catalogue.clear()
            self._forget()
            self._whole_footers = True
            return self._look_once()

    def _look_once(self) -> RecoveredLog:
        """Read the log, with the index cache if it can be used."""
        if self._use_cache:
            try:
                self._cache = open_cache(self._disk, self._id)
                if self._cache is not None:
                    return self._attempt()
            except (FormatError, OSError) as error:
                # If the disk fails, reading the footers below reports it.
                self._cache_state = f"not used: {error}"
                self._catalogue.clear()
                self._forget()
            finally:
                self._progress.search = None
                if self._cache is not None:
                    self._cache.close()
                    self._cache = None
        return self._attempt()

    def _attempt(self) -> RecoveredLog:
        try:
            return self._run()
        except BaseException:
            for unsealed in self._unsealed.values():
                unsealed.file.close()
            raise

    def _run(self) -> RecoveredLog:
        self._mark = self._read_mark()
        numbers = self._numbers()
        self._progress.begin(len(numbers))
        begun = []
        for number in numbers:
            if self._cache is not None and number > self._cache.head.through:
                # Do this now, because the groups of a segment that is not sealed take a while.
                self._begin_search(self._cache)
            if self._look(number):
                begun.append(number)
        newest = max(begun, default=0)
        must, dropped = self._must_exist(begun, newest, numbers)
        missing = sorted(must - set(begun))
        for number in missing:
            self._problems.append(missing_problem(number))
        if self._identity.log_begun and not begun:
            self._problems.append("the log is gone: no segment of it was found")
            missing = [UNREPAIRED]
        stale = [number for number in begun if number in dropped or number not in must]
        live = [number for number in begun if number not in stale]
        mark = self._mark
        clean = mark is not None and mark.last_segment == newest
        chain = judge(
            live, self._headers, self._trailers, self._unsealed,
            mark.next_group if mark is not None and clean else None,
        )  # fmt: skip
        end_group = chain.next_group + (chain.tail is not None)
        position = LogPosition(max(numbers, default=0), end_group)
        why = self._expected.held_against(position)
        went_back = f"{self._disk.path} {why}" if why else ""
        if went_back:
            # One number stands for everything that is lost. From now on the log records the loss.
            missing.append(max(newest + 1, self._expected.position.newest_file))
            self._problems.append(went_back)
        # Never use the number of a missing segment, which would then no longer count as missing.
        next_number = max(newest, *missing, 0) + 1
        catalogue = self._catalogue
        catalogue.lossy.update(missing)
        replayer = Replayer(catalogue)
        cached: dict[int, Trailer] = {}
        if self._cache is not None:
            cached = self._restore(self._cache, live, chain)
        if chain.emptied is not None:
            live.remove(chain.emptied)
            stale.append(chain.emptied)
        for number in stale:
            unsealed = self._unsealed.get(number)
            if unsealed is not None:
                unsealed.file.close()
        for number in [number for number in live if number not in cached]:
            with naming(self._disk, segment_name(number)):
                if number in self._trailers:
                    loaded = self._load(number)
                    self._progress.index(number, loaded.trailer)
                    replayer.sealed(number, loaded)
                else:
                    lost = chain.lost[number]
                    replayer.unsealed(self._unsealed[number], chain.kept[number], lost)
            self._progress.advance()
        if catalogue.lossy:
            # What shows the loss now may be gone at the next start. The headers record it.
            catalogue.lossy.add(UNREPAIRED)
        return RecoveredLog(
            replayer, next_number, chain.next_group, chain.tail,
            [segment_name(n) for n in numbers if n in stale],
            [segment_name(n) for n in self._never_begun(numbers, begun, next_number)],
            [self._unsealed[n] for n in live if n in self._unsealed],
            clean and not missing,
            sum(len(unsealed.scan.groups) for unsealed in self._unsealed.values()),
            chain.torn_group, [*self._problems, *replayer.problems], self._cache_state, cached,
            None if chain.emptied is None else self._unsealed[chain.emptied],
            position, went_back,
        )  # fmt: skip

    def _never_begun(
        self, numbers: Sequence[int], begun: Sequence[int], next_number: int
    ) -> Iterator[int]:
        """Yield the numbers of preallocated files that the log does not need, newest first.

        If the log lost something, it may continue far behind such files. A file before the next
        segment is named only if nothing was ever written to it.
        """
        for number in reversed(numbers):
            if number == next_number or number in begun:
                continue
            if number > next_number or self._is_blank(number):
                yield number

    def _is_blank(self, number: int) -> bool:
        """Return whether a segment file has only zeros. One that cannot be read may have others."""
        try:
            file = self._disk.open(segment_name(number))
            try:
                return not used_end(file, 0)
            finally:
                file.close()
        except OSError:
            return False

    def _restore(
        self, cache: CachedIndex, live: Sequence[int], chain: GroupChain
    ) -> dict[int, Trailer]:
        """Restore the catalogue as it was after the segments that the cache covers."""
        cache.check(set(live))
        cached = {number: self._trailers[number] for number in cache.segments}
        self._begin_search(cache)
        end_group = chain.next_group + (chain.tail is not None)
        cache.restore(self._catalogue, cached, end_group, self._progress.check)
        self._progress.search = None
        self._progress.advance(len(cached))
        self._cache_state = f"used for {len(cached)} of {counted(len(live), 'segment')}"
        return cached

    def _begin_search(self, cache: CachedIndex) -> None:
        """Let early reads find the ledgers of the cache, if all of its segments are there.

        If a newer segment records that one of them was dropped, the cache is not used in the end.
        Until then, early reads return what the bookie would have returned before that.
        """
        if self._progress.search is None and cache.segments.keys() <= self._trailers.keys():
            for number in cache.segments:
                self._progress.index(number, self._trailers[number])
            self._progress.search = cache.search(self._disk, self._progress.check)

    # -- which segments ---------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        numbers = []
        for name in self._disk.list(LOG_DIRECTORY):
            stem, dot, suffix = name.partition(".")
            if dot and suffix == "seg" and len(stem) == 16:
                try:
                    numbers.append(int(stem, 16))
                except ValueError:
                    continue
        return sorted(numbers)

    def _read_mark(self) -> CleanMark | None:
        try:
            data = read_small_file(self._disk, CLEAN_NAME)
            if data is None:
                return None
            with naming(self._disk, CLEAN_NAME):
                mark = CleanMark.decode(data)
        except (FormatError, OSError) as error:  # Without the mark, more is checked.
            self._problems.append(f"{CLEAN_NAME}: {error}")
            return None
        return mark if mark.directory_id == self._id else None

    def _look(self, number: int) -> bool:
        """Read a segment's header, and its trailer or groups. Return whether it was begun."""
        self._progress.advance()
        with naming(self._disk, segment_name(number)):
            return self._look_into(number)

    def _look_into(self, number: int) -> bool:
        file = self._disk.open(segment_name(number))
        try:
            readable = TolerantReader(file)
            self._headers[number] = header = read_segment_header(readable, self._id, number)
            known = None if self._cache is None else self._cache.trailer_of(number, file)
            if known is not None:
                self._trailers[number] = known
                file.close()
                return True
            try:
                if self._whole_footers:
                    self._trailers[number] = load_footer(readable, self._id, number).trailer
                else:
                    self._trailers[number] = load_trailer(readable, self._id, number)
            except FormatError:
                pass
            else:
                file.close()
                return True
            if header is None and not has_groups(readable):
                file.close()
                return False
            start = 0 if header is None else header.size_bytes
            scan = scan_groups(readable, self._id, number, start)
            self._unsealed[number] = UnsealedSegment(number, header, scan, file)
        except BaseException:
            file.close()
            raise
        if readable.unreadable:
            what = f"{counted(len(readable.unreadable), 'block')} of {segment_name(number)}"
            self._problems.append(f"{what} cannot be read")
        if header is None:
            self._problems.append(f"the header of {segment_name(number)} is damaged")
        return True

    def _base(self, begun: Sequence[int]) -> int | None:
        """Return the number of the newest segment with a valid header, or None."""
        return max((n for n in begun if self._headers[n] is not None), default=None)

    def _must_exist(
        self, begun: Sequence[int], newest: int, numbers: Sequence[int]
    ) -> tuple[set[int], set[int]]:
        """Return the numbers of segments that must exist, and of those that were dropped."""
        base = self._base(begun)
        must: set[int] = set()
        header = None if base is None else self._headers[base]
        if header is not None:
            for first, last in header.live:
                must.update(range(first, last + 1))
        low = min(begun, default=0) if base is None else base
        # Everything after the base must exist, even if only a preallocated file proves it.
        must.update(n for n in range(low, newest + 1) if begun)
        prepared = [n for n in numbers if n > newest]
        if prepared and prepared[0] > newest + 1 and (begun or self._identity.log_begun):
            must.update(range(newest + 1, prepared[0]))
        if self._mark is not None and self._mark.last_segment > newest:
            must.update(range(newest + 1, self._mark.last_segment + 1))
        dropped: set[int] = set()
        for number in begun:
            if base is None or number >= base:
                with naming(self._disk, segment_name(number)):
                    dropped.update(
                        decode_segment_value(record.value)
                        for record in self._records(number, newest)
                        if record.kind is RecordKind.DROPPED
                    )
        return must - dropped, dropped

    # -- what is in them --------------------------------------------------------------------------

    def _load(self, number: int) -> Loaded:
        found = self._loaded.pop(number, None)
        if found is not None:
            return found
        file = self._disk.open(segment_name(number))
        readable = TolerantReader(file)
        try:
            with naming(self._disk, segment_name(number)):
                try:
                    return load_behind(readable, self._trailers[number])
                except FormatError:
                    # If a bookie runs beside this, a compaction may have replaced the file.
                    return load_footer(readable, self._id, number)
        except FormatError as error:
            if not self._whole_footers:
                raise _BadFooterError from None
            # It was valid a moment ago.
            raise StorageError(
                f"{segment_name(number)} cannot be read any more: {error}. It was readable a "
                "moment ago",
                remedy="Check the disk, and start the bookie again",
            ) from None
        finally:
            file.close()

    def _records(self, number: int, newest: int) -> Sequence[StateRecord]:
        if self._cache is not None and number in self._cache.segments:
            file = self._disk.open(segment_name(number))
            try:
                # If a footer is damaged, the start does not rely on it, with or without the cache.
                with naming(self._disk, segment_name(number)):
                    return load_records(TolerantReader(file), self._trailers[number])
            finally:
                file.close()
        if number in self._trailers:
            loaded = self._load(number)
            if number == newest:
                self._loaded[number] = loaded
            return loaded.records
        groups = self._unsealed[number].scan.groups
        if number == newest and groups and groups[-1].may_be_torn:
            # The last group may never have been synced. Ignoring it may make a dropped segment
            # count as missing, but believing it could remove a segment that is needed.
            groups = groups[:-1]
        return [record for group in groups for record in group.table.records]
