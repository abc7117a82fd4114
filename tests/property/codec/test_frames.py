"""Codec round trips, and the vectorised forms compared with the plain ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import BadEntryError, EntryCodec, check_batch
from quire.codec.wire import v2 as frames
from quire.errors import ProtocolError
from quire.net.frame_buffer import FrameBuffer

ids = st.integers(min_value=0, max_value=2**62)
payloads = st.lists(st.binary(max_size=64), min_size=1, max_size=40)


@given(ids, ids, st.integers(min_value=1, max_value=700))
def test_coalesced_add_responses_equal_single_ones(ledger: int, first: int, count: int) -> None:
    plain = b"".join(frames.add_response(0, ledger, first + k) for k in range(count))
    assert frames.add_responses(ledger, first, count) == plain


@given(st.lists(st.binary(min_size=4, max_size=300), min_size=1, max_size=20), st.data())
def test_frames_are_read_from_any_division_of_the_bytes(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12), label="cuts"))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)])]
    buffer, seen = FrameBuffer(), []
    for chunk in chunks:
        if not chunk:
            continue
        for piece in buffer.feed(chunk):
            bounds = frames.frame_bounds(piece)
            seen.extend(bytes(piece[a + 4 : b]) for a, b in bounds)
            buffer.keep(piece, bounds[-1][1] if bounds else 0)
    assert seen == bodies
    assert buffer.held_bytes == 0


@pytest.mark.parametrize("size", [0, 3, frames.MAX_FRAME_BYTES - 3, 2**31, 2**32 - 1])
def test_a_frame_with_a_false_length_is_refused(size: int) -> None:
    buffer = FrameBuffer()
    (chunk,) = buffer.feed(size.to_bytes(4, "big") + b"xxxx")
    with pytest.raises(ProtocolError, match="frame claims to have"):
        buffer.keep(chunk, 0)


@given(st.sampled_from(DigestType), payloads, st.integers(0, 10_000), st.binary(max_size=20))
def test_entries_round_trip_in_a_batch(
    kind: DigestType, contents: list[bytes], first: int, password: bytes
) -> None:
    codec = EntryCodec(77, kind, password)
    entries = [codec.pack(first + k, k - 1, 10 * k, body) for k, body in enumerate(contents)]
    data = frames.batch_read_response(0, 77, first, 5, entries)
    run = check_batch(codec, data, first, frames.BATCH_RESPONSE_BYTES, len(data), 1_000)
    assert run.payloads() == contents
    assert (run.first, run.last) == (first, first + len(contents) - 1)
    assert run.last_add_confirmed == len(contents) - 2


@given(
    st.sampled_from([DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C]),
    st.binary(min_size=1, max_size=100),
    st.data(),
)
def test_a_flipped_bit_is_noticed(kind: DigestType, body: bytes, data: st.DataObject) -> None:
    codec = EntryCodec(3, kind, b"pw")
    entry = bytearray(codec.pack(9, 8, 1_000, body))
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadEntryError):
        codec.check(bytes(entry), 9)
    batch = frames.batch_read_response(0, 3, 9, 1, [bytes(entry)])
    with pytest.raises(BadEntryError):
        check_batch(codec, batch, 9, frames.BATCH_RESPONSE_BYTES, len(batch), 10)
