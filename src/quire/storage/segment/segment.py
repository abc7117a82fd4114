"""One segment of the log in memory: its file, its state, and the index of what lies in it.

States: PREPARED (preallocated, unused) -> CURRENT (appended to) -> CLOSED (rolled; adds may still
be in flight) -> SEALED (has a footer, its index at rest) -> RETIRED (about to be removed, or its
file replaced by a compaction, which makes a new SEALED object). A segment that is damaged stays
CLOSED: nothing is written over what is left of it.
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
"""The preallocated file that the next compaction writes its output to."""


def segment_name(number: int) -> str:
    return f"{LOG_DIRECTORY}/{number:016x}.seg"


class SegmentState(enum.Enum):
    PREPARED = enum.auto()
    CURRENT = enum.auto()
    CLOSED = enum.auto()
    SEALED = enum.auto()
    RETIRED = enum.auto()


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """Where an entry and the ones behind it lie: `count` frames from `start` on."""

    segment: LogSegment
    batch: LogBatch | None
    """The batch whose buffers hold them; None: they are read from the segment's file."""
    start: int
    """In the file, or in the batch's buffers."""
    count: int
    frame_size: int
    sizes: Sequence[int] | None
    """The sizes of just these frames, where `frame_size` is 0."""

    @property
    def size_bytes(self) -> int:
        return self.frame_size * self.count if self.sizes is None else sum(self.sizes)


PlainRows = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""Columns: first entry ids, offsets in the file, counts, frame sizes."""
_COLUMNS = attrgetter("first", "count", "frame_size", "ids", "offset", "batch.file_offset")


class ColumnarRows:
    """The columnar batches of a segment. Each entry has a row number in the segment."""

    __slots__ = ("_batches", "_starts", "rows")

    def __init__(self) -> None:
        self._batches: list[tuple[LogBatch, int]] = []
        """With the size of their frames."""
        self._starts = array("Q")
        """Of each batch, its first row."""
        self.rows = 0

    def add(self, batch: LogBatch, count: int, frame_size: int) -> range:
        """The numbers of its rows."""
        first = self.rows
        self._batches.append((batch, frame_size))
        self._starts.append(first)
        self.rows = first + count
        return range(first, self.rows)

    def find(self, row: int) -> tuple[LogBatch, int, int]:
        """Its batch, where it lies in that, and the size of its frame."""
        at = bisect_right(self._starts, row) - 1
        batch, size = self._batches[at]
        return batch, (row - self._starts[at]) * size, size

    @property
    def frame_size(self) -> int:
        """Of all rows; 0: they have several, or there are none."""
        sizes = {size for _, size in self._batches}
        return sizes.pop() if len(sizes) == 1 else 0

    def offsets(self) -> list[int]:
        """Of each row, in the file, once all batches are written."""
        found: list[int] = []
        stops = (*self._starts[1:], self.rows)
        for (batch, size), start, stop in zip(self._batches, self._starts, stops):
            base = batch.file_offset
            found.extend(range(base, base + (stop - start) * size, size))
        return found


class LedgerPart:
    """The runs of one ledger in one segment that is not sealed yet, sorted by first entry id.

    As long as they are entries that came in turn with those of other ledgers (`ColumnarBatch`),
    each behind the one before, they are a number each, or two, and no objects: where ten thousand
    ledgers are written to, making these and keeping them would be most of what an add costs."""

    __slots__ = (
        "columnar", "entries", "first", "last", "ledger_id", "listed", "rows", "segment", "span",
    )  # fmt: skip

    def __init__(self, segment: LogSegment, ledger_id: int, first: int) -> None:
        self.segment = segment
        self.ledger_id = ledger_id
        self.columnar = segment.columnar
        self.entries: array[int] | None = None
        """None: they go up by one from `first` on, as those of most ledgers do."""
        self.rows = array("I")
        """Where each lies: its row in `columnar`."""
        self.listed: list[Run] | None = None
        """Instead of these, once there is another kind of run."""
        self.first = first
        self.last = first - 1
        self.span = DISJOINT
        """Where runs overlap: the greatest last - first of any."""

    @classmethod
    def of(cls, segment: LogSegment, ledger_id: int, runs: list[Run], span: int) -> LedgerPart:
        """Of runs that are sorted already."""
        part = cls(segment, ledger_id, runs[0].first)
        part.listed, part.span = runs, span
        part.last = max(run.last for run in runs)
        return part

    @property
    def runs(self) -> list[Run]:
        """To be looked at. Also on another thread: the runs that were there at some moment."""
        # In this order: the first entry changes once runs are listed, and a row that does not
        # follow the one before comes behind the list of entries.
        first = self.first
        if self.listed is not None:
            return self.listed
        rows = self.rows[:]
        entries = self.entries
        ids = range(first, first + len(rows)) if entries is None else entries[:]
        return [self.run_of(entry, row) for entry, row in zip(ids, rows)]

    @property
    def ids(self) -> Sequence[int]:
        """Of the entries that `rows` are of, while nothing is listed."""
        if self.entries is None:
            return range(self.first, self.first + len(self.rows))
        return self.entries

    def list_entries(self) -> array[int]:
        """Before the row of one that does not follow the last."""
        self.entries = array("q", range(self.first, self.last + 1))
        return self.entries

    def run_of(self, entry_id: int, row: int) -> Run:
        batch, offset, size = self.columnar.find(row)
        run = Run(self.ledger_id, entry_id, 1, offset, size)
        run.batch = batch
        return run

    def add(self, run: Run) -> None:
        """A run whose batch is set, behind all that came before."""
        if self.listed is None:
            self.listed = self.runs
        if run.first > self.last and self.span == DISJOINT:
            self.listed.append(run)
            self.last = run.last
        else:
            self._insert(self.listed, run)

    def _insert(self, runs: list[Run], run: Run) -> None:
        """A run that does not simply come behind all others."""
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
        """Of all frames."""
        if self.listed is not None:
            return sum(run.size_bytes for run in self.listed)
        return sum(self.columnar.find(row)[2] for row in self.rows)

    def remove_batch(self, batch: LogBatch) -> None:
        """Take back runs that were not written. The bounds stay as wide as they were."""
        self.listed = [run for run in self.runs if run.batch is not batch]

    def plain_rows(self) -> PlainRows | None:
        """The runs, all written, as columns: where all have consecutive ids and frames of one size,
        and none overlap."""
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
        """Where the entry lies, newest first; entries from `stop` on are not wanted."""
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

    def _place(self, run: Run, entry_id: int, stop: int) -> EntryLocation | None:
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


def consecutive(ids: Sequence[int], index: int, most: int) -> int:
    """How many ids from `index` on go up by one, at most `most`."""
    expected = ids[index]
    for count in range(most):
        if ids[index + count] != expected + count:
            return count
    return most


def sealed_places(
    segment: LogSegment, rows: LedgerRows, span: int, entry_id: int, stop: int
) -> Iterator[EntryLocation]:
    """Like `LedgerInSegment.places`, from a footer."""
    firsts = rows.firsts
    at = bisect_right(firsts, entry_id)
    if span == DISJOINT:
        candidates = [at - 1] if at else []
    else:
        if at < len(firsts):
            stop = min(stop, firsts[at])
        low = bisect_left(firsts, entry_id - span)
        # Within a segment, what lies behind came later.
        candidates = sorted(range(low, at), key=lambda row: rows.offsets[row], reverse=True)
    for row in candidates:
        count, ids_at = rows.counts[row], rows.ids_at[row]
        if ids_at == CONSECUTIVE:
            index = entry_id - firsts[row]
            count = min(count - index, stop - entry_id)
            if count <= 0:
                continue
        else:
            place = bisect_left(rows.ids, entry_id, ids_at, ids_at + count)
            if place == ids_at + count or rows.ids[place] != entry_id:
                continue
            index = place - ids_at
            count = consecutive(rows.ids, place, min(count - index, stop - entry_id))
        start, frame_size = rows.offsets[row], rows.frame_sizes[row]
        if frame_size:
            yield EntryLocation(segment, None, start + index * frame_size, count, frame_size, None)
        else:
            base = rows.sizes_at[row]
            start += sum(rows.sizes[base : base + index])
            yield EntryLocation(
                segment, None, start, count, 0, rows.sizes[base + index : base + index + count]
            )


class LogSegment:
    """See the module. Used on the event loop, but for what its comments say."""

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
        """How often a compaction has put another file in its place, in the life of this process."""
        self.file = file
        """None: a sealed segment whose file is not open."""
        self.capacity = capacity
        """Bytes preallocated."""
        self.state = SegmentState.PREPARED
        self.live: tuple[tuple[int, int], ...] = ()
        """What its header says about other segments."""
        self.previous = 0
        """The segment before, as its header says it."""
        self.groups_at = BLOCK_BYTES
        """Length of the header."""
        self.head_bytes = FRAME_HEADER_BYTES
        """Of each frame, before the entry: fewer where a compaction wrote it."""
        self.first_group = 0
        self.end_group = 0
        """The group behind the last."""
        self.end = BLOCK_BYTES
        """Where the next group goes, once all in flight are written."""
        self.reserved = 0
        """Bytes that batches in flight may take."""
        self.in_flight = 0
        """Batches that are not synced."""
        self.run_count = 0
        self.payload_bytes = 0
        self.live_bytes = 0
        """Frames of ledgers that are not deleted."""
        self.live_ledgers = 0
        """Ledgers that have entries here and are not deleted."""
        self.columnar = ColumnarRows()
        """What the rows of parts name."""
        self.parts: dict[int, LedgerPart] = {}
        self.forgotten: set[int] = set()
        """Ledgers that were dropped and have runs here, until sealed: a start finds these again."""
        self.records: list[StateRecord] = []
        self.checksums = array("I")
        """Of each block from `groups_at` on, until sealed."""
        self.trailer: Trailer | None = None
        self.mentions = LedgerIdSet()
        """All ledgers of which runs or records are here, once sealed."""
        self.lost_groups = 0
        self.damage = ""
        """What a compaction found: the segment stays as it is, for what can still be read."""
        self.compacting = False
        """A compaction reads it: it is not removed."""
        self.readers = 0
        """Reads that wait for the device, and whoever else needs the file open."""

    def __repr__(self) -> str:
        return f"<segment {self.number:x} {self.state.name}>"

    @property
    def loss(self) -> str:
        """What of it is lost, in words; "": nothing."""
        lost = self.lost_groups
        return f"{counted(lost, 'group')} of it {are(lost)} lost" if lost else ""

    @property
    def name(self) -> str:
        return segment_name(self.number)

    @property
    def file_bytes(self) -> int:
        """Preallocated parts included."""
        return max(self.capacity, self.end) if self.trailer is None else self.trailer.file_bytes

    def seal(self, trailer: Trailer, mentions: LedgerIdSet) -> None:
        """It is what its footer says; what is alive of it is still to be counted."""
        self.state = SegmentState.SEALED
        self.trailer, self.mentions = trailer, mentions
        self.groups_at, self.end = trailer.groups_at, trailer.footer_at
        self.head_bytes = trailer.head_bytes
        self.first_group, self.end_group = trailer.first_group, trailer.end_group

    def fits(self, cost: int) -> bool:
        return self.end + self.reserved + cost <= self.capacity

    def mentions_ledger(self, ledger_id: int) -> bool:
        """Whether a start may find anything of it here. Of groups that are lost nobody knows, and
        what could not be read once may be readable again."""
        if self.trailer is None:
            return (
                self.lost_groups > 0
                or ledger_id in self.parts
                or ledger_id in self.forgotten
                or any(r.ledger_id == ledger_id for r in self.records)
            )
        return ledger_id in self.mentions


class LedgerInfo:
    """What the store knows of one ledger. Hot state: shared with the bookie, never copied.

    There may be a million of them: what most do not have takes no object of its own."""

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
        """Its fence is on its way into the log, or there."""
        self.fence_durable = False
        self.last_entry_id = -1
        self.last_add_confirmed = -1
        """The greatest LAC seen; the bookie raises it. After a restart a lower bound."""
        self.explicit_lac: bytes | None = None
        """The last explicit LAC packet."""
        self.born = touched
        """No segment before this one speaks of it, but of ledgers with its id that were deleted."""
        self.touched = touched
        """The last segment in which anything about it was logged, as far as the start knows."""
        self.tail: LedgerPart | None = None
        """Its part in the current segment."""
        self.open_parts: tuple[LedgerPart, ...] = ()
        """In segments that are not sealed, oldest first."""
        self.sealed = b""
        """Its rows of sealed segments, packed: see `sealed_rows`."""
        self.ordered = True
        """Whether the sealed segments' entries ascend without overlap."""

    def __repr__(self) -> str:
        return f"<ledger {self.ledger_id} up to {self.last_entry_id}>"

    def add_sealed(self, number: int, first: int, last: int, size_bytes: int) -> None:
        self.sealed, fits = sealed_rows.add(self.sealed, number, first, last, size_bytes)
        self.ordered = self.ordered and fits

    def remove_sealed(self, number: int) -> int:
        """How many bytes it had there."""
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
        """Sealed segments that hold entries of it, ascending."""
        return [row[0] for row in sealed_rows.unpack(self.sealed)]

    @property
    def sealed_count(self) -> int:
        return sealed_rows.count(self.sealed)

    @property
    def size_bytes(self) -> int:
        """Of all its frames, copies included."""
        sealed = sum(row[3] for row in sealed_rows.unpack(self.sealed))
        return sealed + sum(part.size_bytes for part in self.open_parts)

    def lives_in(self, number: int) -> bool:
        return sealed_rows.index_of(self.sealed, number) is not None

    def drop_part(self, part: LedgerPart) -> None:
        """It is sealed, or dead."""
        parts = self.open_parts
        if parts and parts[0] is part:  # the oldest, but for a drop
            self.open_parts = parts[1:]
        else:
            self.open_parts = tuple(one for one in parts if one is not part)
        if self.tail is part:
            self.tail = None

    def sealed_with(self, entry_id: int) -> Iterator[tuple[int, int]]:
        """(number, stop) of the sealed segments whose range holds the entry, newest first. A newer
        segment may have its own copy of entries from `stop` on."""
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
