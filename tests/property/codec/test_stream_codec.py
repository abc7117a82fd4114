"""Codecs of streams: round trips, columns compared with single records, and damage."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from urllib.parse import quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.control_record import (
    MAX_ID_BYTES,
    ControlItem,
    CreationTime,
    FencingToken,
    ProducerMark,
    Producers,
    ProducerState,
    decode_control,
    encode_control,
)
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import HEAD as ENVELOPE
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import MAX_POSITION, MAX_USER_TXID, StreamFormatError
from quire.codec.distributedlog.lock import LockMember, lock_member_prefix
from quire.codec.distributedlog.name import is_reserved, stream_name
from quire.codec.distributedlog.namespace_binding import (
    AccessRights,
    NamespaceBinding,
    NamespaceURI,
)
from quire.codec.distributedlog.record import (
    HEAD_BYTES,
    RecordFlag,
    Records,
    decode_entry,
    encode_record,
    encode_records,
    entry_ends,
)
from quire.codec.distributedlog.segment import StreamSegment, Truncation, parse_segment_name
from quire.errors import MetadataError, MetadataURIError, UsageError
from tests.support.stream_vectors import encode_record_set

int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**63 - 1)
positions = st.integers(1, MAX_POSITION - 10_000)
txids = st.integers(0, MAX_USER_TXID)
compressions = st.sampled_from(Compression)


# -- entries ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A few records of one kind that follow each other in an entry."""

    kind: RecordFlag
    payloads: tuple[bytes, ...]
    txid: int
    compression: Compression = Compression.NONE
    jump: int = 0
    """Positions left out before it: allowed by the format, and what ends a run."""
    odd_bits: int = 0
    """Undefined bits of the metadata."""


def runs(size: int) -> st.SearchStrategy[tuple[bytes, ...]]:
    """Payloads of one size."""
    return st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=70).map(tuple)


user_payloads = st.one_of(
    st.lists(st.binary(max_size=12), min_size=1, max_size=12).map(tuple),
    st.integers(0, 9).flatmap(runs),
)
pieces = st.one_of(
    st.builds(
        Piece,
        st.just(RecordFlag.NONE),
        user_payloads,
        txids,
        jump=st.sampled_from([0, 0, 0, 1, 7]),
        odd_bits=st.sampled_from([0, 0, 0, 0, 0xFFF8, 0x8000 << 48, 1 << 50]),
    ),
    st.builds(Piece, st.just(RecordFlag.CONTROL), st.tuples(st.binary(max_size=9)), txids),
    st.builds(
        Piece,
        st.just(RecordFlag.RECORD_SET),
        st.lists(
            st.binary(max_size=30) | st.binary(max_size=3).map(lambda text: 40 * text), max_size=6
        ).map(tuple),
        txids,
        compressions,
    ),
)


def build(chosen: list[Piece], position: int) -> tuple[bytes, list[tuple[int, int, int, bytes]]]:
    """The records one by one, and what they have to be read as: flags, position, txid, payload."""
    body: list[bytes] = []
    expected: list[tuple[int, int, int, bytes]] = []
    for piece in chosen:
        position += piece.jump
        if piece.kind is RecordFlag.CONTROL:
            (payload,) = piece.payloads
            body.append(encode_record(position - 1, piece.txid, payload, piece.kind))
            expected.append((int(piece.kind), position - 1, piece.txid, payload))
            continue
        if piece.kind is RecordFlag.RECORD_SET:
            payload = encode_record_set(piece.payloads, piece.compression)
            body.append(encode_record(position, piece.txid, payload, piece.kind))
        for payload in piece.payloads:
            if piece.kind is RecordFlag.NONE:
                record = encode_record(position, piece.txid, payload)
                word = struct.unpack_from(">Q", record)[0] | piece.odd_bits
                body.append(struct.pack(">Q", word) + record[8:])
            expected.append((0, position, piece.txid, payload))
            position += 1
    return b"".join(body), expected


def rows(records: Records) -> list[tuple[int, int, int, bytes]]:
    return list(zip(records.flags, records.positions, records.txids, records.payloads()))


@given(st.lists(pieces, max_size=8), positions, compressions, st.booleans())
def test_entries_round_trip(
    chosen: list[Piece], position: int, compression: Compression, enveloped: bool
) -> None:
    body, expected = build(chosen, position)
    records = decode_entry(wrap([body], len(body), compression) if enveloped else body, enveloped)
    assert rows(records) == expected
    assert list(records.slots) == list(range(len(expected)))
    assert len(records) == len(expected)
    assert records.only_users == all(not flags for flags, *_ in expected)
    assert records.user_count == sum(not flags for flags, *_ in expected)
    assert list(records.controls()) == [
        (index, payload) for index, (flags, _, _, payload) in enumerate(expected) if flags
    ]
    users = records.users()
    assert rows(users) == [row for row in expected if not row[0]]
    assert list(users.slots) == [slot for slot, row in enumerate(expected) if not row[0]]


@given(st.lists(pieces, max_size=6), positions)
def test_unexpanded_record_sets_take_the_slots_of_their_members(
    chosen: list[Piece], position: int
) -> None:
    body, expected = build(chosen, position)
    whole = decode_entry(body, enveloped=False, expand_sets=False)
    taken = 0
    for flags, at, slot, payload in zip(
        whole.flags, whole.positions, whole.slots, whole.payloads()
    ):
        assert slot == taken
        if flags == RecordFlag.RECORD_SET:
            members = decode_entry(encode_record(at, 0, payload, flags), enveloped=False)
            assert members.payloads() == [row[3] for row in expected[taken : taken + len(members)]]
            taken += len(members)
        else:
            assert (flags, at, payload) == (expected[taken][0], *expected[taken][1::2])
            taken += 1
    assert taken == len(expected)


@given(st.lists(pieces, max_size=4), positions, st.integers(-2, 300), st.integers(-2, 300))
def test_a_range_of_the_records_is_decoded(
    chosen: list[Piece], position: int, first: int, end: int
) -> None:
    records = decode_entry(build(chosen, position)[0], enveloped=False)
    part = records.part(first, end)
    assert rows(part) == rows(records)[max(first, 0) : max(end, 0)]
    assert list(part.slots) == list(records.slots)[max(first, 0) : max(end, 0)]


@given(st.lists(st.binary(max_size=20), max_size=50), positions, st.data())
def test_records_in_columns_have_the_same_bytes(
    payloads: list[bytes], position: int, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(txids, min_size=len(payloads), max_size=len(payloads)))
    parts, size = encode_records(payloads, numbers, position)
    one_by_one = [
        encode_record(position + k, txid, payload)
        for k, (txid, payload) in enumerate(zip(numbers, payloads))
    ]
    assert b"".join(parts) == b"".join(one_by_one)
    assert sum(map(len, parts)) == size
    views = [memoryview(bytearray(payload)) for payload in payloads]
    assert encode_records(views, numbers, position)[0] == parts


@given(st.lists(st.binary(max_size=60), max_size=60), st.integers(1, 200), st.integers(0, 300))
def test_entries_are_filled_up_to_the_limit(payloads: list[bytes], limit: int, taken: int) -> None:
    sizes = [HEAD_BYTES + len(payload) for payload in payloads]
    ends = entry_ends(payloads, limit, taken)
    assert ends == sorted(ends)
    assert (ends or [0])[-1] == len(payloads)
    start, used = 0, taken
    for end in ends:
        held = used + sum(sizes[start:end])
        assert held <= limit or (end == start + 1 and not used) or end == start == 0
        assert end == len(payloads) or held + sizes[end] > limit
        assert end > start or (start == 0 and taken)
        start, used = end, 0


@given(st.lists(pieces, min_size=1, max_size=5), positions, compressions, st.data())
def test_damaged_entries_never_raise_an_unexpected_error(
    chosen: list[Piece], position: int, compression: Compression, data: st.DataObject
) -> None:
    body, _ = build(chosen, position)
    entry = bytearray(wrap([body], len(body), compression))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(entry) - 1))
        entry[at] = data.draw(st.integers(0, 255))
    try:
        records = decode_entry(entry)
    except StreamFormatError:
        return
    assert len(records.payloads()) == len(records.slots) == len(records.txids) == len(records)
    assert all(0 <= a <= b <= len(records.data) for a, b in zip(records.starts, records.ends))


@given(st.lists(pieces, min_size=1, max_size=5), positions, st.data())
def test_an_entry_that_is_cut_short_is_never_read(
    chosen: list[Piece], position: int, data: st.DataObject
) -> None:
    body, _ = build(chosen, position)
    entry = wrap([body], len(body))
    cut = data.draw(st.integers(0, len(entry) - 1))
    with pytest.raises(StreamFormatError):
        decode_entry(entry[:cut])


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_raise_no_unexpected_error(entry: bytes, enveloped: bool) -> None:
    if enveloped:
        entry = ENVELOPE.pack(1, 0, len(entry), len(entry)) + entry
    try:
        records = decode_entry(entry, enveloped)
    except StreamFormatError:
        return
    assert sum(map(len, records.payloads())) <= len(entry)


@given(st.binary(max_size=60))
def test_any_compressed_body_raises_no_unexpected_error(block: bytes) -> None:
    for size in (len(block), 3 * len(block), 100):
        try:
            decode_entry(ENVELOPE.pack(1, 1, size, len(block)) + block)
        except StreamFormatError:
            continue


# -- control records --------------------------------------------------------------------------

ids = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda text: len(text.encode()) <= MAX_ID_BYTES
)
sequences = st.integers(0, 2**62)
dlsns = st.builds(DLSN, int64, int64, int64)
items: st.SearchStrategy[ControlItem] = st.one_of(
    st.builds(ProducerMark, ids, sequences, st.integers(1, 2**32 - 1)),
    st.builds(CreationTime, int64),
    st.builds(FencingToken, ids | st.just("")),
    st.builds(
        Producers, st.dictionaries(ids, st.builds(ProducerState, sequences, dlsns), max_size=5)
    ),
)


@given(st.lists(items, max_size=4))
def test_control_items_round_trip(chosen: list[ControlItem]) -> None:
    assert decode_control(encode_control(*chosen)) == chosen


@given(st.lists(items, min_size=1, max_size=3), st.data())
def test_damaged_control_items_raise_no_unexpected_error(
    chosen: list[ControlItem], data: st.DataObject
) -> None:
    payload = bytearray(encode_control(*chosen))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    try:
        decode_control(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    except StreamFormatError:
        pass


# -- metadata ---------------------------------------------------------------------------------


@given(dlsns, dlsns)
def test_dlsns_round_trip(one: DLSN, other: DLSN) -> None:
    assert DLSN.from_bytes(one.to_bytes()) == one
    assert DLSN.parse(one.to_text()) == DLSN.parse(str(one)) == one
    assert DLSN.from_bytes(b"\0" + one.to_bytes()[1:] + bytes(175)) == one
    assert (one < other) == (tuple(one) < tuple(other))


@given(st.binary(max_size=210) | st.text(max_size=40))
def test_any_data_parsed_as_a_dlsn_raises_no_unexpected_error(data: bytes | str) -> None:
    try:
        dlsn = DLSN.from_bytes(data) if isinstance(data, bytes) else DLSN.parse(data)
    except (StreamFormatError, UsageError):
        return
    assert DLSN.from_bytes(dlsn.to_bytes()) == dlsn


stored_segments = st.builds(
    StreamSegment,
    lssn=natural, ledger_id=natural, first_txid=int64, layout=st.integers(2, 5),
    in_progress=st.just(False), last_txid=int64, completion_time_ms=int64,
    record_count=st.integers(-(2**31), 2**31 - 1), last_entry_id=natural, last_slot_id=natural,
    min_active_entry_id=natural, min_active_slot_id=natural, start_sequence_id=int64,
    region_id=st.integers(0, 15), status=st.integers(0, 7),
)  # fmt: skip


@given(stored_segments)
def test_segments_round_trip(segment: StreamSegment) -> None:
    read = StreamSegment.from_bytes(segment.to_bytes())
    assert read.to_bytes() == segment.to_bytes()
    hidden: dict[str, int] = {}
    if segment.layout < 3:
        hidden |= {"min_active_entry_id": 0, "min_active_slot_id": 0}
    if segment.layout < 5:
        hidden |= {"start_sequence_id": -1}
    assert read == replace(segment, **hidden)
    named = parse_segment_name(segment.name)
    assert named is not None
    assert (named.in_progress, named.lssn) == (False, segment.lssn)


@given(stored_segments)
def test_segments_in_progress_round_trip(segment: StreamSegment) -> None:
    segment = StreamSegment(
        segment.lssn,
        segment.ledger_id,
        segment.first_txid,
        region_id=segment.region_id,
        status=segment.status,
    )
    assert StreamSegment.from_bytes(segment.to_bytes()) == segment
    named = parse_segment_name(segment.name)
    assert named is not None
    assert (named.in_progress, named.lssn) == (True, segment.lssn)


@given(stored_segments, st.lists(st.tuples(natural, natural), max_size=5))
def test_a_partial_truncation_never_moves_back(
    segment: StreamSegment, points: list[tuple[int, int]]
) -> None:
    segment = replace(segment, layout=5, status=0, min_active_entry_id=0, min_active_slot_id=0)
    reached = segment.first_dlsn
    for point in points:
        at = DLSN(segment.lssn, *point)
        if at > segment.last_dlsn:
            with pytest.raises(UsageError):
                segment.partially_truncated(at)
            continue
        segment = segment.partially_truncated(at)
        reached = max(reached, at)
        assert segment.min_active_dlsn == reached
        assert (segment.truncation is Truncation.PARTIAL) == (reached > segment.first_dlsn)


@given(st.lists(int64.map(str) | st.text(max_size=5), max_size=12).map(";".join))
@example("5;" * 7)
def test_any_text_parsed_as_a_segment_raises_no_unexpected_error(text: str) -> None:
    try:
        segment = StreamSegment.from_bytes(text.encode(errors="replace"), 1)
    except MetadataError:
        return
    assert StreamSegment.from_bytes(segment.to_bytes(), 1).to_bytes() == segment.to_bytes()


plain_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(
    st.builds(
        NamespaceBinding, plain_text, plain_text, plain_text, plain_text, plain_text,
        st.booleans(), st.booleans(), st.none() | plain_text, int64, st.booleans(),
    )
)  # fmt: skip
def test_bindings_round_trip(binding: NamespaceBinding) -> None:
    assert NamespaceBinding.from_bytes(binding.to_bytes(), "other:1") == binding


@given(st.text(max_size=60) | st.text('{}[]",:0123456789tfsri46 \\n', max_size=60))
def test_any_text_parsed_as_a_binding_raises_no_unexpected_error(text: str) -> None:
    for decode in (
        lambda data: NamespaceBinding.from_bytes(b"1\nBKDL\n" + data, "h:1"),
        lambda data: AccessRights.from_bytes(data, "/s"),
        lambda data: NamespaceURI.parse("distributedlog://" + data.decode()),
    ):
        try:
            decode(text.encode(errors="replace"))
        except (MetadataError, MetadataURIError):
            continue


@given(st.text(max_size=12) | st.text("/.<>a ", max_size=12))
def test_stream_names_are_encoded_and_parsed(name: str) -> None:
    try:
        plain = stream_name(name)
    except UsageError:
        return
    assert plain == name.removeprefix("/")
    assert stream_name(plain) == plain
    assert not is_reserved(plain)
    assert all(part not in ("", ".", "..") for part in plain.split("/"))
    plain.encode("utf-8")


@given(plain_text, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_lock_members_are_parsed(client: str, session: int, number: int) -> None:
    name = f"{lock_member_prefix(client, session)}{number:010d}"
    member = LockMember.parse(name, client.encode(), session)
    assert member == LockMember(name, client, session, number)
    other = LockMember.parse(name, b"somebody", session + 1)
    assert other.client_id == ("somebody" if "_" in quote_plus(client) else client)
