"""The packed index in memory, compared with plain lists and sets."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from quire.storage.segment import sealed_rows
from quire.storage.segment.frames import equal_frames_are, frames_are
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LedgerInfo
from tests.support.storage.storage import make_batch

SMALL_OR_LARGE = st.one_of(st.integers(0, 40), st.integers(0, 70_000), st.integers(0, 1 << 40))


@st.composite
def rows(draw: st.DrawFn) -> list[sealed_rows.Row]:
    """Rows in any order of segments, with mostly ascending entries."""
    numbers = draw(st.lists(SMALL_OR_LARGE, unique=True, max_size=12))
    made = []
    first = draw(SMALL_OR_LARGE)
    for number in numbers:
        first = draw(st.sampled_from([first, first, draw(SMALL_OR_LARGE)]))
        last = first + draw(st.one_of(st.integers(0, 5), SMALL_OR_LARGE))
        made.append((number, first, last, draw(SMALL_OR_LARGE)))
        first = last + 1
    return made if draw(st.booleans()) else sorted(made)


def ascend(model: list[sealed_rows.Row]) -> bool:
    return all(older[2] < newer[1] for older, newer in pairwise(model))


@given(rows(), st.data())
def test_sealed_rows_are_returned_as_they_were_added(
    given_rows: list[sealed_rows.Row], data: st.DataObject
) -> None:
    info = LedgerInfo(1, b"")
    model: list[sealed_rows.Row] = []
    for row in given_rows:
        info.add_sealed(*row)
        model = sorted([*model, row])
        assert sealed_rows.unpack(info.sealed) == model
        assert info.ordered <= ascend(model)
    assert info.sealed_count == len(model)
    assert info.sealed_numbers == [row[0] for row in model]
    assert [sealed_rows.row_at(info.sealed, at) for at in range(len(model))] == model
    assert info.size_bytes == sum(row[3] for row in model)
    info.last_entry_id = max((row[2] for row in model), default=-1)
    _check_search(info, model, data)
    while model:
        number, _, _, size = model.pop(data.draw(st.integers(0, len(model) - 1)))
        assert info.lives_in(number)
        assert info.remove_sealed(number) == size
        assert not info.lives_in(number)
        assert info.remove_sealed(number) == 0
        assert sealed_rows.unpack(info.sealed) == model
        assert info.ordered <= ascend(model)
    assert info.sealed == b""


def _check_search(info: LedgerInfo, model: list[sealed_rows.Row], data: st.DataObject) -> None:
    edges = [edge for row in model for edge in (row[1] - 1, row[1], row[2], row[2] + 1)]
    for entry_id in (*edges, data.draw(SMALL_OR_LARGE)):
        expected, stop = [], info.last_entry_id + 1
        for number, first, last, _ in reversed(model):
            if first > entry_id:
                stop = min(stop, first)
            elif last >= entry_id:
                expected.append((number, stop))
        found = list(info.sealed_with(entry_id))
        assert [number for number, _ in found] == [number for number, _ in expected]
        if not info.ordered:
            assert found == expected


def test_entries_added_in_order_are_marked_as_ordered() -> None:
    """Otherwise every read would check all rows."""
    info = LedgerInfo(1, b"")
    for number in range(1, 200):
        info.add_sealed(number, number * 1_000, number * 1_000 + 999, 1_000_000)
        assert info.ordered


def test_rewritten_entries_are_found_in_both_segments() -> None:
    info = LedgerInfo(1, b"")
    info.add_sealed(1, 0, 10, 100)
    info.add_sealed(2, 5, 12, 100)
    info.last_entry_id = 12
    assert not info.ordered
    assert list(info.sealed_with(7)) == [(2, 13), (1, 13)]
    assert list(info.sealed_with(3)) == [(1, 5)]


def test_a_sealed_row_takes_eight_bytes() -> None:
    """Each pair of a ledger and a segment takes one row, which bounds a bookie's memory."""
    info = LedgerInfo(1, b"")
    for number in range(50_000):
        info.add_sealed(7_000 + number, number, number, 1_088)
    assert len(info.sealed) <= 50_000 * 8 + 32
    ids = LedgerIdSet(range(1 << 33, (1 << 33) + 10_000))
    assert ids.size_bytes == 40_000


@given(st.sets(st.one_of(st.integers(0, 50), st.integers(0, (1 << 63) - 1))))
def test_ledger_ids_form_a_sorted_set(model: set[int]) -> None:
    ids = LedgerIdSet([*model, *model])
    assert list(ids) == sorted(model)
    assert len(ids) == len(model)
    for one in (*model, *(one + 1 for one in model if one + 1 < 1 << 63), 0):
        assert (one in ids) == (one in model)


@given(
    st.integers(1, 12),
    # Where the low bytes of the ids begin anew, too.
    st.one_of(st.integers(0, 1 << 40), st.integers((5 << 16) - 12, 5 << 16)),
    st.integers(0, 90), st.integers(0, 400), st.integers(1, 255), st.booleans(), st.data(),
)  # fmt: skip
def test_the_columnar_check_of_frames_equals_the_single_one(
    count: int, first: int, payload: int, before: int, flip: int, bare: bool, data: st.DataObject
) -> None:
    """One byte is changed at any place: heads must be found wrong, all else is not looked at."""
    ids = range(first, first + count)
    made = make_batch([(7, entry_id, bytes(payload)) for entry_id in ids])
    assert made.buffers is not None
    frames = b"".join(made.buffers)
    size = len(frames) // count
    if bare:
        size -= 24
        frames = b"".join(
            (size - 4).to_bytes(4, "big") + frames[at + 28 : at + 24 + size]
            for at in range(0, len(frames), size + 24)
        )
    head = 4 if bare else 28
    whole = bytearray(bytes(before) + frames + b"more")
    assert equal_frames_are(whole, before, 7, ids, size, head)
    assert not equal_frames_are(whole, before, 8, ids, size, head)
    assert not equal_frames_are(frames[:-1], 0, 7, ids, size, head)
    cut = whole[: before + len(frames) - 1]
    assert not equal_frames_are(cut, before, 7, ids, size, head)
    assert not equal_frames_are(whole, before, 7, ids, size, 32 - head)  # of the other kind
    at = data.draw(st.integers(0, len(frames) - 1))
    whole[before + at] ^= flip
    in_head = at % size < 4 or head <= at % size < head + 16
    assert equal_frames_are(whole, before, 7, ids, size, head) == (not in_head)
    part = memoryview(whole)[before : before + len(frames)]
    assert frames_are(part, 7, ids, (), size, head) == (not in_head)
    assert frames_are(part, 7, list(ids), (), size, head) == (not in_head)
