"""Hostile clients, and disks that fill at the worst moment: that they really happen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from quire_simulator import simulate
from quire_simulator.faults.hostile import CONNECTIONS, Hostiles
from quire_simulator.faults.nemesis import Nemesis
from quire_simulator.machine.network import SimNetwork
from quire_simulator.machine.transport import SimTransport
from quire_simulator.plans.faults import FULL_KINDS, HOSTILE_KINDS
from quire_simulator.world.world import World

HOSTILE_SEEDS = range(5)
FULL_SEEDS = range(8)


@pytest.mark.long
def test_hostile_clients_reach_the_limits_and_honest_ones_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attacks: Counter[str] = Counter()
    most: list[int] = [0]
    worlds: list[World] = []
    attack, backlogged = Hostiles.attack, SimNetwork.backlogged

    def noted(self: Hostiles, kind: str, *how: Any) -> Any:
        attacks[kind] += 1
        if self._world not in worlds:
            worlds.append(self._world)
        return attack(self, kind, *how)

    def measured(self: SimNetwork, end: SimTransport) -> None:
        backlogged(self, end)
        most[0] = max(most[0], self.backlog_peak[end.host.name])

    monkeypatch.setattr(Hostiles, "attack", noted)
    monkeypatch.setattr(SimNetwork, "backlogged", measured)
    for seed in HOSTILE_SEEDS:
        assert simulate(seed, "hostile").failure is None
    assert set(attacks) == set(HOSTILE_KINDS) == set(CONNECTIONS)
    assert sum(world.hostile_connections for world in worlds) > 100 * len(HOSTILE_SEEDS)
    assert most[0] > 1 << 18, "a bookie had to buffer answers that no client read"


@pytest.mark.long
def test_disks_fill_at_each_moment_in_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    come: Counter[str] = Counter()
    init = Nemesis.__init__

    def noted(self: Nemesis, world: World, *how: Any) -> None:
        init(self, world, *how)
        world.moments_come = come

    monkeypatch.setattr(Nemesis, "__init__", noted)
    for seed in FULL_SEEDS:
        assert simulate(seed, "space").failure is None
        assert simulate(seed, "index").failure is None
        if all(come[kind] for kind in FULL_KINDS):
            break
    print(seed, dict(come))
    assert all(come[kind] for kind in FULL_KINDS)
