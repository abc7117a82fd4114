"""The choice of segments that are compacted together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.compaction import FIXED_BYTES, Choice, CompactionCandidate, why_not
from quire.core.compaction import choose as choose_together

MIB = 1 << 20


def choose(
    segments: list[CompactionCandidate], *, below_ratio: float, available_bytes: int
) -> Choice | None:
    """Choose if an output may use all the available space."""
    return choose_together(
        segments,
        below_ratio=below_ratio,
        available_bytes=available_bytes,
        together_bytes=available_bytes,
    )


def facts(number: int, file_bytes: int, live_bytes: int) -> CompactionCandidate:
    return CompactionCandidate(number, file_bytes, file_bytes // 200, live_bytes)


def test_the_emptiest_segments_that_fit_the_free_space_are_chosen_together() -> None:
    segments = [
        facts(1, 64 * MIB, 60 * MIB),
        facts(2, 64 * MIB, 30 * MIB),
        facts(3, 64 * MIB, 20 * MIB),
        facts(4, 64 * MIB, 40 * MIB),
        facts(5, 64 * MIB, 0),
    ]
    found = choose(segments, below_ratio=0.8, available_bytes=64 * MIB)
    assert found is not None
    assert found.numbers == (2, 3, 5)
    assert found.position == 5
    assert found.output_bytes <= 64 * MIB
    assert choose(segments[:1], below_ratio=0.8, available_bytes=64 * MIB) is None
    assert choose(segments, below_ratio=0.8, available_bytes=FIXED_BYTES) is None


def test_one_small_segment_is_not_worth_compacting_but_many_together_are() -> None:
    small = [facts(number, 20_000, 2_000) for number in range(1, 20)]
    assert choose(small[:1], below_ratio=0.8, available_bytes=MIB) is None
    assert "waits for others" in why_not(small[0], below_ratio=0.8, available_bytes=MIB)
    found = choose(small, below_ratio=0.8, available_bytes=MIB)
    assert found is not None
    assert len(found.numbers) == 19


def test_small_segments_do_not_displace_one_that_is_worth_compacting_alone() -> None:
    """Small segments were once chosen first, and used the space without freeing any."""
    segments = [
        CompactionCandidate(1, 79_428, 500, 70_736),
        CompactionCandidate(2, 37_316, 400, 15_840),
        CompactionCandidate(3, 132_544, 600, 79_248),
        CompactionCandidate(4, 8_476, 200, 1_952),
    ]
    found = choose(segments, below_ratio=0.95, available_bytes=131_072)
    assert found is not None
    assert found.numbers == (3,)


def test_a_segment_above_the_current_segment_size_is_compacted_alone() -> None:
    """A smaller segment size once prevented old segments from ever being freed."""
    large = facts(1, 256 * MIB, 100 * MIB)
    available_bytes = {"below_ratio": 0.8, "together_bytes": 64 * MIB}
    found = choose_together(
        [large, facts(2, 64 * MIB, 8 * MIB)], available_bytes=1 << 30, **available_bytes
    )
    assert found is not None
    assert found.numbers == (2,)
    found = choose_together(
        [large, facts(2, 64 * MIB, 60 * MIB)], available_bytes=1 << 30, **available_bytes
    )
    assert found is not None
    assert found.numbers == (1,)
    assert choose_together([large], available_bytes=100 * MIB, **available_bytes) is None


SEGMENTS = st.lists(st.tuples(st.integers(1, MIB), st.floats(0, 1)), max_size=12).map(
    lambda rows: [facts(n, size, int(size * part)) for n, (size, part) in enumerate(rows, 1)]
)


@given(SEGMENTS, st.floats(0, 1), st.integers(0, 2 * MIB), st.integers(0, 2 * MIB))
def test_a_choice_fits_the_free_space_and_frees_space(
    segments: list[CompactionCandidate], ratio: float, available_bytes: int, together_bytes: int
) -> None:
    found = choose_together(
        segments, below_ratio=ratio, available_bytes=available_bytes, together_bytes=together_bytes
    )
    if found is None:
        for one in segments:
            assert why_not(one, below_ratio=ratio, available_bytes=available_bytes)
        return
    taken = [one for one in segments if one.number in found.numbers]
    assert found.numbers == tuple(sorted(one.number for one in taken))
    assert all(one.live_ratio < ratio for one in taken)
    assert found.output_bytes <= available_bytes
    assert len(taken) == 1 or found.output_bytes <= together_bytes
    assert found.output_bytes < found.file_bytes == sum(one.file_bytes for one in taken)


MIXED = st.lists(st.tuples(st.integers(1, 64), st.floats(0, 0.7)), min_size=1, max_size=12).map(
    lambda rows: [
        CompactionCandidate(n, size * MIB, 200, int(size * MIB * part))
        for n, (size, part) in enumerate(rows, 1)
    ]
)


@given(MIXED, st.integers(MIB // 4, 128 * MIB))
def test_no_segment_is_left_out_that_still_fits_the_output(
    segments: list[CompactionCandidate], room_bytes: int
) -> None:
    """Each of these segments is worth compacting, so only the size of the output may exclude one.

    An emptier segment that does not fit must not exclude smaller ones after it.
    """
    found = choose(segments, below_ratio=0.8, available_bytes=room_bytes)
    fitting = [one for one in segments if FIXED_BYTES + one.share_bytes <= room_bytes]
    assert (found is None) == (not fitting)
    if found is not None:
        left_out = [one for one in segments if one.number not in found.numbers]
        assert all(found.output_bytes + one.share_bytes > room_bytes for one in left_out)
