"""Tails whose news are always overdue ask two bookies at a time and read ahead."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from quire.client.read import tail
from quire.client.read.tail import LedgerTail
from quire.codec.entry.entry import EntryRun
from quire_simulator import RunPlan, run_plan


@pytest.mark.parametrize("seed", [1, 3])
def test_tails_that_ask_two_bookies_keep_the_invariants(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    met = Counter[str]()
    ask, hold, asked = LedgerTail._ask, LedgerTail._hold, Counter[LedgerTail]()

    async def counted(self: LedgerTail, bookie: str) -> bool:
        asked[self] += 1
        met["two are asked"] += asked[self] == 2
        try:
            return await ask(self, bookie)
        finally:
            asked[self] -= 1

    def noted(self: LedgerTail, run: EntryRun) -> None:
        met["both bring an entry"] += run.first < self._unheld
        hold(self, run)

    monkeypatch.setattr(tail, "OVERDUE_GAPS", 0)
    monkeypatch.setattr(LedgerTail, "_ask", counted)
    monkeypatch.setattr(LedgerTail, "_hold", noted)
    plan = replace(RunPlan.make(seed, "tail"), knobs=())  # a knob may ask one bookie only
    assert run_plan(plan).failure is None
    assert met["two are asked"] > 10
    assert met["both bring an entry"]
