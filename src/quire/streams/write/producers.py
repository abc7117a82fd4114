"""Producers, whose retries create no duplicates: the stream itself stores who sent what.

A producer numbers its records. Each entry names in control records, which applications never see,
the producers of its records and their numbers. Records and numbers are therefore stored together or
not at all. Each segment begins with the state of all producers, so that a new writer reads back at
most one segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire._runtime.units import counted
from quire.client import Client
from quire.codec.distributedlog.control_record import (
    FencingToken,
    ProducerMark,
    Producers,
    ProducerState,
    encode_control,
)
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import StreamFormatError
from quire.codec.distributedlog.record import RecordFlag, Records
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import NoSuchLedgerError, UsageError
from quire.streams.read.records import control_items, read_entries, undecodable_entry

PRODUCERS_MAX = 1_000
"""The largest number of producers that a stream remembers.

The producer that was silent longest is forgotten first.
"""
ENTRIES_AT_ONCE = 256
"""The number of entries to read at a time in the backward search for the last snapshot."""
NONE_YET = -1


@dataclass(slots=True)
class ControlState:
    """The producers and the fencing token that the control records of a stream define so far."""

    producers: dict[str, ProducerState] = field(default_factory=dict)
    """The producers by id, in the order of their last records."""
    token: str = ""

    def sent(self, producer_id: str, sequence: int, position: DLSN) -> None:
        """Note the number and the position of a producer's last record.

        If the stream then remembers more than `PRODUCERS_MAX` producers, the one that was silent
        longest is forgotten.
        """
        self.producers.pop(producer_id, None)
        self.producers[producer_id] = ProducerState(sequence, position)
        if len(self.producers) > PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]

    def last_sequence(self, producer_id: str) -> int:
        """Return the number of the producer's last record in the stream, or -1 if it has none."""
        state = self.producers.get(producer_id)
        return NONE_YET if state is None else state.last_sequence

    def duplicates(self, producer_id: str, first_sequence: int, count: int) -> int:
        """Return how many of these records, from the first on, the stream has already.

        Raises UsageError if the number of the first record is negative.
        """
        if first_sequence < 0:
            raise UsageError(
                f"the sequence numbers of producer {producer_id!r} begin at 0, but "
                f"{first_sequence} was passed"
            )
        return max(0, min(count, self.last_sequence(producer_id) + 1 - first_sequence))

    def snapshot(self) -> bytes | None:
        """Return the control record that begins a segment, or None if it would be empty.

        Raises UsageError if the format cannot store it.
        """
        if not self.producers and not self.token:
            return None
        return encode_control(Producers(self.producers), FencingToken(self.token))

    def copy(self) -> ControlState:
        """Return an independent copy."""
        return ControlState(dict(self.producers), self.token)

    def read(self, segment: StreamSegment, entry_id: int, records: Records) -> None:
        """Update the state with the control records of one entry.

        Raises:
            LaterStreamError: A later version wrote one of them.
            StreamDamagedError: One of them cannot be decoded, or marks more records than follow.
        """
        for at, payload in records.controls():
            for item in control_items(segment, entry_id, payload):
                if isinstance(item, Producers):
                    self.producers = dict(
                        sorted(item.states.items(), key=lambda known: known[1].last_dlsn)
                    )
                elif isinstance(item, FencingToken):
                    self.token = item.token
                elif isinstance(item, ProducerMark):
                    last = _last_marked(records, at, item.count)
                    if last is None:
                        raise undecodable_entry(
                            segment,
                            entry_id,
                            StreamFormatError(
                                "a control record in the entry marks "
                                f"{counted(item.count, 'record')}, but fewer follow it"
                            ),
                        )
                    position = DLSN(segment.lssn, entry_id, records.slots[last])
                    self.sent(item.producer_id, item.first_sequence + item.count - 1, position)


def _last_marked(records: Records, at: int, count: int) -> int | None:
    """Return the index of the last of `count` user records after index `at`.

    Returns None if there are fewer.
    """
    for index in range(at + 1, len(records)):
        count -= records.flags[index] == RecordFlag.NONE
        if not count:
            return index
    return None


def has_snapshot(segment: StreamSegment, entry_id: int, records: Records) -> bool:
    """Return whether an entry holds the state of all producers.

    Raises:
        LaterStreamError: A later version wrote one of its control records.
        StreamDamagedError: One of its control records cannot be decoded.
    """
    return any(
        isinstance(item, Producers)
        for _, payload in records.controls()
        for item in control_items(segment, entry_id, payload)
    )


async def read_marks(
    client: Client, segments: Sequence[StreamSegment], password: bytes
) -> ControlState:
    """Return the control state at the end of these completed segments.

    The segments are read backwards to the last snapshot, and then forwards from there. If a segment
    is lost, it is skipped. Its records are then unknown here, so that a producer can append them
    again, and the fencing token is the one that was in force before the segment. Raises the errors
    of `Client.open_ledger` and of `read_entries`.
    """
    behind: list[list[tuple[StreamSegment, int, Records]]] = []
    for segment in reversed(segments):
        try:  # even if it is truncated: the newest segment is kept, and may hold the only state
            if await _read_back(client, segment, password, behind):
                break
        except NoSuchLedgerError:
            if segment.truncation is Truncation.TRUNCATED:
                break
    marks = ControlState()
    for chunk in reversed(behind):
        for segment, entry_id, records in chunk:
            marks.read(segment, entry_id, records)
    return marks


async def _read_back(
    client: Client,
    segment: StreamSegment,
    password: bytes,
    behind: list[list[tuple[StreamSegment, int, Records]]],
) -> bool:
    """Append the entries with control records to `behind`, from the last chunk to the first.

    The search ends at the newest entry with a snapshot. Returns whether one was found.
    """
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        end = reader.last_add_confirmed + 1
        while end > 0:
            first = max(0, end - ENTRIES_AT_ONCE)
            chunk: list[tuple[StreamSegment, int, Records]] = []
            found = False
            for entry_id, records in await read_entries(reader, segment, first, end - 1):
                if not records.only_users:
                    if has_snapshot(segment, entry_id, records):
                        chunk, found = [], True
                    chunk.append((segment, entry_id, records))
            behind.append(chunk)
            if found:
                return True
            end = first
    return False


def encode_mark(producer_id: str, first_sequence: int, count: int) -> bytes:
    """Return the control record that names the producer of the next `count` records.

    `first_sequence` is the producer's number of the first of them. Raises UsageError for a value
    that the format cannot store.
    """
    return encode_control(ProducerMark(producer_id, first_sequence, count))
