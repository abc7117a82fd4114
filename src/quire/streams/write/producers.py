"""Producers whose retries are no duplicates: who sent what, kept in the stream itself.

A producer numbers its records. Each entry says, in control records that applications never see,
whose records it holds and their numbers, so that the two are stored together or not at all; each
segment begins with the state of all producers, so that a new writer reads back one segment at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.client import Client
from quire.codec.distributedlog.control_record import (
    FencingToken,
    ProducerMark,
    Producers,
    ProducerState,
    decode_control,
    encode_control,
)
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import RecordFlag, Records
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import NoSuchLedgerError, UsageError
from quire.streams.read.records import read_entries

PRODUCERS_MAX = 1_000
"""Known to one stream; the one that has been silent for longest is forgotten first."""
ENTRIES_AT_ONCE = 256
"""Read while looking back for the state."""
NONE_YET = -1


@dataclass(slots=True)
class ControlState:
    """The producers and the fencing token that the control records of a stream define so far."""

    producers: dict[str, ProducerState] = field(default_factory=dict)
    """By id, in the order of their last records."""
    token: str = ""

    def sent(self, producer_id: str, sequence: int, position: DLSN) -> None:
        self.producers.pop(producer_id, None)
        self.producers[producer_id] = ProducerState(sequence, position)
        if len(self.producers) > PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]

    def last_sequence(self, producer_id: str) -> int:
        """Return the number of the producer's last record in the stream, or -1 if it has none."""
        state = self.producers.get(producer_id)
        return NONE_YET if state is None else state.last_sequence

    def duplicates(self, producer_id: str, first_sequence: int, count: int) -> int:
        """How many of these records, from the first on, the stream has."""
        if first_sequence < 0:
            raise UsageError(f"{first_sequence} is no sequence of a producer: they begin at 0")
        return max(0, min(count, self.last_sequence(producer_id) + 1 - first_sequence))

    def snapshot(self) -> bytes | None:
        """For a control record at the beginning of a segment; None if there is nothing to say."""
        if not self.producers and not self.token:
            return None
        return encode_control(Producers(self.producers), FencingToken(self.token))

    def copy(self) -> ControlState:
        return ControlState(dict(self.producers), self.token)

    def read(self, segment: StreamSegment, entry_id: int, records: Records) -> None:
        """Take in what one entry says."""
        for at, payload in records.controls():
            for item in decode_control(payload):
                if isinstance(item, Producers):
                    self.producers = dict(
                        sorted(item.states.items(), key=lambda known: known[1].last_dlsn)
                    )
                elif isinstance(item, FencingToken):
                    self.token = item.token
                elif isinstance(item, ProducerMark):
                    last = _last_marked(records, at, item.count)
                    position = DLSN(segment.lssn, entry_id, records.slots[last])
                    self.sent(item.producer_id, item.first_sequence + item.count - 1, position)


def _last_marked(records: Records, at: int, count: int) -> int:
    """The index of the last of `count` user records behind index `at`."""
    while count:
        at += 1
        count -= records.flags[at] == RecordFlag.NONE
    return at


def has_snapshot(records: Records) -> bool:
    return any(
        isinstance(item, Producers)
        for _, payload in records.controls()
        for item in decode_control(payload)
    )


async def read_marks(
    client: Client, segments: Sequence[StreamSegment], password: bytes
) -> ControlState:
    """The marks at the end of these completed segments: read backwards to the last snapshot, then
    what follows it. Truncated segments are not read. A lost segment is skipped, so producers may
    send its records again, and the fencing token is the last known one."""
    behind: list[list[tuple[StreamSegment, int, Records]]] = []
    for segment in reversed(segments):
        try:  # also of one that is truncated: the newest stays, and may be all that tells
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
    """Add the segment's entries with control records, the last chunk first. True at a snapshot."""
    async with await client.open_ledger(segment.ledger_id, password=password) as reader:
        end = reader.last_add_confirmed + 1
        while end > 0:
            first = max(0, end - ENTRIES_AT_ONCE)
            chunk: list[tuple[StreamSegment, int, Records]] = []
            found = False
            for entry_id, records in await read_entries(reader, segment, first, end - 1):
                if not records.only_users:
                    if has_snapshot(records):
                        chunk, found = [], True
                    chunk.append((segment, entry_id, records))
            behind.append(chunk)
            if found:
                return True
            end = first
    return False


def encode_mark(producer_id: str, first_sequence: int, count: int) -> bytes:
    return encode_control(ProducerMark(producer_id, first_sequence, count))
