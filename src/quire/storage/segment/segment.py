"""A segment of the log in memory: its file, its state, and the index of its entries.

The states of a segment:

- PREPARED: preallocated and unused.
- CURRENT: the segment that is appended to.
- CLOSED: it takes no more batches, but some may still be in flight. A segment that has lost groups
  stays in this state until the loss is repaired, so that no footer overwrites what is left of them.
- SEALED: it has a footer, which is its index on disk.
- RETIRED: it is about to be removed, or a compaction has replaced its file. For the new file there
  is a new object, which is SEALED.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import add, attrgetter

from quire._runtime.units import are, counted
from quire.codec.log.footer import CONSECUTIVE, DISJOINT, LedgerRows, Trailer
from quire.codec.log.state_records import BLOCK_BYTES, StateRecord
from quire.codec.wire.v2 import FRAME_HEADER_BYTES
from quire.storage.interfaces import File
from quire.storage.segment import sealed_rows
from quire.storage.segment.batch import LogBatch, Run, arrival, first_of
from quire.storage.segment.ledger_ids import LedgerIdSet

LOG_DIRECTORY = "log"
SPARE_NAME = f"{LOG_DIRECTORY}/compaction.spare"
"""The name of the preallocated file that the next compaction writes its output to."""


def segment_name(number: int) -> str:
    """Return the path of a segment's file in the data directory."""
    return f"{LOG_DIRECTORY}/{number:016x}.seg"


def number_of(name: str) -> int | None:
    """Return the number of the segment whose file has this path, or None if it is no segment."""
    try:
        number = int(name.removeprefix(f"{LOG_DIRECTORY}/").partition(".")[0], 16)
    except ValueError:
        return None
    return number if name == segment_name(number) else None


class SegmentState(enum.Enum):
    """The state of a segment; see the module's docstring."""

    PREPARED = enum.auto()
    CURRENT = enum.auto()
    CLOSED = enum.auto()
    SEALED = enum.auto()
    RETIRED = enum.auto()


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """The location of an entry and the entries after it: `count` frames that begin at `start`."""

    segment: LogSegment
    batch: LogBatch | None
    """The batch whose buffers contain the frames, or None if they must be read from the file."""
    start: int
    """The offset of the first frame, in the batch's buffers or in the file."""
    count: int
    frame_size: int
    sizes: Sequence[int] | None
    """The sizes of the `count` frames, if `frame_size` is 0."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all frames."""
        return self.frame_size * self.count if self.sizes is None else sum(self.sizes)


PlainRows = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""Runs of entries as columns: first entry ids, offsets in the file, counts of entries, and frame
sizes."""
_COLUMNS = attrgetter("first", "count", "frame_size", "ids", "offset", "batch.file_offset")


class ColumnarRows:
    """The batches of a segment that are kept as columns, because ledgers are interleaved.

    Each of their entries has a row number in the segment.
    """

    __slots__ = ("_batches", "_starts", "rows")

    def __init__(self) -> None:
        self._batches: list[tuple[LogBatch, int]] = []
        """Each batch, with the size in bytes of each of its frames."""
        self._starts = array("Q")
        """The first row number of each batch."""
        self.rows = 0

    def add(self, batch: LogBatch, count: int, frame_size: int) -> range:
        """Add a batch and return the row numbers of its entries."""
        first = self.rows
        self._batches.append((batch, frame_size))
        self._starts.append(first)
        self.rows = first + count
        return range(first, self.rows)

    def find(self, row: int) -> tuple[LogBatch, int, int]:
        """Return the batch of a row, the offset of its frame in the batch, and the frame size."""
        at = bisect_right(self._starts, row) - 1
        batch, size = self._batches[at]
        return batch, (row - self._starts[at]) * size, size

    @property
    def frame_size(self) -> int:
        """The size in bytes of each frame, or 0 if the sizes differ or there are no rows."""
        sizes = {size for _, size in self._batches}
        return sizes.pop() if len(sizes) == 1 else 0

    def offsets(self) -> list[int]:
        """Return the offset of each row in the file. All batches must be written already."""
        found: list[int] = []
        stops = (*self._starts[1:], self.rows)
        for (batch, size), start, stop in zip(self._batches, self._starts, stops):
            base = batch.file_offset
            found.extend(range(base, base + (stop - start) * size, size))
        return found


class LedgerPart:
    """The runs of one ledger in one segment that is not sealed yet, sorted by first entry id.

    Entries that were interleaved with those of other ledgers (`ColumnarBatch`) take one or two
    numbers each, as long as their ids ascend. With ten thousand ledgers being written, creating and
    keeping an object for each entry would be most of the cost of an add.
    """

    __slots__ = (
        "columnar", "entries", "first", "last", "ledger_id", "listed", "rows", "segment", "span",
    )  # fmt: skip

    def __init__(self, segment: LogSegment, ledger_id: int, first: int) -> None:
        self.segment = segment
        self.ledger_id = ledger_id
        self.columnar = segment.columnar
        self.entries: array[int] | None = None
        """The ids of the entries in `rows`, or None if they are consecutive from `first` on, as
        they are in most ledgers."""
        self.rows = array("I")
        """The row number in `columnar` of each interleaved entry."""
        self.listed: list[Run] | None = None
        """All runs as objects, once there is a run that is not a single interleaved entry. It then
        replaces `entries` and `rows`. None before that."""
        self.first = first
        self.last = first - 1
        self.span = DISJOINT
        """The value `DISJOINT` if no runs overlap. Otherwise the greatest difference between the
        last and first id of a run, or more."""

    @classmethod
    def of(cls, segment: LogSegment, ledger_id: int, runs: list[Run], span: int) -> LedgerPart:
        """Create a part from runs that are already sorted."""
        part = cls(segment, ledger_id, runs[0].first)
        part.listed, part.span = runs, span
        part.last = max(run.last for run in runs)
        return part

    @property
    def runs(self) -> list[Run]:
        """The runs of the ledger in the segment. Do not change the list.

        On another thread, this has the runs that existed at some moment.
        """
        # The order of these reads matters on another thread. `first` changes only after `listed` is
        # set. A row that needs `entries` is appended only after `entries` is set.
        first = self.first
        if self.listed is not None:
            return self.listed
        rows = self.rows[:]
        entries = self.entries
        ids = range(first, first + len(rows)) if entries is None else entries[:]
        return [self.run_of(entry, row) for entry, row in zip(ids, rows)]

    @property
    def ids(self) -> Sequence[int]:
        """The ids of the entries in `rows`, while `listed` is None."""
        if self.entries is None:
            return range(self.first, self.first + len(self.rows))
        return self.entries

    def list_entries(self) -> array[int]:
        """Switch from consecutive ids to a list, before an id is added that is not consecutive."""
        self.entries = array("q", range(self.first, self.last + 1))
        return self.entries

    def run_of(self, entry_id: int, row: int) -> Run:
        """Return the run for an interleaved entry with this row number."""
        batch, offset, size = self.columnar.find(row)
        run = Run(self.ledger_id, entry_id, 1, offset, size)
        run.batch = batch
        return run

    def add(self, run: Run) -> None:
        """Add a run that has arrived after all others. Its `batch` must be set."""
        if self.listed is None:
            self.listed = self.runs
        if run.first > self.last and self.span == DISJOINT:
            self.listed.append(run)
            self.last = run.last
        else:
            self._insert(self.listed, run)

    def _insert(self, runs: list[Run], run: Run) -> None:
        """Insert a run that overlaps others or comes before some of them."""
        last = run.last
        at = bisect_right(runs, run.first, key=first_of)
        runs.insert(at, run)
        if self.span == DISJOINT and (
            (at > 0 and runs[at - 1].last >= run.first)
            or (at + 1 < len(runs) and runs[at + 1].first <= last)
        ):
            self.span = max(other.last - other.first for other in runs)
        elif self.span != DISJOINT:
            self.span = max(self.span, last - run.first)
        self.first = min(self.first, run.first)
        self.last = max(self.last, last)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all frames of the ledger in this segment."""
        if self.listed is not None:
            return sum(run.size_bytes for run in self.listed)
        return sum(self.columnar.find(row)[2] for row in self.rows)

    def remove_batch(self, batch: LogBatch) -> None:
        """Remove the runs of a batch that was not written.

        `first`, `last` and `span` stay as they are, so they may cover more than the runs do.
        """
        self.listed = [run for run in self.runs if run.batch is not batch]

    def plain_rows(self) -> PlainRows | None:
        """Return the runs as columns, or None if they are not simple.

        All runs must be written already. Simple runs have consecutive ids and equal frame sizes,
        and do not overlap.
        """
        if self.span != DISJOINT:
            return None
        if self.listed is None:
            offsets: list[int] = []
            frame_sizes: list[int] = []
            for row in self.rows:
                batch, offset, size = self.columnar.find(row)
                offsets.append(batch.file_offset + offset)
                frame_sizes.append(size)
            return self.ids, offsets, (1,) * len(offsets), frame_sizes
        if not self.listed:
            return None
        firsts, counts, sizes, ids, places, bases = zip(*map(_COLUMNS, self.listed))
        if 0 in sizes or ids.count(None) != len(ids):
            return None
        return firsts, tuple(map(add, places, bases)), counts, sizes

    def places(self, entry_id: int, stop: int) -> Iterator[EntryLocation]:
        """Yield the locations of all copies of the entry, newest first.

        Each location also has the entries after it in the same run, up to but not including `stop`.
        """
        if self.listed is None:
            ids = self.ids
            at = bisect_left(ids, entry_id)
            known = at < len(ids) and ids[at] == entry_id
            if known and (
                place := self._place(self.run_of(entry_id, self.rows[at]), entry_id, stop)
            ):
                yield place
            return
        runs = self.listed
        at = bisect_right(runs, entry_id, key=first_of)
        if self.span == DISJOINT:
            if at and (place := self._place(runs[at - 1], entry_id, stop)):
                yield place
            return
        if at < len(runs):
            stop = min(stop, runs[at].first)
        found = []
        for back in range(at - 1, -1, -1):
            run = runs[back]
            if run.first + self.span < entry_id:
                break
            if run.last >= entry_id:
                found.append(run)
        for run in sorted(found, key=arrival, reverse=True):
            if place := self._place(run, entry_id, stop):
                yield place
            stop = _run_stop(run, entry_id, stop)

    def stop_of(self, entry_id: int, stop: int) -> int:
        """Return the first entry after `entry_id` that the part has, or `stop` if `stop` is less.

        A read of an older copy of `entry_id` must end before the returned entry, because this part
        has a newer copy of that one.
        """
        if self.listed is None:
            return _first_after(self.ids, entry_id, stop)
        runs = self.listed
        at = bisect_right(runs, entry_id, key=first_of)
        if at < len(runs):
            stop = min(stop, runs[at].first)
        reach = 0 if self.span == DISJOINT else self.span
        for back in range(at - 1, -1, -1):
            run = runs[back]
            stop = _run_stop(run, entry_id, stop)
            if run.first + reach < entry_id:
                break
        return stop

    def _place(self, run: Run, entry_id: int, stop: int) -> EntryLocation | None:
        """Return the location of the entry in this run, or None if the run does not have it."""
        ids = run.ids
        if ids is None:
            index = entry_id - run.first
            count = min(run.count - index, stop - entry_id)
            if count <= 0:
                return None
        else:
            index = bisect_left(ids, entry_id)
            if index == len(ids) or ids[index] != entry_id:
                return None
            count = consecutive(ids, index, min(run.count - index, stop - entry_id))
        batch = run.batch
        base = run.offset if batch.buffers is not None else run.offset + batch.file_offset
        in_memory = batch if batch.buffers is not None else None
        if run.sizes is None:
            start = base + index * run.frame_size
            return EntryLocation(self.segment, in_memory, start, count, run.frame_size, None)
        start = base + sum(run.sizes[:index])
        return EntryLocation(
            self.segment, in_memory, start, count, 0, run.sizes[index : index + count]
        )


def _first_after(
    ids: Sequence[int], entry_id: int, stop: int, low: int = 0, high: int | None = None
) -> int:
    """Return the first of the ascending ids after `entry_id`, or `stop` if that is less.

    The ids are those from index `low` to before `high`, or to the end of `ids`.
    """
    high = len(ids) if high is None else high
    at = bisect_right(ids, entry_id, low, high)
    return min(stop, ids[at]) if at < high else stop


def _run_stop(run: Run, entry_id: int, stop: int) -> int:
    """Return the first entry after `entry_id` in this run, or `stop` if that is less."""
    if run.ids is not None:
        return _first_after(run.ids, entry_id, stop)
    return min(stop, entry_id + 1) if run.last > entry_id else stop


def consecutive(ids: Sequence[int], index: int, most: int) -> int:
    """Return how many ids are consecutive from `index` on, but at most `most`."""
    expected = ids[index]
    for count in range(most):
        if ids[index + count] != expected + count:
            return count
    return most


def sealed_places(
    segment: LogSegment, rows: LedgerRows, span: int, entry_id: int, stop: int
) -> Iterator[EntryLocation]:
    """Do the same as `LedgerPart.places` for a sealed segment, from its footer."""
    firsts = rows.firsts
    at = bisect_right(firsts, entry_id)
    if span == DISJOINT:
        candidates = [at - 1] if at else []
    else:
        if at < len(firsts):
            stop = min(stop, firsts[at])
        low = bisect_left(firsts, entry_id - span)
        # Within a segment, the copy at the higher offset is newer.
        candidates = sorted(range(low, at), key=lambda row: rows.offsets[row], reverse=True)
    for row in candidates:
        place = _place_in_row(segment, rows, row, entry_id, stop)
        if place is not None:
            yield place
        stop = _row_stop(rows, row, entry_id, stop)


def _place_in_row(
    segment: LogSegment, rows: LedgerRows, row: int, entry_id: int, stop: int
) -> EntryLocation | None:
    """Return the location of the entry in this run, or None if the run does not have it."""
    count, ids_at = rows.counts[row], rows.ids_at[row]
    if ids_at == CONSECUTIVE:
        index = entry_id - rows.firsts[row]
        count = min(count - index, stop - entry_id)
        if count <= 0:
            return None
    else:
        place = bisect_left(rows.ids, entry_id, ids_at, ids_at + count)
        if place == ids_at + count or rows.ids[place] != entry_id:
            return None
        index = place - ids_at
        count = consecutive(rows.ids, place, min(count - index, stop - entry_id))
    start, frame_size = rows.offsets[row], rows.frame_sizes[row]
    if frame_size:
        return EntryLocation(segment, None, start + index * frame_size, count, frame_size, None)
    base = rows.sizes_at[row]
    start += sum(rows.sizes[base : base + index])
    sizes = rows.sizes[base + index : base + index + count]
    return EntryLocation(segment, None, start, count, 0, sizes)


def _row_stop(rows: LedgerRows, row: int, entry_id: int, stop: int) -> int:
    """Return the first entry after `entry_id` in this run, or `stop` if that is less."""
    count, ids_at = rows.counts[row], rows.ids_at[row]
    if ids_at == CONSECUTIVE:
        return min(stop, entry_id + 1) if rows.firsts[row] + count - 1 > entry_id else stop
    return _first_after(rows.ids, entry_id, stop, ids_at, ids_at + count)


def sealed_stop(rows: LedgerRows, span: int, entry_id: int, stop: int) -> int:
    """Do the same as `LedgerPart.stop_of` for a sealed segment, from its footer."""
    firsts = rows.firsts
    at = bisect_right(firsts, entry_id)
    if at < len(firsts):
        stop = min(stop, firsts[at])
    low = max(at - 1, 0) if span == DISJOINT else bisect_left(firsts, entry_id - span)
    for row in range(low, at):
        stop = _row_stop(rows, row, entry_id, stop)
    return stop


class LogSegment:
    """A segment of the log in memory. It belongs to the event loop.

    The docstring of the module explains the states of a segment.
    """

    __slots__ = (
        "capacity", "checksums", "columnar", "compacting", "damage", "end", "end_group", "file",
        "first_group", "forgotten", "generation", "groups_at", "head_bytes", "in_flight", "live",
        "live_bytes", "live_ledgers", "lost_groups", "mentions", "number", "parts",
        "payload_bytes", "previous", "readers", "records", "reserved", "run_count", "state",
        "trailer",
    )  # fmt: skip

    def __init__(self, number: int, file: File | None, capacity: int) -> None:
        self.number = number
        self.generation = 0
        """The number of times that a compaction has replaced the file since the process was
        started."""
        self.file = file
        """The open file, or None. The file of a sealed segment is opened when it is read. It is
        closed again if too many are open."""
        self.capacity = capacity
        """The preallocated size of the file in bytes."""
        self.state = SegmentState.PREPARED
        self.live: tuple[tuple[int, int], ...] = ()
        """The ranges (first, last) of numbers of other segments that existed when this one was
        begun, as its header lists them. Missing segments that count as lost are included."""
        self.previous = 0
        """The number of the segment that the log wrote to before, as the header names it."""
        self.groups_at = BLOCK_BYTES
        """The offset in the file of the first group, which is the size of the header."""
        self.head_bytes = FRAME_HEADER_BYTES
        """The number of bytes before the entry in each frame. The bare frames that a compaction
        writes have fewer than others."""
        self.first_group = 0
        self.end_group = 0
        """The number after that of the last group."""
        self.end = BLOCK_BYTES
        """The offset in the file at which the last written group ends."""
        self.reserved = 0
        """The most bytes that batches that are not synced yet can take in the file."""
        self.in_flight = 0
        """The number of batches that are not synced yet."""
        self.run_count = 0
        self.payload_bytes = 0
        self.live_bytes = 0
        """The number of bytes of frames of ledgers that are not deleted."""
        self.live_ledgers = 0
        """The number of ledgers that are not deleted and have entries here."""
        self.columnar = ColumnarRows()
        """The batches that the row numbers in `parts` refer to."""
        self.parts: dict[int, LedgerPart] = {}
        self.forgotten: set[int] = set()
        """The ids of the ledgers that were dropped but have runs here, until the segment is sealed.
        The next start would find these runs."""
        self.records: list[StateRecord] = []
        self.checksums = array("I")
        """The checksum of each block from `groups_at` on, until the segment is sealed."""
        self.trailer: Trailer | None = None
        self.mentions = LedgerIdSet()
        """The ids of all ledgers with runs or records here, once the segment is sealed."""
        self.lost_groups = 0
        """The number of groups that a start has found missing. Nobody knows what was in them. The
        number is 0 again once the loss is repaired and the segment is sealed. `damage` describes
        damage whose place in the segment is known."""
        self.damage = ""
        """The damage that a scrub or a compaction has found, in words, or "". A damaged segment is
        not compacted, because its entries may still be needed."""
        self.compacting = False
        """Whether a compaction reads this segment. If so, it must not be removed."""
        self.readers = 0
        """The number of reads and other tasks that need the file to stay open."""

    def __repr__(self) -> str:
        return f"<segment {self.number:x} {self.state.name}>"

    @property
    def loss(self) -> str:
        """The number of lost groups in words, for messages. Empty if no groups are lost.

        `damage` describes other damage.
        """
        lost = self.lost_groups
        return f"{counted(lost, 'group')} {are(lost)} lost" if lost else ""

    @property
    def name(self) -> str:
        return segment_name(self.number)

    @property
    def file_bytes(self) -> int:
        """The size of the file in bytes, including preallocated space."""
        return max(self.capacity, self.end) if self.trailer is None else self.trailer.file_bytes

    def seal(self, trailer: Trailer, mentions: LedgerIdSet) -> None:
        """Take the values in the footer of a sealed segment, without counting what is live."""
        self.state = SegmentState.SEALED
        self.trailer, self.mentions = trailer, mentions
        self.groups_at, self.end = trailer.groups_at, trailer.footer_at
        self.head_bytes = trailer.head_bytes
        self.first_group, self.end_group = trailer.first_group, trailer.end_group

    def fits(self, cost: int) -> bool:
        """Return whether a batch of at most `cost` bytes fits into the preallocated file."""
        return self.end + self.reserved + cost <= self.capacity

    def mentions_ledger(self, ledger_id: int) -> bool:
        """Return whether a start may find entries or state records of this ledger here.

        That is also the case if groups of a segment without a footer are lost. Their content is
        unknown, and they may become readable again.
        """
        if self.trailer is None:
            return (
                self.lost_groups > 0
                or ledger_id in self.parts
                or ledger_id in self.forgotten
                or any(r.ledger_id == ledger_id for r in self.records)
            )
        return ledger_id in self.mentions


class LedgerInfo:
    """Everything that the store knows about one ledger. The bookie uses the same object.

    There may be a million of these objects, so fields that most ledgers do not need take no objects
    of their own.
    """

    __slots__ = (
        "born", "explicit_lac", "fence_durable", "fence_queued", "fenced", "last_add_confirmed",
        "last_entry_id", "ledger_id", "master_key", "open_parts", "ordered", "sealed", "tail",
        "touched",
    )  # fmt: skip

    def __init__(self, ledger_id: int, master_key: bytes, touched: int = 0) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = False
        self.fence_queued = False
        """Whether a record of the ledger's fence is in the log or queued for it."""
        self.fence_durable = False
        self.last_entry_id = -1
        self.last_add_confirmed = -1
        """The greatest LAC that was seen, or -1. The bookie raises it. After a restart it is a
        lower bound."""
        self.explicit_lac: bytes | None = None
        """The packet of the last explicit LAC, or None."""
        self.born = touched
        """The number of the first segment that has anything about this ledger. Earlier segments can
        only mention a deleted ledger with the same id."""
        self.touched = touched
        """The number of the last segment in which anything about the ledger was logged. State
        records that were logged by this process do not count, except for the creation of the
        ledger."""
        self.tail: LedgerPart | None = None
        """The part of the index that new entries of the ledger in the current segment are added to,
        or None."""
        self.open_parts: tuple[LedgerPart, ...] = ()
        """The runs of the ledger in each segment that is not sealed, oldest first."""
        self.sealed = b""
        """The packed rows of the ledger for sealed segments; see `sealed_rows`."""
        self.ordered = True
        """Whether the entry ids ascend with the sealed segments and do not overlap."""

    def __repr__(self) -> str:
        return f"<ledger {self.ledger_id} up to {self.last_entry_id}>"

    def add_sealed(self, number: int, first: int, last: int, size_bytes: int) -> None:
        """Add the row of a sealed segment: its first and last entry id, and bytes of frames."""
        self.sealed, fits = sealed_rows.add(self.sealed, number, first, last, size_bytes)
        self.ordered = self.ordered and fits

    def remove_sealed(self, number: int) -> int:
        """Remove the row of the sealed segment `number`, and return the bytes of frames in it."""
        at = sealed_rows.index_of(self.sealed, number)
        if at is None:
            return 0
        size = sealed_rows.row_at(self.sealed, at)[3]
        self.sealed = sealed_rows.without(self.sealed, at)
        if not self.ordered:
            self.ordered = sealed_rows.is_ordered(self.sealed)
        return size

    @property
    def sealed_numbers(self) -> list[int]:
        """The numbers of the sealed segments that have entries of the ledger, ascending."""
        return [row[0] for row in sealed_rows.unpack(self.sealed)]

    @property
    def newest_sealed(self) -> int:
        """The number of the newest sealed segment that has entries of the ledger, or 0."""
        rows = sealed_rows.count(self.sealed)
        return sealed_rows.row_at(self.sealed, rows - 1)[0] if rows else 0

    @property
    def sealed_count(self) -> int:
        """The number of sealed segments that have entries of the ledger."""
        return sealed_rows.count(self.sealed)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all frames of the ledger, including further copies of an entry."""
        sealed = sum(row[3] for row in sealed_rows.unpack(self.sealed))
        return sealed + sum(part.size_bytes for part in self.open_parts)

    def lives_in(self, number: int) -> bool:
        """Return whether the sealed segment `number` has entries of the ledger that count."""
        return sealed_rows.index_of(self.sealed, number) is not None

    def drop_part(self, part: LedgerPart) -> None:
        """Remove the runs in a segment that is sealed, or whose entries are no longer needed."""
        parts = self.open_parts
        if parts and parts[0] is part:  # This is almost always the oldest part.
            self.open_parts = parts[1:]
        else:
            self.open_parts = tuple(one for one in parts if one is not part)
        if self.tail is part:
            self.tail = None

    def sealed_with(self, entry_id: int) -> Iterator[tuple[int, int]]:
        """Yield (number, stop) of each sealed segment whose range includes the entry, newest first.

        A newer segment may have its own copies of the entries from `stop` on.
        """
        packed = self.sealed
        stop = self.last_entry_id + 1
        if self.ordered:
            rows = sealed_rows.count(packed)
            at = bisect_left(
                range(rows), entry_id, key=lambda index: sealed_rows.row_at(packed, index)[2]
            )
            if at < rows:
                number, first, _, _ = sealed_rows.row_at(packed, at)
                if first <= entry_id:
                    yield number, stop
            return
        for number, first, last, _ in reversed(sealed_rows.unpack(packed)):
            if first > entry_id:
                stop = min(stop, first)
            elif last >= entry_id:
                yield number, stop
