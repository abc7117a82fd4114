"""The index cache, `log/INDEX`: what a start would make of the sealed segments, ready to be loaded.

The segments are the truth. The cache covers every segment that existed up to some number, and says
of each which file that was. It counts only where all of these are there, no other is among them,
and each has the trailer that it had: then what lies behind them is all that has happened since.
A deletion in particular is kept in the log as long as a segment speaks of the ledger, and the cache
knows only ledgers of which a segment speaks that it covers. Anything else (a segment that was
removed or compacted since, one more, a wrong bit) and it is removed, for one line in the log: the
footers are read instead, and it is written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from quire.codec.log import index_cache as fmt
from quire.codec.log.footer import TRAILER_BYTES, Trailer, decode_trailer
from quire.codec.log.index_cache import CachedLedger, CachedSegment
from quire.codec.log.state_records import Buffer, FormatError
from quire.storage.catalogue import Catalogue
from quire.storage.interfaces import Disk, File
from quire.storage.segment import sealed_rows
from quire.storage.segment.ledger_ids import LedgerIds
from quire.storage.segment.sealing import read
from quire.storage.segment.segment import LOG_DIRECTORY, LedgerInfo, Segment, SegmentState

CACHE_NAME = f"{LOG_DIRECTORY}/INDEX"
TEMPORARY_NAME = f"{CACHE_NAME}.new"
LEDGERS_PER_BLOCK = 4_096
"""Of the file, and of one step of the thread that writes it."""
BLOCK_BYTES_MAX = 8 * 1024 * 1024
"""Fewer ledgers go into a block whose rows have so many bytes; after so many bytes it is synced."""
STEP_BYTES = 256 * 1024
"""Written in one step, at least."""


class StaleCacheError(FormatError):
    """It is of other segments, or newer than the log: not to be used."""


# -- reading ----------------------------------------------------------------------------------


class CachedIndex:
    """One that was found. Its segments are in memory, its ledgers are still to be read."""

    def __init__(self, file: File, directory_id: bytes) -> None:
        """`FormatError`, `OSError`."""
        self._file = file
        self._size = file.size()
        self._at = 0
        header, body = self._block(fmt.HEAD)
        self.head = fmt.decode_head(header, body)
        if self.head.directory_id != directory_id:
            raise FormatError("it is another directory's")
        found = (fmt.decode_segment(*self._block(fmt.SEGMENT)) for _ in range(self.head.segments))
        self.segments: dict[int, CachedSegment] = {one.number: one for one in found}

    def _block(self, kind: bytes) -> tuple[fmt.BlockHeader, Buffer]:
        header = fmt.decode_block_header(read(self._file, self._at, fmt.BLOCK_HEADER_BYTES))
        self._at += fmt.BLOCK_HEADER_BYTES
        if header.body_bytes > self._size - self._at:
            raise FormatError("it is cut off")
        body = read(self._file, self._at, header.body_bytes)
        self._at += header.body_bytes
        fmt.check_block(header, body, kind)
        return header, body

    def trailer_of(self, number: int, file: File) -> Trailer | None:
        """Of a segment that it covers, where this is the file that it knows; None where it does
        not cover that segment. `StaleCacheError`: it should, and does not. `OSError`."""
        if number > self.head.through:
            return None
        known = self.segments.get(number)
        size = file.size()
        data = read(file, max(0, size - TRAILER_BYTES), TRAILER_BYTES)
        if known is None or data != known.trailer:
            raise StaleCacheError(f"segment {number:x} is not the one that it covers")
        return decode_trailer(data, self.head.directory_id, number, size)

    def check(self, live: set[int]) -> None:
        """Against all segments that count. `StaleCacheError`."""
        gone = self.segments.keys() - live
        if gone:
            raise StaleCacheError(f"segment {min(gone):x} is gone, which it covers")

    def restore(
        self,
        catalogue: Catalogue,
        trailers: Mapping[int, Trailer],
        end_group: int,
        go_on: Callable[[], None],
    ) -> None:
        """Fill a catalogue that is empty. `end_group`: the group behind the last of the log.
        `go_on` is called now and then, and may raise. `FormatError` or `OSError`, and it is half
        full."""
        for number, one in self.segments.items():
            catalogue.segments[number] = _restored(one, trailers[number])
        catalogue.repaired_before = self.head.repaired_before
        catalogue.tombstones.update(fmt.decode_dead(*self._block(fmt.DEAD)))
        ledgers = 0
        while True:
            go_on()
            header = fmt.decode_block_header(read(self._file, self._at, fmt.BLOCK_HEADER_BYTES))
            if header.kind == fmt.END:
                break
            header, body = self._block(fmt.LEDGERS)
            catalogue.restore(fmt.decode_ledgers(header, body))
            ledgers += header.items
        end = fmt.decode_end(self._block(fmt.END)[1])
        if end.ledgers != ledgers or len(catalogue.ledgers) != ledgers:
            raise FormatError("it lacks ledgers")
        if self._at != self._size:
            raise FormatError("something lies behind its end")
        if end.end_group > end_group:
            raise StaleCacheError("it is newer than the log")

    def close(self) -> None:
        self._file.close()


def open_cache(disk: Disk, directory_id: bytes) -> CachedIndex | None:
    """None: there is none. `FormatError` or `OSError`: it cannot be used."""
    try:
        file = disk.open(CACHE_NAME)
    except FileNotFoundError:
        return None
    try:
        return CachedIndex(file, directory_id)
    except BaseException:
        file.close()
        raise


def _restored(one: CachedSegment, trailer: Trailer) -> Segment:
    segment = Segment(trailer.segment, None, trailer.file_bytes)
    segment.seal(trailer, LedgerIds.of_offsets(one.base, one.offsets))
    segment.payload_bytes = one.payload_bytes
    segment.live_bytes, segment.live_ledgers = one.live_bytes, one.live_ledgers
    return segment


# -- writing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Covered:
    """One segment, as it was when the snapshot was begun."""

    segment: Segment
    trailer: Trailer
    mentions: LedgerIds
    live_ledgers: int
    live_bytes: int

    def encode(self) -> list[Buffer]:
        return CachedSegment(
            self.segment.number, self.trailer.encode(), self.live_ledgers, self.live_bytes,
            self.segment.payload_bytes, self.mentions.base, self.mentions.offsets,
        ).encode()  # fmt: skip


class Snapshot:
    """What a cache is to hold. Made on the event loop, and written by another thread, while the
    store goes on: what changes meanwhile is in segments that it does not cover.

    A ledger is what it is at some moment from the beginning to the end of the writing. Adds,
    fences and deletions of that time stand behind the segments that are covered, so they are
    applied once more at a start: to the same end. They must be durable before the cache is.
    """

    def __init__(self, catalogue: Catalogue, directory_id: bytes) -> None:
        """Takes some ten milliseconds for a million ledgers."""
        self._directory_id = directory_id
        self.covered: list[Covered] = []
        for _, segment in sorted(catalogue.segments.items()):
            trailer = segment.trailer
            if segment.state is not SegmentState.SEALED or trailer is None:
                break
            self.covered.append(
                Covered(
                    segment, trailer, segment.mentions, segment.live_ledgers, segment.live_bytes
                )
            )
        self.through = self.covered[-1].segment.number if self.covered else 0
        # Those that are deleted from now on stay as they are: their rows and the segments' sums
        # must be of one moment.
        self._ledgers = list(catalogue.ledgers.values())
        self._tombstones = dict(catalogue.tombstones)
        self._repaired_before = catalogue.repaired_before
        self.ledgers = 0
        """In `blocks` so far."""

    def still_holds(self, catalogue: Catalogue) -> bool:
        """Whether the segments are still those that were covered."""
        return all(
            catalogue.segments.get(one.segment.number) is one.segment
            and one.segment.state is SegmentState.SEALED
            and one.segment.trailer is one.trailer
            for one in self.covered
        )

    def blocks(self) -> Iterator[list[Buffer]]:
        """The contents of the file, block by block, but for the end."""
        head = fmt.CacheHead(
            self._directory_id, self.through, len(self.covered), self._repaired_before
        )
        yield head.encode()
        for covered in self.covered:
            yield covered.encode()
        yield fmt.encode_dead(self._tombstones)
        rowless: list[LedgerInfo] = []
        for at in range(0, len(self._ledgers), LEDGERS_PER_BLOCK):
            found = []
            for info in self._ledgers[at : at + LEDGERS_PER_BLOCK]:
                if info.born > self.through:
                    continue
                one = _cached(info, self.through)
                if one.rows:
                    found.append(one)
                else:
                    rowless.append(info)
            for part in _parts(found):
                self.ledgers += len(part)
                yield fmt.encode_ledgers(part)
        for at in range(0, len(rowless), LEDGERS_PER_BLOCK):
            found = [
                _cached(info, self.through)
                for info in self._spoken_of(rowless[at : at + LEDGERS_PER_BLOCK])
            ]
            self.ledgers += len(found)
            yield fmt.encode_ledgers(found)

    def _spoken_of(self, rowless: list[LedgerInfo]) -> list[LedgerInfo]:
        """Those of which a segment has state records, though no entries. Of the others nothing is
        behind the cache but what its own segments do not know: they could come back from it when
        they are long deleted."""
        return [info for info in rowless if any(info.ledger_id in c.mentions for c in self.covered)]


def _cached(info: LedgerInfo, through: int) -> CachedLedger:
    # In this order: a row that comes between may end the order, and is cut off.
    ordered, packed = info.ordered, info.sealed
    rows = sealed_rows.up_to(packed, through)
    lasts = [row[2] for row in sealed_rows.unpack(rows)] if not ordered else []
    if ordered and rows:
        lasts = [sealed_rows.row_at(rows, sealed_rows.count(rows) - 1)[2]]
    return CachedLedger(
        info.ledger_id, info.master_key, info.fenced, info.fence_durable, info.explicit_lac,
        max(lasts, default=-1), info.last_add_confirmed, info.born, min(info.touched, through),
        ordered, rows,
    )  # fmt: skip


def _parts(ledgers: list[CachedLedger]) -> Iterator[list[CachedLedger]]:
    """Of so many bytes each; none is empty."""
    part: list[CachedLedger] = []
    size = 0
    for one in ledgers:
        if part and size + len(one.rows) > BLOCK_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one.rows)
    if part:
        yield part


class CacheFile:
    """The file of a snapshot while it is written. Blocks; `OSError`."""

    def __init__(self, disk: Disk, snapshot: Snapshot) -> None:
        self._disk = disk
        self._snapshot = snapshot
        self._blocks = snapshot.blocks()
        self._file: File | None = None
        self._unsynced_bytes = 0
        self.size_bytes = 0

    def step(self) -> int:
        """Write some of it: how many bytes; 0: all but the end is written."""
        if self._file is None:
            if self._disk.exists(TEMPORARY_NAME):
                self._disk.remove(TEMPORARY_NAME)
            self._file = self._disk.create(TEMPORARY_NAME)
        pieces: list[Buffer] = []
        size = 0
        for block in self._blocks:
            pieces += block
            size += sum(map(len, block))
            if size >= STEP_BYTES:
                break
        if size:
            self._file.write(pieces, self.size_bytes)
            self.size_bytes += size
            self._unsynced_bytes += size
        if self._unsynced_bytes >= BLOCK_BYTES_MAX:
            # Now and then: a large sync at the end would hold up those of the log.
            self._file.sync()
            self._unsynced_bytes = 0
        return size

    def publish(self, end_group: int) -> None:
        """It takes the place of the one before. Durable on return. `end_group`: behind the last
        group of the log, which has all that was read for it."""
        assert self._file is not None
        self._file.write(fmt.CacheEnd(self._snapshot.ledgers, end_group).encode(), self.size_bytes)
        self._file.sync()
        self.close()
        self._disk.rename(TEMPORARY_NAME, CACHE_NAME)
        self._disk.sync_directory(LOG_DIRECTORY)

    def discard(self) -> None:
        self.close()
        if self._disk.exists(TEMPORARY_NAME):
            self._disk.remove(TEMPORARY_NAME)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
