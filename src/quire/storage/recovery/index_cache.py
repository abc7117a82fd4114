"""Load the index cache, `log/INDEX`: the index of the sealed segments, ready to be used at a start.

The segments are authoritative. The cache covers every segment up to some number, and has the
trailer of each. It is used only under these conditions:

- All covered segments exist, with the same trailers, and no other segment is among them.
- The log reaches at least as far as it did when the cache was written.
- Every part of the cache matches its checksum.

Then everything that happened later is in newer segments, including deletions. The log keeps a
deletion for as long as a segment mentions the ledger, and the cache has only ledgers that its
segments mention.

In all other cases the cache is removed, the footers are read instead, and a new cache is written
later.
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
    """The cache describes other segments, or is newer than the log, so it must not be used."""


class CachedIndex:
    """A cache whose segments are read already. Its ledgers are read by `restore`."""

    def __init__(self, file: File, directory_id: bytes) -> None:
        """Read the head and the segments. It may raise `FormatError` or `OSError`."""
        self._file = file
        self._size = file.size()
        self._at = 0
        header, body = self._block(fmt.HEAD)
        self.head = fmt.decode_head(header, body)
        if self.head.directory_id != directory_id:
            raise FormatError("the index cache belongs to another data directory")
        found = (fmt.decode_segment(*self._block(fmt.SEGMENT)) for _ in range(self.head.segments))
        self.segments: dict[int, CachedSegment] = {one.number: one for one in found}

    def _block(self, kind: bytes) -> tuple[fmt.BlockHeader, Buffer]:
        header = fmt.decode_block_header(read(self._file, self._at, fmt.BLOCK_HEADER_BYTES))
        self._at += fmt.BLOCK_HEADER_BYTES
        if header.body_bytes > self._size - self._at:
            raise FormatError("the index cache is cut off")
        body = read(self._file, self._at, header.body_bytes)
        self._at += header.body_bytes
        fmt.check_block(header, body, kind)
        return header, body

    def trailer_of(self, number: int, file: File) -> Trailer | None:
        """Return the trailer of a segment that the cache covers, from `file`.

        Return None if the segment is newer than all that the cache covers.

        Raises:
            StaleCacheError: The cache does not have the segment, or has it with another trailer.
            OSError: The file cannot be read.
        """
        if number > self.head.through:
            return None
        known = self.segments.get(number)
        size = file.size()
        data = read(file, max(0, size - TRAILER_BYTES), TRAILER_BYTES)
        if known is None or data != known.trailer:
            raise StaleCacheError(
                f"segment {number:x} has changed since the index cache was written"
            )
        return decode_trailer(data, self.head.directory_id, number, size)

    def check(self, live: set[int]) -> None:
        """Check that all covered segments are in `live`. `StaleCacheError` if not."""
        gone = self.segments.keys() - live
        if gone:
            raise StaleCacheError(f"segment {min(gone):x}, which the index cache covers, is gone")

    def restore(
        self,
        catalogue: Catalogue,
        trailers: Mapping[int, Trailer],
        end_group: int,
        go_on: Callable[[], None],
    ) -> None:
        """Fill an empty catalogue.

        If this fails, the catalogue is partly filled.

        Args:
            catalogue: The catalogue to fill.
            trailers: The trailers of the covered segments.
            end_group: The number after the last group of the log.
            go_on: Called after each block of ledgers. It may raise `LoadStopped`.

        Raises:
            FormatError: The cache is damaged or stale.
            OSError: The cache cannot be read.
        """
        for number, one in self.segments.items():
            catalogue.segments[number] = _restored(one, trailers[number])
        catalogue.tombstones.update(fmt.decode_dead(*self._block(fmt.DEAD)))
        ledgers = 0
        while True:
            go_on()
            header = fmt.decode_block_header(read(self._file, self._at, fmt.BLOCK_HEADER_BYTES))
            if header.kind == fmt.END:
                break
            header, body = self._block(fmt.LEDGERS)
            catalogue.restore(fmt.decode_ledgers(header, body), self.head.through)
            ledgers += header.items
        end = fmt.decode_end(self._block(fmt.END)[1])
        if end.ledgers != ledgers or len(catalogue.ledgers) != ledgers:
            raise FormatError("some ledgers are missing from the index cache")
        if self._at != self._size:
            raise FormatError("there is data after the end of the index cache")
        if end.end_group > end_group:
            raise StaleCacheError("the index cache is newer than the log")

    def close(self) -> None:
        self._file.close()


def open_cache(disk: Disk, directory_id: bytes) -> CachedIndex | None:
    """Open the cache, or return None if there is none.

    Raises:
        FormatError: It cannot be used.
        OSError: It cannot be read.
    """
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
