"""Ranges compared with sets of numbers, and extents compared with single frames."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from quire.codec.log.state_records import BLOCK_BYTES
from quire.core.ranges import Range, count, include, merged, touches, widened, without
from quire.storage.segment.extents import FrameExtent, damaged_entries, healthy

NUMBERS = st.sets(st.integers(0, 60))


def ranges(numbers: set[int]) -> list[Range]:
    return merged((n, n) for n in numbers)


def numbers(found: list[Range]) -> set[int]:
    return {n for first, last in found for n in range(first, last + 1)}


@given(NUMBERS, NUMBERS, st.integers(0, 60), st.integers(0, 10), st.integers(1, 6))
def test_ranges_behave_like_sets(
    one: set[int], other: set[int], first: int, more: int, most: int
) -> None:
    assert numbers(ranges(one)) == one
    assert all(a[1] + 1 < b[0] for a, b in zip(ranges(one), ranges(one)[1:]))
    assert without(ranges(one), ranges(other)) == ranges(one - other)
    assert touches(ranges(one), first, first + more) == bool(
        one & set(range(first, first + more + 1))
    )
    assert count(ranges(one)) == len(one)
    wide = widened(ranges(one), most)
    assert len(wide) <= most
    assert one <= numbers(wide)
    assert wide == merged(wide)
    if len(ranges(one)) <= most:
        assert wide == ranges(one)
    both = ranges(one)
    include(both, ranges(other))
    assert both == ranges(one | other)


@st.composite
def extents(draw: st.DrawFn) -> FrameExtent:
    count = draw(st.integers(1, 8))
    ids = None
    if draw(st.booleans()):
        ids = array("q", sorted(draw(st.sets(st.integers(0, 30), min_size=count, max_size=count))))
    sizes = None
    frame_size = draw(st.integers(52, 9_000))
    if draw(st.booleans()):
        sizes = array("I", draw(st.lists(st.integers(52, 9_000), min_size=count, max_size=count)))
        frame_size = 0
    first = draw(st.integers(0, 30)) if ids is None else ids[0]
    return FrameExtent(1, first, draw(st.integers(4_096, 40_000)), count, frame_size, sizes, ids)


@given(extents(), st.sets(st.integers(0, 30)))
def test_the_extents_of_entries_are_their_frames(extent: FrameExtent, some: set[int]) -> None:
    known = dict(zip(sorted(numbers(extent.entries())), frames(extent)))
    wanted = sorted(some & known.keys())
    found = [frame for part in extent.parts_of(ranges(set(wanted))) for frame in frames(part)]
    assert found == [known[entry] for entry in wanted]


def frames(extent: FrameExtent) -> list[tuple[int, set[int]]]:
    """Return the entry id and the blocks of each frame."""
    found, at = [], extent.offset
    for n in range(extent.count):
        size = extent.frame_size or (extent.sizes or ())[n]
        entry_id = extent.first + n if extent.ids is None else extent.ids[n]
        found.append((entry_id, set(range(at // BLOCK_BYTES, (at + size - 1) // BLOCK_BYTES + 1))))
        at += size
    return found


@given(st.lists(extents(), min_size=1, max_size=4), st.sets(st.integers(0, 30), max_size=8))
def test_only_entries_in_bad_blocks_are_damaged(them: list[FrameExtent], bad: set[int]) -> None:
    every = [frame for extent in them for frame in frames(extent)]
    good = {entry for entry, blocks in every if not blocks & bad}
    hit = {entry for entry, blocks in every if blocks & bad}
    assert damaged_entries(them, ranges(bad)) == ranges(hit - good)
    kept = [
        frame for extent in them for part in healthy(extent, ranges(bad)) for frame in frames(part)
    ]
    assert kept == [frame for frame in every if not frame[1] & bad]
