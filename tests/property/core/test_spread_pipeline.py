"""Acknowledgements from several fault domains, compared with a check of every entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.append.pipeline import AddPipeline, Block
from quire.core.append.quorum import stripe, write_set
from quire.core.append.spread_pipeline import SpreadPipeline

SHAPES = [(3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 4, 2), (4, 2, 1), (6, 3, 1), (1, 1, 1)]
ENTRIES_MAX = 14


def made(
    shape: tuple[int, int, int], start: int, count: int, domains: list[str], least: int
) -> SpreadPipeline:
    pipeline = SpreadPipeline(*shape, start)
    pipeline.spread_over(domains, least)
    if count:
        pipeline.push(Block(start + 1, start + count, (), 0, count, 0.0))
    return pipeline


@given(
    st.sampled_from(SHAPES), st.integers(-1, 5), st.integers(0, ENTRIES_MAX), st.integers(1, 3),
    st.data(),
)  # fmt: skip
def test_entries_are_confirmed_once_enough_domains_have_them(
    shape: tuple[int, int, int], start: int, count: int, least: int, data: st.DataObject
) -> None:
    size, quorum, acks = shape
    domains = data.draw(st.lists(st.sampled_from("abc"), min_size=size, max_size=size))
    pipeline = made(shape, start, count, domains, least)
    has: list[set[int]] = []
    for index in range(size):
        stored = stripe(index, start + 1, start + count, size, quorum)
        upto = data.draw(st.integers(0, len(stored)))
        has.append(set(stored[:upto]))
        pipeline.acked(index, stored[:upto])

    def enough(entry: int) -> bool:
        members = write_set(entry, size, quorum)
        there = [index for index in members if entry in has[index]]
        needed = min(least, len({domains[index] for index in members}))
        return len(there) >= acks and len({domains[index] for index in there}) >= needed

    expected = start
    while expected < start + count and enough(expected + 1):
        expected += 1
    assert pipeline.stored_through() == expected
    assert pipeline.confirm() is (expected > start)
    assert pipeline.last_confirmed == expected


@given(st.sampled_from(SHAPES), st.integers(1, 3), st.data())
def test_a_dispensable_member_is_not_needed_for_any_confirmation(
    shape: tuple[int, int, int], least: int, data: st.DataObject
) -> None:
    """If it returns true, the other members alone can confirm everything."""
    size, quorum, _ = shape
    domains = data.draw(st.lists(st.sampled_from("abc"), min_size=size, max_size=size))
    absent = data.draw(st.sets(st.integers(0, size - 1)))
    pipeline = made((size, quorum, 1), -1, ENTRIES_MAX, domains, least)
    if len(absent) == size:
        return
    for index in set(range(size)) - absent:
        pipeline.acked(index, stripe(index, 0, ENTRIES_MAX - 1, size, quorum))
    plain = AddPipeline(size, quorum, 1)
    plain.push(Block(0, ENTRIES_MAX - 1, (), 0, ENTRIES_MAX, 0.0))
    for index in set(range(size)) - absent:
        plain.acked(index, stripe(index, 0, ENTRIES_MAX - 1, size, quorum))
    all_of_them = ENTRIES_MAX - 1
    without = pipeline.spread_without(absent) and plain.stored_through() == all_of_them
    assert (pipeline.stored_through() == all_of_them) is without
