"""The auditor's checks of one ledger: which bookies lack entries of it, and which are silent."""

from __future__ import annotations

import random
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.client import Client
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire.availability import EntryRanges, decode_availability
from quire.core.fragments import last_stored, next_stored, stored_by, unlisted
from quire.errors import BookieUnavailableError, NoSuchEntryError
from quire.metadata.interface import Versioned
from quire.replication.autorecovery.auditor import LackingReplicas, check_ends, check_replicas
from quire.replication.explain.explain import GAPS_MAX, MANY_NOT_LISTED, NOT_LISTED, _Look
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
        found = await check_replicas(client, ledger_id, ALL)
        assert found == LackingReplicas(uncompared=(ALL[1],))
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
        assert (found.entries, found.uncompared) == (4, (ALL[1],))
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
        found = await look._missing(fragment, 1, [(0, 10), (19, end + 5)])
        assert [(one.first, one.last) for one in found] == missing
        assert await look._missing(fragment, 1, [(0, end)]) == []
        (whole,) = await look._missing(fragment, 1, [])
        assert (whole.first, whole.last) == (
            next_stored(metadata, 1, 0),
            last_stored(metadata, 1, end),
        )

    scene(play)


def listing(*groups: tuple[int, int, int, int]) -> EntryRanges:
    packed = (struct.pack(">qqii", *group) for group in groups)
    return decode_availability(struct.pack(">ii56x", 0, len(groups)) + b"".join(packed))


def test_lists_of_more_than_a_million_ranges_are_compared() -> None:
    """Such lists were refused, and then the bookie counted as having all of its entries."""
    end = 6 * 10**6 - 1
    metadata = LedgerMetadata(3, 2, 2, (Segment(0, tuple(ALL)),)).with_close(end, end)
    lists = {
        # The members 0, 1 and 2 should hold the entries without 1, 2 and 0 modulo 3.
        ALL[0]: listing((-1 + 3, end - 3, 2, 3), (0, 0, 1, 0), (end, end, 1, 0)),
        ALL[1]: listing((0, 2_999_997, 2, 3), (3_000_003, end - 2, 2, 3)),
        ALL[2]: listing((1, end - 4, 2, 3)),
    }

    async def play(world: World, client: Client) -> None:
        ledger_id, _ = await client.metadata.create_ledger(metadata)

        async def listed(bookie_id: str, ledger_id: int) -> EntryRanges:
            return lists[bookie_id]

        client.list_entries = listed  # type: ignore[method-assign]
        found = await check_replicas(client, ledger_id, ALL)
        assert (found.bookies, found.entries, found.uncompared) == ((ALL[1], ALL[2]), 4, ())

    scene(play)


def test_a_list_with_gaps_everywhere_is_reported_in_little_memory() -> None:
    end = 2**40
    metadata = LedgerMetadata(3, 3, 2, (Segment(0, tuple(ALL)),)).with_close(end, end)

    async def play(world: World, client: Client) -> None:
        codec = EntryCodec(7, DigestType.CRC32C, b"")
        ledger = OpenedLedger(7, Versioned(metadata, 0), b"", codec, end)
        look = _Look(client, ledger, ALL[1])
        (fragment,) = ledger.fragments()
        found = await look._missing(fragment, 1, listing((1, end - 1, 1, 2)))
        assert len(found) == GAPS_MAX + 1
        assert (found[1].first, found[1].last, found[1].detail) == (2, 2, NOT_LISTED)
        rest = found[-1]
        assert (rest.first, rest.last) == (2 * GAPS_MAX, end)
        assert rest.detail == MANY_NOT_LISTED

    scene(play)


@given(
    st.sampled_from([(3, 2), (3, 3), (5, 2), (4, 3)]),
    st.integers(0, 4),
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(1, 4), st.integers(0, 7)),
        max_size=4,
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_every_comparison_of_a_list_finds_the_entries_that_it_lacks(
    shape: tuple[int, int],
    member: int,
    groups: list[tuple[int, int, int, int]],
    first: int,
    more: int,
) -> None:
    size, write_quorum = shape
    index, last = member % size, first + more
    metadata = LedgerMetadata(
        size, write_quorum, 1, (Segment(0, tuple(f"b{n}:1" for n in range(size))),)
    )
    found = listing(*((at, at + far if gap else at, n, gap) for at, far, n, gap in groups))
    there = {entry for low, high in found for entry in range(low, high + 1)}
    expected = {*stored_by(metadata, index, first, last)} - there
    for listed in (found, list(found)):
        lacks: set[int] = set()
        for low, high in unlisted(metadata, index, first, last, listed):
            ids = {*stored_by(metadata, index, low, high)}
            assert {low, high} <= ids
            assert not ids & there
            lacks |= ids
        assert lacks == expected
