"""The auditor's checks of one ledger: which bookies lack entries of it, and which are silent."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from quire.client import Client
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.core.fragments import last_stored, next_stored
from quire.errors import BookieUnavailableError, NoSuchEntryError
from quire.metadata.interface import Versioned
from quire.replication.autorecovery.auditor import LackingReplicas, check_ends, check_replicas
from quire.replication.explain.explain import _Look
from quire.replication.repair.opened_ledger import OpenedLedger
from quire_simulator.world.world import World, bookie_id

ALL = [bookie_id(f"bookie-{n}") for n in range(3)]


def scene(play: Callable[[World, Client], Awaitable[None]]) -> None:
    world = World.make(1, 3)

    async def main() -> None:
        for name in world.disks:
            await world.start(name)
        async with world.client("auditor") as client:
            await play(world, client)
        for name in list(world.bookies):
            await world.stop(name)

    world.loop.run(main())


async def ledger(client: Client, entries: int, *, closed: bool = True) -> int:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    for number in range(entries):
        await writer.append(b"%d" % number)
    if closed:
        await writer.close()
    else:
        writer.abandon()
    return writer.ledger_id


async def longer(client: Client, ledger_id: int, end: int) -> None:
    """Store metadata that promise more entries than the bookies have."""
    stored = await client.metadata.read_ledger(ledger_id)
    changed = replace(stored.value, last_entry_id=end)
    await client.metadata.write_ledger(ledger_id, changed, stored.version)


async def ends(client: Client, ledger_id: int, percent: float = 0.0) -> LackingReplicas:
    return await check_ends(client, ledger_id, ALL, random.Random(1), percent)


def test_a_complete_ledger_lacks_no_replica() -> None:
    async def play(world: World, client: Client) -> None:
        for entries in (0, 1, 5):
            ledger_id = await ledger(client, entries)
            assert await ends(client, ledger_id, 100.0) == LackingReplicas()
            assert await check_replicas(client, ledger_id, ALL) == LackingReplicas()

    scene(play)


def test_no_bookie_is_asked_about_segments_without_entries() -> None:
    async def play(world: World, client: Client) -> None:
        asked: list[str] = []

        async def listed(bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
            asked.append(bookie_id)
            return []

        client.list_entries = listed  # type: ignore[method-assign]
        for ledger_id in (await ledger(client, 0), await ledger(client, 3, closed=False)):
            assert await check_replicas(client, ledger_id, ALL) == LackingReplicas()
        assert asked == []

    scene(play)


def test_missing_entries_are_found_and_counted() -> None:
    async def play(world: World, client: Client) -> None:
        ledger_id = await ledger(client, 3)
        await longer(client, ledger_id, 4)
        found = await ends(client, ledger_id)
        assert (sorted(found.bookies), found.silent, found.entries) == (ALL, (), 0)
        found = await check_replicas(client, ledger_id, ALL)
        assert (sorted(found.bookies), found.entries) == (ALL, 6)
        # Only registered bookies are asked.
        found = await check_replicas(client, ledger_id, ALL[:1])
        assert (found.bookies, found.entries) == ((ALL[0],), 2)
        found = await check_ends(client, ledger_id, ALL[:1], random.Random(1))
        assert found.bookies == (ALL[0],)

    scene(play)


def test_entries_that_may_still_be_written_are_not_missing() -> None:
    async def play(world: World, client: Client) -> None:
        ledger_id = await ledger(client, 3, closed=False)
        stored = await client.metadata.read_ledger(ledger_id)
        assert stored.value.state is LedgerState.OPEN
        assert await ends(client, ledger_id) == LackingReplicas()
        assert await check_replicas(client, ledger_id, ALL) == LackingReplicas()
        # A later ensemble closes the first part, which promises an entry that no bookie has.
        segments = (*stored.value.segments, Segment(4, tuple(reversed(ALL))))
        changed = replace(stored.value, segments=segments)
        await client.metadata.write_ledger(ledger_id, changed, stored.version)
        assert sorted((await ends(client, ledger_id)).bookies) == ALL
        found = await check_replicas(client, ledger_id, ALL)
        assert (sorted(found.bookies), found.entries) == (ALL, 3)

    scene(play)


def test_a_deleted_ledger_lacks_no_replica() -> None:
    async def play(world: World, client: Client) -> None:
        ledger_id = await ledger(client, 3)
        await client.delete_ledger(ledger_id)
        assert await ends(client, ledger_id) == LackingReplicas()
        assert await check_replicas(client, ledger_id, ALL) == LackingReplicas()

    scene(play)


@pytest.mark.parametrize("shape", [(3, 3), (3, 2)], ids=["plain", "striped"])
def test_entries_of_one_segment_do_not_make_up_for_missing_ones_of_another(
    shape: tuple[int, int],
) -> None:
    """One member has all of the first segment only, one of the second, and one of both."""
    size, write_quorum = shape
    metadata = LedgerMetadata(
        ensemble_size=size, write_quorum=write_quorum, ack_quorum=2,
        segments=(Segment(0, tuple(ALL)), Segment(60, tuple(ALL)), Segment(90, tuple(ALL))),
    ).with_close(119, 1)  # fmt: skip
    lists = {ALL[0]: [(0, 59), (90, 119)], ALL[1]: [(60, 119)], ALL[2]: [(0, 119)]}

    async def play(world: World, client: Client) -> None:
        ledger_id, _ = await client.metadata.create_ledger(metadata)

        async def listed(bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
            return lists[bookie_id]

        client.list_entries = listed  # type: ignore[method-assign]
        found = await check_replicas(client, ledger_id, ALL)
        assert sorted(found.bookies) == ALL[:2]
        assert found.entries == (30 + 60) * write_quorum // size

    scene(play)


def test_a_silent_bookie_is_not_reported_as_lacking_entries() -> None:
    async def play(world: World, client: Client) -> None:
        ledger_id = await ledger(client, 3)
        world.crash("bookie-1")
        found = await ends(client, ledger_id)
        assert (found.bookies, found.silent) == ((), (ALL[1],))
        assert await check_replicas(client, ledger_id, ALL) == LackingReplicas()
        await world.start("bookie-1")

    scene(play)


def test_a_bookie_without_the_ledger_lacks_all_of_its_entries() -> None:
    async def play(world: World, client: Client) -> None:
        ledger_id = await ledger(client, 3)
        asked: list[str] = []

        async def listed(bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
            asked.append(bookie_id)
            if bookie_id == ALL[0]:
                raise NoSuchEntryError("it has none", ledger_id=ledger_id, entry_id=0)
            if bookie_id == ALL[1]:
                raise BookieUnavailableError("it is away")
            return [(0, 0), (2, 9)]

        client.list_entries = listed  # type: ignore[method-assign]
        found = await check_replicas(client, ledger_id, ALL)
        assert dict(zip(sorted(found.bookies), (3, 1))) == {ALL[0]: 3, ALL[2]: 1}
        assert found.entries == 4
        assert sorted(asked) == ALL

    scene(play)


@pytest.mark.parametrize(
    ("shape", "missing"),
    [((3, 3, 2), [(11, 18)]), ((3, 2, 2), [(12, 18)])],
    ids=["plain", "striped"],
)
def test_missing_entries_of_a_very_long_ledger_are_found_quickly(
    shape: tuple[int, int, int], missing: list[tuple[int, int]]
) -> None:
    """It once took time and memory for each entry, in which the process did nothing else."""
    end = 2**40
    metadata = LedgerMetadata(*shape, (Segment(0, tuple(ALL)),)).with_close(end, end)

    async def play(world: World, client: Client) -> None:
        codec = EntryCodec(7, DigestType.CRC32C, b"")
        ledger = OpenedLedger(7, Versioned(metadata, 0), b"", codec, end)
        look = _Look(client, ledger, ALL[1])
        (fragment,) = ledger.fragments()
        found = list(look._missing(fragment, 1, [(0, 10), (19, end + 5)]))
        assert [(one.first, one.last) for one in found] == missing
        assert list(look._missing(fragment, 1, [(0, end)])) == []
        (whole,) = look._missing(fragment, 1, [])
        assert (whole.first, whole.last) == (
            next_stored(metadata, 1, 0),
            last_stored(metadata, 1, end),
        )

    scene(play)
