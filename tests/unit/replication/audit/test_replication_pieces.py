"""How an audit is divided into pieces with a limited size."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.core.fragments import fragments, stored_count
from quire.core.replicas import BLOCK_ENTRIES
from quire.replication import Budget
from quire.replication.audit.pieces import PlannedLedger, parts, pieces
from quire_simulator.machine.loop import SimulatedLoop

BOOKIES = tuple("abcdef")


def planned(
    ledger: int, last: int, quorums: tuple[int, int, int] = (3, 3, 2), size: int = 1_000
) -> PlannedLedger:
    ensemble_size, write, ack = quorums
    middle = last // 3
    segments = [Segment(0, BOOKIES[:ensemble_size])]
    if middle > 0:
        segments.append(Segment(middle, BOOKIES[1 : ensemble_size + 1]))
    metadata = LedgerMetadata(
        ensemble_size, write, ack, tuple(segments),
        state=LedgerState.CLOSED, last_entry_id=last, length=(last + 1) * size,
    )  # fmt: skip
    return PlannedLedger(ledger, metadata, last, tuple(fragments(metadata, last)))


def test_a_planned_ledger_survives_json() -> None:
    one = planned(7, 10_000, (4, 3, 2))
    again = PlannedLedger.from_json(json.loads(json.dumps(one.as_json())))
    assert again.fragments == one.fragments
    assert (again.ledger, again.last) == (7, 10_000)
    assert again.metadata.segments == one.metadata.segments
    assert again.metadata.length == one.metadata.length


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2)])
def test_parts_cover_each_replica_once_and_end_at_block_boundaries(
    quorums: tuple[int, int, int],
) -> None:
    ledgers = [planned(1, 50_000, quorums), planned(2, -1, quorums), planned(3, 5, quorums)]
    found = parts(ledgers, 10_000_000)
    read: Counter[int] = Counter()
    for bookie, todo in found.items():
        for (ledger, segment, index, first, last), size in todo:
            (one,) = [one for one in ledgers if one.ledger == ledger]
            (fragment,) = [f for f in one.fragments if f.segment_first == segment]
            assert fragment.ensemble[index] == bookie
            assert fragment.first <= first <= last <= fragment.last
            assert first == fragment.first or first % BLOCK_ENTRIES == 0
            assert last == fragment.last or (last + 1) % BLOCK_ENTRIES == 0
            count = stored_count(one.metadata, index, first, last)
            assert size == pytest.approx(count * 1_000, abs=1)
            assert size <= 10_000_000
            read[ledger] += count
    assert read == {1: 50_001 * quorums[1], 3: 6 * quorums[1]}


def test_with_a_rate_no_bookie_is_read_by_two_tasks_at_once() -> None:
    by_bookie = parts([planned(n, 20_000) for n in range(5)], 5_000_000)
    (turn,) = pieces(by_bookie, 5_000_000, None)
    turns = pieces(by_bookie, 5_000_000, 1e6)
    assert len(turns) > 1
    for one in turns:
        bookies = [piece["bookie"] for piece in one]
        assert len(set(bookies)) == len(bookies)
        assert all(piece["rate"] == 1e6 for piece in one)
    assert [piece["parts"] for one in turns for piece in one] == [piece["parts"] for piece in turn]
    # Without one, neighbours are of different bookies as long as there are several.
    first = [piece["bookie"] for piece in turn[: len(by_bookie)]]
    assert len(set(first)) == len(by_bookie)


def test_a_budget_limits_the_rate_over_any_period() -> None:
    loop = SimulatedLoop(1)
    taken: list[tuple[float, int]] = []

    async def take() -> None:
        budget = Budget(1_000.0)
        for size in (500, 10, 2_000, 700, 1):
            await budget.take(size)
            taken.append((loop.time(), size))

    began = loop.time()
    loop.run(take())
    total = 0
    for at, size in taken:
        total += size
        assert total <= 1_000 * (at - began + 0.1) + 1e-6
    assert not Budget(None).bounded
