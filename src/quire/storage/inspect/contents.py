"""Describe what is in a data directory: files, a segment, a ledger's runs, the end of the log.

This changes nothing, and works while a bookie runs. The result then shows one moment of the log,
and files that are removed in the meantime are reported as gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import (
    Summary,
    Trailer,
    decode_footer_records,
    decode_footer_summary,
    decode_ledger_rows,
)
from quire.codec.log.group import GROUP_START
from quire.codec.log.segment_header import SegmentHeader
from quire.codec.log.state_records import BLOCK_BYTES, FormatError, StateRecord, VersionError
from quire.core.ranges import Range, merged
from quire.storage.background.quarantine_record import SUFFIX as DAMAGED_SUFFIX
from quire.storage.background.scrub import ScrubTarget, SegmentScrub
from quire.storage.directory import naming
from quire.storage.disk import LOCK_NAME
from quire.storage.inspect.snapshot import identity_of, with_log
from quire.storage.interfaces import Disk, File
from quire.storage.recovery.log_recovery import RecoveredLog
from quire.storage.recovery.scan import ScannedGroup, each_group, has_groups, read_segment_header
from quire.storage.segment import extents
from quire.storage.segment.extents import FrameExtent
from quire.storage.segment.footer import load_trailer, read
from quire.storage.segment.segment import LOG_DIRECTORY, number_of, segment_name


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    """A segment as its header and trailer describe it. Its groups are not read."""

    number: int
    file_bytes: int
    state: str
    """The state of the segment: sealed, open, prepared, damaged, or later. Open means not sealed
    yet. Prepared means without a header and a group. Damaged means not sealed and with a damaged
    header. Later means that a later version of Quire wrote the segment."""
    header: SegmentHeader | None
    trailer: Trailer | None
    later: str = ""
    """The version, flag or field that this version does not know, in words, if the state is
    `later`."""

    @property
    def groups_at(self) -> int:
        """The offset of the first group in the file, or 0 if it is not known."""
        if self.header is not None:
            return self.header.size_bytes
        return 0 if self.trailer is None else self.trailer.groups_at

    @property
    def groups_end(self) -> int:
        """The largest offset in the file at which the last group can end."""
        return self.file_bytes if self.trailer is None else self.trailer.footer_at


@dataclass(frozen=True, slots=True)
class FileDescription:
    """A file of a data directory."""

    name: str
    size_bytes: int | None
    """The size of the file in bytes, or None if it was removed in the meantime."""
    segment: SegmentDescription | None = None


# -- files ------------------------------------------------------------------------------------

_KINDS = {
    "current/VERSION": "cookie",
    "current/DIRECTORY": "the directory's own id",
    "current/INCARNATION": "how many times the directory was started",
    "current/METADATA": "newest state seen of the metadata store",
    "current/SCRUB": "progress of the scrub",
    "log/CLEAN": "mark of a clean stop",
    "log/SUSPENDED": "note that compaction is suspended",
    "log/INDEX": "index cache",
    "log/INDEX.new": "index cache that is being written",
    "log/compaction.spare": "room for a compaction",
    LOCK_NAME: "lock of the running bookie",
}


def kind_of(name: str) -> str:
    """Return the purpose of a file in a data directory, in words."""
    if number_of(name) is not None:
        return "segment"
    if name.startswith(f"{LOG_DIRECTORY}/") and name.endswith(DAMAGED_SUFFIX):
        return "record of damage"
    return _KINDS.get(name, "other")


def list_files(disk: Disk) -> Iterator[FileDescription]:
    """Yield the files in the directory and one level below it, in the order of their names.

    The lock file is left out. This reads the header and the trailer of each segment. If a segment
    has no trailer, the blocks up to its first group are read too. This may raise `StorageError` or
    `OSError`.
    """
    own_id = identity_of(disk).directory_id
    for name in _names(disk):
        number = number_of(name)
        try:
            file = disk.open(name)
        except FileNotFoundError:
            yield FileDescription(name, None)
            continue
        except IsADirectoryError:
            continue
        try:
            description = None if number is None else _described(file, own_id, number)
            yield FileDescription(name, file.size(), description)
        finally:
            file.close()


def file_sizes(disk: Disk) -> Iterator[tuple[str, int]]:
    """Yield the name and size of every file below the directory.

    This includes files that do not belong to the bookie. Sizes include preallocated space. Files
    that are removed in the meantime are left out. This may raise `OSError`.
    """
    waiting = list(disk.list())
    while waiting:
        name = waiting.pop()
        try:
            waiting += [f"{name}/{one}" for one in disk.list(name)]
            continue
        except NotADirectoryError:
            pass
        try:
            file = disk.open(name)
        except FileNotFoundError:
            continue
        try:
            yield name, file.size()
        finally:
            file.close()


def _names(disk: Disk) -> Iterator[str]:
    for name in disk.list():
        if name == LOCK_NAME:
            continue
        try:
            below = disk.list(name)
        except NotADirectoryError:
            yield name
            continue
        yield from (f"{name}/{one}" for one in below)


def segment_numbers(disk: Disk) -> list[int]:
    """Return the numbers of the segments that have a file, ascending."""
    found = (number_of(f"{LOG_DIRECTORY}/{name}") for name in disk.list(LOG_DIRECTORY))
    return [number for number in found if number is not None]


def describe_segment(file: File, directory_id: bytes, number: int) -> SegmentDescription:
    """Describe a segment from its header and trailer.

    Raises:
        VersionError: A later version wrote the segment.
        OSError: The file cannot be read.
    """
    size = file.size()
    header = read_segment_header(file, directory_id, number)
    trailer = _trailer(file, directory_id, number)
    if trailer is not None:
        state = "sealed"
    elif has_groups(file):
        state = "damaged" if header is None else "open"
    else:
        state = "prepared" if header is None else "open"
    return SegmentDescription(number, size, state, header, trailer)


def _described(file: File, directory_id: bytes, number: int) -> SegmentDescription:
    """Describe a segment like `describe_segment`, but without an error for a later version.

    The description then has the state `later`.
    """
    try:
        return describe_segment(file, directory_id, number)
    except VersionError as error:
        return SegmentDescription(number, file.size(), "later", None, None, error.found)


def _trailer(file: File, directory_id: bytes, number: int) -> Trailer | None:
    try:
        return load_trailer(file, directory_id, number)
    except FormatError:
        return None


# -- one segment ------------------------------------------------------------------------------


class SegmentDump:
    """The contents of one segment's file, group by group. `open_segment` creates it."""

    def __init__(self, file: File, directory_id: bytes, description: SegmentDescription) -> None:
        self._file = file
        self._directory_id = directory_id
        self.description = description
        self.summary: Summary | None = None
        """The summary of ledgers in the footer, or None if it cannot be used."""
        self.records: tuple[StateRecord, ...] = ()
        """The state records in the footer. Empty if they cannot be used."""
        self.problem = ""
        """The reason why the footer cannot be used, or ""."""
        if description.trailer is not None:
            self._load(description.trailer)

    def _load(self, trailer: Trailer) -> None:
        """Read the state records and the summary in the footer.

        They are read separately, because one may be valid if the other is not.
        """
        try:
            data = read(self._file, trailer.records_at, trailer.records_bytes)
            self.records = tuple(decode_footer_records(data, trailer))
        except FormatError as error:
            self.problem = str(error)
        try:
            data = read(self._file, trailer.summary_at, trailer.summary_bytes)
            self.summary = decode_footer_summary(data, trailer)
        except FormatError as error:
            self.problem = str(error)

    def groups(self) -> Iterator[ScannedGroup]:
        """Yield the groups with valid tables, each with the number of its damaged blocks.

        If two groups are not adjacent, what is between them is unknown. Raises VersionError if a
        later version wrote a group, and OSError if the file cannot be read.
        """
        description = self.description
        return each_group(
            self._file,
            self._directory_id,
            description.number,
            description.groups_at,
            description.groups_end,
        )

    def frames(self, extent: FrameExtent, head_bytes: int) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (entry id, offset of the frame, its size, the entry) for each entry of an extent.

        Nothing is checked. The entry is the bytes of the frame without its first `head_bytes`. This
        may raise `OSError`.
        """
        at = extent.offset
        for index in range(extent.count):
            entry_id = extent.first + index if extent.ids is None else extent.ids[index]
            size = extent.frame_size if extent.sizes is None else extent.sizes[index]
            yield entry_id, at, size, read(self._file, at, size)[head_bytes:]
            at += size

    def scrub(self, target: ScrubTarget) -> SegmentScrub:
        """Return a check of the whole segment, which runs step by step."""
        return SegmentScrub(self._file, self._directory_id, target)

    def has_remains(self, end: int) -> bool:
        """Return whether something like a damaged index begins at `end`, after the last group.

        This is the case if the next block is neither zeros nor the start of a group. Raises OSError
        if the file cannot be read.
        """
        block = read(self._file, end, BLOCK_BYTES)
        return bool(block.strip(b"\0")) and not block.startswith(GROUP_START)

    def rows(self, ledger_id: int) -> list[FrameExtent]:
        """Return the runs of a ledger from the footer, or [] if the footer does not name it.

        Raises `FormatError` if the runs fail their check, or if there is no footer that can be
        used, and `OSError` if the file cannot be read.
        """
        if self.summary is None:
            raise FormatError(self.problem or "it has no footer yet")
        assert self.description.trailer is not None
        found = self.summary.find(ledger_id)
        if found is None:
            return []
        data = read(
            self._file, self.description.trailer.footer_at + found.rows_at, found.rows_bytes
        )
        if len(data) != found.rows_bytes or crc32c(data) != found.rows_crc:
            raise FormatError(
                f"the index of ledger {ledger_id} in the segment does not match its checksum"
            )
        return list(extents.of_rows(ledger_id, decode_ledger_rows(data, found.rows)))


@contextmanager
def open_segment(disk: Disk, number: int) -> Iterator[SegmentDump]:
    """Open the file of a segment, and close it at the end of the `with` block.

    Raises:
        StorageError: The directory is not a bookie's data directory.
        LaterStorageError: A later version wrote the segment.
        FileNotFoundError: The segment does not exist, or not any more.
        OSError: The file cannot be read.
    """
    own_id = identity_of(disk).directory_id
    file = disk.open(segment_name(number))
    try:
        with naming(disk, segment_name(number)):
            yield SegmentDump(file, own_id, describe_segment(file, own_id, number))
    finally:
        file.close()


# -- one ledger -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerInSegment:
    """The runs of entries that one segment has of a ledger."""

    segment: int
    sealed: bool
    runs: tuple[FrameExtent, ...]
    problem: str = ""
    """The reason why the runs are unknown, or ""."""


@dataclass(frozen=True, slots=True)
class LedgerDescription:
    """A ledger as a data directory has it."""

    ledger_id: int
    fenced: bool
    has_master_key: bool
    last_entry_id: int
    """The id of the last entry on the disk, or -1 if there is none."""
    last_add_confirmed: int
    """The greatest LAC on the disk, or -1 if there is none."""
    has_explicit_lac: bool
    refused_until_ms: int | None
    """The Unix time in milliseconds until which adds to the ledger are refused, if it was fenced
    and deleted. Otherwise None."""
    parts: tuple[LedgerInSegment, ...]
    """The runs of the ledger in each segment, ordered by segment number."""
    absence_unknown: bool
    """Whether a part of the log was lost, so that entries that are not found may have existed."""

    @property
    def entries(self) -> list[Range]:
        """The ranges (first, last) of entries in all segments together."""
        return merged(span for part in self.parts for run in part.runs for span in run.entries())

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all frames of the ledger, including further copies of an entry."""
        return sum(run.size_bytes for part in self.parts for run in part.runs)


def describe_ledger(disk: Disk, ledger_id: int) -> LedgerDescription | None:
    """Describe a ledger, or return None if the log certainly does not have it.

    This may raise `StorageError` or `OSError`.
    """
    return with_log(disk, lambda recovered, _: _ledger(disk, recovered, ledger_id))


def _ledger(disk: Disk, recovered: RecoveredLog, ledger_id: int) -> LedgerDescription | None:
    catalogue = recovered.replayer.catalogue
    info = catalogue.ledgers.get(ledger_id)
    refused = catalogue.tombstones.get(ledger_id)
    unknown = catalogue.negatives_unknown
    if info is None and refused is None and not unknown:
        return None
    parts: list[LedgerInSegment] = []
    last, key, fenced, lac, explicit = -1, False, False, -1, False
    if info is not None:
        last, key, fenced = info.last_entry_id, bool(info.master_key), info.fenced
        lac, explicit = info.last_add_confirmed, info.explicit_lac is not None
        for number in info.sealed_numbers:
            parts.append(_sealed_part(disk, number, ledger_id))
        for part in info.open_parts:
            runs = tuple(extents.of_run(run) for run in part.runs)
            parts.append(LedgerInSegment(part.segment.number, False, runs))
    parts.sort(key=lambda part: part.segment)
    return LedgerDescription(
        ledger_id, fenced, key, last, lac, explicit, refused, tuple(parts), unknown
    )


def _sealed_part(disk: Disk, number: int, ledger_id: int) -> LedgerInSegment:
    with open_segment(disk, number) as segment:
        if segment.description.trailer is None:
            raise FileNotFoundError(segment_name(number))  # It was sealed a moment ago. Try again.
        try:
            return LedgerInSegment(number, True, tuple(segment.rows(ledger_id)))
        except FormatError as error:
            return LedgerInSegment(number, True, (), str(error))


# -- the end of the log -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the log in a data directory."""

    segment: int
    """The number of the newest segment that was begun, or 0 if there is none."""
    offset_bytes: int
    """The offset after the last group that is certainly synced, in the file of the newest
    segment."""
    last_group: int | None
    """The number of the last group that is certainly synced, or None if there is none yet."""
    unsure_group: int | None
    """The number of a valid group that may not be synced, or None. The next start writes it
    again."""
    torn_group: int | None
    """The number of an incomplete group at the end of the log, which was never acknowledged, or
    None."""
    clean: bool
    """Whether the last stop of the bookie was clean."""
    problems: tuple[str, ...]


def end_of_log(disk: Disk) -> LogEnd:
    """Return the end of the log, reading the segments that are not sealed.

    This may raise `StorageError` or `OSError`.
    """
    return with_log(disk, lambda recovered, _: _end(recovered))


def _end(recovered: RecoveredLog) -> LogEnd:
    segments = recovered.replayer.catalogue.segments
    newest = max(segments, default=0)
    last = recovered.next_group - 1
    tail = recovered.tail
    return LogEnd(
        newest,
        segments[newest].end if newest else 0,
        last if last >= 0 and newest else None,
        tail.group.header.number if tail is not None else None,
        recovered.torn_group,
        recovered.clean,
        tuple(recovered.problems),
    )
