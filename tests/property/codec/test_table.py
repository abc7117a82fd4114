"""Many rows at once are equal to single rows."""

from __future__ import annotations

import struct
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from quire.codec.packed_rows import LAYOUTS_MAX, ROWS_MAX, _layout, pack_rows, unpack_rows
from quire.codec.wire.v2 import ADD_WORD, RESPONSE, add_columns, add_responses_each

ID = st.integers(0, 2**63 - 1)
COUNTS = st.one_of(st.integers(0, 20), st.sampled_from([ROWS_MAX - 1, ROWS_MAX, 3 * ROWS_MAX + 7]))


@given(COUNTS, st.randoms(use_true_random=False), st.sampled_from("<>"))
def test_rows_are_packed_and_unpacked_like_single_ones(count, rng, order) -> None:  # type: ignore[no-untyped-def]
    first = [rng.randrange(2**63) for _ in range(count)]
    second = range(7, 7 + count)
    expected = b"".join(
        struct.pack(order + "2sqIq", b"ab", one, 5, two) for one, two in zip(first, second)
    )
    data = pack_rows(order, "2sqIq", (b"ab", 0, 5, 0), {1: first, 3: second}, count)
    assert data == expected
    width = struct.calcsize(order + "2sqIq")
    assert unpack_rows(order, "2sqIq", 4, memoryview(data), width) == [
        (b"ab",) * count,
        tuple(first),
        (5,) * count,
        tuple(second),
    ]


@given(st.lists(st.tuples(ID, ID), max_size=2 * ROWS_MAX))
def test_answers_to_interleaved_adds_are_decoded_in_columns(rows: list[tuple[int, int]]) -> None:
    ledgers, entries = [row[0] for row in rows], [row[1] for row in rows]
    assert add_responses_each(ledgers, entries) == b"".join(
        RESPONSE.pack(24, ADD_WORD, 0, ledger, entry) for ledger, entry in rows
    )


@given(st.integers(1, 300), st.integers(0, 40))
def test_adds_are_decoded_in_columns(count: int, payload_bytes: int) -> None:
    frames = [
        struct.pack(">28sqqq", b"%28d" % at, at, at + 1, at - 1) + bytes(payload_bytes)
        for at in range(count)
    ]
    prefixes, ledgers, entries, lacs = add_columns(memoryview(b"".join(frames)), len(frames[0]))
    assert list(zip(prefixes, ledgers, entries, lacs)) == [
        (b"%28d" % at, at, at + 1, at - 1) for at in range(count)
    ]


def test_the_number_of_cached_layouts_is_limited() -> None:
    for count in islice(range(1, 10_000), 3 * LAYOUTS_MAX):
        pack_rows("<", "q", (0,), {0: range(count)}, count)
    assert _layout.cache_info().currsize <= LAYOUTS_MAX
