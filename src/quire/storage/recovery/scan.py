"""Read the groups of a segment one by one, if a start has no footer to rely on.

One bad sector must not end a start. So a block that the device cannot read is returned as bytes
that do not match its checksum.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.codec.entry.digest import crc32c, crcs_of_one_bit
from quire.codec.log.group import (
    GROUP_HEADER_BYTES,
    GROUP_START,
    GroupHeader,
    GroupTable,
    check_group_table,
    check_group_version,
    decode_group_header,
    decode_group_table,
    group_checksums,
    looks_like_group,
    turned_table_length,
)
from quire.codec.log.segment_header import (
    SegmentHeader,
    decode_segment_header,
    segment_header_bytes,
)
from quire.codec.log.state_records import BLOCK_BYTES, Buffer, FormatError, aligned
from quire.storage.interfaces import Readable
from quire.storage.segment.footer import read

SCAN_BYTES = 1024 * 1024
_ZEROS = bytes(SCAN_BYTES)
"""Zeros, as many as one read of a search for groups returns."""
SECTOR_BYTES = 512
"""The number of bytes that a device writes as a whole or not at all."""
UNREADABLE = {errno.EIO, errno.EBADMSG}
"""The errors of the device, and of a file system with its own checksums, for bytes that cannot be
read."""
UNREADABLE_BLOCKS_MAX = 16
"""The most unreadable blocks of one file. If more cannot be read, the whole disk is bad rather than
a sector."""
_NO_BLOCK = b"\xbd" * BLOCK_BYTES
"""The bytes returned for an unreadable block. They are not zeros, because zeros would mean that the
block may not have been written, and a lost block was written."""


class TolerantReader:
    """A reader of a log file that returns bytes matching no checksum for each unreadable block."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.unreadable: set[int] = set()
        """The offsets of the blocks that could not be read."""

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None:
        """Read the bytes at `offset`, as `File.read` does.

        Raises `OSError` if the disk fails as a whole.
        """
        try:
            return self._file.read(offset, size, wait=wait)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        pieces: list[Buffer] = []
        end = min(offset + size, self._file.size())
        while offset < end:
            block = offset - offset % BLOCK_BYTES
            stop = min(block + BLOCK_BYTES, end)
            pieces.append(self._part(block, offset, stop - offset))
            offset = stop
        return b"".join(pieces)

    def _part(self, block: int, offset: int, size: int) -> Buffer:
        try:
            return self._file.read(offset, size) or b""
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            self.unreadable.add(block)
            if len(self.unreadable) > UNREADABLE_BLOCKS_MAX:
                raise
        return _NO_BLOCK[:size]


@dataclass(frozen=True, slots=True)
class ScannedGroup:
    """A group with a valid table, as it was read from the disk."""

    header: GroupHeader
    table: GroupTable
    checksums: array[int]
    """The checksum that each block should have."""
    damaged_blocks: int
    may_be_torn: bool
    """Whether a part of the group may never have been written. If not, the damage came later."""


@dataclass(slots=True)
class SegmentScan:
    """The result of scanning one segment."""

    groups: list[ScannedGroup] = field(default_factory=list)
    end: int = BLOCK_BYTES
    """The end of the last group."""
    tail_used: bool = False
    """Whether anything after the last group is not zeros."""
    lost_behind: int = 0
    """The number of groups after the last valid one that were written completely but are bad now.

    A group that was begun after another one proves that the earlier one was synced, because the log
    syncs a group before it writes the next. If no group was begun after the first bad one, that one
    counts only if every sector of its header and table was written. These groups are added to
    `LogSegment.lost_groups`."""


def read_segment_header(file: Readable, directory_id: bytes, number: int) -> SegmentHeader | None:
    """Return the header of a segment, or None if it fails its checks.

    A header that names another directory or segment than `directory_id` and `number` fails as well.

    Raises:
        VersionError: A later version wrote the segment.
        OSError: The file cannot be read.
    """
    head = read(file, 0, BLOCK_BYTES)
    try:
        size = segment_header_bytes(head)
        header = decode_segment_header(head if size == len(head) else read(file, 0, size))
    except FormatError:
        return None
    if (header.directory_id, header.segment) != (directory_id, number):
        return None
    return header


def has_groups(file: Readable) -> bool:
    """Return whether anything in the file looks like the start of a group, valid or not.

    If the first block has only zeros, only the first `SCAN_BYTES` are examined. Groups follow the
    header closely, and preallocated files, which always exist, are large.
    """
    at = 0
    blank = _is_blank(read(file, 0, BLOCK_BYTES))
    while (at == 0 or not blank) and (data := read(file, at, SCAN_BYTES)):
        if any(data.startswith(GROUP_START, block) for block in range(0, len(data), BLOCK_BYTES)):
            return True
        if _unreadable_from(file, 0):
            return True  # The unreadable block may be the start of a group.
        at += len(data)
    return False


def scan_groups(file: Readable, directory_id: bytes, number: int, start: int) -> SegmentScan:
    """Return all groups whose tables are valid, in the order of the file.

    Raises:
        VersionError: A later version wrote a group.
        OSError: The file cannot be read.
    """
    scan = SegmentScan(end=start)
    size = file.size()
    for group in each_group(file, directory_id, number, start, size):
        scan.groups.append(group)
        scan.end = group.header.end
    scan.tail_used = _is_used(file, scan.end, size)
    if scan.tail_used:
        scan.lost_behind = _begun_behind(file, scan.end, size) or int(
            _has_damaged_front(file, directory_id, number, scan.end)
            or _unreadable_from(file, scan.end)
        )
    return scan


def _unreadable_from(file: Readable, at: int) -> bool:
    """Return whether a read found unreadable blocks at or after `at`."""
    return isinstance(file, TolerantReader) and max(file.unreadable, default=-1) >= at


def each_group(
    file: Readable, directory_id: bytes, number: int, start: int, end: int
) -> Iterator[ScannedGroup]:
    """Yield the groups between `start` and `end` whose tables are valid.

    After a bad group, the next one is searched block by block. A valid table is sufficient proof of
    a group, because its header names the directory, the segment and the offset.

    Raises:
        VersionError: A later version wrote a group.
        OSError: The file cannot be read.
    """
    at: int | None = start
    while at is not None and at < end:
        group = _group_at(file, directory_id, number, at, end)
        if group is None:
            at = _next_group(file, directory_id, number, at + BLOCK_BYTES, end)
            continue
        yield group
        at = group.header.end


def _header_at(
    file: Readable, directory_id: bytes, number: int, at: int, size: int
) -> tuple[GroupHeader, bytes] | None:
    """Return a header whose table is valid, and the bytes of both, or None.

    Raises:
        VersionError: A later version wrote the group.
    """
    head = read(file, at, BLOCK_BYTES)
    header = decode_group_header(head, 0, directory_id, number, at)
    if header is None:
        return None
    front = header.payload_offset - at
    if at + front > size:
        return None
    if front > len(head):
        head = read(file, at, front)
    if not check_group_table(head, header):
        return None
    check_group_version(header)
    return header, head


def read_group_header(
    file: Readable, directory_id: bytes, number: int, at: int, size: int
) -> GroupHeader | None:
    """Return the header of the group at `at`, or None if it or its table is not valid.

    Args:
        file: The segment.
        directory_id: The id of the data directory.
        number: The number of the segment.
        at: The offset of the group in the file.
        size: The size of the file, in bytes.

    Raises:
        VersionError: A later version wrote the group.
        OSError: The file cannot be read.
    """
    found = _header_at(file, directory_id, number, at, size)
    return None if found is None else found[0]


def _group_at(
    file: Readable, directory_id: bytes, number: int, at: int, size: int
) -> ScannedGroup | None:
    found = _header_at(file, directory_id, number, at, size)
    if found is None:
        return None
    header, head = found
    try:
        table = decode_group_table(head, header)
    except FormatError:
        return None
    data = read(file, at, header.end - at)
    checksums, damaged = group_checksums(data, header, table)
    torn = bool(damaged) and _may_be_torn(data, header, table)
    return ScannedGroup(header, table, checksums, damaged, torn)


def _may_be_torn(data: bytes, header: GroupHeader, table: GroupTable) -> bool:
    """Return whether a damaged block may have a sector that the group's write never reached.

    Such a sector still has the zeros from before the write. Entries may have zeros there as well,
    so a block in which only one bit is wrong does not count.
    """
    start = header.payload_offset - header.offset
    stop = start + header.payload_bytes
    if len(data) < stop:
        return True
    edge = aligned(start)
    blocks = range(edge, len(data), BLOCK_BYTES)
    parts = [(start, edge, header.head_crc)]
    parts.extend((at, at + BLOCK_BYTES, crc) for at, crc in zip(blocks, table.checksums))
    one_bit: frozenset[int] | None = None
    for at, end, crc in parts:
        wrong = crc32c(data[at:end]) ^ crc
        if wrong and _lacks_sector(data, at, min(end, stop)):
            one_bit = one_bit or crcs_of_one_bit(BLOCK_BYTES)
            if wrong not in one_bit:
                return True
    return False


def _lacks_sector(data: bytes, at: int, end: int) -> bool:
    """Return whether any sector has only zeros in its part between `at` and `end`."""
    while at < end:
        behind = min(at - at % SECTOR_BYTES + SECTOR_BYTES, end)
        if _is_blank(data[at:behind]):
            return True
        at = behind
    return False


def _has_damaged_front(file: Readable, directory_id: bytes, number: int, at: int) -> bool:
    """Return whether a group was begun at `at` whose front was written completely and is bad now.

    The front is the header and the table. Neither can have a sector of zeros. So a bad front
    without such a sector was written completely. In a sealed segment, the footer is at this place.
    """
    head = read(file, at, BLOCK_BYTES)
    if not looks_like_group(head, directory_id, number):
        return False
    header = decode_group_header(head, 0, directory_id, number, at)
    if header is None:
        return True  # The sector with the header was written completely.
    size = -(-(header.payload_offset - at) // SECTOR_BYTES) * SECTOR_BYTES
    front = read(file, at, size)
    if len(front) == size and not _lacks_sector(front, 0, size):
        return True
    return turned_table_length(front, directory_id, number, at)


def _next_group(file: Readable, directory_id: bytes, number: int, at: int, size: int) -> int | None:
    while at < size:
        data = read(file, at, SCAN_BYTES)
        if not data:
            return None
        for offset in range(0, len(data), BLOCK_BYTES):
            if (
                data.startswith(GROUP_START, offset)
                and offset + GROUP_HEADER_BYTES <= len(data)
                and _header_at(file, directory_id, number, at + offset, size)
            ):
                return at + offset
        at += SCAN_BYTES
    return None


def _is_used(file: Readable, at: int, size: int) -> bool:
    while at < size:
        data = read(file, at, SCAN_BYTES)
        if not data:
            return False
        if not _is_blank(data):
            return True
        at += len(data)
    return False


def _is_blank(data: bytes) -> bool:
    """Return whether these bytes, at most `SCAN_BYTES`, are all zeros.

    It is one comparison, because each start reads the preallocated space, and `strip` takes 5 ms
    per megabyte.
    """
    return data == _ZEROS[: len(data)]


def _begun_behind(file: Readable, at: int, size: int) -> int:
    """Return the number of groups that begin after the block at `at`, valid or not.

    They are recognised by their first bytes.
    """
    count, at = 0, at + BLOCK_BYTES
    while at < size and (data := read(file, at, SCAN_BYTES)):
        blocks = range(0, len(data), BLOCK_BYTES)
        count += sum(data.startswith(GROUP_START, block) for block in blocks)
        at += len(data)
    return count


def used_end(file: Readable, at: int) -> int:
    """Return the offset after the last nonzero byte from `at` on, or `at` if there is none."""
    end = file.size()
    while end > at:
        start = max(at, end - SCAN_BYTES)
        data = read(file, start, end - start)
        if not _is_blank(data):
            return start + len(data.rstrip(b"\0"))
        end = start
    return at
