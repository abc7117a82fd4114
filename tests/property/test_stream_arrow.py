"""The Arrow columns of a stream's records, compared with single records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.control_record import CreationTime, decode_control, encode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import HEAD, wrap
from quire.codec.distributedlog.limits import MAX_USER_TXID
from quire.codec.distributedlog.record import (
    RecordFlag,
    control_record,
    encode_record,
    encode_records,
    end_of_stream_record,
)
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.entry.entry import EntryRun
from quire.errors import StreamDamagedError, UsageError
from quire.streams.read import arrow
from quire.streams.read.arrow import COLUMNS, Origin, RecordColumns, schema
from quire.streams.read.positions import TIME_MAX_MS
from quire.streams.read.records import decode
from tests.support.stream_vectors import encode_record_set

SEGMENT = StreamSegment(5, 77, 0, start_sequence_id=1_000)
HEADER = b"\xff" * 40
"""The bytes before each entry in the buffer of a run."""

Row = dict[str, object]


@st.composite
def entry(draw: st.DrawFn, enveloped: bool) -> bytes:
    parts: list[bytes] = []
    position = draw(st.integers(1, 1_000))
    txid = draw(st.sampled_from([0, 1_700_000_000_000, TIME_MAX_MS, MAX_USER_TXID - 1_000]))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["equal", "equal", "mixed", "set", "control", "time"]))
        if kind == "control":
            parts.append(control_record(position - 1, txid))
        elif kind == "time":
            at = draw(st.integers(0, 2**41))
            parts.append(control_record(position - 1, txid, encode_control(CreationTime(at))))
        else:
            count = draw(st.integers(1, 40))
            size = draw(st.integers(0, 20))
            sizes = [size] * count
            if kind == "mixed":
                sizes = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
            payloads = [bytes([k % 256]) * n for k, n in enumerate(sizes)]
            if kind == "set":
                body = encode_record_set(payloads, draw(st.sampled_from(Compression)))
                parts.append(encode_record(position, txid, body, RecordFlag.RECORD_SET))
            else:
                txids = [txid + k for k in range(count)]
                parts += map(bytes, encode_records(payloads, txids, position)[0])
                txid = txids[-1]
            position += count
    if draw(st.integers(0, 9)) == 0:
        parts.append(end_of_stream_record(position - 1))
    if not enveloped:
        return b"".join(parts)
    return wrap(parts, sum(map(len, parts)), draw(st.sampled_from(Compression)))


@st.composite
def run_of(draw: st.DrawFn, enveloped: bool) -> EntryRun:
    """Entries of any kind, or one of them many times (then sizes are equal)."""
    made = [draw(entry(enveloped)) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        made = made[:1] * draw(st.integers(1, 6)) + [draw(st.sampled_from(made))]
    return run(made, draw(st.integers(0, 3)))


def run(entries: list[bytes], first: int = 0) -> EntryRun:
    data, offsets, ends = b"", [], []
    for one in entries:
        data += HEADER
        offsets.append(len(data))
        data += one
        ends.append(len(data))
    if len({len(one) for one in entries}) == 1:  # As the check of a batch read returns it.
        step = len(HEADER) + len(entries[0])
        return EntryRun(
            77, first, data, range(offsets[0], len(data) + 1, step),
            range(step, len(data) + 1, step), [0] * len(entries), 0,
        )  # fmt: skip
    return EntryRun(77, first, data, offsets, ends, [0] * len(entries), 0)


def expected(origin: Origin, found: EntryRun, start: DLSN | None, end: DLSN | None) -> list[Row]:
    """One record after the other."""
    rows: list[Row] = []
    segment = origin.segment
    for entry_id, payload in enumerate(found.payloads(), found.first):
        records = decode(segment, entry_id, payload)
        given_ms: int | None = None
        controls = dict(records.controls())
        for at in range(len(records)):
            if at in controls:
                for item in decode_control(controls[at]):
                    if isinstance(item, CreationTime):
                        given_ms = item.time_ms
            if records.flags[at] & RecordFlag.END_OF_STREAM:
                break
            here = DLSN(segment.lssn, entry_id, records.slots[at])
            if records.flags[at] or not (start or here) <= here < (end or here.next_slot()):
                continue
            time_ms = given_ms
            if time_ms is None and origin.txid_is_time:
                time_ms = records.txids[at]
            if time_ms is not None and time_ms > TIME_MAX_MS:
                time_ms = None
            value = records.payload(at)
            rows.append(
                {
                    "stream": origin.stream,
                    "segment": segment.lssn,
                    "ledger": segment.ledger_id,
                    "entry": entry_id,
                    "slot": records.slots[at],
                    "txid": records.txids[at],
                    "time": None if time_ms is None else datetime(1970, 1, 1, tzinfo=UTC)
                    + timedelta(milliseconds=time_ms),
                    "sequence": segment.sequence_id(records.positions[at]),
                    "size": len(value),
                    "value": value,
                }
            )  # fmt: skip
    return rows


@given(st.data(), st.booleans(), st.booleans())
def test_columns_equal_the_decoded_records(
    data: st.DataObject, enveloped: bool, txid_is_time: bool
) -> None:
    segment = SEGMENT
    if not enveloped:
        segment = StreamSegment(5, 77, 0, layout=3)
    origin = Origin("orders", segment, txid_is_time)
    bound = st.none() | st.builds(
        DLSN, st.sampled_from([4, 5, 5, 5, 6]), st.integers(0, 8), st.integers(0, 60)
    )
    columns, rows = RecordColumns(), []
    for found in data.draw(st.lists(run_of(enveloped), max_size=3)):
        start, end = data.draw(bound), data.draw(bound)
        columns.add(origin, found, start, end)
        rows += expected(origin, found, start, end)
    assert columns.rows == len(rows)
    assert columns.size_bytes == sum(len(row["value"]) for row in rows)  # type: ignore[arg-type]
    batch = columns.batch()
    batch.validate(full=True)
    assert batch.schema == schema()
    assert batch.to_pylist() == rows
    assert columns.rows == columns.size_bytes == columns.batch().num_rows == 0


@given(st.data(), st.lists(st.sampled_from(COLUMNS), unique=True, max_size=4))
def test_selected_columns_equal_the_decoded_records(data: st.DataObject, wanted: list[str]) -> None:
    found = data.draw(run_of(True))
    columns = RecordColumns(wanted)
    columns.add(Origin("orders", SEGMENT), found)
    rows = expected(Origin("orders", SEGMENT), found, None, None)
    assert columns.rows == len(rows)
    if wanted:
        assert columns.batch().to_pylist() == [{name: row[name] for name in wanted} for row in rows]


def test_a_compressed_record_set_is_expanded_before_other_records() -> None:
    """Its members come after these records once they are expanded."""
    body = encode_record_set([b"member" * 20] * 4, Compression.LZ4)
    parts = [encode_record(1, 7, body, RecordFlag.RECORD_SET), encode_record(5, 7, b"other")]
    found = run([wrap(parts, sum(map(len, parts)))])
    columns = RecordColumns(["value"])
    columns.add(Origin("orders", SEGMENT), found)
    assert columns.batch().column(0).to_pylist() == [*[b"member" * 20] * 4, b"other"]


@pytest.mark.parametrize("at", [13, 16, 32, 40])
def test_damage_is_reported_by_the_columnar_path(at: int) -> None:
    """Each of these bytes is checked by the fast path."""
    parts, size = encode_records([bytes(9)] * 40, range(40), 1)
    whole = bytearray(wrap(parts, size))
    whole[at] ^= 0xFF
    damaged = run([bytes(whole), bytes(whole)])
    columns = RecordColumns()
    try:
        rows = expected(Origin("orders", SEGMENT), damaged, None, None)
    except StreamDamagedError:
        with pytest.raises(StreamDamagedError, match="entry 0 of segment 5"):
            columns.add(Origin("orders", SEGMENT), damaged)
    else:  # a number or payload that may be so
        columns.add(Origin("orders", SEGMENT), damaged)
        assert columns.batch().to_pylist() == rows


@pytest.mark.parametrize("size", [0, 1, HEAD.size - 1])
@pytest.mark.parametrize("entries", [1, 3])
def test_an_entry_that_is_too_short_for_an_envelope_is_reported(size: int, entries: int) -> None:
    """Nothing follows the last entry, so its envelope cannot be unpacked."""
    with pytest.raises(StreamDamagedError, match="entry 0 of segment 5"):
        RecordColumns().add(Origin("orders", SEGMENT), run([bytes(size)] * entries))


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"'position' is not a column of a stream's records. The columns are stream, segment",
    ):
        RecordColumns(["position"])


@given(
    st.sampled_from([0, 1, 2, arrow._STEP - 1, arrow._STEP, arrow._STEP + 1]),
    st.integers(1, 5),
    st.integers(-3, 6),
    st.sampled_from([0, 1, 2, 4]),
)
@example(0, 3, -1, 0)  # The last two records would be behind the end.
@example(0, 3, 0, 1)
def test_positions_of_a_single_entry_equal_those_beside_another(
    first: int, count: int, before_end: int, flags: int
) -> None:
    """A single entry has a way of its own, which must refuse the same flags and positions."""
    head = arrow._METADATA_END - (count + before_end) * arrow._STEP if before_end else first
    rows = numpy.arange(count, dtype=numpy.int64) * arrow._STEP + (head | flags)
    other = numpy.arange(count, dtype=numpy.int64) * arrow._STEP
    alone = arrow._positions(rows[None, :])
    beside = arrow._positions(numpy.stack([rows, other]))
    assert (alone is None) == (beside is None)
    if alone is not None:
        assert alone[0] == beside[0] == head >> 16
        assert not (head | flags) % arrow._STEP
        assert 0 <= head <= arrow._METADATA_END - count * arrow._STEP
