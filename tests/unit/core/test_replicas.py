"""The faults of a ledger's replicas that the answers of its bookies show."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.fragments import fragments, stored_by
from quire.core.replicas import (
    Bad,
    Copies,
    Finding,
    Kind,
    Summing,
    coalesced,
    differing_copies,
    findings,
    suspicious,
)
from tests.support.metadata.shapes import ledger


def judged(
    metadata: LedgerMetadata, found: dict[int, list[Bad]], lac: int = -1
) -> list[tuple[int, int, str, Kind]]:
    (fragment,) = fragments(metadata, lac)
    return [
        (one.first, one.last, one.bookie, one.kind)
        for one in findings(7, metadata, fragment, found)
    ]


def missing(first: int, last: int) -> Bad:
    return Bad(first, last, Kind.MISSING, "no such entry")


def test_an_end_that_an_ack_quorum_has_is_short_and_other_gaps_are_missing() -> None:
    metadata = ledger()
    assert judged(metadata, {2: [missing(60, 99)]}) == [(60, 99, "c:1", Kind.SHORT)]
    assert judged(metadata, {2: [missing(60, 90)]}) == [(60, 90, "c:1", Kind.MISSING)]
    assert judged(metadata, {2: [missing(0, 99)]}) == [(0, 99, "c:1", Kind.MISSING)]
    # Two of three lack it, so fewer copies exist than were acknowledged.
    assert judged(metadata, {1: [missing(80, 99)], 2: [missing(60, 99)]}) == [
        (80, 99, "b:1", Kind.MISSING),
        (60, 79, "c:1", Kind.SHORT),
        (80, 99, "c:1", Kind.MISSING),
    ]
    # Unreadable entries count as lost, too.
    damaged = Bad(99, 99, Kind.DAMAGED, "I/O error")
    assert judged(metadata, {1: [damaged], 2: [missing(60, 99)]}) == [
        (99, 99, "b:1", Kind.DAMAGED),
        (60, 98, "c:1", Kind.SHORT),
        (99, 99, "c:1", Kind.MISSING),
    ]
    # A bookie that does not answer may have it.
    silent = Bad(0, 99, Kind.UNREACHABLE, "no answer")
    assert judged(metadata, {1: [silent], 2: [missing(60, 99)]}) == [
        (0, 99, "b:1", Kind.UNREACHABLE),
        (60, 99, "c:1", Kind.SHORT),
    ]
    assert judged(ledger((3, 3, 3)), {2: [missing(60, 99)]}) == [(60, 99, "c:1", Kind.MISSING)]


def test_entries_that_a_writer_may_still_send_are_not_missing() -> None:
    metadata = ledger(state=LedgerState.OPEN)
    assert judged(metadata, {2: [missing(60, 70)]}, 70) == []
    assert judged(metadata, {1: [missing(65, 70)], 2: [missing(60, 70)]}, 70) == [
        (65, 70, "b:1", Kind.MISSING),
        (65, 70, "c:1", Kind.MISSING),
    ]


def test_merging_a_range_inside_the_previous_one_does_not_shorten_it() -> None:
    found = [missing(0, 99), missing(10, 20), missing(100, 109)]
    assert coalesced(ledger(), 0, found) == [missing(0, 109)]


def test_ranges_of_a_striped_member_are_merged_across_entries_of_others() -> None:
    metadata = ledger((4, 2, 2))
    mine = list(stored_by(metadata, 1, 0, 99))
    found = [Bad(entry, entry, Kind.DAMAGED, "I/O error") for entry in mine[2:7]]
    assert coalesced(metadata, 1, found) == [Bad(mine[2], mine[6], Kind.DAMAGED, "I/O error")]
    del found[2]
    assert len(coalesced(metadata, 1, found)) == 2
    assert judged(metadata, {1: [missing(mine[2], mine[6])]}) == [
        (mine[2], mine[6], "b:1", Kind.MISSING)
    ]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2)])
def test_sums_do_not_depend_on_the_cut_and_see_every_change(
    quorums: tuple[int, int, int],
) -> None:
    metadata = ledger(quorums, last=9_999)
    ids = list(stored_by(metadata, 1, 0, 9_999))
    payloads = [b"%d" % n for n in ids]

    def sums(cut: int, change: int | None = None, skip: int | None = None) -> dict[object, object]:
        summing = Summing(*quorums[:2])
        values = [b"x" * len(p) if n == change else p for n, p in zip(ids, payloads)]
        rows = [row for row in zip(ids, values, [n * 5 for n in ids]) if row[0] != skip]
        for at in range(0, len(rows), cut):
            some = list(zip(*rows[at : at + cut]))
            summing.add(Copies(*some))
        return dict(summing.sums())

    whole = sums(10_000)
    assert sums(7) == sums(1_000) == whole
    changed, shorter = sums(1_000, change=ids[4_500]), sums(1_000, skip=ids[4_500])
    assert changed != whole
    assert suspicious(metadata, {1: whole, 2: whole}) == []  # type: ignore[dict-item]
    wrong = ids[4_500] // 4_096, ids[4_500] % quorums[0] if quorums[0] != quorums[1] else 0
    others = {index: whole for index in range(quorums[0]) if index != 1}
    assert suspicious(metadata, {1: changed, **others}) == [wrong]  # type: ignore[dict-item]
    assert suspicious(metadata, {1: shorter, **others}) == [wrong]  # type: ignore[dict-item]


def test_differing_copies_are_judged_by_the_majority_and_all_without_one() -> None:
    a, b, c = (1, 1, 1), (1, 1, 2), (1, 1, 3)
    assert differing_copies({0: {5: a}, 1: {5: a}, 2: {5: b}}) == {2: [5]}
    assert differing_copies({0: {5: a}, 1: {5: b}}) == {0: [5], 1: [5]}
    assert differing_copies({0: {5: a}, 1: {5: b}, 2: {5: c}}) == {0: [5], 1: [5], 2: [5]}
    assert differing_copies({0: {5: a, 6: a}, 1: {5: a}, 2: {6: a}}) == {}


def test_a_finding_is_a_plain_value() -> None:
    one = Finding(1, 2, 3, "a:1", Kind.SHORT, "why")
    assert (one.kind.value, str(one.kind)) == ("short", "short")


QUORUMS = [
    (size, write, ack)
    for size in range(1, 5)
    for write in range(1, size + 1)
    for ack in range(1, write + 1)
]


def check_every_entry(
    quorums: tuple[int, int, int], last: int, closed: bool, gaps: list[tuple[int, int, int]]
) -> None:
    """Compare the findings about `gaps` (member, first, last) with the copies of each entry."""
    size, write, ack = quorums
    state = LedgerState.CLOSED if closed else LedgerState.OPEN
    metadata = ledger(quorums, last=last, state=state)
    ensemble = metadata.segments[0].ensemble
    held = {index: set(stored_by(metadata, index, 0, last)) for index in range(size)}
    lost: dict[int, set[int]] = {index: set() for index in range(size)}
    for index, low, high in gaps:
        if index < size:
            lost[index].update(held[index].intersection(range(low, high + 1)))
    bad = {
        index: [missing(entry, entry) for entry in sorted(entries)]
        for index, entries in lost.items()
        if entries
    }
    told: dict[tuple[int, int], Kind] = {}
    for first, end, bookie, kind in judged(metadata, bad, last):
        index = ensemble.index(bookie)
        told |= {(index, entry): kind for entry in stored_by(metadata, index, first, end)}
    gone = {(index, entry) for index, entries in lost.items() for entry in entries}
    assert told.keys() <= gone
    if closed:
        assert told.keys() == gone
    for index, entry in gone:
        copies = write - sum(entry in entries for entries in lost.values())
        if copies < ack:
            assert told.get((index, entry)) is Kind.MISSING, (quorums, gaps, index, entry)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_too_few_copies_are_missing_wherever_the_ends_of_two_members_begin(
    quorums: tuple[int, int, int], *, closed: bool
) -> None:
    """In a striped ledger, neighbouring entries of one member have different write sets.

    So the members of one range may lack too many copies of only some of its entries.
    """
    last = 8
    for one, other in combinations(range(quorums[0]), 2):
        for first, second in product(range(last + 2), repeat=2):
            gaps = [(one, first, last), (other, second, last)]
            check_every_entry(quorums, last, closed, gaps)


@given(
    st.sampled_from(QUORUMS),
    st.integers(0, 11),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(0, 11)), max_size=8),
)
def test_too_few_copies_are_missing_wherever_members_lack_entries(
    quorums: tuple[int, int, int], last: int, closed: bool, gaps: list[tuple[int, int, int]]
) -> None:
    check_every_entry(quorums, last, closed, gaps)
