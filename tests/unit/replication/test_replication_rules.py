"""Pure rules: what is wrong with replicas, and how a replaced member changes the metadata."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import decode
from quire.codec.metadata.underreplication import (
    LockHolder,
    Underreplicated,
    lock_owner,
    lock_path,
    mark_path,
)
from quire.core.fragments import (
    fragments,
    last_stored,
    next_stored,
    replaced_in,
    stored_by,
    stored_count,
    with_segments,
)
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

VECTORS = json.loads(
    (Path(__file__).parents[2] / "golden" / "metadata.json").read_text(encoding="utf-8")
)["vectors"]
NAMED = {vector["name"]: vector for vector in VECTORS}
BOOKIES = ("a:1", "b:1", "c:1", "d:1")


def ledger(
    quorums: tuple[int, int, int] = (3, 3, 2),
    firsts: tuple[int, ...] = (0,),
    last: int = 99,
    state: LedgerState = LedgerState.CLOSED,
) -> LedgerMetadata:
    size, write, ack = quorums
    return LedgerMetadata(
        size, write, ack,
        tuple(Segment(first, BOOKIES[:size]) for first in firsts),
        state=state,
        last_entry_id=last if state is LedgerState.CLOSED else -1,
    )  # fmt: skip


# -- the tree of marks ------------------------------------------------------------------------


def test_marks_and_locks_are_those_of_apache() -> None:
    one = NAMED["ur_ledger_one_replica"]
    value = Underreplicated(("10.0.0.2:3181",), 1_600_000_000_123)
    assert value.encode().hex() == one["hex"]
    assert Underreplicated.decode(bytes.fromhex(one["hex"])) == value
    two = Underreplicated(("10.0.0.2:3181", "10.0.0.3:3181"))
    assert two.encode().hex() == NAMED["ur_ledger_two_replicas_no_ctime"]["hex"]
    none = NAMED["ur_ledger_no_replica"]
    assert Underreplicated((), 1_600_000_000_123).encode().hex() == none["hex"]
    assert LockHolder("host-1").encode().hex() == NAMED["ur_lock"]["hex"]
    assert lock_owner(bytes.fromhex(NAMED["ur_lock"]["hex"])) == "host-1"


def test_the_paths_of_marks_and_locks_are_those_of_apache() -> None:
    known = [vector for vector in VECTORS if "underreplicationLock" in json.dumps(vector)]
    assert known
    for vector in known:
        for found in _with_key(vector, "underreplicated"):
            ledger_id = int(found["underreplicated"].rpartition("urL")[2])
            assert mark_path("/ledgers/underreplication", ledger_id) == found["underreplicated"]
            assert (
                lock_path("/ledgers/underreplication", ledger_id) == (found["underreplicationLock"])
            )
    assert mark_path("/r", 12345) == "/r/ledgers/0000/0000/0000/3039/urL0000012345"


def _with_key(value: object, key: str) -> list[dict[str, str]]:
    if isinstance(value, list):
        return [found for item in value for found in _with_key(item, key)]
    if not isinstance(value, dict):
        return []
    found = [value] if key in value else []
    return found + [one for item in value.values() for one in _with_key(item, key)]


def test_a_mark_grows_and_is_left_where_it_says_so_already() -> None:
    mark = Underreplicated(("a:1",), 5)
    assert mark.adding(["a:1"], 9) is None
    assert mark.adding(["b:1", "a:1"], 9) == Underreplicated(("a:1", "b:1"), 9)


# -- fragments --------------------------------------------------------------------------------


def test_what_is_closed_may_be_copied() -> None:
    open_ledger = ledger(firsts=(0, 40), state=LedgerState.OPEN)
    first, newest = fragments(open_ledger, 70)
    assert (first.first, first.last, first.closed) == (0, 39, True)
    assert (newest.first, newest.last, newest.closed) == (40, 70, False)
    # The known LAC may be lower than the start of the last segment. The other segments are
    # complete.
    assert [one.last for one in fragments(open_ledger, 12)] == [39, 39]
    assert fragments(open_ledger, 12)[-1].empty
    assert all(one.closed for one in fragments(ledger(firsts=(0, 40)), 12))
    assert [one.last for one in fragments(ledger(firsts=(0, 40)), 12)] == [39, 99]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (4, 1, 1)])
def test_counts_and_ends_of_a_members_part(quorums: tuple[int, int, int]) -> None:
    metadata = ledger(quorums)
    for index in range(quorums[0]):
        for first in range(7):
            for last in range(first, 19):
                mine = list(stored_by(metadata, index, first, last))
                assert stored_count(metadata, index, first, last) == len(mine)
                if mine:
                    assert next_stored(metadata, index, first) == mine[0]
                    assert last_stored(metadata, index, last) == mine[-1]


def test_a_replaced_member_is_what_java_writes() -> None:
    vector = NAMED["update_rereplicate_first_segment"]
    before = decode(bytes.fromhex(vector["beforeHex"]))
    new = vector["after"]["segments"][0]["ensemble"][1]
    changed = replaced_in(before, 0, {1: ("10.0.0.2:3181", new)})
    assert changed is not None
    after = with_segments(before, [changed])
    assert [list(one.ensemble) for one in after.segments] == [
        one["ensemble"] for one in vector["after"]["segments"]
    ]
    assert replace(after, segments=before.segments) == before


def test_a_member_is_replaced_only_where_it_still_stands() -> None:
    metadata = ledger(firsts=(0, 40))
    changed = replaced_in(metadata, 40, {0: ("a:1", "x:1"), 1: ("gone:1", "y:1")})
    assert changed == Segment(40, ("x:1", "b:1", "c:1"))
    assert replaced_in(metadata, 40, {1: ("gone:1", "y:1")}) is None
    assert replaced_in(metadata, 41, {0: ("a:1", "x:1")}) is None
    assert replaced_in(metadata, 0, {0: ("a:1", "b:1")}) is None  # one bookie twice
    still_open = ledger(firsts=(0, 40), state=LedgerState.OPEN)
    assert replaced_in(still_open, 40, {0: ("a:1", "x:1")}) is None
    assert replaced_in(still_open, 0, {0: ("a:1", "x:1")}) is not None


# -- what is wrong ----------------------------------------------------------------------------


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


def test_the_end_that_an_ack_quorum_has_is_short_and_all_else_is_missing() -> None:
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


def test_what_a_writer_may_still_send_is_not_missing() -> None:
    metadata = ledger(state=LedgerState.OPEN)
    assert judged(metadata, {2: [missing(60, 70)]}, 70) == []
    assert judged(metadata, {1: [missing(65, 70)], 2: [missing(60, 70)]}, 70) == [
        (65, 70, "b:1", Kind.MISSING),
        (65, 70, "c:1", Kind.MISSING),
    ]


def test_ranges_of_a_striped_member_join_over_what_is_not_its_own() -> None:
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


def test_the_majority_is_right_and_without_one_nobody_is() -> None:
    a, b, c = (1, 1, 1), (1, 1, 2), (1, 1, 3)
    assert differing_copies({0: {5: a}, 1: {5: a}, 2: {5: b}}) == {2: [5]}
    assert differing_copies({0: {5: a}, 1: {5: b}}) == {0: [5], 1: [5]}
    assert differing_copies({0: {5: a}, 1: {5: b}, 2: {5: c}}) == {0: [5], 1: [5], 2: [5]}
    assert differing_copies({0: {5: a, 6: a}, 1: {5: a}, 2: {6: a}}) == {}


def test_a_finding_is_a_plain_value() -> None:
    one = Finding(1, 2, 3, "a:1", Kind.SHORT, "why")
    assert (one.kind.value, str(one.kind)) == ("short", "short")
