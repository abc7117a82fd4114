"""The simulator's bookies start with index caches of every kind and keep every invariant."""

from __future__ import annotations

import random

import pytest

from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.recovery.log_recovery import LogRecovery, RecoveredLog
from quire.storage.segment.segment import LOG_DIRECTORY
from quire_simulator import simulate
from quire_simulator.faults.index_caches import KEPT_MAX, IndexCaches
from quire_simulator.machine import SimDisk

SEEDS = (103, 106)
WANTED = ("used for", "which the index cache covers, is gone", "does not match its checksum")
"""Their possible outcomes, in words of a start's report."""


@pytest.mark.long
def test_every_kind_of_index_cache_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    run = LogRecovery.run

    def noted(self: LogRecovery) -> RecoveredLog:
        recovered = run(self)
        met.append(recovered.index_cache)
        return recovered

    monkeypatch.setattr(LogRecovery, "run", noted)
    for seed in SEEDS:
        result = simulate(seed, "index")
        assert result.failure is None, (seed, result.failure)
    assert "" in met
    for words in WANTED:
        assert any(words in one for one in met), (words, set(met))


def written(disk: SimDisk, data: bytes) -> None:
    file = disk.create(CACHE_NAME)
    file.write([data], 0)
    file.close()


def held(disk: SimDisk) -> bytes:
    file = disk.open(CACHE_NAME)
    return file.read(0, file.size()) or b""


def test_index_caches_are_lost_restored_and_damaged() -> None:
    disk, caches, chance = SimDisk(random.Random(1), "disk"), IndexCaches(), random.Random(1)
    disk.make_directory(LOG_DIRECTORY)
    caches.look(disk)
    caches.put_back(disk, chance)
    assert not disk.exists(CACHE_NAME)
    for number in range(KEPT_MAX + 1):
        written(disk, b"cache %d" % number)
        caches.look(disk)
        caches.lose(disk)
        assert not disk.exists(CACHE_NAME)
    found = set()
    for _ in range(100):
        caches.put_back(disk, chance)
        disk.crash()  # it is durable
        found.add(held(disk))
    assert found == {b"cache %d" % number for number in range(1, KEPT_MAX + 1)}
    before = held(disk)
    caches.rot(disk, random.Random(2))
    assert held(disk) != before
    disk.capacity_bytes = 0
    with pytest.raises(OSError, match="full"):
        caches.put_back(disk, chance)
    assert not disk.exists(CACHE_NAME)
