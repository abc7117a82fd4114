"""The conclusions of recovery from answers."""

from __future__ import annotations

import pytest

from quire.core.recovery import EntryVerdict, RecoveryVotes, recovery_lac


def votes(shape: tuple[int, int, int] = (3, 3, 2)) -> RecoveryVotes:
    return RecoveryVotes(10, *shape)


def test_one_valid_copy_is_enough() -> None:
    v = votes()
    v.negative(10, 0)
    v.neither(10, 1)
    v.positive(10)
    assert v.verdict(10) is EntryVerdict.EXISTS


@pytest.mark.parametrize(
    ("shape", "needed"), [((3, 3, 2), 2), ((3, 3, 3), 1), ((3, 3, 1), 3), ((5, 3, 2), 2)]
)
def test_rule_3_so_many_negatives_prove_absence(shape: tuple[int, int, int], needed: int) -> None:
    v = votes(shape)
    members = [(10 + k) % shape[0] for k in range(shape[1])]
    for count, index in enumerate(members[:needed], 1):
        assert v.verdict(10) is EntryVerdict.OPEN
        v.negative(10, index)
        expected = EntryVerdict.ABSENT if count == needed else EntryVerdict.OPEN
        assert v.verdict(10) is expected


def test_a_bookie_that_repeats_itself_counts_once() -> None:
    v = votes()
    v.negative(10, 0)
    v.negative(10, 0)
    assert v.verdict(10) is EntryVerdict.OPEN


def test_negatives_of_others_than_the_write_set_do_not_count() -> None:
    v = votes((5, 2, 2))  # entry 10: members 0 and 1
    v.negative(10, 3)
    assert v.verdict(10) is EntryVerdict.OPEN


def test_rule_9_bad_digests_and_silence_are_neither() -> None:
    v = votes()
    v.negative(10, 0)
    v.neither(10, 1)
    v.neither(10, 2)
    assert v.verdict(10) is EntryVerdict.UNDECIDABLE


def test_rule_2_recovery_starts_at_the_last_segment() -> None:
    assert recovery_lac({}, 40) == 39
    assert recovery_lac({0: -1, 1: 17}, 40) == 39
    assert recovery_lac({0: 44, 2: 41}, 40) == 44
