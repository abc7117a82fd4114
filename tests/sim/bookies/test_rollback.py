"""Bookies whose data directory went back in time.

An older copy was restored, or its newest files were deleted. Such a bookie must not deny what it
has acknowledged, and autorecovery repairs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from quire.bookie.directories import identity
from quire.bookie.directories.rollback import Rollbacks
from quire.client.write.writer import LedgerWriter
from quire.codec.entry.digest import master_key
from quire.codec.wire.v2 import Code
from quire.config import BookieConfig
from quire.errors import QuireError
from quire.metadata.bookies.directories import directories_path, forget_bookie
from quire.metadata.bookies.nodes import delete_node
from quire.storage.recovery.incarnation import ExpectedLog
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from quire.storage.store import LedgerStore
from quire_simulator.machine.disk import PowerLossError, SimDisk
from quire_simulator.world.world import World, bookie_id
from tests.sim.mutants.mutant import edit
from tests.support.sim.rollback import CONFIG, answer_of, healed, payload, recovered_end
from tests.support.waiting import until

VICTIM = "bookie-1"
KEY = master_key(b"")
Scenario = Callable[[World], Coroutine[Any, Any, None]]


async def start_all(world: World, config: BookieConfig = CONFIG) -> None:
    for name in world.disks:
        await world.start(name, config)


async def write(writer: LedgerWriter, count: int) -> None:
    first = writer.last_add_confirmed + 1
    await writer.append_many([payload(n) for n in range(first, first + count)])


async def create(world: World, name: str) -> LedgerWriter:
    client = world.client(name)
    return await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)


async def counts_as_lost(world: World, ledger_id: int, lost: int | None = None) -> None:
    """Check that it denies nothing, and accepts nothing that a fence might forbid."""
    bookie = world.bookies[VICTIM]
    assert bookie.rollbacks is not None
    assert bookie.rollbacks.found == 1
    if lost is not None:
        assert await answer_of(world, VICTIM, ledger_id, lost) == Code.UNKNOWN_LEDGER_STATE
    assert await answer_of(world, VICTIM, 77, 0) == Code.UNKNOWN_LEDGER_STATE
    assert bookie.service.may_add(ledger_id, KEY, 0) == Code.READ_ONLY
    assert not bookie.writable


async def check_whole(world: World, ledger_id: int, end: int) -> None:
    """Check that every entry can be read, and that every bookie has its entries."""
    client = world.client("reader")
    reader = await client.open_ledger(ledger_id)
    found = [entry async for entry in reader.read(0, end)]
    assert [bytes(one.payload) for one in found] == [payload(n) for n in range(end + 1)]
    await client.close()
    for name, bookie in world.bookies.items():
        for entry_id in range(end + 1):
            assert await answer_of(world, name, ledger_id, entry_id) == Code.OK, (name, entry_id)
        assert not bookie.store.negatives_unknown


async def finish(world: World) -> None:
    for bookie in list(world.bookies.values()):
        await bookie.stop()


def play(scenario: Scenario, seed: int = 0) -> None:
    world = World.make(seed, 3)
    world.loop.run(scenario(world))


# -- an older copy is restored ------------------------------------------------------------------


async def an_older_copy(world: World) -> None:
    await start_all(world)
    writer = await create(world, "writer")
    await write(writer, 10)
    await world.stop(VICTIM)
    backup = world.disks[VICTIM].copy()
    await world.start(VICTIM, CONFIG)
    # Bookies 0 and 1 acknowledge, while bookie 2 hangs.
    world.network.partition("writer", "bookie-2")
    await write(writer, 190)
    assert writer.last_add_confirmed == 199
    world.network.kill("writer")
    world.kill("bookie-2")  # Including the requests that waited on its connections.
    world.network.heal("writer")
    await world.start("bookie-2", CONFIG)
    await world.stop(VICTIM)
    world.disks[VICTIM] = backup
    await world.start(VICTIM, CONFIG)
    world.kill("bookie-0")
    assert await recovered_end(world, writer.ledger_id, "hasty") is None
    assert await answer_of(world, VICTIM, writer.ledger_id, 9) == Code.OK
    await counts_as_lost(world, writer.ledger_id, 199)
    await world.start("bookie-0", CONFIG)
    assert await recovered_end(world, writer.ledger_id, "patient") == 199
    await healed(world, VICTIM)
    await check_whole(world, writer.ledger_id, 199)
    # And once it is whole it stays so, over a start of any kind.
    for end in (world.stop, world.kill):
        if (ended := end(VICTIM)) is not None:
            await ended
        await world.start(VICTIM, CONFIG)
        assert not world.bookies[VICTIM].store.negatives_unknown
    await finish(world)


def test_an_older_copy_of_a_disk_denies_no_later_entry() -> None:
    play(an_older_copy)


# -- the newest files are deleted ---------------------------------------------------------------


def numbers(disk: SimDisk) -> list[int]:
    return [int(one[:16], 16) for one in disk.list(LOG_DIRECTORY) if one.endswith(".seg")]


async def newest_files_deleted(world: World) -> None:
    """The newest segment and both preallocated files, in the moment in which it was begun."""
    await start_all(world)
    writer = await create(world, "writer")
    await write(writer, 10)
    store = world.bookies[VICTIM].store
    entry = b"x" * 8_000

    def current() -> int:
        return max(one.number for one in store.usage())

    for _ in range(2):  # So that the second segment begins some time after the first.
        before = current()
        while current() == before:
            await writer.append(entry)
        await asyncio.sleep(2.0)
    before = current()
    while current() == before:
        await writer.append(entry)
    acknowledged = writer.last_add_confirmed
    world.network.kill("writer")
    world.kill(VICTIM)
    disk = world.disks[VICTIM]
    for number in numbers(disk):
        if number > before:
            disk.remove(segment_name(number))
    await world.start(VICTIM, CONFIG)
    await counts_as_lost(world, writer.ledger_id, acknowledged)
    world.kill("bookie-0")
    end = await recovered_end(world, writer.ledger_id, "hasty")
    assert end is None or end >= acknowledged
    await world.start("bookie-0", CONFIG)
    end = await recovered_end(world, writer.ledger_id, "patient")
    assert end is not None
    assert end >= acknowledged
    await healed(world, VICTIM)
    for name in world.bookies:
        for entry_id in range(end + 1):
            assert await answer_of(world, name, writer.ledger_id, entry_id) == Code.OK
    await finish(world)


def test_missing_newest_and_preallocated_segments_are_noticed() -> None:
    play(newest_files_deleted)


# -- the cookie is removed, and the disk is empty -----------------------------------------------


async def empty_disk_without_a_cookie(world: World, *, earlier_version: bool) -> None:
    await start_all(world)
    writers = []
    for number in range(24):
        client = world.client(f"writer-{number}")
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await write(writer, 1 + number % 7)
        writers.append(writer)
    for number in range(24):
        world.network.kill(f"writer-{number}")
    world.kill(VICTIM)
    old = world.disks[VICTIM]
    world.disks[VICTIM] = old.holding({"": None})
    store = world.metadata_store("operator")
    await store.delete_cookie(bookie_id(VICTIM))
    if earlier_version:
        await delete_node(store, directories_path(store.uri, bookie_id(VICTIM)))
    await world.start(VICTIM, CONFIG)
    for writer in writers:
        end = await recovered_end(world, writer.ledger_id, f"recoverer-{writer.ledger_id}")
        assert end == writer.last_add_confirmed
    await counts_as_lost(world, writers[0].ledger_id)
    await healed(world, VICTIM)
    for writer in writers:
        await check_whole(world, writer.ledger_id, writer.last_add_confirmed)
    await world.stop(VICTIM)
    await world.start(VICTIM, CONFIG)
    assert not world.bookies[VICTIM].store.negatives_unknown
    await finish(world)


@pytest.mark.parametrize("earlier_version", [False, True])
def test_an_empty_disk_under_a_known_id_counts_as_lost(earlier_version: bool) -> None:
    play(partial(empty_disk_without_a_cookie, earlier_version=earlier_version))


async def a_new_bookie_where_one_was_unused(world: World) -> None:
    """A bookie with no ledgers and no record is replaced by a new bookie of the same id."""
    await start_all(world)
    await world.stop(VICTIM)
    world.disks[VICTIM] = world.disks[VICTIM].holding({"": None})
    store = world.metadata_store("operator")
    await store.delete_cookie(bookie_id(VICTIM))
    await forget_bookie(store, bookie_id(VICTIM))
    await world.start(VICTIM, CONFIG)
    assert world.bookies[VICTIM].writable
    assert await answer_of(world, VICTIM, 77, 0) == Code.NO_LEDGER
    await finish(world)


def test_the_log_record_of_an_unused_bookie_is_forgotten() -> None:
    play(a_new_bookie_where_one_was_unused)


# -- starts that do not come to their end -------------------------------------------------------

OPERATIONS_MAX = 100
"""Changes of the disk in one start; there are fewer."""


async def start_that_crashes(world: World, operations: int) -> bool:
    """Start the victim and lose power in place of this operation. Return False if it had fewer."""
    crashed = False

    def then() -> None:
        nonlocal crashed
        crashed = True

    disk = world.disks[VICTIM]
    disk.crash_after(operations, then)
    try:
        await world.start(VICTIM, CONFIG)
    except (PowerLossError, QuireError):
        pass
    if not crashed:
        disk.kill()
    if VICTIM in world.bookies:
        world.crash(VICTIM)
    return crashed


async def crashes_while_it_starts(world: World) -> None:
    """A crash between the writes to directory and store never looks like an old directory."""
    await start_all(world)
    writer = await create(world, "writer")
    await write(writer, 10)
    world.crash(VICTIM)
    operations = 1
    while await start_that_crashes(world, operations):
        operations += 1
        assert operations < OPERATIONS_MAX
        await world.start(VICTIM, CONFIG)
        bookie = world.bookies[VICTIM]
        assert bookie.rollbacks is not None
        assert (bookie.rollbacks.found, bookie.store.negatives_unknown) == (0, False)
        world.crash(VICTIM)
    assert operations > 10
    await finish(world)


async def crashes_while_a_lost_one_starts(world: World) -> None:
    """A loss that was found once is not forgotten."""
    await start_all(world)
    writer = await create(world, "writer")
    await write(writer, 10)
    await world.stop(VICTIM)
    backup = world.disks[VICTIM].copy()
    await world.start(VICTIM, CONFIG)
    await write(writer, 100)
    await world.stop(VICTIM)
    operations, crashed = 0, True
    while crashed:
        operations += 1
        assert operations < OPERATIONS_MAX
        world.disks[VICTIM] = backup.copy()
        crashed = await start_that_crashes(world, operations)
        await world.start(VICTIM, CONFIG)
        assert world.bookies[VICTIM].store.negatives_unknown
        assert await answer_of(world, VICTIM, 77, 0) == Code.UNKNOWN_LEDGER_STATE
        world.crash(VICTIM)
    await finish(world)


@pytest.mark.parametrize("scenario", [crashes_while_it_starts, crashes_while_a_lost_one_starts])
def test_a_start_survives_a_power_loss_at_every_operation(scenario: Scenario) -> None:
    play(scenario)


async def a_full_disk(world: World) -> None:
    """A bookie starts on it all the same, and an older copy is still noticed."""
    await start_all(world)
    writer = await create(world, "writer")
    await write(writer, 10)
    await world.stop(VICTIM)
    backup = world.disks[VICTIM].copy()
    for _ in range(2):
        disk = world.disks[VICTIM]
        disk.capacity_bytes -= disk.free_bytes()
        await world.start(VICTIM, CONFIG)
        bookie = world.bookies[VICTIM]
        assert bookie.rollbacks is not None
        assert (bookie.rollbacks.found, bookie.store.negatives_unknown) == (0, False)
        await world.stop(VICTIM)
    assert any("incarnation_not_written" in line for line in world.trace.lines())
    world.disks[VICTIM] = backup
    await world.start(VICTIM, CONFIG)
    await counts_as_lost(world, writer.ledger_id)
    await finish(world)


def test_a_bookie_starts_on_a_full_disk() -> None:
    play(a_full_disk)


async def a_store_that_is_away(world: World) -> None:
    """Reports fail, adds continue, and the store knows everything soon after it is back."""
    await start_all(world)
    writer = await create(world, "writer")
    rollbacks = world.bookies[VICTIM].rollbacks
    assert rollbacks is not None
    await until(lambda: not rollbacks.unreported_s, "all is reported", limit_s=60.0)
    world.metadata_failures = 1.0
    for _ in range(4):
        await write(writer, 100)
        await asyncio.sleep(10.0)
    assert rollbacks.unreported_s > 20.0
    world.metadata_failures = 0.0
    await until(lambda: not rollbacks.unreported_s, "all is reported", limit_s=60.0)
    told = [line for line in world.trace.lines() if "log_position" in line and VICTIM in line]
    assert [("not_reported" in line) for line in told] == [True, False]
    world.crash(VICTIM)
    await world.start(VICTIM, CONFIG)
    assert not world.bookies[VICTIM].store.negatives_unknown
    await finish(world)


def test_an_unreachable_metadata_store_stops_no_adds() -> None:
    play(a_store_that_is_away)


# -- defects that the scenarios must notice -----------------------------------------------------


def no_log_is_held_against_its_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExpectedLog, "held_against", lambda expected, found: "")


def an_empty_disk_begins_as_a_new_one(patch: pytest.MonkeyPatch) -> None:
    edit(patch, identity, "make_known", ("if lost:", "if False:"))


def prepared_files_are_not_reported(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerStore, "positions",
         ("max(current.number, self._preallocated.prepared_number)", "current.number"))  # fmt: skip


def only_starts_are_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Rollbacks, "report", ("if not moved", "if True"))


@pytest.mark.parametrize(
    ("defect", "scenario", "says"),
    [
        (no_log_is_held_against_its_mark, an_older_copy, "assert 9 is None"),
        (no_log_is_held_against_its_mark, newest_files_deleted, "0 == 1"),
        (prepared_files_are_not_reported, newest_files_deleted, "0 == 1"),
        (only_starts_are_counted, newest_files_deleted, "0 == 1"),
        (
            an_empty_disk_begins_as_a_new_one,
            partial(empty_disk_without_a_cookie, earlier_version=False),
            "assert ",
        ),
    ],
)
def test_a_defect_is_noticed(
    defect: Callable[[pytest.MonkeyPatch], None],
    scenario: Scenario,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError) as noticed:
        play(scenario)
    print(f"{noticed.value!r:.300}")
    assert says in str(noticed.value)
