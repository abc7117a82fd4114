"""The bytes that Quire stores in control records."""

from __future__ import annotations

import struct

import pytest

from quire.codec.distributedlog.control_record import (
    MAX_PRODUCERS,
    CreationTime,
    FencingToken,
    ProducerMark,
    Producers,
    ProducerState,
    decode_control,
    encode_control,
    is_ours,
)
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import StreamFormatError
from quire.codec.distributedlog.record import control_record, decode_entry
from quire.errors import UsageError

GOLDEN_CONTROL = {
    "mark": (
        [ProducerMark("app-1", 41, 1000)],
        "71756972653a3120" "7000000011" "0000000000000029" "000003e8" "6170702d31",
    ),
    "time": (
        [CreationTime(1_700_000_000_123)],
        "71756972653a3120" "7400000008" "0000018bcfe5687b",
    ),
    "token": ([FencingToken("é7")], "71756972653a3120" "6600000003" "c3a937"),
    "no token": ([FencingToken("")], "71756972653a3120" "6600000000"),
    "producers": (
        [
            Producers(
                {
                    "b": ProducerState(9, DLSN(3, 4, 5)),
                    "a": ProducerState(0, DLSN(1, 0, 0)),
                }
            )
        ],
        "71756972653a3120" "7300000048" "00000002"
        "0000000000000000" "0000000000000001" "0000000000000000" "0000000000000000" "01" "61"
        "0000000000000009" "0000000000000003" "0000000000000004" "0000000000000005" "01" "62",
    ),
    "several": (
        [CreationTime(1), ProducerMark("p", 0, 1)],
        "71756972653a3120" "7400000008" "0000000000000001"
        "700000000d" "0000000000000000" "00000001" "70",
    ),
    "nothing": ([], "71756972653a3120"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_CONTROL)
def test_control_records_equal_their_golden_bytes_in_both_directions(name: str) -> None:
    items, expected = GOLDEN_CONTROL[name]
    payload = encode_control(*items)
    assert payload.hex() == expected
    assert decode_control(payload) == items
    assert is_ours(payload)


def test_control_records_of_other_programs_are_ignored() -> None:
    for payload in (b"control", b"keepalive", b"", b"quire"):
        assert not is_ours(payload)
        assert decode_control(payload) == []


def test_unknown_kinds_of_control_items_are_skipped() -> None:
    time = encode_control(CreationTime(5))
    assert decode_control(time + b"z\0\0\0\3abc" + time[8:]) == [CreationTime(5)] * 2


@pytest.mark.parametrize(
    "payload",
    [
        b"quire:2 t",
        b"quire:",
        b"quire:1 t\0\0\0",
        b"quire:1 t\0\0\0\x08\0",
        b"quire:1 t\0\0\0\x07" + bytes(7),
        b"quire:1 t\0\0\0\x09" + bytes(9),
        b"quire:1 p\0\0\0\x0b" + bytes(11),
        b"quire:1 p\0\0\0\x0d" + struct.pack(">qI", 0, 0) + b"a",
        b"quire:1 p\0\0\0\x0d" + struct.pack(">qI", -1, 1) + b"a",
        b"quire:1 p\0\0\0\x0c" + struct.pack(">qI", 0, 1),
        b"quire:1 p\0\0\0\x4d" + struct.pack(">qI", 0, 1) + b"a" * 65,
        b"quire:1 f\0\0\0\x01\xff",
        b"quire:1 f\0\0\0\x41" + b"a" * 65,
        b"quire:1 s\0\0\0\x04" + struct.pack(">I", MAX_PRODUCERS + 1),
        b"quire:1 s\0\0\0\x04" + struct.pack(">I", 1),
        b"quire:1 s\0\0\0\x25" + struct.pack(">IqqqqB", 1, 0, 1, 0, 0, 1),
        b"quire:1 s\0\0\0\x05" + struct.pack(">IB", 0, 0),
        b"quire:1 s\0\0\0\x48" + struct.pack(">I", 2)
        + 2 * struct.pack(">qqqqB1s", 0, 1, 0, 0, 1, b"a"),
    ],
)  # fmt: skip
def test_damaged_control_records_are_refused(payload: bytes) -> None:
    with pytest.raises(StreamFormatError, match=r"control record|producer"):
        decode_control(payload)


@pytest.mark.parametrize(
    "item",
    [
        ProducerMark("", 0, 1), ProducerMark("a" * 65, 0, 1), ProducerMark("\ud800", 0, 1),
        ProducerMark("a", -1, 1), ProducerMark("a", 0, 0), ProducerMark("a", 0, 2**32),
        ProducerMark("a", 2**63 - 1, 2), FencingToken("é" * 33), CreationTime(2**63),
        Producers({"a": ProducerState(-1, DLSN(1, 0, 0))}),
        Producers({"": ProducerState(0, DLSN(1, 0, 0))}),
        Producers({str(k): ProducerState(0, DLSN(1, 0, 0)) for k in range(MAX_PRODUCERS + 1)}),
    ],
    ids=lambda item: type(item).__name__,
)  # fmt: skip
def test_values_that_a_control_record_cannot_hold_are_refused(
    item: ProducerMark | FencingToken | CreationTime | Producers,
) -> None:
    with pytest.raises(UsageError):
        encode_control(item)


def test_the_longest_list_of_producers_fits_into_a_record() -> None:
    states = {f"{k:064d}": ProducerState(k, DLSN(1, k, 0)) for k in range(MAX_PRODUCERS)}
    payload = encode_control(Producers(states))
    assert decode_control(payload) == [Producers(states)]
    records = decode_entry(wrap([control_record(0, 0, payload)], len(payload) + 20))
    assert list(records.controls()) == [(0, payload)]
