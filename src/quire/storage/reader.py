"""Reading entries: find where they lie, fetch whole runs, check, slice.

Every block that is read is checked against its checksum, and every frame against the index: its
length, ledger id and entry id. What does not check is damaged; another copy is tried, and where
there is none the answer is `DamagedError`, never "no such entry". Digests are not checked: a bookie
does not know their type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from itertools import repeat

from quire.codec.digest import crc32c, crc32c_of
from quire.codec.frames import FRAME_HEADER_BYTES, KEY_BYTES
from quire.codec.log_footer import (
    CONSECUTIVE,
    LedgerRows,
    LedgerSummary,
    Summary,
    decode_footer_checksums,
    decode_footer_summary,
    decode_ledger_rows,
)
from quire.codec.log_format import ranges_of
from quire.codec.log_parts import BLOCK_BYTES, Buffer, FormatError
from quire.core.ranges import merged
from quire.errors import DamagedError
from quire.storage.cache import ByteCache, SegmentFiles
from quire.storage.frames import FRAME_IDS, equal_frames_are, frames_are
from quire.storage.read_ahead import ReadAhead
from quire.storage.segment import LedgerInfo, Place, Segment, sealed_places
from quire.storage.signals import NoEntry, WouldBlock

MAX_READ_BYTES = 1024 * 1024
"""Of one read of a file."""
DEFAULT_OVERHEAD_BYTES = 4
SLICE_BYTES = 1024 * 1024
"""Checked and sliced in one turn of the event loop: adds wait for no more than that."""
COLUMNS_FROM = 8
"""Frames of one size that are checked column by column; fewer are looked at one by one."""

Fetched = tuple[Segment, int, int]
"""What of a segment's file: offset and size. After a compaction the segment is another object."""
Have = Mapping[Fetched, Buffer]
"""What has been fetched already."""


class Reader:
    """Used on the event loop; never waits for the device."""

    def __init__(
        self,
        segments: Mapping[int, Segment],
        files: SegmentFiles,
        cache: ByteCache,
        ahead: ReadAhead,
    ) -> None:
        self._segments = segments
        self._files = files
        self._cache = cache
        self._ahead = ahead
        self.damaged_reads = 0
        self.on_damage: Callable[[Segment], None] = lambda segment: None
        """Called with each segment in which something did not check."""

    def read(
        self,
        info: LedgerInfo,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead: int,
        have: Have,
    ) -> list[Buffer]:
        """See `LedgerStore.read`."""
        entries: list[Buffer] = []
        while len(entries) < max_count:
            more = self.slice(
                info, first + len(entries), max_count - len(entries), max_bytes, overhead, have,
                begun=bool(entries), wait=True,
            )  # fmt: skip
            if not more:
                break
            entries += more
            max_bytes -= sum(map(len, more)) + overhead * len(more)
        return entries

    def slice(
        self,
        info: LedgerInfo,
        first: int,
        max_count: int,
        max_bytes: int,
        overhead: int,
        have: Have,
        *,
        begun: bool,
        wait: bool,
    ) -> list[Buffer]:
        """What follows of a read, up to `SLICE_BYTES` or one entry. `begun`: it is not the first
        slice; there may then be none, and its first entry must fit. `wait`: `WouldBlock` where the
        device has to be waited for even when there is something to return."""
        entries: list[Buffer] = []
        last = info.last_entry_id
        entry_id, room = first, SLICE_BYTES
        while entry_id <= last and len(entries) < max_count and room > 0:
            begun = begun or bool(entries)
            most = max_count - len(entries)
            budget = min(max_bytes, room) if entries else max_bytes
            try:
                more = self._some(info, entry_id, most, budget, overhead, have, must_fit=begun)
            except DamagedError:
                if begun:
                    break
                raise
            except WouldBlock:
                if entries and not wait:
                    break
                raise
            if not more:
                break
            entries += more
            entry_id += len(more)
            size = sum(map(len, more)) + overhead * len(more)
            max_bytes -= size
            room -= size
        if not entries and not begun:
            raise NoEntry
        return entries

    def _some(
        self,
        info: LedgerInfo,
        entry_id: int,
        most: int,
        max_bytes: int,
        overhead: int,
        have: Have,
        *,
        must_fit: bool,
    ) -> list[Buffer]:
        """Entries from one run, or none: there is no such entry, or it would not fit."""
        problem: DamagedError | None = None
        for place in self._places(info, entry_id, have):
            if isinstance(place, DamagedError):
                problem = problem or place
                continue
            count = _that_fit(place, most if problem is None else 1, max_bytes, overhead)
            if not count:
                if must_fit:
                    return []
                count = 1
            try:
                entries = self._load(info.ledger_id, entry_id, place, count, have)
                if self._ahead.is_followed(info.ledger_id, place.segment):
                    self._look_ahead(info.ledger_id, entry_id, len(entries), place)
                return entries
            except WouldBlock as missing:
                self._ahead.waits(info.ledger_id, entry_id, missing.segment)
                raise
            except DamagedError as error:
                self.damaged_reads += 1
                self.on_damage(place.segment)
                problem = problem or error
        if problem is not None:
            raise problem
        return []

    def _look_ahead(self, ledger_id: int, entry_id: int, count: int, place: Place) -> None:
        """The reader may go on: what it wants next then need not be waited for."""
        found = self._cache.get(_rows_key(place.segment, ledger_id))
        if found is None:
            return
        offsets = found[0].offsets
        size = place.frame_size * count if place.sizes is None else sum(place.sizes[:count])
        dense = 2 * found[2] >= offsets[-1] - offsets[0]
        end = place.start + size
        stop = max(offsets[-1], place.start + place.size_bytes) if dense else end
        self._ahead.has_read(ledger_id, entry_id, count, place.segment, end, stop)

    def ranges(self, info: LedgerInfo, have: Have) -> list[tuple[int, int]]:
        """See `LedgerStore.entry_ranges`."""
        found: list[tuple[int, int]] = []
        for part in info.open_parts:
            for run in part.runs:
                if run.ids is None:
                    found.append((run.first, run.last))
                else:
                    found += ranges_of(run.ids)
        for number in info.sealed_numbers:
            sealed = self._ledger_rows(self._segments[number], info.ledger_id, have)
            if sealed is not None:
                rows = sealed[0]
                for row in range(len(rows.firsts)):
                    if rows.ids_at[row] == CONSECUTIVE:
                        found.append((rows.firsts[row], rows.last(row)))
                    else:
                        at = rows.ids_at[row]
                        found += ranges_of(rows.ids[at : at + rows.counts[row]])
        return merged(found)

    def master_key(self, info: LedgerInfo, have: Have) -> bytes | None:
        """The key in one of the ledger's frames, of the last entry."""
        for place in self._places(info, info.last_entry_id, have):
            if isinstance(place, DamagedError):
                continue
            try:
                view, at, good = self._frames(place, 1, have)
                _split(view, at, good, info.ledger_id, info.last_entry_id, place, 1)
            except DamagedError:
                continue
            return bytes(view[at + FRAME_HEADER_BYTES - KEY_BYTES : at + FRAME_HEADER_BYTES])
        return None

    # -- finding ----------------------------------------------------------------------------------

    def _places(
        self, info: LedgerInfo, entry_id: int, have: Have
    ) -> Iterator[Place | DamagedError]:
        """Where copies of the entry lie, newest first, and what kept us from finding more."""
        stop = info.last_entry_id + 1
        for part in reversed(info.open_parts):
            if part.first > entry_id:
                stop = min(stop, part.first)
            elif part.last >= entry_id:
                yield from part.places(entry_id, stop)
        for number, sealed_stop in info.sealed_with(entry_id):
            segment = self._segments[number]
            try:
                found = self._ledger_rows(segment, info.ledger_id, have)
            except DamagedError as error:
                self.on_damage(segment)
                yield error
                continue
            if found is not None:
                rows, span, _ = found
                yield from sealed_places(segment, rows, span, entry_id, min(stop, sealed_stop))

    def summary(self, segment: Segment, have: Have) -> Summary:
        """`DamagedError` where it does not check."""
        key = (segment.number, segment.generation, -2)
        summary: Summary | None = self._cache.get(key)
        if summary is None:
            trailer = segment.trailer
            assert trailer is not None
            data = self._fetch(segment, trailer.summary_at, trailer.summary_bytes, have)
            try:
                summary = decode_footer_summary(data, trailer)
            except FormatError as error:
                raise DamagedError(f"{segment.name}: {error}") from None
            self._cache.put(key, summary, len(data))
        return summary

    def _ledger_rows(
        self, segment: Segment, ledger_id: int, have: Have
    ) -> tuple[LedgerRows, int, int] | None:
        """(its rows there, the greatest span of one, bytes of all frames)."""
        key = _rows_key(segment, ledger_id)
        found: tuple[LedgerRows, int, int] | None = self._cache.get(key)
        if found is None:
            summary = self.summary(segment, have).find(ledger_id)
            if summary is None:
                return None
            rows = self._load_rows(segment, summary, have)
            found = rows, summary.span, summary.size_bytes
            self._cache.put(key, found, summary.rows_bytes)
        return found

    def _load_rows(self, segment: Segment, summary: LedgerSummary, have: Have) -> LedgerRows:
        assert segment.trailer is not None
        at = segment.trailer.footer_at + summary.rows_at
        data = self._fetch(segment, at, summary.rows_bytes, have)
        if len(data) == summary.rows_bytes and crc32c(data) == summary.rows_crc:
            try:
                return decode_ledger_rows(data, summary.rows)
            except FormatError:
                pass
        raise DamagedError(
            f"the index of ledger {summary.ledger_id} in {segment.name} is damaged",
            remedy="Its entries may exist; another replica has them",
        )

    # -- fetching ---------------------------------------------------------------------------------

    def _fetch(self, segment: Segment, offset: int, size: int, have: Have) -> Buffer:
        """The bytes of the file, fewer at its end. `WouldBlock` where they are not cached."""
        data = have.get((segment, offset, size))
        if data is None:
            try:
                data = self._files.get(segment).read(offset, size, wait=False)
            except OSError as error:
                raise DamagedError(f"reading {segment.name} failed: {error}") from error
            if data is None:
                raise WouldBlock(segment, offset, size)
        return data

    def _checksums(self, segment: Segment, first: int, end: int, have: Have) -> list[int]:
        """Of the blocks at these offsets; fewer where the segment ends before."""
        low = (first - segment.groups_at) // BLOCK_BYTES
        high = (end - segment.groups_at) // BLOCK_BYTES
        if segment.trailer is None:
            return segment.checksums[low:high].tolist()
        key = (segment.number, segment.generation, -1)
        checksums = self._cache.get(key)
        if checksums is None:
            trailer = segment.trailer
            assert trailer is not None
            data = self._fetch(segment, trailer.checksums_at, trailer.checksums_bytes, have)
            try:
                checksums = decode_footer_checksums(data, trailer)
            except FormatError as error:
                raise DamagedError(f"{segment.name}: {error}") from None
            self._cache.put(key, checksums, len(data))
        return list(checksums[low:high])

    def _load(
        self, ledger_id: int, entry_id: int, place: Place, count: int, have: Have
    ) -> list[Buffer]:
        """Up to `count` entries, at least one; `DamagedError` where the first is damaged."""
        view, at, good = self._frames(place, count, have)
        return _split(view, at, good, ledger_id, entry_id, place, count)

    def _frames(self, place: Place, count: int, have: Have) -> tuple[memoryview, int, int]:
        """(bytes, where the frames start in them, from where on they are not to be trusted)."""
        size = place.frame_size * count if place.sizes is None else sum(place.sizes[:count])
        start = place.start
        if place.batch is not None:
            return memoryview(place.batch.memory(start, size)), 0, size
        segment = place.segment
        low = start - start % BLOCK_BYTES
        high = -(-(start + size) // BLOCK_BYTES) * BLOCK_BYTES
        view = memoryview(self._fetch(segment, low, high - low, have))
        good = 0
        expected = self._checksums(segment, low, high, have)
        found = [crc32c_of(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]
        if found == expected:
            return view, start - low, len(view)
        for mine, crc in zip(found, expected):
            if mine != crc:
                break
            good += BLOCK_BYTES
        return view, start - low, good


def _rows_key(segment: Segment, ledger_id: int) -> Hashable:
    return segment.number, segment.generation, "rows", ledger_id


def _that_fit(place: Place, most: int, max_bytes: int, overhead: int) -> int:
    """How many entries of the place to read; 0 where even the first passes the budget."""
    per_entry = overhead - FRAME_HEADER_BYTES
    most = min(place.count, most)
    max_bytes = max(max_bytes, 0)  # Below 0 the first entry, which is never refused, has passed it.
    if place.sizes is None:
        most = min(most, max(1, MAX_READ_BYTES // place.frame_size))
        return min(most, max_bytes // max(1, place.frame_size + per_entry))
    left, room = max_bytes, MAX_READ_BYTES
    for count in range(most):
        size = place.sizes[count]
        left -= size + per_entry
        room -= size
        if left < 0 or (room < 0 and count):
            return count
    return most


def _split(
    view: memoryview, at: int, good: int, ledger_id: int, entry_id: int, place: Place, count: int
) -> list[Buffer]:
    """The entries of the frames in view[at:]; bytes from `good` on are not to be trusted."""
    if place.sizes is None and count >= COLUMNS_FROM and at + place.frame_size * count <= good:
        equal = _split_equal(view, at, ledger_id, entry_id, place.frame_size, count)
        if equal is not None:
            return equal
    entries: list[Buffer] = []
    unpack = FRAME_IDS.unpack_from
    sizes = repeat(place.frame_size, count) if place.sizes is None else place.sizes[:count]
    for size in sizes:
        end = at + size
        if end > good or unpack(view, at) != (size - 4, ledger_id, entry_id):
            break
        entries.append(view[at + FRAME_HEADER_BYTES : end])
        at = end
        entry_id += 1
    if not entries:
        raise DamagedError(
            f"entry {entry_id} of ledger {ledger_id} is damaged in {place.segment.name}",
            remedy="Another replica has it; it is replaced when the ledger is replicated again",
        )
    return entries


def _split_equal(
    view: memoryview, at: int, ledger_id: int, entry_id: int, size: int, count: int
) -> list[Buffer] | None:
    """`_split`, column by column, where all frames have one size; None where one is wrong."""
    frames = view[at : at + size * count]
    ids = range(entry_id, entry_id + count)
    whole = view.obj
    if isinstance(whole, (bytes, bytearray)) and len(whole) == len(view):
        if not equal_frames_are(whole, at, ledger_id, ids, size):
            return None
    elif not frames_are(frames, ledger_id, ids, (), size):
        return None
    return [body for (body,) in _bodies_of(size).iter_unpack(frames)]


@lru_cache(maxsize=256)
def _bodies_of(size: int) -> struct.Struct:
    """The entry bytes of a frame."""
    return struct.Struct(f"{FRAME_HEADER_BYTES}x{size - FRAME_HEADER_BYTES}s")
