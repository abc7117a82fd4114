"""Writers that submit one entry per event-loop iteration, so that adds are coalesced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.client.write import flush as turns
from quire.core.append import pipeline as add_pipeline
from quire.core.append.coalesced_adds import CoalescedAdds
from quire.core.append.pipeline import AddPipeline
from quire_simulator import simulate
from quire_simulator.actors import writers
from tests.sim.mutants.mutant import edit
from tests.support.long import long_after

SEEDS = range(1, 5)


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Coalesce adds even where no program would gain from it, and return the confirmed rows."""

    async def batch(self: Any, count: int) -> None:
        first = self.handle.last_add_pushed + 1
        for payload in self.payloads(first, first + count - 1):
            await self.handle.room()
            self.handle.submit(payload)
            await asyncio.sleep(self.chance.random() ** 4 * 0.05)
        if self.chance.random() < 0.4:
            self.accepted(first, await self.handle.flush())

    confirmed: list[int] = []
    acked = CoalescedAdds.acked

    def noted(self: CoalescedAdds, place: int, count: int) -> None:
        before = self.confirmed
        acked(self, place, count)
        confirmed.append(self.confirmed - before)

    monkeypatch.setattr(writers.Plain, "batch", batch)
    monkeypatch.setattr(turns, "COALESCED_ROWS_MIN", 1)
    monkeypatch.setattr(add_pipeline, "PUSHES_ALONE", 0)
    monkeypatch.setattr(CoalescedAdds, "acked", noted)
    return confirmed


@pytest.mark.parametrize("workload", long_after(1, ["fences", "takeover", "resets"]))
def test_the_invariants_hold_for_rows(in_turn: list[int], workload: str) -> None:
    for seed in SEEDS:
        result = simulate(seed, workload)
        assert result.failure is None, result
    assert sum(in_turn) > 0, "no entry was a row"


def test_a_false_acknowledgement_of_a_row_is_found(
    in_turn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(
        monkeypatch,
        AddPipeline,
        "detach",
        ("coalesced.acked_by[place] <= self.row", "coalesced.acked_by[place] < 0"),
    )
    failures = [simulate(seed, "fences").failure for seed in SEEDS]
    assert any(found and found.invariant == "acknowledged_is_on_a_quorum" for found in failures)
