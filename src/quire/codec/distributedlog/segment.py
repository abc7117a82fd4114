"""The metadata of a segment: the name and data of its node.

The data is text: decimal numbers joined by `;`. The first number packs several fields into 64 bits:

| bits  | field                                                                                |
|-------|--------------------------------------------------------------------------------------|
| 0-7   | layout version                                                                       |
| 8-15  | status: bits 0 and 1 are the truncation; Quire sets bit 2 on a completed segment     |
|       | whose ledger was gone when it was completed ("lost")                                 |
| 16-27 | written as 0 and ignored, as by Java                                                 |
| 28-31 | region                                                                               |
| 32-63 | record count, signed; 0 while the segment is in progress                             |

| layout | numbers after the first, in progress       | numbers after the first, completed     |
|--------|--------------------------------------------|----------------------------------------|
| 1      | ledger; firstTx                            | ledger; firstTx; lastTx;               |
|        |                                            | completionTime (ms since 1970)         |
| 2      | as 1; lssn                                 | as 1; lssn; lastEntry; lastSlot        |
| 3      | as 2; minActiveEntry; minActiveSlot        | as 2; minActiveEntry; minActiveSlot    |
| 4      | as 3; entries have envelopes from here on  | as 3                                   |
| 5      | as 4; startSequenceId                      | as 4; startSequenceId                  |

| node name                  | segment                                                             |
|----------------------------|---------------------------------------------------------------------|
| `inprogress_%018d`         | in progress, with its number                                        |
| `logrecs_%018d`            | completed, with its number                                          |
| `inprogress_<hex>`         | in progress, of old writers, with the first txid                    |
| `logrecs_%018d_%018d`      | completed, of old writers, with the first and last txid             |

A layout above 5, and the status bits 3 to 7, are from a later version of DistributedLog or Quire.

New segments have layout 5. A segment that is changed keeps its layout, because only the layout says
whether its entries have envelopes.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import (
    BY,
    INVALID_TXID,
    MAX_POSITION,
    UNASSIGNED_LSSN,
    UNASSIGNED_SEQUENCE_ID,
)
from quire.errors import LaterMetadataError, MetadataError, UsageError, written_later

CURRENT_LAYOUT = 5
OLDEST_LAYOUT = 2
"""The oldest layout that is read by default. Layout 1 has no segment numbers."""
_ENVELOPED_SINCE = 4
_MIN_ACTIVE_SINCE = 3

_VERSION_BITS = 0xFF
_STATUS_SHIFT, _STATUS_BITS = 8, 0xFF
_TRUNCATION_BITS = 0b11
_LOST_BIT = 0b100
_KNOWN_STATUS = _TRUNCATION_BITS | _LOST_BIT
_REGION_SHIFT, _REGION_BITS = 28, 0xF
_COUNT_SHIFT = 32

# Stored fields in their order: (name, first layout that has it).
_IN_PROGRESS = (
    ("ledger_id", 1),
    ("first_txid", 1),
    ("lssn", 2),
    ("min_active_entry_id", 3),
    ("min_active_slot_id", 3),
    ("start_sequence_id", 5),
)
_COMPLETED = (
    ("ledger_id", 1),
    ("first_txid", 1),
    ("last_txid", 1),
    ("completion_time_ms", 1),
    ("lssn", 2),
    ("last_entry_id", 2),
    ("last_slot_id", 2),
    ("min_active_entry_id", 3),
    ("min_active_slot_id", 3),
    ("start_sequence_id", 5),
)
LOST_LAST_ENTRY_ID = 2**62
"""The last entry id that is stored for a lost segment. No position in the segment can be mistaken
for its end."""
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_INT64_END = 2**63


class Truncation(enum.IntEnum):
    """How much of a segment was truncated."""

    ACTIVE = 0
    """No record was truncated."""
    PARTIAL = 1
    """The records before `min_active_dlsn` are gone."""
    TRUNCATED = 2
    """All records are gone."""
    UNKNOWN = 3
    """A value that DistributedLog reserves. Nothing writes it."""


def _fields(layout: int, in_progress: bool) -> list[str]:
    table = _IN_PROGRESS if in_progress else _COMPLETED
    return [name for name, since in table if since <= layout]


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """The metadata of one segment of a stream, which are the data of its node.

    It is immutable. The methods that change something return a changed copy.
    """

    lssn: int
    """The number of the segment, which ascends along the stream."""
    ledger_id: int
    """The id of the ledger that holds the records."""
    first_txid: int
    """The txid with which the segment was opened. It may differ from that of the first record."""
    layout: int = CURRENT_LAYOUT
    """The version of the stored form."""
    in_progress: bool = True
    """Whether the segment can still get records. Otherwise it is completed."""
    last_txid: int = INVALID_TXID
    """The txid of the last user record, which may not be the highest one."""
    completion_time_ms: int = 0
    """The time of completion, in milliseconds since 1970."""
    record_count: int = 0
    """The number of user records, including each member of a record set. It is stored on
    completion."""
    last_entry_id: int = -1
    """The entry of the last record, whose slot is `last_slot_id`. Entries of control records may
    follow it."""
    last_slot_id: int = -1
    """The slot of the last record."""
    min_active_entry_id: int = 0
    """The entry of `min_active_dlsn`."""
    min_active_slot_id: int = 0
    """The slot of `min_active_dlsn`."""
    start_sequence_id: int = UNASSIGNED_SEQUENCE_ID
    """The stored sequence id of the first record. See `first_sequence_id`."""
    region_id: int = 0
    """A number that Java's DistributedLog may store. Quire keeps it and does not use it."""
    status: int = 0
    """The eight bits of the status. See `truncation` and `lost`."""

    # -- bytes ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the data of the node, in the segment's own layout."""
        assert 1 <= self.layout <= CURRENT_LAYOUT
        assert 0 <= self.status <= _STATUS_BITS
        assert 0 <= self.region_id <= _REGION_BITS
        head = self.layout
        if self.layout > 1:
            head |= self.status << _STATUS_SHIFT | self.region_id << _REGION_SHIFT
        if not self.in_progress:
            assert -(2**31) <= self.record_count < 2**31
            head |= self.record_count << _COUNT_SHIFT
        values: list[int] = [getattr(self, name) for name in _fields(self.layout, self.in_progress)]
        return ";".join(map(str, (head, *values))).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, oldest: int = OLDEST_LAYOUT) -> StreamSegment:
        """Decode the data of a node.

        Args:
            data: The data of the node.
            oldest: The oldest layout to accept.

        Returns:
            The segment.

        Raises:
            LaterMetadataError: A later version of Quire or of DistributedLog wrote the data.
            MetadataError: The data is damaged, or its layout is too old.
        """
        shown = repr(data[:120])
        try:
            parts = data.decode("ascii").split(";")
        except UnicodeDecodeError:
            raise MetadataError(
                f"the metadata of a stream segment is not ASCII text: {shown}"
            ) from None
        if not all(_NUMBER.fullmatch(part) for part in parts):
            raise MetadataError(
                f"the metadata of a stream segment contains something other than numbers: {shown}"
            )
        numbers = [int(part) for part in parts]
        if not all(-_INT64_END <= number < _INT64_END for number in numbers):
            raise MetadataError(
                f"the metadata of a stream segment contains a number of more than 64 bits: {shown}"
            )
        head, values = numbers[0], numbers[1:]
        layout = head & _VERSION_BITS
        status = head >> _STATUS_SHIFT & _STATUS_BITS
        if layout > CURRENT_LAYOUT or (layout > 1 and status & ~_KNOWN_STATUS):
            raise LaterMetadataError(
                written_later(
                    "the metadata of a segment", f"layout {layout} and the status {status:#x}",
                    f"the layouts {oldest} to {CURRENT_LAYOUT} and the status bits in "
                    f"{_KNOWN_STATUS:#x} ({shown})", by=BY,
                )
            )  # fmt: skip
        if not oldest <= layout <= CURRENT_LAYOUT:
            raise MetadataError(
                f"the metadata of a stream segment has layout {layout}, but this version of "
                f"Quire reads only layouts {oldest} to {CURRENT_LAYOUT}: {shown}"
            )
        for in_progress in (True, False):
            names = _fields(layout, in_progress)
            if len(names) == len(values):
                break
        else:
            raise MetadataError(
                f"the metadata of a stream segment has {len(numbers)} numbers, which does not "
                f"fit its layout {layout}: {shown}"
            )
        stored = dict(zip(names, values))
        stored.setdefault("lssn", UNASSIGNED_LSSN)
        return cls(
            **stored,
            layout=layout,
            in_progress=in_progress,
            record_count=0 if in_progress else head >> _COUNT_SHIFT,
            region_id=head >> _REGION_SHIFT & _REGION_BITS,
            status=status,
        )

    @property
    def name(self) -> str:
        """The name of the node."""
        return (in_progress_name if self.in_progress else completed_name)(self.lssn)

    @property
    def legacy_name(self) -> str:
        """The name that old writers gave to the node of such a segment.

        Quire reads nodes with that name, but never creates one.
        """
        if self.in_progress:
            return f"{_IN_PROGRESS_PREFIX}{self.first_txid:x}"
        return f"{_COMPLETED_PREFIX}{self.first_txid:018d}_{self.last_txid:018d}"

    # -- what it means ----------------------------------------------------------------------

    @property
    def enveloped(self) -> bool:
        """Whether the entries of its ledger have envelopes."""
        return self.layout >= _ENVELOPED_SINCE

    @property
    def truncation(self) -> Truncation:
        """How much of the segment was truncated."""
        return Truncation(self.status & _TRUNCATION_BITS)

    @property
    def lost(self) -> bool:
        """Whether the ledger was gone when the segment was completed.

        The number of records is then an upper bound, so that their sequence ids are not assigned
        again.
        """
        return bool(self.status & _LOST_BIT)

    @property
    def known_records(self) -> int:
        """The number of records that can be read. It is 0 for a lost segment."""
        return 0 if self.lost else self.record_count

    @property
    def first_dlsn(self) -> DLSN:
        """The first position in the segment."""
        return DLSN(self.lssn, 0, 0)

    @property
    def last_dlsn(self) -> DLSN:
        """The position of the last record.

        It is (lssn, -1, -1) while the segment is in progress. For a lost segment it is after every
        position that a record of the segment can have had.
        """
        return DLSN(self.lssn, self.last_entry_id, self.last_slot_id)

    @property
    def min_active_dlsn(self) -> DLSN:
        """The position of the first record that is not truncated."""
        return DLSN(self.lssn, self.min_active_entry_id, self.min_active_slot_id)

    @property
    def first_sequence_id(self) -> int:
        """The sequence id of position 1.

        If none is stored, it is negative and only preserves the order.
        """
        if self.layout < CURRENT_LAYOUT or self.start_sequence_id == UNASSIGNED_SEQUENCE_ID:
            return -_INT64_END + (self.lssn << 32)
        return self.start_sequence_id

    @property
    def following_sequence_id(self) -> int:
        """The start sequence id that the next segment stores when it is completed.

        It is 0 if this segment is in progress or its layout stores no sequence ids.
        """
        if self.in_progress or self.layout < CURRENT_LAYOUT:
            return 0
        return self.first_sequence_id + self.record_count

    def sequence_id(self, position: int) -> int:
        """Return the sequence id of a position in this segment."""
        return self.first_sequence_id + position - 1

    # -- changes ----------------------------------------------------------------------------

    def with_start_sequence_id(self, start_sequence_id: int) -> StreamSegment:
        """Return the same segment with another stored sequence id of its first record."""
        return replace(self, start_sequence_id=start_sequence_id)

    def completed(
        self,
        *,
        last_txid: int,
        record_count: int,
        last_entry_id: int,
        last_slot_id: int,
        completion_time_ms: int,
        start_sequence_id: int,
    ) -> StreamSegment:
        """Return the completed segment, to which nothing more is written.

        Args:
            last_txid: The txid of the last record.
            record_count: The number of records.
            last_entry_id: The entry of the last record.
            last_slot_id: The slot of the last record.
            completion_time_ms: The time of completion, in milliseconds since 1970.
            start_sequence_id: The sequence id of the first record. A layout below 5 does not store
                it.

        Returns:
            The changed segment.

        Raises:
            UsageError: The segment is already completed, or cannot have as many records.
        """
        if not self.in_progress:
            raise UsageError(
                f"segment {self.lssn} is already completed, so it cannot be completed again",
                remedy="Begin a new segment",
            )
        if not 0 <= record_count <= MAX_POSITION:
            raise UsageError(
                f"segment {self.lssn} cannot have {record_count} records: the number must be "
                f"from 0 to {MAX_POSITION}"
            )
        kept = self.layout >= CURRENT_LAYOUT
        return replace(
            self,
            in_progress=False,
            last_txid=last_txid,
            record_count=record_count,
            last_entry_id=last_entry_id,
            last_slot_id=last_slot_id,
            completion_time_ms=completion_time_ms,
            start_sequence_id=start_sequence_id if kept else UNASSIGNED_SEQUENCE_ID,
        )

    def completed_as_lost(
        self,
        *,
        last_txid: int,
        record_count: int,
        completion_time_ms: int,
        start_sequence_id: int,
    ) -> StreamSegment:
        """Return the lost segment that replaces this one when its ledger is gone.

        Its number, and the sequence ids of the most records that it can have, are never assigned
        again.

        Args:
            last_txid: A txid that is not less than that of any record.
            record_count: The largest number of records that the segment can have.
            completion_time_ms: The time of completion, in milliseconds since 1970.
            start_sequence_id: The sequence id of the first record.

        Returns:
            The changed segment.

        Raises:
            UsageError: The segment is already completed, or cannot have as many records.
        """
        completed = self.completed(
            last_txid=last_txid,
            record_count=record_count,
            last_entry_id=LOST_LAST_ENTRY_ID,
            last_slot_id=0,
            completion_time_ms=completion_time_ms,
            start_sequence_id=start_sequence_id,
        )
        return replace(completed, status=completed.status | _LOST_BIT)

    def truncated(self) -> StreamSegment:
        """Return the segment with all records truncated.

        As in Java, the position of an earlier partial truncation is kept.

        Returns:
            The changed segment.

        Raises:
            UsageError: The segment is in progress, or its layout is too old.
        """
        self._require_completed(OLDEST_LAYOUT)
        return self._with_truncation(Truncation.TRUNCATED)

    def partially_truncated(self, at: DLSN) -> StreamSegment:
        """Return the segment with the records before `at` truncated.

        Records that are truncated already remain so: an earlier position than the present one
        changes nothing.

        Args:
            at: The position of the first record that remains.

        Returns:
            The changed segment.

        Raises:
            UsageError: The segment is in progress, the position is in another segment or after the
                last record, or the segment's layout cannot store it.
        """
        self._require_completed(_MIN_ACTIVE_SINCE)
        if at.lssn != self.lssn or at > self.last_dlsn:
            raise UsageError(
                f"{at} is not a position in segment {self.lssn}, which ends at {self.last_dlsn}",
                remedy="Use the position of a record, or the one after the last record",
            )
        if self.truncation is Truncation.TRUNCATED or at <= self.min_active_dlsn:
            return self
        return replace(
            self._with_truncation(Truncation.PARTIAL),
            min_active_entry_id=at.entry_id,
            min_active_slot_id=at.slot_id,
        )

    def is_rest_of(self, other: StreamSegment) -> bool:
        """Return whether this segment differs from `other` at most by truncation."""
        kept = other._with_truncation(self.truncation)
        return self == replace(
            kept,
            min_active_entry_id=self.min_active_entry_id,
            min_active_slot_id=self.min_active_slot_id,
        )

    def _require_completed(self, layout: int) -> None:
        if self.in_progress:
            raise UsageError(
                f"segment {self.lssn} is still being written and cannot be truncated",
                remedy="Truncate after its writer has completed it",
            )
        if self.layout < layout:
            raise UsageError(
                f"segment {self.lssn} has the old metadata layout {self.layout}, which cannot "
                "store a truncation within the segment",
                remedy="Truncate at the beginning of a segment",
            )

    def _with_truncation(self, truncation: Truncation) -> StreamSegment:
        return replace(self, status=self.status & ~_TRUNCATION_BITS | truncation)


# -- names ------------------------------------------------------------------------------------

_IN_PROGRESS_PREFIX = "inprogress_"
_COMPLETED_PREFIX = "logrecs_"
_NAME = re.compile(
    r"inprogress_(?P<new>\d{18,19})"
    r"|inprogress_(?P<hex>[0-9a-f]{1,16})"
    r"|logrecs_(?P<done>\d{18,19})"
    r"|logrecs_(?P<first>-?\d{17,19})_(?P<last>-?\d{17,19})(?P<more>(_-?\d{1,19}){3})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The content of a node's name. If the data of the node differs, the data counts."""

    in_progress: bool
    lssn: int | None
    """The number of the segment, or None if the name has only txids, like most names of old
    writers."""


def in_progress_name(lssn: int) -> str:
    return f"{_IN_PROGRESS_PREFIX}{lssn:018d}"


def completed_name(lssn: int) -> str:
    return f"{_COMPLETED_PREFIX}{lssn:018d}"


def parse_segment_name(name: str) -> SegmentName | None:
    """Return the information in a node's name, or None if it is not the name of a segment."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    number = match["new"] or match["done"]
    if match["more"]:
        number = match["more"].split("_")[1]
    return SegmentName(name.startswith(_IN_PROGRESS_PREFIX), int(number) if number else None)
