"""Records of streams as Arrow columns, without an object for each record.

Each payload is copied once.

| column   | type         |                                                                      |
|----------|--------------|----------------------------------------------------------------------|
| stream   | string       | the name of the stream                                               |
| segment  | int64        | the number of the segment                                            |
| ledger   | int64        | the ledger that holds the segment                                    |
| entry    | int64        | the entry of the ledger                                              |
| slot     | int64        | the slot in the entry; segment, entry and slot are the position      |
| txid     | int64        | the transaction id                                                   |
| time     | timestamp us | the time of the append in UTC, or null if it is unknown              |
| sequence | int64        | the number of records before it, or negative if it is unknown        |
| size     | int64        | the number of payload bytes                                          |
| value    | binary       | the payload                                                          |

One more column is made on request, for streams that are partitions of a topic:

| column    | type  |                                                                         |
|-----------|-------|-------------------------------------------------------------------------|
| partition | int64 | the number of the partition, which is the last part of the stream's name |

Three more columns are made on request. They are null for records that have none of them:

| column     | type                |                                                             |
|------------|---------------------|-------------------------------------------------------------|
| key        | binary              | the key                                                     |
| headers    | map<string, binary> | the headers                                                 |
| event_time | timestamp us        | the event time in UTC                                       |

Most entries are full of records of one size. numpy decodes these, and many of them at once if they
have the same layout. `codec.distributedlog.record` decodes all others. This module needs the extra
`arrow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any

from quire.client.read.arrow import OFFSET_MAX, gather, import_pyarrow
from quire.codec.distributedlog import envelope
from quire.codec.distributedlog.compression import CODEC_BITS, Compression
from quire.codec.distributedlog.control_record import CreationTime, check_version, decode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import StreamFormatError
from quire.codec.distributedlog.record import HEAD, HEAD_BYTES, RecordFlag, Records
from quire.codec.distributedlog.record_envelope import RecordEnvelope
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.entry.entry import EntryRun
from quire.errors import UsageError
from quire.streams.read.positions import TIME_MAX_MS
from quire.streams.read.records import decode, envelope_of, undecodable_entry

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "stream", "segment", "ledger", "entry", "slot", "txid", "time", "sequence", "size", "value",
)  # fmt: skip
KEYED_COLUMNS = ("key", "headers", "event_time")
"""The columns that a batch has only on request, because they come from envelopes."""
IN_ENVELOPES = ("size", "value", *KEYED_COLUMNS)
"""The columns whose values depend on the envelopes of records, so that envelopes are decoded."""
ALL_COLUMNS = (*COLUMNS, *KEYED_COLUMNS)
PARTITION_COLUMN = "partition"
"""The column that only the partitions of a topic have."""
NULLABLE = ("time", *KEYED_COLUMNS)

NO_TIME = -(2**63)
VECTOR_RECORDS_MIN = 16
"""The smallest number of consecutive records of one size that numpy decodes faster."""

_FLAGS = int(RecordFlag.CONTROL | RecordFlag.END_OF_STREAM | RecordFlag.RECORD_SET)
_POSITION_SHIFT = 16
_STEP = 1 << _POSITION_SHIFT
_METADATA_END = 1 << 48


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of `RecordColumns.batch`. Raises UsageError if pyarrow is not installed."""
    arrow = import_pyarrow()
    types = {
        "stream": arrow.string(),
        "time": arrow.timestamp("us", tz="UTC"),
        "value": arrow.binary(),
        "key": arrow.binary(),
        "headers": arrow.map_(arrow.string(), arrow.binary()),
        "event_time": arrow.timestamp("us", tz="UTC"),
    }
    return arrow.schema(
        [
            arrow.field(name, types.get(name, arrow.int64()), nullable=name in NULLABLE)
            for name in columns
        ]
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """The stream and the segment from which entries come."""

    stream: str
    segment: StreamSegment
    txid_is_time: bool = True
    """Whether the stream's setting `txids` is "time"."""

    @property
    def partition(self) -> int:
        """The number of the partition, for a stream that is a partition of a topic."""
        return int(self.stream.rpartition("/")[2])

    def number(self, column: str) -> int:
        """Return the value of the column `segment`, `ledger` or `partition`."""
        if column == PARTITION_COLUMN:
            return self.partition
        return self.segment.lssn if column == "segment" else self.segment.ledger_id


@dataclass(slots=True)
class _Part:
    """Consecutive records in numpy arrays. Columns that were not requested may be missing."""

    origin: Origin
    count: int
    buffer: bytes | None
    """The bytes that hold the payloads, or None if they were not requested."""
    arrays: dict[str, Any]
    """The arrays by column, and `starts` and `ends` in the buffer. Times are in milliseconds."""
    envelopes: list[RecordEnvelope | None] | None = None
    """The envelope of each record that has one, or None if no record has one."""


class RecordColumns:
    """A collector of the records of entries, which `batch` turns into Arrow arrays.

    Control records, the end of the stream and records outside the bounds given to `add` are left
    out. `add` raises StreamDamagedError if an entry cannot be decoded.
    """

    def __init__(self, columns: Sequence[str] = COLUMNS) -> None:
        for name in columns:
            if name not in ALL_COLUMNS and name != PARTITION_COLUMN:
                raise UsageError(
                    f"{name!r} is not a column of a stream's records. The columns are "
                    f"{', '.join(ALL_COLUMNS)}"
                )
        self.columns = tuple(columns)
        self._wanted = frozenset(columns)
        self._parts: list[_Part] = []
        self.rows = 0
        self.size_bytes = 0
        """The number of payload bytes that were collected."""
        self.keyed = False
        """Whether a record with a key, headers or an event time was ever added."""

    def add(
        self, origin: Origin, run: EntryRun, start: DLSN | None = None, end: DLSN | None = None
    ) -> None:
        """Add the records of consecutive entries of the segment in `origin`.

        Records before the position `start`, and from the position `end` on, are left out. Control
        records and the end of the stream are not added. Raises StreamDamagedError if an entry
        cannot be decoded.
        """
        data = run.data if isinstance(run.data, bytes) else bytes(run.data)
        first, last, lssn = run.first, run.last, origin.segment.lssn
        if start is not None and start > DLSN(lssn, first, 0):
            first = start.entry_id if start.lssn == lssn else last + 1
        if end is not None and end <= DLSN(lssn, last, 0):
            last = end.entry_id - (not end.slot_id) if end.lssn == lssn else first - 1
        together = isinstance(run.offsets, range)
        at = first
        while at <= last:
            cut = (start is not None and start > DLSN(lssn, at, 0)) or (
                end is not None and end < DLSN(lssn, at + 1, 0)
            )
            if cut:
                self._entry(origin, run, data, at, (start, end))
                at += 1
                continue
            upto = last - (end is not None and end < DLSN(lssn, last + 1, 0))
            taken = self._alike(origin, run, data, at, upto) if together and upto > at else 0
            together = together and taken > 0  # if one differs, decode them one by one
            taken = taken or self._alike(origin, run, data, at, at)
            if not taken:
                self._entry(origin, run, data, at, None)
            at += taken or 1

    def batch(self) -> pa.RecordBatch:
        """Return the collected records, and begin again with none.

        Raises UsageError if pyarrow is not installed.
        """
        arrow = import_pyarrow()
        parts, self._parts = self._parts, []
        self.rows = self.size_bytes = 0
        return arrow.RecordBatch.from_arrays(
            [_column(name, parts) for name in self.columns], schema=schema(self.columns)
        )

    # -- entries with the same layout ---------------------------------------------------------

    def _alike(self, origin: Origin, run: EntryRun, data: bytes, first: int, last: int) -> int:
        """Add entries that hold the same number of records of one size, without flags.

        Returns the number of entries that were added, from `first` on. Returns 0 if the entries
        differ or hold too few records, and must be decoded in another way.
        """
        import numpy

        index, entries = first - run.first, last - first + 1
        at, end = run.offsets[index], run.ends[index]
        body = _body(data, at, end, origin.segment.enveloped)
        if body is None:
            return 0
        step_entries = run.offsets[index + 1] - at if entries > 1 else 0
        slot, time_ms, start = 0, NO_TIME, body
        if entries == 1:
            slot, time_ms, start = _past_controls(data, body, end, "time" in self._wanted)
        if end - start < HEAD_BYTES:
            return 0
        size = HEAD.unpack_from(data, start)[2]
        count, rest = divmod(end - start, HEAD_BYTES + size) if size >= 0 else (0, 1)
        if rest or entries * count < VECTOR_RECORDS_MIN:
            return 0
        shape, strides = (entries, count), (step_entries, HEAD_BYTES + size)
        heads = numpy.ndarray(shape, _heads(size), data, start, strides)
        positions = _positions(heads["metadata"])
        if (
            positions is None
            or (heads["size"] != size).any()
            or not _same_envelopes(data, at, body, entries, step_entries)
        ):
            return 0
        txids = None
        if not self._wanted.isdisjoint(("txid", "time")):
            txids = heads["txid"].astype(numpy.int64).ravel()
        self._add_alike(
            origin, data, first, entries, count, size, slot,
            positions, txids, time_ms, start, step_entries,
        )  # fmt: skip
        return entries

    def _add_alike(
        self, origin: Origin, data: bytes, first: int, entries: int, count: int, size: int,
        slot: int, positions: Any, txids: Any, time_ms: int, start: int, step_entries: int,
    ) -> None:  # fmt: skip
        import numpy

        wanted, rows = self._wanted, entries * count
        arrays: dict[str, Any] = {"txid": txids}
        if "entry" in wanted:
            arrays["entry"] = numpy.repeat(numpy.arange(first, first + entries), count)
        if "slot" in wanted:
            arrays["slot"] = numpy.tile(numpy.arange(slot, slot + count), entries)
        if "sequence" in wanted:
            sequences = positions + (origin.segment.first_sequence_id - 1)
            arrays["sequence"] = (sequences[:, None] + numpy.arange(count)).ravel()
        if "time" in wanted:
            arrays["time"] = _times(origin, numpy.full(rows, time_ms), txids)
        if "size" in wanted:
            arrays["size"] = numpy.full(rows, size)
        if "value" in wanted:
            step = HEAD_BYTES + size
            begins = numpy.arange(start + HEAD_BYTES, start + HEAD_BYTES + count * step, step)
            shifts = step_entries * numpy.arange(entries)
            starts = (shifts[:, None] + begins[:count]).ravel()
            arrays["starts"], arrays["ends"] = starts, starts + size
        self._add(_Part(origin, rows, data if "value" in wanted else None, arrays), rows * size)

    # -- any other entry ----------------------------------------------------------------------

    def _entry(
        self, origin: Origin, run: EntryRun, data: bytes, entry_id: int,
        bounds: tuple[DLSN | None, DLSN | None] | None,
    ) -> None:  # fmt: skip
        import numpy

        index = entry_id - run.first
        payload = data[run.offsets[index] : run.ends[index]]
        everything = decode(origin.segment, entry_id, payload)
        given = self._creation_times(origin, entry_id, everything)
        stop = everything.end_of_stream
        chosen = [not flags for flags in everything.flags]
        if stop is not None:
            chosen[stop:] = [False] * (len(chosen) - stop)
        start, end = bounds or (None, None)
        for at, slot in enumerate(everything.slots if bounds else ()):
            here = DLSN(origin.segment.lssn, entry_id, slot)
            if (start is not None and here < start) or (end is not None and here >= end):
                chosen[at] = False
        count = sum(chosen)
        if not count:
            return

        def column(values: Sequence[int]) -> Any:
            return numpy.array(list(compress(values, chosen)), numpy.int64)

        starts, ends = column(everything.starts), column(everything.ends)
        envelopes = None
        if everything.envelopes and not self._wanted.isdisjoint(IN_ENVELOPES):
            envelopes = _envelopes(origin, entry_id, everything, chosen)
        if envelopes is not None:
            self.keyed = True
            for at, envelope in enumerate(envelopes):
                if envelope is not None:
                    starts[at] = envelope.value_start
        buffer = everything.data
        if (starts[1:] < ends[:-1]).any():  # compressed members are after all others
            buffer = b"".join([buffer[a:b] for a, b in zip(starts.tolist(), ends.tolist())])
            ends = numpy.cumsum(ends - starts)
            starts = numpy.concatenate(([0], ends[:-1]))
        txids = column(everything.txids)
        arrays = {
            "entry": numpy.full(count, entry_id),
            "slot": column(everything.slots),
            "txid": txids,
            "sequence": column(everything.positions) + (origin.segment.first_sequence_id - 1),
            "size": ends - starts,
            "starts": starts,
            "ends": ends,
        }
        if "time" in self._wanted:
            times = numpy.full(count, NO_TIME) if given is None else column(given)
            arrays["time"] = _times(origin, times, txids)
        self._add(_Part(origin, count, buffer, arrays, envelopes), int((ends - starts).sum()))

    def _creation_times(
        self, origin: Origin, entry_id: int, records: Records
    ) -> Sequence[int] | None:
        """Return the creation time of each record in milliseconds, from the control records.

        A control record gives the time of the records after it in the entry. Returns None if none
        gives a time, or if times were not requested.
        """
        if "time" not in self._wanted or records.only_users:
            return None
        times, now, found = [NO_TIME] * len(records), NO_TIME, False
        controls = dict(records.controls())
        for at in range(len(records)):
            if (control := controls.get(at)) is not None:
                try:
                    told = _creation_time(control)
                except StreamFormatError as error:
                    raise undecodable_entry(
                        origin.segment, entry_id, error, origin.stream
                    ) from error
                if told is not None:
                    now, found = told, True
            times[at] = now
        return times if found else None

    def _add(self, part: _Part, size_bytes: int) -> None:
        self._parts.append(part)
        self.rows += part.count
        self.size_bytes += size_bytes


# -- decoding entries -------------------------------------------------------------------------


def _envelopes(
    origin: Origin, entry_id: int, records: Records, chosen: Sequence[bool]
) -> list[RecordEnvelope | None] | None:
    """Return the envelopes of the chosen records, or None if none of them has one."""
    lssn = origin.segment.lssn
    found = [
        envelope_of(
            DLSN(lssn, entry_id, records.slots[at]), records.data, records.starts[at],
            records.ends[at],
        )
        if records.envelopes[at]
        else None
        for at in compress(range(len(records)), chosen)
    ]  # fmt: skip
    return found if any(found) else None


@lru_cache(maxsize=256)
def _heads(payload_bytes: int) -> Any:
    """Return the numpy type of a record head (`record.HEAD`) that is followed by a payload.

    The payload has `payload_bytes` bytes.
    """
    import numpy

    return numpy.dtype(
        {
            "names": ["metadata", "txid", "size"],
            "formats": [">i8", ">i8", ">i4"],
            "offsets": [0, 8, 16],
            "itemsize": HEAD_BYTES + payload_bytes,
        }
    )


@lru_cache(maxsize=256)
def _ascending(count: int) -> Any:
    """Return by how much the metadata of each of `count` consecutive records exceeds the first.

    The metadata is the 64-bit field of a record head that holds the flags and the record's
    position.
    """
    import numpy

    return numpy.arange(0, count * _STEP, _STEP)


def _positions(metadata: Any) -> Any:
    """Return the number of the first record of each entry within its segment.

    Each row of `metadata` holds the metadata field of the heads of one entry's records. Returns
    None unless all are user records in order.
    """
    import numpy

    metadata = metadata.astype(numpy.int64)
    entries, count = metadata.shape
    firsts = metadata[:, 0]
    if entries == 1:  # the usual case has a fast path
        first = int(firsts[0])
        fits = not first & (_STEP - 1) and 0 <= first <= _METADATA_END - count * _STEP
        fits = fits and bool((metadata[0] == first + _ascending(count)).all())
    else:
        fits = not (
            (firsts & (_STEP - 1)).any()
            or (firsts < 0).any()
            or (firsts + count * _STEP > _METADATA_END).any()
            or (metadata != firsts[:, None] + _ascending(count)).any()
        )
    return firsts >> _POSITION_SHIFT if fits else None


def _body(data: bytes, at: int, end: int, enveloped: bool) -> int | None:
    """Return the offset at which the records of the entry in data[at:end] begin.

    Returns None if the entry is compressed, or must be decoded elsewhere for another reason.
    """
    if not enveloped:
        return at
    if end - at < envelope.HEAD.size:
        return None
    version, flags, size, stored = envelope.HEAD.unpack_from(data, at)
    plain = version == envelope.VERSION and flags & CODEC_BITS == Compression.NONE
    if not plain or size != stored or at + envelope.HEAD.size + stored != end:
        return None
    return at + envelope.HEAD.size


def _same_envelopes(data: bytes, at: int, body: int, entries: int, step: int) -> bool:
    """Return whether all entries have the same envelope."""
    import numpy

    if entries == 1 or body == at:
        return True
    heads = numpy.ndarray((entries, body - at), numpy.uint8, data, at, (step, 1))
    return bool((heads == heads[0]).all())


def _past_controls(data: bytes, at: int, end: int, timed: bool) -> tuple[int, int, int]:
    """Return the slot, creation time and offset of the first record after leading control records.

    If a control record is damaged or of a later version, the offset is `end`. The general decoder
    then decodes the entry and reports what is wrong.
    """
    slot, time_ms = 0, NO_TIME
    while at + HEAD_BYTES <= end:
        metadata, _, size = HEAD.unpack_from(data, at)
        stop = at + HEAD_BYTES + size
        if metadata & _FLAGS != RecordFlag.CONTROL or size < 0 or stop > end:
            break
        try:
            check_version(data, at + HEAD_BYTES, stop)
            told = _creation_time(data[at + HEAD_BYTES : stop]) if timed else None
        except StreamFormatError:
            return slot, time_ms, end
        time_ms = time_ms if told is None else told
        slot, at = slot + 1, stop
    return slot, time_ms, at


def _creation_time(control: bytes) -> int | None:
    times = [item.time_ms for item in decode_control(control) if isinstance(item, CreationTime)]
    return times[-1] if times else None


def _times(origin: Origin, given: Any, txids: Any) -> Any:
    """Return times in milliseconds: those of control records, and for other records the txid.

    The txid is used only if it is a time. Otherwise the time is NO_TIME.
    """
    import numpy

    if not origin.txid_is_time:
        return given
    return numpy.where((given == NO_TIME) & (txids <= TIME_MAX_MS), txids, given)


# -- columns ----------------------------------------------------------------------------------


def _column(name: str, parts: Sequence[_Part]) -> pa.Array:
    import numpy

    arrow = import_pyarrow()
    if name == "value":
        return _values(parts)
    if name in KEYED_COLUMNS:
        return _keyed(name, parts)
    if name == "stream":
        repeated = [arrow.repeat(part.origin.stream, part.count) for part in parts]
        return arrow.concat_arrays(repeated) if repeated else arrow.array([], arrow.string())
    if name in ("segment", "ledger", PARTITION_COLUMN):
        arrays = [numpy.full(part.count, part.origin.number(name)) for part in parts]
    else:
        arrays = [part.arrays[name] for part in parts]
    values = numpy.concatenate(arrays) if arrays else numpy.empty(0, numpy.int64)
    if name != "time":
        return arrow.array(values, arrow.int64())
    missing = (values == NO_TIME) | (abs(values) > TIME_MAX_MS)
    stamps = numpy.where(missing, 0, values) * 1_000
    return arrow.array(stamps, mask=missing).cast(arrow.timestamp("us", tz="UTC"))


def _keyed(name: str, parts: Sequence[_Part]) -> pa.Array:
    """Return a column with keys, headers or event times, with nulls for records that have none."""
    kind = schema((name,)).field(0).type
    arrow = import_pyarrow()
    arrays = []
    for part in parts:
        if part.envelopes is None:
            arrays.append(arrow.nulls(part.count, kind))
            continue
        if name == "key":
            found: list[Any] = [one and one.key for one in part.envelopes]
        elif name == "event_time":
            found = [one and one.event_time_us for one in part.envelopes]
        else:
            found = [list(one.headers.items()) or None if one else None for one in part.envelopes]
        arrays.append(arrow.array(found, kind))
    return arrow.concat_arrays(arrays) if arrays else arrow.array([], kind)


def _values(parts: Sequence[_Part]) -> pa.Array:
    """Return the column with the payloads, which are copied to a buffer of its own."""
    arrow = import_pyarrow()
    gathered: list[Any] = []
    at = 0
    while at < len(parts):
        upto = at + 1
        while upto < len(parts) and _follows(parts[upto], parts[upto - 1]):
            upto += 1
        gathered.append(_gathered(parts[at:upto]))
        at = upto
    if len(gathered) == 1:
        return gathered[0]
    return arrow.concat_arrays(gathered) if gathered else arrow.array([], arrow.binary())


def _follows(part: _Part, before: _Part) -> bool:
    """Return whether a part's payloads are in the same buffer as, and after, those of `before`."""
    ends_at = before.arrays["ends"][-1]
    return part.buffer is before.buffer and bool(part.arrays["starts"][0] >= ends_at)


def _gathered(parts: Sequence[_Part]) -> pa.Array:
    import numpy

    buffer = parts[0].buffer
    assert buffer is not None
    if len(buffer) > OFFSET_MAX:
        raise UsageError(
            f"an entry or run of entries of {len(buffer)} bytes does not fit into one Arrow "
            f"array, which holds at most {OFFSET_MAX} bytes",
            remedy="Read fewer entries at once",
        )
    starts = numpy.concatenate([part.arrays["starts"] for part in parts])
    ends = numpy.concatenate([part.arrays["ends"] for part in parts])
    return gather(starts, ends, buffer)
