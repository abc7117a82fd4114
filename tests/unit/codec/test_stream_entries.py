"""Positions, records and entries of streams: what is refused, and why."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from quire.codec.distributedlog import compression, record
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import HEAD as ENVELOPE
from quire.codec.distributedlog.envelope import MAX_BODY_BYTES, unwrap, wrap
from quire.codec.distributedlog.limits import (
    MAX_ENTRY_BYTES,
    MAX_EXPANDED_BYTES,
    MAX_POSITION,
    MAX_TXID,
    MAX_USER_TXID,
    StreamFormatError,
)
from quire.codec.distributedlog.record import (
    HEAD,
    MAX_PAYLOAD_BYTES,
    RecordFlag,
    control_record,
    decode_entry,
    encode_record,
    encode_records,
    end_of_stream_record,
    entry_ends,
)
from quire.codec.distributedlog.record_set import HEAD as SET
from quire.errors import ArgumentTypeError, UsageError
from tests.support.stream_vectors import encode_record_set

Run = tuple[Sequence[int], Sequence[int]] | None

# -- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01" + bytes(23),
        b"\x01" + bytes(25),
        b"\x02" + bytes(24),
        b"\x00" + bytes(24),
        b"\x01" + bytes(199),
        bytes(199) + b"\x01",
    ],
)
def test_bytes_that_are_not_a_dlsn_are_refused(data: bytes) -> None:
    with pytest.raises(StreamFormatError, match="DLSN"):
        DLSN.from_bytes(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5:12",
        "5:12:3:4",
        "5:12:٣",
        "5:12:9223372036854775808",
        "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA",
        "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA==\n",
        "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAB==",  # Bits after the last byte.
    ],
)
def test_text_that_is_not_a_dlsn_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="DLSN") as caught:
        DLSN.parse(text)
    assert isinstance(caught.value, ValueError)
    assert "5:12:3" in str(caught.value), "the error describes the form of a position"


@pytest.mark.parametrize("value", [None, 5, b"5:12:3"])
def test_a_position_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="a position must be text"):
        DLSN.parse(value)


def test_positions_are_ordered() -> None:
    ascending = [DLSN(1, 0, -1), DLSN(1, 0, 0), DLSN(1, 2, 0), DLSN(1, 10, 0), DLSN(2, 0, 0)]
    assert sorted(set(ascending)) == ascending


# -- entries ----------------------------------------------------------------------------------


def test_the_largest_record_fits_into_an_entry() -> None:
    parts, size = encode_records([bytes(MAX_PAYLOAD_BYTES)], [1], 1)
    assert len(decode_entry(wrap(parts, size)).payload(0)) == MAX_PAYLOAD_BYTES
    with pytest.raises(UsageError, match="too large for a stream"):
        encode_records([bytes(MAX_PAYLOAD_BYTES + 1)], [1], 1)
    with pytest.raises(UsageError, match="too large for a stream"):
        encode_record(1, 1, bytes(MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize("kind", Compression)
def test_an_entry_over_the_size_limit_is_refused(kind: Compression) -> None:
    body = bytes(MAX_BODY_BYTES)
    entry = wrap([body], len(body), kind)
    assert len(entry) <= MAX_ENTRY_BYTES
    buffer, start, end = unwrap(entry)
    assert buffer[start:end] == body
    with pytest.raises(UsageError, match="cannot hold"):
        wrap([body, b"x"], len(body) + 1, kind)


@pytest.mark.parametrize("txid", [-1, MAX_TXID])
def test_transaction_ids_that_no_user_record_may_have_are_refused(txid: int) -> None:
    with pytest.raises(UsageError, match="txid"):
        encode_records([b"a", b"b"], [5, txid], 1)
    with pytest.raises(UsageError, match="txid"):
        encode_record(1, txid, b"")


@pytest.mark.parametrize("first", [0, -1, MAX_POSITION])
def test_positions_that_no_record_may_have_are_refused(first: int) -> None:
    with pytest.raises(UsageError, match="would get the numbers"):
        encode_records([b"a", b"b"], [1, 1], first)


def test_each_record_needs_a_transaction_id() -> None:
    with pytest.raises(UsageError, match="the number of txids is 1 for 2 records"):
        encode_records([b"a", b"b"], [1], 1)
    assert encode_records([], [], 1) == ([], 0)


def test_the_last_position_and_the_last_transaction_id_are_accepted() -> None:
    parts, size = encode_records([b"a"], [MAX_USER_TXID], MAX_POSITION)
    records = decode_entry(wrap(parts, size))
    assert list(records.positions) == [MAX_POSITION]
    assert list(records.txids) == [MAX_USER_TXID]


def test_a_control_record_after_the_end_of_the_stream_has_its_transaction_id() -> None:
    body = end_of_stream_record(3) + control_record(3, MAX_TXID)
    records = decode_entry(body, enveloped=False)
    assert list(records.txids) == [MAX_TXID, MAX_TXID]
    assert records.end_of_stream == 0
    assert len(records.users()) == 0


ONE = encode_record(1, 7, b"hello")


def envelope(flags: int, size: int, stored: int, body: bytes, version: int = 1) -> bytes:
    return ENVELOPE.pack(version, flags, size, stored) + body


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"", "too few for the header"),
        (bytes(12), "too few for the header"),
        (envelope(0, 25, 25, ONE, version=0), "version 0"),
        (envelope(0, 25, 25, ONE[:-1]), "length of 25 bytes, but only 24 follow"),
        (envelope(0, -1, -1, b""), "has a negative length"),
        (envelope(1, -5, 5, ONE[:5]), "has a negative length"),
        (envelope(0, 24, 24, ONE[:-1]), "impossible length: 5"),
        (envelope(0, 30, 30, ONE + bytes(5)), "has only 5 bytes of it"),
        (envelope(0, 50, 50, ONE + HEAD.pack(1, 1, -1) + b"hello"), "impossible length: -1"),
        (envelope(1, 25, 25, b"\xff" * 25), "body of the entry is damaged"),
        (envelope(1, 26, 2, b"\x10a"), "expands to 1 byte, but its header says 26"),
        (envelope(1, 1, 0, b""), "body of the entry is damaged"),
        (envelope(1, 2**31 - 1, 2, b"\x10a"), "at most 5,242,880 are allowed"),
        (envelope(3, 25, 25, ONE), "compression code 3"),
    ],
)
def test_damaged_entries_are_refused(entry: bytes, reason: str) -> None:
    with pytest.raises(StreamFormatError, match=reason):
        decode_entry(entry)


def record_set(
    body: bytes, count: int, word: int = 0x1000, size: int = -1, stored: int = -1
) -> bytes:
    size, stored = (len(body) if n < 0 else n for n in (size, stored))
    return SET.pack(word, count, size, stored) + body


TWO = struct.pack(">i1si2s", 1, b"a", 2, b"bc")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "fewer than its header"),
        (record_set(TWO, 2, word=0x3000), "version 0x3000"),
        (record_set(TWO, 2, word=0x1002), "compression code 2"),
        (record_set(TWO, -1), "number of members is -1"),
        (record_set(TWO, 1), "it has 6 bytes after its 1 member"),
        (record_set(TWO, 3), "too few for 3 members|ends before"),
        (record_set(TWO, 2**31 - 1), "too few for"),
        (record_set(TWO + b"x", 2, size=11, stored=11), "it has 1 byte after its members"),
        (record_set(struct.pack(">i", -1), 1), "a member of -1 bytes"),
        (record_set(struct.pack(">i", 1), 1), "a member of 1 byte does"),
        (record_set(TWO, 2, size=12), "has different lengths"),
        (record_set(b"\x10a", 1, word=0x1001, size=7), "expands to 1 byte, but its header says 7"),
    ],
)
def test_damaged_record_sets_are_refused(payload: bytes, reason: str) -> None:
    entry = encode_record(1, 1, payload, RecordFlag.RECORD_SET)
    with pytest.raises(StreamFormatError, match=reason):
        decode_entry(entry, enveloped=False)


def test_compressed_record_sets_of_an_entry_share_one_size_limit() -> None:
    """A small entry cannot stand for more than the limit, in however many pieces."""
    members = [bytes(1_000_000)]
    packed = encode_record(1, 1, encode_record_set(members, Compression.LZ4), RecordFlag.RECORD_SET)
    fitting = MAX_EXPANDED_BYTES // 1_000_004
    assert len(decode_entry(packed * fitting, enveloped=False)) == fitting
    with pytest.raises(StreamFormatError, match="claims to expand to"):
        decode_entry(packed * (fitting + 1), enveloped=False)


def test_a_record_set_over_the_size_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="too many for a record set"):
        encode_record_set([bytes(MAX_ENTRY_BYTES)])


def test_a_record_set_is_expanded_whatever_other_flags_it_has() -> None:
    """As in Java's reader, its members carry no flags."""
    payload = encode_record_set([b"a", b"b"])
    entry = encode_record(4, 9, payload, RecordFlag.RECORD_SET | RecordFlag.CONTROL)
    records = decode_entry(entry, enveloped=False)
    assert records.only_users
    assert records.payloads() == [b"a", b"b"]


def records_at(position: int, payloads: list[bytes]) -> bytes:
    return b"".join(encode_records(payloads, [5] * len(payloads), position)[0])


@pytest.mark.parametrize("before", [0, 1, 20])
@pytest.mark.parametrize("behind", [0, 20])
def test_a_payload_that_looks_like_the_next_records_is_read_as_payload(
    before: int, behind: int
) -> None:
    """The payload contains heads that look like the following records, at their distance."""
    size = 10
    fakes = records_at(before + 2, [bytes(size)] * 20)
    payloads = [bytes(size)] * before + [bytes(size) + fakes] + [bytes(size)] * behind
    for front in (b"", control_record(0, 5)):
        records = decode_entry(front + records_at(1, payloads), enveloped=False).users()
        assert records.payloads() == payloads
        assert list(records.positions) == list(range(1, len(payloads) + 1))


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many records were tried as one run. A negative number means failure."""
    made: list[int] = []
    equal_run = record._equal_run

    def counted(data: bytes, at: int, count: int, size: int) -> Run:
        found = equal_run(data, at, count, size)
        made.append(count if found else -count)
        return found

    monkeypatch.setattr(record, "_equal_run", counted)
    return made


def test_records_of_equal_size_are_decoded_in_runs(tries: list[int]) -> None:
    """This includes records between control records, which makes reading fast."""
    entry = b"".join(
        control_record(k, 5) + records_at(k + 1, [bytes(30)] * 100) for k in range(0, 1_000, 100)
    )
    assert decode_entry(entry, enveloped=False).user_count == 1_000
    assert tries == [99] * 10


def test_failed_attempts_at_runs_cost_no_more_than_the_records(tries: list[int]) -> None:
    """Every 33rd record has a bit that ends a run, where a check of a few heads misses it."""
    entry = bytearray(records_at(1, [bytes(30)] * 2_000))
    for k in range(20, 2_000, 33):
        entry[50 * k] |= 0x80
    records = decode_entry(control_record(0, 5) + entry, enveloped=False)
    assert list(records.users().positions) == list(range(1, 2_001))
    assert any(count < 0 for count in tries)
    assert sum(map(abs, tries)) <= 2 * 2_000


def test_records_after_the_end_of_a_stream_are_not_returned() -> None:
    entry = records_at(1, [b"a", b"b"]) + end_of_stream_record(2) + records_at(3, [b"c"])
    records = decode_entry(entry, enveloped=False)
    assert (len(records), records.end_of_stream) == (4, 2)
    assert records.users().payloads() == [b"a", b"b"]


def test_payloads_that_do_not_become_shorter_are_not_compressed() -> None:
    body = bytes(range(60))
    assert wrap([body], len(body), Compression.LZ4) == wrap([body], len(body))
    assert encode_record_set([], Compression.LZ4) == encode_record_set([])


def test_without_the_library_only_compressed_streams_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes(1_000)
    compressed = wrap([body], len(body), Compression.LZ4)
    assert compressed[4] == Compression.LZ4
    compression._lz4.cache_clear()
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    try:
        assert decode_entry(wrap([ONE], len(ONE))).payloads() == [b"hello"]
        with pytest.raises(UsageError, match="pip install lz4"):
            decode_entry(compressed)
        with pytest.raises(UsageError, match="pip install lz4"):
            wrap([body], len(body), Compression.LZ4)
    finally:
        compression._lz4.cache_clear()


def test_compressions_are_parsed_by_name() -> None:
    assert Compression.parse("lz4") is Compression.LZ4
    assert Compression.parse("NONE") is Compression.NONE
    with pytest.raises(UsageError, match="the format of streams has no others"):
        Compression.parse("zstd")


def test_payloads_are_divided_into_entries_at_the_size_limit() -> None:
    payloads = [bytes(80)] * 5  # 100 bytes each with their heads
    assert entry_ends(payloads) == [5]
    assert entry_ends(payloads, 250) == [2, 4, 5]
    assert entry_ends(payloads, 250, first_bytes=100) == [1, 3, 5]
    assert entry_ends(payloads, 250, first_bytes=200) == [0, 2, 4, 5]
    assert entry_ends(payloads, 99) == [1, 2, 3, 4, 5]
    assert entry_ends(payloads, 99, first_bytes=1) == [0, 1, 2, 3, 4, 5]
    assert entry_ends([]) == []
