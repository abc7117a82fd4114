"""Single files of a log that are lost, exchanged or restored from an older copy."""

from __future__ import annotations

from collections import Counter

import pytest

from quire.bookie.server import Bookie
from quire_simulator import simulate
from quire_simulator.faults.log_files import LogFiles, begun_segments, restore_of
from quire_simulator.machine.disk import SimDisk
from quire_simulator.plans.faults import LOG_FILE_KINDS
from quire_simulator.world.world import World

SEEDS = range(10)


@pytest.mark.long
def test_each_kind_of_fault_happens_in_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: Counter[str] = Counter()
    init = LogFiles.__init__

    def noted(self: LogFiles, world: World, *acts: object) -> None:
        init(self, world, *acts)  # type: ignore[arg-type]
        world.log_files_struck = struck

    monkeypatch.setattr(LogFiles, "__init__", noted)
    for seed in SEEDS:
        assert simulate(seed, "log files").failure is None
        if all(struck[kind] for kind in LOG_FILE_KINDS):
            break
    print(seed, dict(struck))
    assert all(struck[kind] for kind in LOG_FILE_KINDS)
    assert sum(struck.values()) > seed


def test_an_older_copy_of_a_file_has_the_data_synced_at_that_time() -> None:
    world = World.make(0, 1)

    async def scenario() -> None:
        await world.start("bookie-0")
        client = world.client("client")
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"before")
        disk = world.disks["bookie-0"]
        change = restore_of(disk, world.loop.derive("copy"))
        await writer.append(b"after")
        assert writer.ledger_id in _ledgers(world.bookies["bookie-0"])
        world.crash("bookie-0")
        assert change(disk)
        assert not change(disk), "it is as old already"
        await world.start("bookie-0")
        bookie = world.bookies["bookie-0"]
        ranges = await bookie.store.entry_ranges(writer.ledger_id)
        assert ranges == [(0, 0)]
        await client.close()
        await bookie.stop()

    world.loop.run(scenario())


def _ledgers(bookie: Bookie) -> list[int]:
    return list(bookie.store.ledgers)


def test_a_new_disk_has_no_file_to_damage() -> None:
    world = World.make(0, 1)
    disk = world.disks["bookie-0"]
    disk.make_directory("log")
    assert isinstance(disk, SimDisk)
    assert not begun_segments(disk)
    assert not restore_of(disk, world.loop.derive("copy"))(disk)
