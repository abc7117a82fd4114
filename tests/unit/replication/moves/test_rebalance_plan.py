"""The plan of a rebalancing.

It moves the fewest bytes, never puts two replicas of a segment on one bookie, satisfies the
placement, and is the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.replication.moves.rebalance import what_blocks
from quire.replication.moves.rebalance_plan import (
    Blocked,
    BookieContents,
    Ensemble,
    RebalancePlan,
    anywhere,
    make_plan,
    spread_percent,
)

KIB = 1024


def closed(
    *segments: tuple[int, tuple[str, ...]],
    entries: int,
    size: int,
    quorums: tuple[int, int] = (2, 2),
    state: LedgerState = LedgerState.CLOSED,
) -> LedgerMetadata:
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ensemble_size=len(segments[0][1]),
        write_quorum=quorums[0],
        ack_quorum=quorums[1],
        segments=tuple(Segment(first, ensemble) for first, ensemble in segments),
        state=state,
        last_entry_id=entries - 1 if is_closed else -1,
        length=entries * size if is_closed else 0,
    )


def plan(
    ledgers: Mapping[int, LedgerMetadata],
    writable: str,
    *,
    seed: int = 1,
    hosts: Mapping[str, str] | None = None,
    **limits: object,
) -> RebalancePlan:
    stock = BookieContents()
    for ledger_id, metadata in ledgers.items():
        stock.add(ledger_id, metadata)
    return make_plan(
        stock,
        writable.split(),
        random.Random(seed),
        hosts=hosts or {},
        **limits,  # type: ignore[arg-type]
    )


def pairs(count: int, *names: str, size: int = KIB) -> dict[int, LedgerMetadata]:
    return {n: closed((0, names), entries=10, size=size) for n in range(count)}


def test_a_new_bookie_gets_exactly_its_share() -> None:
    found = plan(pairs(30, "a", "b"), "a b c", target_spread_percent=0)
    assert found.before == {"a": 300 * KIB, "b": 300 * KIB, "c": 0}
    assert found.after == {"a": 200 * KIB, "b": 200 * KIB, "c": 200 * KIB}
    assert found.size_bytes == 200 * KIB
    assert {one.target for one in found.moves} == {"c"}
    assert len({one.ledger for one in found.moves}) == len(found.moves)


def test_a_balanced_cluster_needs_no_moves() -> None:
    ledgers = pairs(11, "a", "b") | {99: closed((0, ("c", "d")), entries=10, size=10 * KIB)}
    assert plan(ledgers, "a b c d", target_spread_percent=10).moves == ()
    assert plan({}, "a b c").moves == ()
    assert plan(pairs(3, "a", "b"), "a b").moves == ()


def test_a_plan_respects_the_limit_of_bytes() -> None:
    found = plan(pairs(30, "a", "b"), "a b c", target_spread_percent=0, max_bytes=55 * KIB)
    assert found.size_bytes == 50 * KIB
    assert plan(pairs(30, "a", "b"), "a b c", max_bytes=5 * KIB).moves == ()


def test_a_read_only_bookie_is_neither_source_nor_target() -> None:
    found = plan(pairs(30, "a", "b"), "b c", target_spread_percent=0)
    assert {(one.source, one.target) for one in found.moves} == {("b", "c")}
    assert "a" not in found.before


def test_only_complete_segments_are_moved() -> None:
    two = closed((0, ("a", "b")), (6, ("a", "b")), entries=10, size=KIB)
    moves = plan({1: two}, "a b c", target_spread_percent=0).moves
    assert moves
    assert len({(one.segment_first, one.index) for one in moves}) == len(moves)
    still_written = closed((0, ("a", "b")), entries=10, size=KIB, state=LedgerState.OPEN)
    assert plan({1: still_written}, "a b c", target_spread_percent=0).moves == ()


def test_a_replica_that_is_too_large_to_help_is_not_moved() -> None:
    """The replica would be as unbalanced on the other bookie."""
    one = closed((0, ("a",)), entries=10, size=KIB, quorums=(1, 1))
    found = plan({1: one}, "a b", target_spread_percent=0)
    assert (found.moves, found.blocked, found.too_large) == ((), {}, True)
    assert "because the replicas are too large" in what_blocks(found)
    limited = plan({1: one}, "a b", target_spread_percent=0, max_bytes=KIB)
    assert (limited.moves, limited.too_large) == ((), False)  # the limit may be the reason
    assert what_blocks(limited) == ""


def test_a_large_replica_moves_if_that_relieves_the_fullest_bookie() -> None:
    ledgers = {n: closed((0, ("a",)), entries=1, size=KIB, quorums=(1, 1)) for n in range(3)}
    found = plan(ledgers, "a b", target_spread_percent=0)
    assert len(found.moves) == 1
    assert sorted(found.after.values()) == [KIB, 2 * KIB]


def test_a_plan_does_not_reduce_the_hosts_of_a_segment() -> None:
    hosts = {"a": "x", "b": "y", "c": "y"}
    found = plan(pairs(30, "a", "b"), "a b c", hosts=hosts, target_spread_percent=0)
    assert found.moves
    assert {one.source for one in found.moves} == {"b"}  # "a" is the only one on its host


def test_a_plan_contains_no_move_that_the_placement_forbids() -> None:
    def allowed(ensemble: Ensemble, write_quorum: int, ack_quorum: int) -> bool:
        assert (write_quorum, ack_quorum) == (2, 2)
        return "c" not in ensemble or "a" in ensemble

    found = plan(pairs(30, "a", "b"), "a b c", allowed=allowed, target_spread_percent=0)
    assert {one.source for one in found.moves} == {"b"}


def test_a_segment_that_already_violates_the_placement_may_be_moved() -> None:
    found = plan(pairs(30, "a", "b"), "a b c", allowed=lambda *of: False, target_spread_percent=0)
    assert found.moves


def test_a_plan_names_the_rule_that_ends_it() -> None:
    ledgers = pairs(30, "a", "b") | {99: closed((0, ("a", "b")), entries=10, size=99 * KIB)}
    found = plan(ledgers, "a b", target_spread_percent=0)
    assert (found.moves, found.blocked) == ((), {})  # they are balanced
    assert what_blocks(found) == ""
    uneven = pairs(30, "a", "b") | {
        100 + n: closed((0, ("a",)), entries=1, size=100 * KIB, quorums=(1, 1)) for n in range(1)
    }
    found = plan(uneven, "a b", target_spread_percent=0)
    assert found.moves == ()
    assert set(found.blocked) == {Blocked.MEMBER}
    assert "replicas of the same segments already" in what_blocks(found)
    hosts = {"a": "x", "b": "y", "c": "y", "d": "x"}
    found = plan(pairs(4, "a", "c"), "a b", hosts=hosts, target_spread_percent=0)
    assert found.moves == ()
    assert set(found.blocked) == {Blocked.HOST}

    def allowed(ensemble: Ensemble, *quorums: int) -> bool:
        return "c" not in ensemble

    found = plan(pairs(30, "a", "b"), "a b c", allowed=allowed, target_spread_percent=0)
    assert found.moves == ()
    assert set(found.blocked) == {Blocked.PLACEMENT}
    assert what_blocks(found).endswith("because the placement policy forbids it")
    limited = plan(pairs(30, "a", "b"), "a b c", target_spread_percent=0, max_bytes=5 * KIB)
    assert (limited.moves, limited.blocked) == ((), {})


def test_the_same_seed_gives_the_same_plan() -> None:
    ledgers = pairs(40, "a", "b", "d")
    assert plan(ledgers, "a b c d", seed=5) == plan(ledgers, "a b c d", seed=5)
    assert plan(ledgers, "a b c d", seed=5) != plan(ledgers, "a b c d", seed=6)


def test_the_spread_is_computed_in_percent() -> None:
    assert spread_percent([]) == spread_percent([0, 0]) == 0
    assert spread_percent([50, 150]) == 100
    assert anywhere(("a",), 1, 1)


NAMES = "abcdef"


@st.composite
def clusters(draw: st.DrawFn) -> dict[int, LedgerMetadata]:
    ledgers = {}
    for ledger_id in range(draw(st.integers(0, 25))):
        size = draw(st.integers(1, 4))
        quorum = draw(st.integers(1, size))
        entries = draw(st.integers(1, 40))
        starts = sorted({0, *draw(st.lists(st.integers(1, entries), max_size=2))})
        segments = [
            (first, tuple(draw(st.permutations(NAMES))[:size])) for first in starts
        ]  # fmt: skip
        ledgers[ledger_id] = closed(
            *segments, entries=entries, size=draw(st.integers(1, 500)), quorums=(quorum, quorum)
        )
    return ledgers


@settings(max_examples=60, deadline=None)
@given(clusters(), st.integers(0, 3))
def test_every_plan_is_executable_and_does_not_increase_the_spread(
    ledgers: dict[int, LedgerMetadata], seed: int
) -> None:
    found = plan(ledgers, "a b c d e f", seed=seed, target_spread_percent=5)
    used = dict(found.before)
    ensembles = {
        (ledger_id, segment.first_entry_id): list(segment.ensemble)
        for ledger_id, metadata in ledgers.items()
        for segment in metadata.segments
    }
    for one in found.moves:
        ensemble = ensembles[one.ledger, one.segment_first]
        assert ensemble[one.index] == one.source
        ensemble[one.index] = one.target
        assert len(set(ensemble)) == len(ensemble)
        fuller = max(used[one.source], used[one.target])
        used[one.source] -= one.size_bytes
        used[one.target] += one.size_bytes
        assert max(used[one.source], used[one.target]) < fuller
    assert used == found.after
    assert sum(found.after.values()) == sum(found.before.values())
    if found.moves:
        assert max(found.after.values()) <= max(found.before.values())


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 1, 2, 2)])
def test_no_byte_is_moved_through_a_third_bookie(sizes: tuple[int, ...]) -> None:
    """Only the excess over the mean is moved, if pieces are small enough."""
    names = "abcd"
    ledgers = {}
    for at, size in enumerate(sizes):
        for n in range(40):
            ledgers[at * 100 + n] = closed(
                (0, (names[at],)), entries=1, size=size * 100, quorums=(1, 1)
            )
    found = plan(ledgers, "a b c d e", target_spread_percent=0)
    mean = sum(found.before.values()) / 5
    above = sum(max(size - mean, 0) for size in found.before.values())
    assert found.size_bytes <= above + 3 * 100
    assert found.spread_after < 10
