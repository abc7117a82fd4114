"""The log's byte formats: encoded values are decoded, and changed bytes are noticed."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from quire.codec.entry.digest import crc32c, crcs_of_one_bit
from quire.codec.log.footer import (
    DISJOINT,
    TRAILER_BYTES,
    FooterParts,
    LedgerSummary,
    Summary,
    decode_footer_checksums,
    decode_footer_records,
    decode_footer_summary,
    decode_ledger_rows,
    decode_trailer,
    encode_ledger_rows,
    summary_columns,
)
from quire.codec.log.group import (
    GroupEncoder,
    RunRow,
    check_group_table,
    decode_group_header,
    decode_group_table,
    group_checksums,
)
from quire.codec.log.segment_header import (
    CleanMark,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    ranges_of,
    segment_header_size,
)
from quire.codec.log.state_records import (
    BLOCK_BYTES,
    Deleted,
    FormatError,
    RecordKind,
    StateRecord,
    Superseded,
    VersionError,
    block_checksums,
    decode_records,
    decode_segment_value,
    encode_records,
    segment_value,
)

ID = bytes(range(16))
U64 = st.integers(0, (1 << 64) - 1)
LEDGER = st.integers(0, (1 << 63) - 1)
RECORDS = st.lists(
    st.builds(
        StateRecord,
        st.sampled_from(RecordKind),
        st.integers(-1, (1 << 63) - 1),
        st.binary(max_size=50),
    ),
    max_size=5,
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[RunRow], list[bytes], list[StateRecord]]:
    """Runs over a payload that is cut into buffers anywhere."""
    runs = []
    offset = 0
    for _ in range(draw(st.integers(0, 4))):
        ledger_id, count = draw(LEDGER), draw(st.integers(1, 5))
        sizes = ids = None
        frame_size = draw(st.sampled_from([0, 52, 700, 4096]))
        if not frame_size:
            sizes = array(
                "I", draw(st.lists(st.integers(52, 6000), min_size=count, max_size=count))
            )
        first = draw(st.integers(0, 1 << 40))
        if draw(st.booleans()):
            steps = draw(st.lists(st.integers(1, 9), min_size=count - 1, max_size=count - 1))
            ids = array("q", [first])
            for step in steps:
                ids.append(ids[-1] + step)
        runs.append(RunRow(ledger_id, first, count, offset, frame_size, sizes, ids))
        offset += frame_size * count if sizes is None else sum(sizes)
    payload = random.Random(draw(st.integers(0, 255))).randbytes(offset)
    cuts = sorted(draw(st.lists(st.integers(0, offset), max_size=4)))
    bounds = [0, *cuts, offset]
    buffers = [payload[a:b] for a, b in pairwise(bounds)]
    return runs, buffers, draw(RECORDS)


def encode(parts: list[Any], offset: int = 8 * BLOCK_BYTES) -> Any:
    encoder = GroupEncoder(ID, 3, 77, offset)
    bases = [
        encoder.add(runs, buffers, sum(map(len, buffers)), records)
        for runs, buffers, records in parts
    ]
    return encoder.finish(), bases


@given(st.lists(batches(), max_size=3))
def test_a_group_round_trips(parts: list[Any]) -> None:
    group, bases = encode(parts)
    data = b"".join(group.buffers)
    assert len(data) % BLOCK_BYTES == 0
    header = decode_group_header(data, 0, ID, 3, 8 * BLOCK_BYTES)
    assert header == group.header
    assert header is not None
    assert header.end - header.offset == len(data)
    assert check_group_table(data, header)
    table = decode_group_table(data, header)
    runs = []
    records = []
    for (its_runs, _, its_records), base in zip(parts, bases):
        records += [StateRecord(r.kind, r.ledger_id, r.value, len(runs)) for r in its_records]
        runs += [
            RunRow(r.ledger_id, r.first, r.count, base + r.offset, r.frame_size, r.sizes, r.ids)
            for r in its_runs
        ]
    assert list(table.runs) == runs
    assert list(table.records) == records
    payload = b"".join(buffer for _, buffers, _ in parts for buffer in buffers)
    start = header.payload_offset - header.offset
    assert data[start : start + header.payload_bytes] == payload
    expected = array("I", [crc32c(data[at : at + 4096]) for at in range(0, len(data), 4096)])
    assert group.checksums == expected
    assert group_checksums(data, header, table) == (expected, 0)


@given(st.lists(batches(), min_size=1, max_size=2), st.data())
def test_any_flipped_bit_of_a_group_is_noticed(parts: list[Any], data: st.DataObject) -> None:
    group, _ = encode(parts)
    good = b"".join(group.buffers)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    header = decode_group_header(bad, 0, ID, 3, 8 * BLOCK_BYTES)
    front = group.header.payload_offset - group.header.offset
    if at < front:
        assert header is None or not check_group_table(bad, header)
        return
    assert header is not None
    checksums, damaged = group_checksums(bad, header, decode_group_table(bad, header))
    assert damaged == 1
    found = block_checksums((bad,))
    assert [a == b for a, b in zip(checksums, found)].count(False) == 1
    assert checksums[at // BLOCK_BYTES] != found[at // BLOCK_BYTES]


@given(st.lists(batches(), min_size=1, max_size=2), st.data())
def test_a_group_that_is_cut_off_is_noticed(parts: list[Any], data: st.DataObject) -> None:
    group, _ = encode(parts)
    good = b"".join(group.buffers)
    cut = good[: data.draw(st.integers(0, len(good) // 512 - 1)) * 512]
    header = decode_group_header(cut, 0, ID, 3, 8 * BLOCK_BYTES)
    if header is None or not check_group_table(cut, header):
        return
    checksums, damaged = group_checksums(cut, header, decode_group_table(cut, header))
    assert damaged >= 1
    assert len(checksums) == len(group.checksums)


@pytest.mark.parametrize(
    ("directory_id", "segment", "offset"),
    [(bytes(16), 3, 32768), (ID, 4, 32768), (ID, 3, 36864)],
    ids=["directory", "segment", "place"],
)
def test_a_group_of_another_segment_is_ignored(
    directory_id: bytes, segment: int, offset: int
) -> None:
    group, _ = encode([([], [b""], [])])
    data = b"".join(group.buffers)
    assert decode_group_header(data, 0, ID, 3, 32768) is not None
    assert decode_group_header(data, 0, directory_id, segment, offset) is None


@given(U64, U64, U64, st.sets(st.integers(0, 3000), max_size=600))
def test_a_segment_header_round_trips(
    segment: int, first_group: int, previous: int, numbers: set[int]
) -> None:
    live = ranges_of(numbers)
    header = SegmentHeader(ID, segment, first_group, previous, live)
    data = encode_segment_header(header)
    assert len(data) == segment_header_size(len(live))
    decoded = decode_segment_header(data + b"more")
    assert decoded == SegmentHeader(ID, segment, first_group, previous, live, len(data))
    for bare in (False, True):
        other = replace(decoded, compacted=True, bare=bare)
        assert decode_segment_header(encode_segment_header(other)) == other
    covered = {number for first, last in live for number in range(first, last + 1)}
    assert covered == numbers


@given(st.sets(st.integers(0, 300), max_size=100), st.data())
def test_any_flipped_bit_of_a_segment_header_is_noticed(
    numbers: set[int], data: st.DataObject
) -> None:
    good = encode_segment_header(SegmentHeader(ID, 5, 9, 4, ranges_of(numbers)))
    used = 64 + 16 * len(ranges_of(numbers))
    bad = bytearray(good)
    bad[data.draw(st.integers(0, used - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FormatError):
        decode_segment_header(bad)


def test_a_header_of_a_later_version_is_not_taken_for_damage() -> None:
    data = bytearray(encode_segment_header(SegmentHeader(ID, 5, 9, 4, ())))
    data[8] = 4
    data[60:64] = crc32c(data[:60]).to_bytes(4, "little")
    with pytest.raises(VersionError, match="log format 4"):
        decode_segment_header(data)


@given(RECORDS)
def test_state_records_round_trip(records: list[StateRecord]) -> None:
    data = encode_records(records)
    assert decode_records(b"abc" + data, 3, len(records)) == (records, 3 + len(data))
    if data:
        with pytest.raises(FormatError):
            decode_records(data[:-1], 0, len(records))


@given(st.integers(0, 1 << 50), st.booleans(), U64)
def test_deletions_round_trip(time_ms: int, fenced: bool, before: int) -> None:
    deleted = Deleted(time_ms, fenced, before)
    assert Deleted.decode(deleted.encode()) == deleted
    assert decode_segment_value(segment_value(before)) == before
    merged = Superseded(before, time_ms & 0xFFFF_FFFF)
    assert Superseded.decode(merged.encode()) == merged
    assert Superseded.decode(segment_value(before)) == (before, None)
    with pytest.raises(FormatError):
        Deleted.decode(deleted.encode()[1:])
    with pytest.raises(FormatError):
        decode_segment_value(b"")
    with pytest.raises(FormatError):
        Superseded.decode(merged.encode()[1:])


def test_a_record_of_an_unknown_kind_is_refused() -> None:
    data = bytearray(encode_records([StateRecord(RecordKind.FENCE, 4)]))
    data[0] = 99
    with pytest.raises(VersionError, match="a state record of kind 99"):
        decode_records(data, 0, 1)


@given(st.lists(batches(), max_size=4), RECORDS, st.lists(st.integers(0, 2**32 - 1), max_size=9))
def test_a_footer_round_trips(
    parts: list[Any], records: list[StateRecord], checksums: list[int]
) -> None:
    rows = []
    ledgers = []
    at = 0
    for ledger_id, (runs, _, _) in enumerate(parts):
        assume(runs)
        encoded = encode_ledger_rows(runs, [100 * k for k in range(len(runs))])
        rows.append(encoded)
        crc = crc32c(encoded)
        place = (at, len(encoded), len(runs), crc)
        ledgers.append(LedgerSummary(ledger_id, runs[0].first, 10, 9, 8, DISJOINT, *place))
        at += len(encoded)
    columns = list(zip(*ledgers)) or summary_columns()
    footer = FooterParts(
        ID, 6, 10, 20, 4096, 8192, rows, Summary(*columns), records, array("I", checksums)
    )
    pieces, trailer = footer.encode()
    data = b"".join(pieces)
    assert trailer.file_bytes == 8192 + len(data)
    assert decode_trailer(data[-TRAILER_BYTES:], ID, 6, trailer.file_bytes) == trailer

    def part(offset: int, size: int) -> bytes:
        return data[offset - 8192 : offset - 8192 + size]

    found = part(trailer.records_at, trailer.records_bytes)
    assert decode_footer_records(found, trailer) == records
    found = part(trailer.checksums_at, trailer.checksums_bytes)
    assert list(decode_footer_checksums(found, trailer)) == checksums
    summary = decode_footer_summary(part(trailer.summary_at, trailer.summary_bytes), trailer)
    for ledger, (runs, _, _) in zip(ledgers, parts):
        assert summary.find(ledger.ledger_id) == ledger
        decoded = decode_ledger_rows(part(8192 + ledger.rows_at, ledger.rows_bytes), ledger.rows)
        assert list(decoded.firsts) == [run.first for run in runs]
        assert list(decoded.counts) == [run.count for run in runs]
        assert list(decoded.frame_sizes) == [run.frame_size for run in runs]
        assert list(decoded.offsets) == [100 * k for k in range(len(runs))]
        for row, run in enumerate(runs):
            ids = run.ids or range(run.first, run.first + run.count)
            assert decoded.last(row) == ids[-1]
    assert summary.find(len(parts)) is None


def test_a_footer_of_another_segment_or_damaged_is_refused() -> None:
    records = [StateRecord(RecordKind.FENCE, 4)]
    footer = FooterParts(
        ID, 6, 10, 20, 4096, 8192, [], Summary(*summary_columns()), records, array("I", [1])
    )
    pieces, trailer = footer.encode()
    end = pieces[-1]
    size = trailer.file_bytes
    for bad in (
        lambda: decode_trailer(end, bytes(16), 6, size),
        lambda: decode_trailer(end, ID, 7, size),
        lambda: decode_trailer(end, ID, 6, size + 1),
        lambda: decode_trailer(end[1:], ID, 6, size),
        lambda: decode_trailer(bytes(TRAILER_BYTES), ID, 6, size),
        lambda: decode_footer_records(b"", trailer),
        lambda: decode_footer_checksums(b"1234", trailer),
        lambda: decode_footer_summary(b"1", trailer),
    ):
        with pytest.raises(FormatError):
            bad()
    for at in range(TRAILER_BYTES):
        flipped = bytearray(end)
        flipped[at] ^= 4
        with pytest.raises(FormatError):
            decode_trailer(flipped, ID, 6, size)


def test_the_mark_of_a_clean_stop_round_trips() -> None:
    mark = CleanMark(ID, 7, 99)
    data = mark.encode()
    assert CleanMark.decode(data) == mark
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(FormatError):
            CleanMark.decode(flipped)
    with pytest.raises(FormatError):
        CleanMark.decode(data[1:])


@given(st.binary(min_size=1, max_size=64), st.randoms(use_true_random=False))
def test_the_checksum_difference_identifies_a_single_flipped_bit(
    data: bytes, rng: random.Random
) -> None:
    number = int.from_bytes(data)
    first, second = rng.randrange(8 * len(data)), rng.randrange(8 * len(data))

    def change(wrong: int) -> int:
        return crc32c(data) ^ crc32c((number ^ wrong).to_bytes(len(data)))

    assert change(1 << first) in crcs_of_one_bit(len(data))
    assert first == second or change(1 << first | 1 << second) not in crcs_of_one_bit(len(data))
