"""Copy the live entries of some segments into one new file: a compaction's work off the event loop.

The work has three steps, each a job of its own, so that other jobs can run between them:

1. `begin` reads the indexes and lists what to copy, sorted by ledger and entry.
2. `copy` writes one group. It is called again until everything is copied.
3. `finish` writes the footer, syncs, and renames the file over the last of the segments.

Until that rename, only a spare file has changed. After it, the output has everything that was alive
in any of the segments, and is durable.

An entry may have several copies. They differ if a repair has replaced its content, or if the id of
a deleted ledger is used again. The newest copy counts, so only that one is copied. The output has
the number of the newest source. So a copy is also left out if a segment below that number, which is
not a source, has a newer one. Otherwise the older copy would come after the newer one. If the
footer of such a segment cannot be read, nothing is copied across it.

As in a read, every copied block is checked against its checksum, and every frame against the index.
If a check fails, nothing is replaced, because damaged data must not get a valid checksum. Each
entry in the output follows its length, without a frame header. So the answer to a reader of many
entries consists of bytes of the file.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import attrgetter
from typing import TypeVar

from quire.codec.entry.digest import crc32c
from quire.codec.entry.frame_runs import FrameRun
from quire.codec.log.footer import (
    DISJOINT,
    Trailer,
    decode_footer_checksums,
    decode_footer_records,
    decode_footer_summary,
    decode_ledger_rows,
)
from quire.codec.log.group import (
    BARE_HEAD_BYTES,
    GROUP_BARE,
    GROUP_COMPACTED,
    GROUP_LAST,
    GroupEncoder,
)
from quire.codec.log.segment_header import SegmentHeader, encode_segment_header
from quire.codec.log.state_records import BLOCK_BYTES, Buffer, FormatError, StateRecord
from quire.core.ranges import Range, include, overlapping, without
from quire.errors import StorageError
from quire.storage.background.salvage import (
    BadSegmentError,
    Footers,
    Newer,
    Salvage,
    healthy_extents,
    named,
    read_groups,
)
from quire.storage.directory import naming
from quire.storage.interfaces import Disk, File
from quire.storage.log.preallocation import may_pass
from quire.storage.recovery.scan import read_segment_header
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.extents import FrameExtent, of_rows
from quire.storage.segment.footer import Sealed, SealInput, read, write_footer
from quire.storage.segment.frames import frames_are
from quire.storage.segment.segment import (
    LOG_DIRECTORY,
    SPARE_NAME,
    LedgerPart,
    LogSegment,
    segment_name,
)

GROUP_BYTES = 1024 * 1024
"""The most bytes of frames in one group, which is written in one step. A larger frame has a group
of its own."""
SMALL_BYTES = 4 * BLOCK_BYTES
"""The size in bytes up to which the blocks of adjacent frames are kept in memory, because other
frames in the same blocks may follow."""
BLOCKS_MAX = 4_096
"""The most blocks that are kept in memory during a compaction."""


E = TypeVar("E", bound=FrameExtent)


@dataclass(frozen=True, slots=True)
class RewriteSource:
    """A segment to copy from, and the ids of the ledgers that are alive in it."""

    number: int
    trailer: Trailer
    ledger_ids: Sequence[int]
    salvage: Salvage | None = None
    """The damage of the segment and the entries that may be left out, or None if it is not
    damaged."""
    newer: Mapping[int, Newer] = field(default_factory=dict)
    """The entries of each ledger in newer segments that come before the output and are not sources,
    by ledger id. Ledgers without such entries are left out."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The result of copying segments: the new file's footer, and what was copied."""

    sealed: Sealed
    groups_at: int
    end: int
    copied_bytes: int
    duplicate_bytes: int
    """The number of bytes of frames that were not copied because there are newer copies of the same
    entries."""


class _Open:
    """A segment that is being copied from, with its open file."""

    __slots__ = ("checksums", "file", "name", "source")

    def __init__(self, source: RewriteSource, file: File, checksums: Sequence[int]) -> None:
        self.source = source
        self.file = file
        self.checksums = checksums


@dataclass(slots=True)
class _SourceExtent(FrameExtent):
    """Adjacent frames of one ledger in a source."""

    origin: _Open

    @property
    def head_bytes(self) -> int:
        return self.origin.source.trailer.head_bytes


class Rewrite:
    """The copying of live entries from some segments into one new file.

    The steps are in the module's docstring. Only one thread at a time may use it.
    """

    def __init__(self, disk: Disk, directory_id: bytes, sources: Sequence[RewriteSource]) -> None:
        """Prepare to copy from `sources`, which ascend by number.

        The output replaces the file of the last one.
        """
        self._disk = disk
        self._directory_id = directory_id
        self._sources = sources
        self._last = sources[-1]
        self._open: list[_Open] = []
        self._file: File | None = None
        self._records: Sequence[StateRecord] = ()
        self._extents: list[_SourceExtent] = []
        self._at = 0
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._runs: dict[int, list[Run]] = {}
        self._spans: dict[int, int] = {}
        self._output = LogSegment(self._last.number, None, 0)
        self._output.head_bytes = BARE_HEAD_BYTES
        self._groups = 0
        self._copied = 0
        self._duplicates = 0

    def begin(self) -> list[StateRecord]:
        """List what to copy, and return the state records of the last source. Nothing is written.

        Raises:
            BadSegmentError: A source cannot be read or is damaged. Or a segment between the sources
                may have newer copies, and its footer cannot be read or is damaged.
            OSError: No file descriptor is left.
            LaterStorageError: A later version wrote a source.
        """
        header: SegmentHeader | None = None
        records: list[StateRecord] = []
        for source in self._sources:
            try:
                with naming(self._disk, segment_name(source.number)):
                    header, records = self._look(source)
            except FormatError as error:
                raise BadSegmentError(source.number, str(error)) from None
            except OSError as error:
                if may_pass(error):
                    raise
                raise BadSegmentError(source.number, f"reading its file failed: {error}") from error
        assert header is not None
        self._header = header
        self._extents.sort(key=_place)
        self._extents = list(self._without_copies())
        return records

    def write_header(self, records: Sequence[StateRecord], size_bytes: int) -> None:
        """Begin the output, a file of at least `size_bytes` bytes, and write its header.

        The first group will have the state records `records`. Nothing is durable yet. Raises
        `OSError` if the file cannot be written.
        """
        old = self._header
        header = SegmentHeader(
            self._directory_id, old.segment, old.first_group, old.previous, old.live,
            compacted=True, bare=True,
        )  # fmt: skip
        self._records = records
        if self._disk.exists(SPARE_NAME):
            self._file = self._disk.open(SPARE_NAME)
        else:
            self._file = self._disk.create(SPARE_NAME)
        if self._file.size() < size_bytes:
            self._file.preallocate(size_bytes)
        data = encode_segment_header(header)
        self._file.write([data], 0)
        output, trailer = self._output, self._last.trailer
        output.file = self._file
        output.groups_at = output.end = len(data)
        output.first_group, output.end_group = trailer.first_group, trailer.end_group

    def copy(self) -> int:
        """Write and sync one group, and return its size in bytes, or 0 if everything is copied.

        Raises:
            BadSegmentError: A source is damaged.
            OSError: The output cannot be written.
        """
        if self._groups and self._at == len(self._extents):
            return 0
        assert self._file is not None
        output = self._output
        batch = LogBatch((), ())
        runs, buffers, size = self._gather(batch)
        encoder = GroupEncoder(self._directory_id, output.number, self._groups, output.end)
        encoder.add(runs, buffers, size, self._records if not self._groups else ())
        whole = self._at == len(self._extents)
        group = encoder.finish(GROUP_COMPACTED | GROUP_BARE | (GROUP_LAST if whole else 0))
        self._file.write(group.buffers, output.end)
        self._file.sync()
        self._file.uncache(output.end, group.header.end - output.end)  # No reader needs it soon.
        batch.file_offset = group.header.payload_offset
        for run in runs:
            self._runs.setdefault(run.ledger_id, []).append(run)
        output.checksums.extend(group.checksums)
        written = group.header.end - output.end
        output.end = group.header.end
        self._groups += 1
        self._copied += size
        return written

    def finish(self, last_add_confirmed: Mapping[int, int]) -> RewriteResult:
        """Write the footer, and rename the output to its final name. Both are durable on return.

        `last_add_confirmed` has the LAC of each copied ledger, by id.

        Raises:
            OSError: The output cannot be written or renamed. The old file is unchanged.
            StorageError: The rename may not be durable. After a crash, there may be the old file or
                the new one.
        """
        output, file = self._output, self._file
        assert file is not None
        ledgers = []
        for ledger_id, runs in self._runs.items():
            part = LedgerPart.of(output, ledger_id, runs, self._spans[ledger_id])
            ledgers.append((ledger_id, part, last_add_confirmed.get(ledger_id, -1)))
        sealed = write_footer(SealInput(self._directory_id, output, ledgers, self._records))
        self.close()
        self._disk.rename(SPARE_NAME, output.name)
        try:
            self._disk.sync_directory(LOG_DIRECTORY)
        except OSError as error:
            # This is never a temporary error, whatever its number is, because the file was replaced
            # already.
            raise StorageError(
                f"{output.name} was rewritten by a compaction, but its directory could not be "
                f"synced: {error}",
                remedy="Check the disk, and restart the bookie",
            ) from error
        return RewriteResult(sealed, output.groups_at, output.end, self._copied, self._duplicates)

    def close(self) -> None:
        """Close all files, after a success or a failure."""
        for one in self._open:
            with suppress(OSError):
                one.file.close()
        self._open.clear()
        self._blocks.clear()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = self._output.file = None

    # -- what to copy -------------------------------------------------------------------------

    def _look(self, source: RewriteSource) -> tuple[SegmentHeader, list[StateRecord]]:
        """Read the header and the index of a source, and list what to copy of it."""
        trailer = source.trailer
        file = self._disk.open(segment_name(source.number))
        one = _Open(source, file, ())
        self._open.append(one)
        header = read_segment_header(file, self._directory_id, source.number)
        if header is None:
            raise FormatError("its header does not match its checksum")
        if source.salvage is not None and source.salvage.from_groups:
            found_there = read_groups(file, trailer)
            one.checksums = found_there.checksums
            self._add(one, found_there.extents, source)
            return header, found_there.records
        one.checksums = decode_footer_checksums(
            read(file, trailer.checksums_at, trailer.checksums_bytes), trailer
        )
        records = decode_footer_records(
            read(file, trailer.records_at, trailer.records_bytes), trailer
        )
        summary = decode_footer_summary(
            read(file, trailer.summary_at, trailer.summary_bytes), trailer
        )
        rows = memoryview(read(file, trailer.footer_at, trailer.rows_bytes))
        runs: dict[int, Iterator[FrameExtent]] = {}
        for ledger_id in source.ledger_ids:
            found = summary.find(ledger_id)
            if found is None:
                raise FormatError(f"its index does not name ledger {ledger_id}")
            data = rows[found.rows_at : found.rows_at + found.rows_bytes]
            if crc32c(data) != found.rows_crc:
                raise FormatError(f"the index of ledger {ledger_id} does not match its checksum")
            runs[ledger_id] = of_rows(ledger_id, decode_ledger_rows(data, found.rows))
        self._add(one, runs, source)
        return header, records

    def _add(
        self, one: _Open, runs: Mapping[int, Iterable[FrameExtent]], source: RewriteSource
    ) -> None:
        with Footers(self._disk) as footers:
            for ledger_id in source.ledger_ids:
                extents = runs.get(ledger_id, ())
                if source.salvage is not None:
                    extents = healthy_extents(footers, ledger_id, list(extents), source.salvage)
                newer = source.newer.get(ledger_id)
                if newer is not None:
                    extents = self._without_newer(footers, ledger_id, extents, newer)
                self._extents += [_source_extent(one, extent) for extent in extents]

    def _without_newer(
        self, footers: Footers, ledger_id: int, extents: Iterable[FrameExtent], newer: Newer
    ) -> Iterator[FrameExtent]:
        """Yield the parts of a ledger's extents whose entries are not in `newer`."""
        there = named(footers, ledger_id, newer)
        for extent in extents:
            every = extent.entries()
            left = without(every, overlapping(there, extent.first, extent.last))
            yield from self._parts(extent, every, left)

    def _parts(self, extent: E, every: Sequence[Range], left: Sequence[Range]) -> Iterator[E]:
        """Yield the parts of an extent with the entries `every` that have the entries `left`.

        The other entries count as duplicates.
        """
        if left == every:
            yield extent
            return
        kept = list(extent.parts_of(left))
        self._duplicates += extent.size_bytes - sum(part.size_bytes for part in kept)
        yield from kept

    def _without_copies(self) -> Iterator[_SourceExtent]:
        """Yield the extents with the newest copy of each entry, and without all others.

        This also notes which ledgers have extents that overlap. Extents overlap if the ids of one
        are between the ids of another, even if they have no entry in common.
        """
        for ledger_id, group in groupby(self._extents, key=attrgetter("ledger_id")):
            self._spans[ledger_id] = DISJOINT
            extents = list(group)
            if _overlap(extents):
                extents = sorted(self._newest(extents), key=_place)
                if _overlap(extents):
                    self._spans[ledger_id] = 0  # The footer finds out how far they overlap.
            for extent in extents:
                yield from _cut(extent)

    def _newest(self, extents: Sequence[_SourceExtent]) -> Iterator[_SourceExtent]:
        """Yield the parts of a ledger's extents of which there is no newer copy, newest first."""
        seen: list[Range] = []
        for extent in sorted(extents, key=_age, reverse=True):
            every = extent.entries()
            left = without(every, overlapping(seen, extent.first, extent.last))
            include(seen, every)
            yield from self._parts(extent, every, left)

    # -- copying ------------------------------------------------------------------------------

    def _gather(self, batch: LogBatch) -> tuple[list[Run], list[Buffer], int]:
        """Return the runs of the next group, and their frames, which are checked."""
        runs: list[Run] = []
        buffers: list[Buffer] = []
        size = 0
        while self._at < len(self._extents):
            extent = self._extents[self._at]
            if size and size + extent.size_bytes > GROUP_BYTES:
                break
            frames = _bare(self._frames(extent), extent)
            buffers += frames
            before = runs[-1] if runs else None
            if before is not None and _goes_on(before, extent):
                before.count += extent.count
            else:
                runs.append(_run_of(extent, size, batch))
            size += sum(map(len, frames))
            self._at += 1
        return runs, buffers, size

    def _frames(self, extent: _SourceExtent) -> memoryview:
        """Return the frames of an extent from the file of its source, after all checks."""
        one, size = extent.origin, extent.size_bytes
        low = extent.offset - extent.offset % BLOCK_BYTES
        high = -(-(extent.offset + size) // BLOCK_BYTES) * BLOCK_BYTES
        if high - low <= SMALL_BYTES:
            found = [self._block(one, at) for at in range(low, high, BLOCK_BYTES)]
            view = memoryview(found[0] if len(found) == 1 else b"".join(found))
        else:
            view = memoryview(_checked(one, low, high))
        start = extent.offset - low
        frames = view[start : start + size]
        ids = extent.ids or range(extent.first, extent.first + extent.count)
        sizes = repeat(extent.frame_size, extent.count) if extent.sizes is None else extent.sizes
        if not frames_are(
            frames, extent.ledger_id, ids, sizes, extent.frame_size, extent.head_bytes
        ):
            what = f"the frames at {extent.offset} are not the ones that the index names"
            raise BadSegmentError(one.source.number, what)
        return frames

    def _block(self, one: _Open, at: int) -> bytes:
        """Return the checked block of a source at the offset `at`, from memory if possible.

        A block has several short runs, and the next ledger's runs are mostly in the same blocks.
        """
        key = (one.source.number, at)
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = _checked(one, at, at + BLOCK_BYTES)
            if len(self._blocks) > BLOCKS_MAX:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        return found


def _checked(one: _Open, low: int, high: int) -> bytes:
    """Read whole blocks of a source between two offsets, and check each of them."""
    number = one.source.number
    try:
        data = read(one.file, low, high - low)
    except OSError as error:
        raise BadSegmentError(number, f"reading its file failed: {error}") from error
    view = memoryview(data)
    block = (low - one.source.trailer.groups_at) // BLOCK_BYTES
    for at in range(0, high - low, BLOCK_BYTES):
        if crc32c(view[at : at + BLOCK_BYTES]) != one.checksums[block + at // BLOCK_BYTES]:
            raise BadSegmentError(
                number, f"its block at byte {low + at} does not match its checksum"
            )
    return data


def _source_extent(one: _Open, extent: FrameExtent) -> _SourceExtent:
    return _SourceExtent(
        extent.ledger_id, extent.first, extent.offset, extent.count, extent.frame_size,
        extent.sizes, extent.ids, one,
    )  # fmt: skip


def _place(extent: FrameExtent) -> tuple[int, int]:
    return extent.ledger_id, extent.first


def _age(extent: _SourceExtent) -> tuple[int, int]:
    """Return a sort key that puts extents in the order in which they were written."""
    return extent.origin.source.number, extent.offset


def _overlap(extents: Sequence[FrameExtent]) -> bool:
    """Return whether any of these extents, which are sorted by their first ids, overlap."""
    most = -1
    for extent in extents:
        if extent.first <= most:
            return True
        most = extent.last
    return False


def _cut(extent: _SourceExtent) -> Iterator[_SourceExtent]:
    """Yield parts of the extent that fit into a group each."""
    if extent.size_bytes <= GROUP_BYTES:
        yield extent
        return
    start = 0
    while start < extent.count:
        stop, size = start, 0
        while stop < extent.count:
            frame = extent.frame_size if extent.sizes is None else extent.sizes[stop]
            if size and size + frame > GROUP_BYTES:
                break
            size += frame
            stop += 1
        yield extent.part(start, stop)
        start = stop


def _bare(frames: memoryview, extent: _SourceExtent) -> Sequence[Buffer]:
    """Return the frames of an extent in the form of the output: a length before each entry."""
    sizes = () if extent.sizes is None else extent.sizes
    return FrameRun(frames, extent.count, extent.frame_size, sizes, extent.head_bytes).pack()


def _goes_on(run: Run, extent: _SourceExtent) -> bool:
    return (
        run.ledger_id == extent.ledger_id
        and run.ids is None
        and extent.ids is None
        and bool(run.frame_size)
        and run.frame_size == extent.frame_size - _left_out(extent)
        and run.first + run.count == extent.first
    )


def _left_out(extent: _SourceExtent) -> int:
    """Return the number of bytes of each frame header that the output leaves out."""
    return extent.head_bytes - BARE_HEAD_BYTES


def _run_of(extent: _SourceExtent, offset: int, batch: LogBatch) -> Run:
    less = _left_out(extent)
    run = Run(
        extent.ledger_id, extent.first, extent.count, offset,
        extent.frame_size - less if extent.frame_size else 0,
        None if extent.sizes is None else array("I", [size - less for size in extent.sizes]),
        None if extent.ids is None else array("q", extent.ids),
    )  # fmt: skip
    run.batch = batch
    return run
