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

Loading ten million ledgers takes a while. Until they are loaded, `LedgerSearch` finds single ones
in the file, for early reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from quire.codec.log import index_cache as fmt
from quire.codec.log.footer import TRAILER_BYTES, Trailer, decode_trailer
from quire.codec.log.index_cache import CachedSegment
from quire.codec.log.state_records import Buffer, FormatError
from quire.storage.interfaces import Disk, File
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer import read
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment, segment_name

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
        header, body = _read_block(self._file, self._at, self._size, kind)
        self._at += fmt.BLOCK_HEADER_BYTES + header.body_bytes
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
                f"{segment_name(number)} has changed since the index cache was written"
            )
        return decode_trailer(data, self.head.directory_id, number, size)

    def check(self, live: set[int]) -> None:
        """Raise `StaleCacheError` if a segment that the cache covers is not in `live`."""
        gone = self.segments.keys() - live
        if gone:
            raise StaleCacheError(
                f"{segment_name(min(gone))}, which the index cache covers, is gone"
            )

    def search(self, disk: Disk, go_on: Callable[[], None]) -> LedgerSearch:
        """Return a search for ledgers in this cache. Call this before `restore`.

        This reads the ids of all ledgers. `go_on` is called for each block, and may raise
        `LoadStopped`.

        Raises:
            FormatError: The cache is damaged.
            OSError: The cache cannot be read.
        """
        search = LedgerSearch(disk)
        at = self._at
        while True:
            go_on()
            header = _read_header(self._file, at, self._size)
            if header.kind == fmt.LEDGERS:
                search.add(at, _read_ids(self._file, at, header))
            elif header.kind != fmt.DEAD:
                return search
            at += fmt.BLOCK_HEADER_BYTES + header.body_bytes

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
            go_on: Called before each block of ledgers. It may raise `LoadStopped`.

        Raises:
            FormatError: The cache is damaged.
            StaleCacheError: The cache is newer than the log.
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


class LedgerSearch:
    """A search for the rows of single ledgers in an index cache, without decoding all of it.

    A block has at most a few thousand ledgers, and its ids are its first column. The smallest and
    the largest id of each block are kept in memory. Bookies write their ledgers nearly in the order
    of their ids, so few blocks may have a given id.

    Any thread may search. A block counts only if it matches its checksum, so damage elsewhere in
    the file does not matter. Only a complete `restore` shows that all blocks are right. So a search
    may miss a ledger, but the rows that it finds are those that were written.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._offsets = array("Q")
        self._lowest = array("q")
        self._highest = array("q")

    def add(self, offset: int, ids: array[int]) -> None:
        """Add a block that begins at `offset` and has ledgers with these ids."""
        if ids:
            self._offsets.append(offset)
            self._lowest.append(min(ids))
            self._highest.append(max(ids))

    def rows(self, ledger_id: int) -> bytes:
        """Return the packed rows of a ledger (`sealed_rows`), or b"" if it is not found.

        A ledger is also not found if its block is damaged or cannot be read. This blocks.
        """
        blocks = list(self._blocks_with(ledger_id))
        if not blocks:
            return b""
        with suppress(OSError):
            file = self._disk.open(CACHE_NAME)
            try:
                size = file.size()
                for offset in blocks:
                    with suppress(FormatError, OSError):
                        found = _find_rows(file, offset, size, ledger_id)
                        if found is not None:
                            return found
            finally:
                file.close()
        return b""

    def _blocks_with(self, ledger_id: int) -> Iterator[int]:
        """Yield the offsets of the blocks that may have the ledger."""
        for offset, lowest, highest in zip(self._offsets, self._lowest, self._highest):
            if lowest <= ledger_id <= highest:
                yield offset


def _find_rows(file: File, at: int, size: int, ledger_id: int) -> bytes | None:
    # Most blocks that may have the ledger do not have it if ids are random, so look at the ids
    # before reading everything.
    if ledger_id not in _read_ids(file, at, _read_header(file, at, size)):
        return None
    header, body = _read_block(file, at, size, fmt.LEDGERS)
    return fmt.find_rows(header, body, ledger_id)


def _read_header(file: File, at: int, size: int) -> fmt.BlockHeader:
    """Read the header of a block of a cache with `size` bytes. Its checksum is not checked."""
    header = fmt.decode_block_header(read(file, at, fmt.BLOCK_HEADER_BYTES))
    if header.body_bytes > size - at - fmt.BLOCK_HEADER_BYTES:
        raise FormatError("the index cache is cut off")
    return header


def _read_ids(file: File, at: int, header: fmt.BlockHeader) -> array[int]:
    """Read the ids in a block of ledgers. Their checksum is not checked."""
    wanted = header.items * fmt.ID_BYTES
    data = read(file, at + fmt.BLOCK_HEADER_BYTES, wanted) if wanted <= header.body_bytes else b""
    if len(data) != wanted:
        raise FormatError("the index cache is damaged: one of its lists of ledgers is cut off")
    return fmt.decode_ids(data)


def _read_block(file: File, at: int, size: int, kind: bytes) -> tuple[fmt.BlockHeader, Buffer]:
    """Read and check a block of a cache with `size` bytes."""
    header = _read_header(file, at, size)
    body = read(file, at + fmt.BLOCK_HEADER_BYTES, header.body_bytes)
    fmt.check_block(header, body, kind)
    return header, body


def open_cache(disk: Disk, directory_id: bytes) -> CachedIndex | None:
    """Open the index cache of a data directory, or return None if there is none.

    Raises:
        FormatError: The cache cannot be used.
        OSError: The cache cannot be read.
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
