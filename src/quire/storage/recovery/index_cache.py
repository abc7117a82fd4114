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

from collections.abc import Callable, Mapping

from quire.codec.log import index_cache as fmt
from quire.codec.log.footer import TRAILER_BYTES, Trailer, decode_trailer
from quire.codec.log.index_cache import CachedSegment
from quire.codec.log.state_records import Buffer, FormatError
from quire.storage.interfaces import Disk, File
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer import read
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment

CACHE_NAME = f"{LOG_DIRECTORY}/INDEX"
TEMPORARY_NAME = f"{CACHE_NAME}.new"


class StaleCacheError(FormatError):
    """It is of other segments, or newer than the log: not to be used."""


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


def _restored(one: CachedSegment, trailer: Trailer) -> LogSegment:
    segment = LogSegment(trailer.segment, None, trailer.file_bytes)
    segment.seal(trailer, LedgerIdSet.of_offsets(one.base, one.offsets))
    segment.payload_bytes = one.payload_bytes
    segment.live_bytes, segment.live_ledgers = one.live_bytes, one.live_ledgers
    return segment
