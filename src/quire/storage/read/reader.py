"""Read entries without waiting for the device: locate them, read whole runs, and check them.

Every block that is read is checked against its checksum. Every frame is checked against the index:
its length, ledger id and entry id. If a check fails, the data is damaged, and another copy is
tried. If there is none, the answer is `DamagedError`, never "no such entry". Digests are not
checked, because a bookie does not know their type.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from functools import partial

from quire._runtime.shortages import no_descriptor
from quire.codec.entry.digest import crc32c
from quire.codec.entry.frame_runs import Entries, FrameRun
from quire.codec.log.footer import (
    DISJOINT,
    LedgerRows,
    LedgerSummary,
    Summary,
    decode_footer_checksums,
    decode_footer_summary,
    decode_ledger_rows,
)
from quire.codec.log.state_records import BLOCK_BYTES, Buffer, FormatError
from quire.codec.wire.v2 import FRAME_HEADER_BYTES, KEY_BYTES
from quire.errors import DamagedError, StorageError
from quire.storage.read.cache import ByteCache, SegmentFiles
from quire.storage.read.fetched import (
    FRAMES_AT,
    FetchedExtent,
    FetchedExtents,
    ScratchBuffer,
    checksums_of,
)
from quire.storage.read.gather_read import GatherRead, plan_gather_read
from quire.storage.read.read_ahead import ReadAhead, ReadAheadExtent, read_ahead_extent
from quire.storage.read.read_exceptions import NoEntry, WouldBlock
from quire.storage.segment import sealed_rows
from quire.storage.segment.frames import checked
from quire.storage.segment.segment import (
    EntryLocation,
    LedgerInfo,
    LogSegment,
    sealed_places,
    sealed_stop,
)

_DAMAGED_REMEDY = (
    "Clients read the entries from other replicas. The scrub reports the damage, and autorecovery "
    "repairs it: see `quire explain`"
)
MAX_READ_BYTES = 1024 * 1024
"""The most bytes of one read of a file. A larger entry is read alone."""
DEFAULT_OVERHEAD_BYTES = 4
SLICE_BYTES = 1024 * 1024
"""The most bytes to process in one event-loop iteration. Adds wait for no more than that."""
UNSHARED_BYTES = SLICE_BYTES // 2
"""The size in bytes up to which a read does not count toward the rate that large reads share
(`ReadBudget`)."""
SCATTERED_BYTES = 16 * 1024
"""The size in bytes up to which extents are fetched many at a time."""
SCATTERED_MAX = 64
"""The most small extents that are fetched at a time. Together they have at most
`MAX_READ_BYTES`."""


class Reader:
    """The reads of one store that never wait for the device. They belong to the event loop."""

    def __init__(
        self,
        segments: Mapping[int, LogSegment],
        files: SegmentFiles,
        cache: ByteCache,
        ahead: ReadAhead,
    ) -> None:
        self._segments = segments
        self._files = files
        self._cache = cache
        self._ahead = ahead
        self.damaged_reads = 0
        self.on_damage: Callable[[LogSegment], None] = lambda segment: None
        """A function that is called with each segment in which something fails its check."""

    def read(
        self,
        info: LedgerInfo,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead: int,
    ) -> Entries:
        """Read entries that are in memory or cached; see `LedgerStore.read`.

        In all calls of this class, `overhead` means the `overhead_bytes` of `LedgerStore.read`, and
        `most` the largest number of entries.
        """
        entries = Entries()
        while len(entries) < max_count:
            run = self.run(
                info, first + len(entries), max_count - len(entries), max_bytes, overhead, None,
                begun=bool(entries),
            )  # fmt: skip
            if not run:
                break
            if not entries and run.count < max_count and run.frame_bytes <= SCATTERED_BYTES:
                self._not_scattered(info, first, max_count, max_bytes, overhead)
            entries.add(run)
            max_bytes -= run.size_bytes + overhead * run.count
        if not entries:
            raise NoEntry
        return entries

    def _not_scattered(
        self, info: LedgerInfo, first: int, max_count: int, max_bytes: int, overhead: int
    ) -> None:
        """Raise `WouldBlock` if many small runs are wanted, which are better read together.

        This does not depend on whether they are cached. Reading them takes too long for the event
        loop, and reading each of them alone takes even longer.
        """
        gather = self.gather(info, first, max_count, max_bytes, overhead, None)
        if gather is not None:
            one = gather.extents[0]
            raise WouldBlock(gather.segment, one.offset, one.size)

    def run(
        self,
        info: LedgerInfo,
        entry_id: int,
        most: int,
        max_bytes: int,
        overhead: int,
        fetched: FetchedExtents,
        *,
        begun: bool,
    ) -> FrameRun | None:
        """Return the next run of entries of a read, or None if the read ends here.

        The run has at most `MAX_READ_BYTES`, or one entry. `begun` means that the read already has
        a run. The first entry of this run must then fit as well, and damage just ends the read.
        `FetchedExtents` explains `fetched`.

        Raises:
            DamagedError: All copies of the entry are damaged, and `begun` is False.
            WouldBlock: The entry is not cached, or not among the `fetched` extents.
            StorageError: A file cannot be opened for lack of a file descriptor.
        """
        if entry_id > info.last_entry_id:
            return None
        try:
            return self._some(info, entry_id, most, max_bytes, overhead, fetched, must_fit=begun)
        except DamagedError:
            if begun:
                return None
            raise

    def entry_size(self, info: LedgerInfo, entry_id: int) -> int | None:
        """Return the size of an entry in bytes; see `LedgerStore.entry_size`."""
        try:
            for place in self._places(info, entry_id, None):
                if not isinstance(place, DamagedError):
                    return _frame_bytes(place, 1) - place.segment.head_bytes
        except (WouldBlock, StorageError):
            return None  # The read itself reports that a file cannot be opened.
        return 0

    def upcoming(
        self, info: LedgerInfo, entry_id: int, most: int, max_bytes: int, overhead: int
    ) -> WouldBlock | None:
        """Return the extent that `run` needs to read from this entry on, as a `WouldBlock`.

        Return None if no extent is needed or known.
        """
        try:
            for place in self._places(info, entry_id, {}):
                if isinstance(place, DamagedError) or place.batch is not None:
                    break
                count = _that_fit(place, most, max_bytes, overhead)
                return _blocks_of(place, count) if count else None
        except WouldBlock as missing:
            return missing
        return None

    def scattered(
        self, info: LedgerInfo, entry_id: int, most: int, max_bytes: int, overhead: int
    ) -> list[WouldBlock]:
        """Return the extents of many small runs of one segment, as `upcoming` returns one of them.

        The runs of a ledger are small if its entries are interleaved with those of other ledgers.
        """
        found: list[WouldBlock] = []
        while most and len(found) < SCATTERED_MAX:
            wanted = self.upcoming(info, entry_id, most, max_bytes, overhead)
            if wanted is None or wanted.entries == 0 or wanted.size > SCATTERED_BYTES:
                break
            if found and wanted.segment is not found[0].segment:
                break
            found.append(wanted)
            entry_id += wanted.entries
            most -= wanted.entries
            max_bytes -= wanted.entry_bytes + overhead * wanted.entries
        return found

    def gather(
        self,
        info: LedgerInfo,
        entry_id: int,
        most: int,
        max_bytes: int,
        overhead: int,
        fetched: FetchedExtents,
    ) -> GatherRead | None:
        """Plan one read of many small runs of a sealed segment.

        Return None if this is not possible or not worthwhile. Raises `WouldBlock` if an index must
        be fetched first, and `StorageError` if its file cannot be opened for lack of a descriptor.
        """
        sealed = next(iter(info.sealed_with(entry_id)), None)
        if sealed is None or any(part.first <= entry_id for part in info.open_parts):
            return None
        number, stop = sealed
        stop = min([stop, *(part.first for part in info.open_parts)])
        segment = self._segments[number]
        try:
            found = self._ledger_rows(segment, info.ledger_id, fetched)
            self._block_checksums(segment, fetched)
        except DamagedError:
            return None  # Reading the entry alone reports the damage.
        if found is None or found[1] != DISJOINT:
            return None
        rows, most = found[0], min(most, stop - entry_id)
        return plan_gather_read(segment, info.ledger_id, rows, entry_id, most, max_bytes, overhead)

    def gathered(
        self, gather: GatherRead, extents: Sequence[FetchedExtent], fetched: FetchedExtents
    ) -> FrameRun | None:
        """Return the entries of a gather read, or None if they must be read one by one.

        `extents` has the bytes and checksums of each extent in the plan, as a thread has read them.
        """
        segment = gather.segment
        try:
            checksums = self._block_checksums(segment, fetched)
        except (WouldBlock, DamagedError):
            return None
        data: list[bytes] = []
        for wanted, extent in zip(gather.extents, extents, strict=True):
            low, high = _blocks_between(segment, wanted.offset, wanted.end)
            if extent.checksums != list(checksums[low:high]) or not isinstance(extent.data, bytes):
                return None
            data.append(extent.data)
        return gather.run(data)

    def _some(
        self,
        info: LedgerInfo,
        entry_id: int,
        most: int,
        max_bytes: int,
        overhead: int,
        fetched: FetchedExtents,
        *,
        must_fit: bool,
    ) -> FrameRun | None:
        """Return entries of one run, or None if there is no such entry or it does not fit."""
        problem: DamagedError | None = None
        for place in self._places(info, entry_id, fetched):
            if isinstance(place, DamagedError):
                problem = problem or place
                continue
            count = _that_fit(place, most if problem is None else 1, max_bytes, overhead)
            if not count:
                if must_fit:
                    return None
                count = 1
            try:
                view, at, good = self._frames(place, count, fetched)
                run = checked(view, at, good, info.ledger_id, entry_id, place, count)
                if self._ahead.is_followed(info.ledger_id, place.segment):
                    self._look_ahead(info, entry_id, run, place)
                return run
            except WouldBlock as missing:
                if not isinstance(fetched, dict):
                    self._ahead.waits(info.ledger_id, entry_id, missing.segment)
                raise
            except DamagedError as error:
                self.damaged_reads += 1
                self.on_damage(place.segment)
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def _look_ahead(
        self, info: LedgerInfo, entry_id: int, run: FrameRun, place: EntryLocation
    ) -> None:
        """Tell the read-ahead that a run was read by a reader that it follows."""
        ledger_id, segment = info.ledger_id, place.segment
        found = self._cache.get(_rows_key(segment, ledger_id))
        if found is None:
            return
        rows, _, size_bytes = found
        extent = partial(
            read_ahead_extent, segment, rows, size_bytes, None if info.ordered else entry_id
        )
        end = place.start + run.frame_bytes
        self._ahead.has_read(ledger_id, entry_id, run, segment, end, extent)
        last = self._ahead.wants_beyond(ledger_id)
        if last is not None:
            self._look_beyond(info, last)

    def _look_beyond(self, info: LedgerInfo, last: ReadAheadExtent) -> None:
        """Look for the range that follows the last one known ahead of a reader.

        Otherwise the reader would have to wait at the end of the known range, first for an index
        and then for entries. If an index is not cached yet, it is read ahead, and this is called
        again with a later read.
        """
        wanted, found = None, None
        if not info.ordered:
            wanted = last.last + 1
            segments = [self._segments[number] for number, _ in info.sealed_with(wanted)]
        else:
            behind = self.next_sealed(info, last.segment.number)
            segments = [] if behind is None else [behind]
        for segment in segments:
            trailer = segment.trailer
            assert trailer is not None
            try:
                self._checksums(segment, segment.groups_at, segment.groups_at, None)
                known = self._ledger_rows(segment, info.ledger_id, None)
                found = known and read_ahead_extent(segment, known[0], known[2], wanted)
                if found is not None:
                    # The first block may be cached only because a reader of another ledger needed
                    # it.
                    inside = min(found.start + BLOCK_BYTES, found.stop - 1)
                    found.cached = self._files.get(segment).read(inside, 1, wait=False) is not None
                    break
            except WouldBlock:
                size = trailer.file_bytes - trailer.footer_at
                self._ahead.bring_index(info.ledger_id, segment, trailer.footer_at, size)
                return
            except (StorageError, OSError):
                break  # The next read of this segment reports the error.
        self._ahead.has_looked_beyond(info.ledger_id, found)

    def next_sealed(self, info: LedgerInfo, number: int) -> LogSegment | None:
        """Return the oldest sealed segment after `number` with entries of the ledger, or None."""
        packed = info.sealed
        rows = range(sealed_rows.count(packed))
        at = bisect_right(rows, number, key=lambda row: sealed_rows.row_at(packed, row)[0])
        return self._segments[sealed_rows.row_at(packed, at)[0]] if at < len(rows) else None

    def rows_in(
        self, segment: LogSegment, ledger_id: int, fetched: FetchedExtents
    ) -> LedgerRows | None:
        """Return the ledger's runs in a sealed segment, or None if its index has none.

        Raises:
            DamagedError: The index is damaged.
            WouldBlock: The index is not cached, or not among the `fetched` extents.
            StorageError: The file cannot be opened for lack of a file descriptor.
        """
        try:
            found = self._ledger_rows(segment, ledger_id, fetched)
        except DamagedError:
            self.on_damage(segment)
            raise
        return None if found is None else found[0]

    def master_key(self, info: LedgerInfo, fetched: FetchedExtents) -> bytes | None:
        """Return the master key in the frame of the ledger's last entry.

        Return None if no copy of the entry has it. Bare frames have no key, and a damaged frame
        does not count. Raises `WouldBlock` as `FetchedExtents` explains, and StorageError if a file
        cannot be opened for lack of a descriptor.
        """
        for place in self._places(info, info.last_entry_id, fetched):
            if isinstance(place, DamagedError) or place.segment.head_bytes != FRAME_HEADER_BYTES:
                continue
            try:
                view, at, good = self._frames(place, 1, fetched)
                checked(view, at, good, info.ledger_id, info.last_entry_id, place, 1)
            except DamagedError:
                continue
            return bytes(view[at + FRAME_HEADER_BYTES - KEY_BYTES : at + FRAME_HEADER_BYTES])
        return None

    # -- finding ----------------------------------------------------------------------------------

    def _places(
        self, info: LedgerInfo, entry_id: int, fetched: FetchedExtents
    ) -> Iterator[EntryLocation | DamagedError]:
        """Yield the locations of all copies of the entry, newest first.

        A `DamagedError` is yielded for each damaged index in which another copy may be listed.
        """
        stop = info.last_entry_id + 1
        parts = info.open_parts
        if parts and parts[0].segment.number < info.newest_sealed:
            yield from self._places_by_number(info, entry_id, fetched)
            return
        for part in reversed(parts):
            if part.first > entry_id:
                stop = min(stop, part.first)
            elif part.last >= entry_id:
                yield from part.places(entry_id, stop)
                stop = part.stop_of(entry_id, stop)
        for number, behind in info.sealed_with(entry_id):
            stop = yield from self._places_in(info, number, entry_id, min(stop, behind), fetched)

    def _places_by_number(
        self, info: LedgerInfo, entry_id: int, fetched: FetchedExtents
    ) -> Iterator[EntryLocation | DamagedError]:
        """Do the same as `_places` if an older segment than a sealed one has no footer.

        It may wait for space, or for the repair of a loss.
        """
        stop = info.last_entry_id + 1
        parts = {part.segment.number: part for part in info.open_parts}
        spans = {number: (part.first, part.last) for number, part in parts.items()}
        spans |= {row[0]: (row[1], row[2]) for row in sealed_rows.unpack(info.sealed)}
        for number, (first, last) in sorted(spans.items(), reverse=True):
            if first > entry_id:
                stop = min(stop, first)
            elif last >= entry_id and number in parts:
                yield from parts[number].places(entry_id, stop)
                stop = parts[number].stop_of(entry_id, stop)
            elif last >= entry_id:
                stop = yield from self._places_in(info, number, entry_id, stop, fetched)

    def _places_in(
        self, info: LedgerInfo, number: int, entry_id: int, stop: int, fetched: FetchedExtents
    ) -> Generator[EntryLocation | DamagedError, None, int]:
        """Yield the locations of the copies of the entry in a sealed segment, newest first.

        Return the first entry after it of which this segment or a newer one has a copy.
        """
        segment = self._segments[number]
        try:
            found = self._ledger_rows(segment, info.ledger_id, fetched)
        except DamagedError as error:
            self.on_damage(segment)
            yield error
            return stop
        if found is not None:
            rows, span, _ = found
            yield from sealed_places(segment, rows, span, entry_id, stop)
            stop = sealed_stop(rows, span, entry_id, stop)
        return stop

    def summary(self, segment: LogSegment, fetched: FetchedExtents) -> Summary:
        """Return the summary of ledgers in the footer of a segment.

        Raises `DamagedError` if the summary fails its check, `WouldBlock` as `FetchedExtents`
        explains, and StorageError if the file cannot be opened for lack of a descriptor.
        """
        key = (segment.number, segment.generation, -2)
        summary: Summary | None = self._cache.get(key)
        if summary is None:
            trailer = segment.trailer
            assert trailer is not None
            data = self._fetch(segment, trailer.summary_at, trailer.summary_bytes, fetched)
            try:
                summary = decode_footer_summary(data, trailer)
            except FormatError as error:
                raise DamagedError(
                    f"the index of {segment.name} is damaged: {error}",
                    file=segment.name,
                    remedy=_DAMAGED_REMEDY,
                ) from None
            self._cache.put(key, summary, len(data))
        return summary

    def _ledger_rows(
        self, segment: LogSegment, ledger_id: int, fetched: FetchedExtents
    ) -> tuple[LedgerRows, int, int] | None:
        """Return the ledger's rows in a segment, their span, and the bytes of all frames.

        `LedgerPart.span` explains the span. Return None if the index does not name the ledger.
        """
        key = _rows_key(segment, ledger_id)
        found: tuple[LedgerRows, int, int] | None = self._cache.get(key)
        if found is None:
            summary = self.summary(segment, fetched).find(ledger_id)
            if summary is None:
                return None
            rows = self._load_rows(segment, summary, fetched)
            found = rows, summary.span, summary.size_bytes
            self._cache.put(key, found, summary.rows_bytes)
        return found

    def _load_rows(
        self, segment: LogSegment, summary: LedgerSummary, fetched: FetchedExtents
    ) -> LedgerRows:
        assert segment.trailer is not None
        at = segment.trailer.footer_at + summary.rows_at
        data = self._fetch(segment, at, summary.rows_bytes, fetched)
        if len(data) == summary.rows_bytes and crc32c(data) == summary.rows_crc:
            try:
                return decode_ledger_rows(data, summary.rows)
            except FormatError:
                pass
        raise DamagedError(
            f"the index of ledger {summary.ledger_id} in {segment.name} is damaged",
            file=segment.name,
            remedy=_DAMAGED_REMEDY,
        )

    # -- fetching ---------------------------------------------------------------------------------

    def _fetch(
        self, segment: LogSegment, offset: int, size: int, fetched: FetchedExtents
    ) -> Buffer:
        """Return `size` bytes of the file of a segment, or fewer at its end.

        `FetchedExtents` explains where they come from, and when this raises `WouldBlock`.
        """
        if isinstance(fetched, dict):
            extent = fetched.get((segment, offset, size))
            if extent is None:
                raise WouldBlock(segment, offset, size)
            return extent.data
        return self._read_cached(segment, offset, size)

    def _read_cached(
        self,
        segment: LogSegment,
        offset: int,
        size: int,
        scratch: ScratchBuffer | None = None,
        skip: int = 0,
    ) -> Buffer:
        """Read bytes of the file of a segment on the event loop, if they are cached.

        Raises `WouldBlock` if they are not. `ScratchBuffer.read` explains `scratch` and `skip`.
        """
        try:
            file = self._files.get(segment)
            if scratch is None:
                data = file.read(offset, size, wait=False)
            else:
                data = scratch.read(file, offset, size, skip)
        except OSError as error:
            raise_if_no_descriptor(segment, error)
            raise DamagedError(
                f"reading {segment.name} failed: {error}",
                file=segment.name,
                remedy="Clients read its entries from other replicas. Check this bookie's disk",
            ) from error
        if data is None:
            raise WouldBlock(segment, offset, size)
        return data

    def _checksums(
        self, segment: LogSegment, first: int, end: int, fetched: FetchedExtents
    ) -> list[int]:
        """Return the expected checksums of the blocks between two offsets in the file.

        There are fewer if the segment has fewer blocks.
        """
        low, high = _blocks_between(segment, first, end)
        return list(self._block_checksums(segment, fetched)[low:high])

    def _block_checksums(self, segment: LogSegment, fetched: FetchedExtents) -> Sequence[int]:
        """Return the expected checksums of all blocks of the segment."""
        if segment.trailer is None:
            return segment.checksums
        key = (segment.number, segment.generation, -1)
        checksums: Sequence[int] | None = self._cache.get(key)
        if checksums is None:
            trailer = segment.trailer
            data = self._fetch(segment, trailer.checksums_at, trailer.checksums_bytes, fetched)
            try:
                checksums = decode_footer_checksums(data, trailer)
            except FormatError as error:
                raise DamagedError(
                    f"the index of {segment.name} is damaged: {error}",
                    file=segment.name,
                    remedy=_DAMAGED_REMEDY,
                ) from None
            self._cache.put(key, checksums, len(data))
        return checksums

    def _frames(
        self, place: EntryLocation, count: int, fetched: FetchedExtents
    ) -> tuple[memoryview, int, int]:
        """Return the bytes of `count` frames, as (view, offset of the frames, offset of damage).

        From the offset of damage on, the view is damaged or ends.
        """
        start = place.start
        if place.batch is not None:
            size = _frame_bytes(place, count)
            return memoryview(place.batch.memory(start, size)), 0, size
        blocks = _blocks_of(place, count)
        segment, low = blocks.segment, blocks.offset
        at = start - low
        if (
            isinstance(fetched, ScratchBuffer)
            and place.frame_size
            and segment.head_bytes == FRAME_HEADER_BYTES
        ):
            part = memoryview(self._read_cached(segment, low, blocks.size, fetched, at))
            view, at, found = fetched.view, FRAMES_AT, checksums_of(part)
        elif not isinstance(fetched, dict):
            view = part = memoryview(self._read_cached(segment, low, blocks.size))
            found = checksums_of(view)
        else:
            extent = fetched.get(blocks.key)
            if extent is None:
                raise blocks
            view = part = memoryview(extent.data)
            found = checksums_of(view) if extent.checksums is None else extent.checksums
        good = at - (start - low)
        expected = self._checksums(segment, low, low + blocks.size, fetched)
        if found == expected:
            return view, at, good + len(part)
        for mine, crc in zip(found, expected):
            if mine != crc:
                break
            good += BLOCK_BYTES
        return view, at, good


def raise_if_no_descriptor(segment: LogSegment, error: OSError) -> None:
    """Raise StorageError if the file of a segment cannot be opened for lack of a descriptor.

    Such a file is not damaged.
    """
    if why := no_descriptor(error):
        raise StorageError(f"{segment.name} cannot be opened: {why}") from error


def _blocks_between(segment: LogSegment, first: int, end: int) -> tuple[int, int]:
    """Return the numbers of the first block between two offsets, and of the one after the last.

    Blocks are counted from the end of the segment's header.
    """
    return (first - segment.groups_at) // BLOCK_BYTES, (end - segment.groups_at) // BLOCK_BYTES


def _rows_key(segment: LogSegment, ledger_id: int) -> Hashable:
    return segment.number, segment.generation, "rows", ledger_id


def _that_fit(place: EntryLocation, most: int, max_bytes: int, overhead: int) -> int:
    """Return how many entries at a location to read, or 0 if the first one exceeds the budget."""
    per_entry = overhead - place.segment.head_bytes
    most = min(place.count, most)
    # A first entry is returned even if it exceeds the budget, so the rest may be negative.
    max_bytes = max(max_bytes, 0)
    if place.sizes is None:
        most = min(most, max(1, MAX_READ_BYTES // place.frame_size))
        return min(most, max_bytes // max(1, place.frame_size + per_entry))
    left, budget = max_bytes, MAX_READ_BYTES
    for count in range(most):
        size = place.sizes[count]
        left -= size + per_entry
        budget -= size
        if left < 0 or (budget < 0 and count):
            return count
    return most


def _frame_bytes(place: EntryLocation, count: int) -> int:
    return place.frame_size * count if place.sizes is None else sum(place.sizes[:count])


def _blocks_of(place: EntryLocation, count: int) -> WouldBlock:
    """Return the whole blocks of the file that contain the first `count` frames at a location."""
    size = _frame_bytes(place, count)
    low = place.start - place.start % BLOCK_BYTES
    high = -(-(place.start + size) // BLOCK_BYTES) * BLOCK_BYTES
    entry_bytes = size - place.segment.head_bytes * count
    return WouldBlock(place.segment, low, high - low, count, entry_bytes)
