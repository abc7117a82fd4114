"""The faults of metadata, clients and autorecovery really happen in the workloads made for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from quire_simulator import simulate
from quire_simulator.actors import holders
from quire_simulator.faults.older_metadata import OlderMetadata
from quire_simulator.faults.unreadable import UnreadableItems
from quire_simulator.invariants.recreated import RecreatedLedgers
from quire_simulator.plans.faults import UNREADABLE_KINDS
from quire_simulator.world.stage import Stage

SEEDS = range(4)
MOVING_SEEDS = range(2)


def made(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[Any]:
    """Return a list that will contain every object of this class."""
    objects: list[Any] = []
    begin: Callable[..., None] = kind.__init__  # type: ignore[misc]

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        objects.append(self)

    monkeypatch.setattr(kind, "__init__", noted)
    return objects


def run(workload: str, seeds: range = SEEDS) -> None:
    for seed in seeds:
        result = simulate(seed, workload)
        assert result.failure is None, (seed, result.failure)


@pytest.mark.long
def test_unreadable_items_of_every_kind_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    met = made(monkeypatch, UnreadableItems)
    lasting: list[int] = []
    mend = UnreadableItems.mend

    def noted(self: UnreadableItems) -> None:
        lasting.append(self.lasting)
        mend(self)

    monkeypatch.setattr(UnreadableItems, "mend", noted)
    run("unreadable")
    struck = sum((Counter(one.struck) for one in met), Counter())
    assert set(struck) == set(UNREADABLE_KINDS)
    assert max(lasting) > 0, "some are judged by what works beside them"


@pytest.mark.long
def test_the_store_is_rolled_back_while_bookies_have_newer_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = made(monkeypatch, OlderMetadata)
    run("older metadata")
    assert sum(one.restored for one in met) >= 2
    assert sum(one.newer for one in met) >= 2


@pytest.mark.long
def test_ledgers_are_recreated_in_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    met = made(monkeypatch, RecreatedLedgers)
    run("recreated")
    assert sum(one.count for one in met) >= 2


@pytest.mark.long
def test_calls_are_cancelled_in_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    met = made(monkeypatch, Stage)
    run("cancelled")
    assert sum(one.calls_cancelled for one in met) >= 50


@pytest.mark.long
def test_all_first_bookies_leave_under_long_lived_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[bool] = []
    read_on = holders._read_on

    async def noted(stage: Stage, name: str, reader: Any) -> None:
        known = {bookie for one in reader.metadata.segments for bookie in one.ensemble}
        there = {bookie for bookie in known if bookie in stage.world.cluster.presences}
        moved.append(not there)
        await read_on(stage, name, reader)

    monkeypatch.setattr(holders, "_read_on", noted)
    run("moving", MOVING_SEEDS)
    assert any(moved), "a handle knows only bookies that are gone"
