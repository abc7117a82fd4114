"""Check everything in one segment, step by step. This reads and changes nothing.

- The header of the segment, and every part of its footer, are checked against their checksums.
- Every block between the header and the footer is checked against its checksum in the footer. If
  there is no footer yet, the checksum is the one that the log has in memory. If the footer is
  damaged, it is the one in the group's own table.
- The header and the run table of every group are checked, and the length, ledger id and entry id of
  every frame.
- Every run in the footer is compared with the run tables.

A block that cannot be read counts as damaged. The runs in the footer, or else those in the groups,
tell which entries are affected. If both are damaged, this is unknown.

`scrubber` runs these checks in the background, and `inspect.scrub_report` runs them on a whole
directory at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import (
    LedgerRows,
    Summary,
    Trailer,
    decode_footer_checksums,
    decode_footer_records,
    decode_footer_summary,
    decode_ledger_rows,
    decode_trailer,
)
from quire.codec.log.group import (
    GroupHeader,
    GroupTable,
    RunRow,
    check_group_table,
    decode_group_table,
    group_checksums,
)
from quire.codec.log.segment_header import encode_segment_header
from quire.codec.log.state_records import BLOCK_BYTES, FormatError, block_checksums
from quire.core.ranges import Range, merged, touches, widened
from quire.storage.interfaces import File
from quire.storage.recovery.scan import SCAN_BYTES, read_group_header, read_segment_header
from quire.storage.segment import extents
from quire.storage.segment.extents import FrameExtent
from quire.storage.segment.footer import read
from quire.storage.segment.frames import frame_ids, frames_are

BLOCK_RANGES_MAX = 1_024
"""The most ranges of damaged blocks that are recorded for one segment. If there are more, some are
joined, so that healthy blocks between them count as damaged too."""
INDEX_ROWS = 10_000
"""The number of rows of a footer that are compared with the groups in one step."""


@dataclass(frozen=True, slots=True)
class ScrubTarget:
    """The facts that a scrub needs about the segment that it checks."""

    number: int
    groups_at: int
    end: int
    """The offset in the file at which the last synced group ends."""
    trailer: Trailer | None
    """The trailer of the footer, or None if there is no footer yet."""
    checksums: Sequence[int]
    """The checksums of the blocks between the header and `end`, if there is no footer."""


@dataclass(slots=True)
class Findings:
    """The result of a scrub of one segment."""

    blocks: list[Range] = field(default_factory=list)
    """The ranges (first, last) of numbers of damaged blocks, counted from the start of the file."""
    header: bool = False
    """Whether the segment's header is damaged."""
    index: str = ""
    """The first problem of the footer in words: it is damaged, or contradicts the groups. "" if
    there is none."""
    lost_tables: int = 0
    """The number of places where a run table is damaged. One place may hide several groups. Unlike
    the groups in `LogSegment.lost_groups`, the contents of these may be known from the footer."""
    extent_known: bool = True
    """Whether `ledgers` names all damaged entries. That needs a valid footer, or valid run tables
    of all groups."""
    ledgers: dict[int, list[Range]] = field(default_factory=dict)
    """The entries without a good copy in this segment, as ranges (first, last) by ledger id. Empty
    for a segment without a footer."""

    @property
    def clean(self) -> bool:
        """Whether the scrub has found no damage."""
        return not self.blocks and not self.header and not self.index


class SegmentScrub:
    """The scrub of one segment. Only one thread at a time may use it.

    Each call of `step` checks the header, the footer, one group or a part of the index. When `step`
    returns 0, `found` is complete.
    """

    def __init__(self, file: File, directory_id: bytes, target: ScrubTarget) -> None:
        self._file = file
        self._directory_id = directory_id
        self._target = target
        self._expected: Sequence[int] | None = target.checksums
        self._bad: set[int] = set()
        self._holes: list[Range] = []
        """The first and last byte of each range of the file whose run table is damaged."""
        self._summary: Summary | None = None
        self._rows: dict[int, LedgerRows] = {}
        self._starts = array("Q")
        self._ends = array("Q")
        self._ledgers = array("q")
        self._firsts = array("q")
        self._hurt: dict[int, list[Range]] = {}
        """The entries in damaged blocks according to the run tables, as ranges (first, last) by
        ledger id."""
        self.found = Findings()
        self._steps = self._run()

    def step(self) -> int:
        """Check the next part of the segment, and return the part's size in bytes, or 0 at the end.

        The size is 1 for a part of the index that was compared without reading from the disk.

        Raises:
            VersionError: A later version wrote a part of the segment.
        """
        return next(self._steps, 0)

    def _run(self) -> Iterator[int]:
        yield self._head()
        if self._target.trailer is not None:
            yield self._footer(self._target.trailer)
        yield from self._groups()
        if self._summary is not None:
            yield from self._index()
        self._conclude()

    # -- header and footer --------------------------------------------------------------------

    def _head(self) -> int:
        size = self._target.groups_at
        self._uncache(0, size)
        try:
            header = read_segment_header(self._file, self._directory_id, self._target.number)
            # The checksum of the header does not cover its padding.
            whole = header is not None and read(self._file, 0, size) == encode_segment_header(
                header
            )
        except OSError:
            whole = False
        self.found.header = not whole
        return size

    def _footer(self, trailer: Trailer) -> int:
        """Check the footer, and return its size in bytes."""
        self._expected = None
        self._uncache(trailer.footer_at, trailer.file_bytes)
        try:
            size = self._file.size()
            tail = read(self._file, trailer.trailer_at, size - trailer.trailer_at)
            if decode_trailer(tail, self._directory_id, self._target.number, size) != trailer:
                self._index_bad("its trailer is not the one that was written")
        except (FormatError, OSError) as error:
            self._index_bad(str(error))
        try:
            data = self._part(trailer.checksums_at, trailer.checksums_bytes)
            self._expected = decode_footer_checksums(data, trailer)
        except FormatError as error:
            self._index_bad(str(error))
        try:
            data = self._part(trailer.records_at, trailer.records_bytes)
            decode_footer_records(data, trailer)
        except FormatError as error:
            self._index_bad(str(error))
        try:
            data = self._part(trailer.summary_at, trailer.summary_bytes)
            self._summary = decode_footer_summary(data, trailer)
            self._read_rows(self._summary, trailer)
        except FormatError as error:
            self._index_bad(str(error))
        return trailer.file_bytes - trailer.footer_at

    def _part(self, offset: int, size: int) -> bytes:
        """Return a part of the footer, or b"", which fails every check, if it cannot be read."""
        try:
            return read(self._file, offset, size)
        except OSError:
            return b""

    def _read_rows(self, summary: Summary, trailer: Trailer) -> None:
        rows = memoryview(self._part(trailer.footer_at, trailer.rows_bytes))
        for at, ledger_id in enumerate(summary.ledger_ids):
            start = summary.rows_at[at]
            data = rows[start : start + summary.rows_bytes[at]]
            if len(data) == summary.rows_bytes[at] and crc32c(data) == summary.rows_crcs[at]:
                self._rows[ledger_id] = decode_ledger_rows(data, summary.rows[at])
            else:
                self._index_bad(f"the index of ledger {ledger_id} does not match its checksum")

    def _index_bad(self, what: str) -> None:
        self.found.index = self.found.index or what

    # -- groups -------------------------------------------------------------------------------

    def _groups(self) -> Iterator[int]:
        """Check all groups, and yield the number of bytes checked in each step."""
        at, end = self._target.groups_at, self._target.end
        while at < end:
            header = self._header_at(at)
            if header is None or header.end > end:
                low, at = at, at + BLOCK_BYTES
                # Each block is a step of its own, because a failing disk may need a long time for
                # each.
                while at < end and self._header_at(at) is None:
                    at += BLOCK_BYTES
                    yield BLOCK_BYTES
                self._holes.append((low, at - 1))
                self.found.lost_tables += 1
                for start in range(low, at, SCAN_BYTES):
                    stop = min(start + SCAN_BYTES, at)
                    self._blocks(start, self._read(start, stop), self._expected_at(start, stop))
                    yield stop - start
                continue
            data = self._read(at, header.end)
            self._group(header, data)
            at = header.end
            yield len(data)

    def _header_at(self, at: int) -> GroupHeader | None:
        try:
            return read_group_header(
                self._file, self._directory_id, self._target.number, at, self._target.end
            )
        except OSError:
            return None

    def _group(self, header: GroupHeader, data: bytes) -> None:
        table = None
        if check_group_table(data, header):
            try:
                table = decode_group_table(data, header)
            except FormatError:
                pass
        expected = self._expected_at(header.offset, header.end)
        if table is None:
            self._holes.append((header.offset, header.end - 1))
            self.found.lost_tables += 1
            self._blocks(header.offset, data, expected)
            return
        if expected is None:
            expected = group_checksums(data, header, table)[0]
        self._blocks(header.offset, data, expected)
        self._runs(header, table, memoryview(data))

    def _runs(self, header: GroupHeader, table: GroupTable, data: memoryview) -> None:
        payload = header.payload_offset
        bad = sorted(n for n in self._bad if n * BLOCK_BYTES >= header.offset)
        hurt = merged((number, number) for number in bad)
        starts, ends = self._starts, self._ends
        known = frame_ids(header.head_bytes)
        for row in table.runs:
            size = row.frame_size * row.count if row.sizes is None else sum(row.sizes)
            start = payload + row.offset
            starts.append(start)
            ends.append(start + size)
            self._ledgers.append(row.ledger_id)
            self._firsts.append(row.first)
            if hurt and self._is_hurt(row, start, hurt):
                continue
            at = start - header.offset
            if row.count == 1:  # A group may have thousands of these.
                ids = size - 4, row.ledger_id, row.first
                right = size >= known.size and known.unpack_from(data, at) == ids
            else:
                right = frames_are(
                    data[at : at + size], row.ledger_id,
                    row.ids or range(row.first, row.first + row.count),
                    row.sizes or (), row.frame_size, header.head_bytes,
                )  # fmt: skip
            if not right:
                extent = extents.of_table_row(row, start)
                low, high = extent.blocks
                self._bad.update(range(low, high + 1))
                self._hurt.setdefault(row.ledger_id, []).extend(extent.entries())

    def _is_hurt(self, row: RunRow, start: int, hurt: Sequence[Range]) -> bool:
        """Return whether the run touches any block in `hurt`, and record its damaged entries."""
        extent = extents.of_table_row(row, start)
        if not touches(hurt, *extent.blocks):
            return False
        for first, last in extent.hit(hurt):
            self._hurt.setdefault(row.ledger_id, []).extend(extent.entries_at(first, last + 1))
        return True

    def _expected_at(self, low: int, high: int) -> Sequence[int] | None:
        """Return the known checksums of the blocks between two offsets.

        Return None if the list in the footer is damaged. The result is too short if the checksums
        of the last blocks are unknown.
        """
        if self._expected is None:
            return None
        base = self._target.groups_at
        return self._expected[(low - base) // BLOCK_BYTES : (high - base) // BLOCK_BYTES]

    def _blocks(self, low: int, data: bytes, expected: Sequence[int] | None) -> None:
        """Compare the blocks in `data`, which begin at the offset `low`, with their checksums.

        A block without a known checksum counts as damaged.
        """
        number = low // BLOCK_BYTES
        found = block_checksums((data,))
        if expected is None or len(expected) < len(found):
            self._bad.update(range(number, number + len(found)))
            return
        if found.tolist() != list(expected):
            self._bad.update(
                number + at for at, (a, b) in enumerate(zip(found, expected)) if a != b
            )

    def _read(self, low: int, high: int) -> bytes:
        """Read the whole blocks between two offsets.

        Blocks that cannot be read are noted as damaged, and zeros are returned for them.
        """
        self._uncache(low, high)
        try:
            data = read(self._file, low, high - low)
        except OSError:
            return b"".join(self._block(at) for at in range(low, high, BLOCK_BYTES))
        if len(data) < high - low:
            self._bad.update(range((low + len(data)) // BLOCK_BYTES, high // BLOCK_BYTES))
        return data.ljust(high - low, b"\0")

    def _uncache(self, low: int, high: int) -> None:
        """Remove a range of the file from the system's cache, so that it is read from the disk.

        A segment without a footer is left in the cache for its readers.
        """
        if self._target.trailer is not None:
            self._file.uncache(low, high - low)

    def _block(self, at: int) -> bytes:
        try:
            return read(self._file, at, BLOCK_BYTES).ljust(BLOCK_BYTES, b"\0")
        except OSError:
            self._bad.add(at // BLOCK_BYTES)
            return bytes(BLOCK_BYTES)

    # -- the index against the groups -----------------------------------------------------------

    def _index(self) -> Iterator[int]:
        """Compare the rows of the footer with the groups.

        This reads nothing from the disk. As it may take long, it yields 1 after every `INDEX_ROWS`
        rows.
        """
        holes = merged(self._holes)
        done = 0
        for ledger_id, rows in self._rows.items():
            for extent in self._doubtful(ledger_id, rows):
                if not self._stands(extent, holes):
                    self._index_bad(
                        f"the index of ledger {ledger_id} names entries at {extent.offset} that "
                        "no group has there"
                    )
            done += len(rows.firsts)
            if done > INDEX_ROWS:
                done = 0
                yield 1

    def _doubtful(self, ledger_id: int, rows: LedgerRows) -> Iterator[FrameExtent]:
        """Yield the runs of a ledger in the footer that no group has in exactly the same form.

        There are usually few of them.
        """
        starts, ends = self._starts, self._ends
        for row in range(len(rows.firsts)):
            start, size = rows.offsets[row], rows.frame_sizes[row] * rows.counts[row]
            place = bisect_left(starts, start)
            if (
                place == len(starts)
                or starts[place] != start
                or ends[place] != start + size
                or self._ledgers[place] != ledger_id
                or self._firsts[place] != rows.firsts[row]
            ):
                yield extents.of_row(ledger_id, rows, row)

    def _stands(self, extent: FrameExtent, holes: Sequence[Range]) -> bool:
        """Return whether groups have exactly the entries of this run there, in adjacent runs.

        Return True as well if a run table there is damaged, so that this cannot be checked.
        """
        at, end = extent.offset, extent.offset + extent.size_bytes
        if touches(holes, at, end - 1):
            return True  # A run table is lost, so this cannot be checked.
        place = bisect_left(self._starts, at)
        entry_id = extent.first
        while at < end:
            if (
                place == len(self._starts)
                or self._starts[place] != at
                or self._ledgers[place] != extent.ledger_id
                or self._firsts[place] != entry_id
            ):
                return False
            at = self._ends[place]
            if extent.frame_size and extent.ids is None:
                entry_id = extent.first + (at - extent.offset) // extent.frame_size
            place += 1
        return at == end

    # -- what it means --------------------------------------------------------------------------

    def _conclude(self) -> None:
        found = self.found
        found.blocks = widened(merged((n, n) for n in self._bad), BLOCK_RANGES_MAX)
        if self._target.trailer is None or not found.blocks:
            return
        if not found.index:
            for ledger_id, rows in self._rows.items():
                hurt = extents.damaged_entries(list(extents.of_rows(ledger_id, rows)), found.blocks)
                if hurt:
                    found.ledgers[ledger_id] = hurt
        else:
            found.extent_known = not found.lost_tables
            found.ledgers = {ledger_id: merged(one) for ledger_id, one in self._hurt.items()}
