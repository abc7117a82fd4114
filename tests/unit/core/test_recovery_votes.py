"""The conclusions of recovery from answers."""

from __future__ import annotations

import pytest

from quire.core.recovery import EntryVerdict, RecoveryVotes, TrustModel, recovery_lac


def votes(shape: tuple[int, int, int] = (3, 3, 2)) -> RecoveryVotes:
    return RecoveryVotes(10, *shape)


def test_one_valid_copy_proves_that_an_entry_exists() -> None:
    v = votes()
    v.negative(10, 0)
    v.neither(10, 1)
    v.positive(10)
    assert v.verdict(10) is EntryVerdict.EXISTS


@pytest.mark.parametrize(
    ("shape", "needed"), [((3, 3, 2), 2), ((3, 3, 3), 1), ((3, 3, 1), 3), ((5, 3, 2), 2)]
)
def test_rule_3_enough_negative_answers_prove_absence(
    shape: tuple[int, int, int], needed: int
) -> None:
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


def test_negative_answers_from_outside_the_write_set_do_not_count() -> None:
    v = votes((5, 2, 2))  # entry 10: members 0 and 1
    v.negative(10, 3)
    assert v.verdict(10) is EntryVerdict.OPEN


def test_rule_9_bad_digests_and_silence_are_neither_positive_nor_negative() -> None:
    v = votes()
    v.negative(10, 0)
    v.neither(10, 1)
    v.neither(10, 2)
    assert v.verdict(10) is EntryVerdict.UNDECIDABLE


def test_rule_2_recovery_starts_at_the_last_segment() -> None:
    assert recovery_lac({}, 40) == 39
    assert recovery_lac({0: -1, 1: 17}, 40) == 39
    assert recovery_lac({0: 44, 2: 41}, 40) == 44


def test_an_entry_with_one_forgeable_copy_and_silent_members_is_undecidable() -> None:
    """One copy proves nothing if digests can be forged. But it is not proved to be absent either,
    because the three members that timed out may have acknowledged the same content.
    """
    v = RecoveryVotes(10, 5, 5, 4, TrustModel(1, forgeable=True))
    v.positive(10, 0, b"content")
    v.negative(10, 1)
    for index in (2, 3, 4):
        v.neither(10, index)
    assert v.verdict(10) is EntryVerdict.UNDECIDABLE


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [(0, EntryVerdict.UNDECIDABLE), (1, EntryVerdict.UNDECIDABLE), (2, EntryVerdict.EXISTS)],
)
def test_a_content_counts_only_if_byzantine_bookies_cannot_have_invented_it(
    damaged: int, expected: EntryVerdict
) -> None:
    """Two bookies may be Byzantine. Those with a bad digest are, so fewer others are left."""
    v = RecoveryVotes(10, 5, 5, 4, TrustModel(2, forgeable=True))
    v.positive(10, 0, b"content")
    for index in range(1, 5):
        v.neither(10, index, damaged=index <= damaged)
    assert v.verdict(10) is expected
