"""Record envelopes: round trips, a second encoder, and hostile bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.distributedlog.limits import LaterStreamFormatError, StreamFormatError
from quire.codec.distributedlog.record import decode_entry, encode_records
from quire.codec.distributedlog.record_envelope import (
    EVENT_TIME_MAX_US,
    EVENT_TIME_MIN_US,
    HEAD_BYTES,
    MAGIC,
    RecordEnvelope,
    decode_envelope,
    encode_envelope,
)
from tests.support.record_envelopes import envelope

keys = st.none() | st.binary(max_size=40)
headers = st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=4)
times = st.none() | st.integers(EVENT_TIME_MIN_US, EVENT_TIME_MAX_US)
values = st.binary(max_size=60) | st.binary(max_size=20).map(MAGIC.__add__)


@given(values, keys, headers, times)
def test_an_envelope_round_trips(
    value: bytes, key: bytes | None, named: dict[str, bytes], time_us: int | None
) -> None:
    payload = encode_envelope(value, key, named, time_us)
    pairs = tuple((name.encode(), one) for name, one in named.items())
    assert payload == envelope(value, key, pairs, time_us)
    found = decode_envelope(payload)
    assert found == RecordEnvelope(key, named, time_us, len(payload) - len(value))
    assert list(found.headers) == list(named)
    views = {name: memoryview(one) for name, one in named.items()}
    assert encode_envelope(bytearray(value), key and memoryview(key), views, time_us) == payload


@given(st.binary(max_size=80) | st.binary(max_size=60).map((MAGIC + b"\1").__add__))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """They are decoded or refused, and never raise anything else."""
    try:
        found = decode_envelope(data)
    except StreamFormatError:
        return
    assert encode_envelope(data[found.value_start :], *found[:3]) == data


@given(values, keys, headers, times, st.data())
def test_a_damaged_envelope_is_refused(
    value: bytes,
    key: bytes | None,
    named: dict[str, bytes],
    time_us: int | None,
    data: st.DataObject,
) -> None:
    """A changed bit before the value, and a payload that was cut within the envelope."""
    payload = encode_envelope(value, key, named, time_us)
    before = len(payload) - len(value)
    at = data.draw(st.integers(0, 8 * before - 1))
    changed = bytearray(payload)
    changed[at // 8] ^= 1 << at % 8
    with pytest.raises(StreamFormatError) as refused:
        decode_envelope(bytes(changed))
    in_version = at // 8 == 4 and changed[4] > 1
    assert isinstance(refused.value, LaterStreamFormatError) == in_version
    with pytest.raises(StreamFormatError):
        decode_envelope(payload[: data.draw(st.integers(0, before - 1))])


@given(st.lists(st.tuples(values, keys, headers, times), max_size=30), st.integers(0, 20))
def test_plain_records_and_envelopes_share_entries(
    records: list[tuple[bytes, bytes | None, dict[str, bytes], int | None]], plain: int
) -> None:
    """Each record is read back as it was written, whatever its neighbours are."""
    payloads, flags = [b"plain"] * plain, bytearray(plain)
    for value, key, named, time_us in records:
        has_one = key is not None or bool(named) or time_us is not None
        payloads.append(encode_envelope(value, key, named, time_us) if has_one else value)
        flags.append(has_one)
    parts, size = encode_records(payloads, [7] * len(payloads), 1, bytes(flags))
    entry = b"".join(parts)
    assert len(entry) == size
    found = decode_entry(entry, False)
    assert found.payloads() == payloads
    assert found.flags == bytes(len(payloads))
    assert found.envelopes == (bytes(flags) if any(flags) else b"")
    for at, (value, key, named, time_us) in enumerate(records, plain):
        if flags[at]:
            one = decode_envelope(found.data, found.starts[at], found.ends[at])
            assert one[:3] == (key, named, time_us)
            assert found.data[one.value_start : found.ends[at]] == value
            assert one.value_start - found.starts[at] >= HEAD_BYTES
