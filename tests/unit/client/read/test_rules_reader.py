"""The rules of readers (docs/internals/replication-rules.md), on bookies with given answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from quire.client.read.engine import FIRST_SINGLE_READS
from quire.client.read.ledger_view import LedgerView
from quire.client.read.outcomes import outcomes
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.errors import (
    BookieUnavailableError,
    DigestError,
    MetadataUnavailableError,
    NoSuchEntryError,
    ReadError,
    UsageError,
)
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.update import update_ledger
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    Ask,
    FakeBookie,
    FakeCluster,
    payload,
    simulated,
)

CLOSED = LedgerState.CLOSED
ENTRY_BYTES = 32 + 4 + len(payload(0))
"""The least size of an entry: header, digest and payload."""
SHAPES = [(3, 3, 2), (4, 3, 2)]
METADATA = LedgerMetadata(
    ensemble_size=3, write_quorum=3, ack_quorum=2, segments=(Segment(0, ("b0", "b1", "b2")),)
)


def view(metadata: LedgerMetadata = METADATA, lac: int = -1) -> LedgerView:
    store: Any = None
    return LedgerView(LEDGER, store, Versioned(metadata, 1), lac)


def test_rule_20_a_close_applies_even_if_later_entries_were_read() -> None:
    one = view(lac=9)
    assert one.adopt(Versioned(METADATA.with_close(7, 70), 2))
    assert one.last_add_confirmed == 7


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_21_entries_after_the_end_are_not_returned(shape: tuple[int, int, int]) -> None:
    """Unacknowledged entries stay on bookies when a ledger is closed before them."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(shape, range(10))
        stored = await cluster.store.read_ledger(LEDGER)
        await update_ledger(cluster.store, LEDGER, stored, lambda now: now.with_close(6, 63))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert [e.entry_id async for e in reader.read()] == list(range(7))
            assert [e.entry_id async for e in reader.read_unconfirmed(0)] == list(range(7))
            async with aclosing(reader.tail(0)) as tail:
                assert [e.entry_id async for e in tail] == list(range(7))
            for beyond in (7, 9, 10):
                with pytest.raises(
                    NoSuchEntryError, match="the ledger is closed and ends at entry 6"
                ):
                    await reader.read_entry(beyond)
                with pytest.raises(NoSuchEntryError):
                    _ = [e async for e in reader.read_unconfirmed(beyond, beyond)]
            assert await reader.refresh() == 6
        asked = {ask.entry for bookie in cluster.bookies.values() for ask in bookie.asked}
        assert shape[0] == shape[1] or max(asked) == 6

    simulated(main)


def test_a_ledger_without_entries_has_no_last_entry() -> None:
    """The errors named the entry -1 as the last one."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), [])
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            with pytest.raises(ReadError, match="no entry is known to be acknowledged yet"):
                await reader.read_entry(0)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(cluster.store, LEDGER, stored, lambda now: now.with_close(-1, 0))
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            with pytest.raises(NoSuchEntryError, match="the ledger is closed and has no entries"):
                await reader.read_entry(0)

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
@pytest.mark.parametrize("first", [0, 5])
def test_entries_are_requested_only_from_the_bookies_of_their_segment(
    shape: tuple[int, int, int], first: int
) -> None:
    """The others would deny entries that exist."""

    async def main() -> None:
        size = shape[0]
        cluster = await FakeCluster.made(3 * size)
        names = list(cluster.bookies)
        starts = (0, 7, 8)
        segments = tuple(
            Segment(start, tuple(names[number * size : (number + 1) * size]))
            for number, start in enumerate(starts)
        )
        metadata = await cluster.ledger(shape, range(20), segments=segments, state=CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            found = [entry.payload async for entry in reader.read(first, 18)]
            assert found == [payload(entry) for entry in range(first, 19)]
        for name, bookie in cluster.bookies.items():
            for ask in bookie.asked:
                assert name in metadata.segment_of(ask.entry).ensemble, ask

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_38_a_reader_finds_replicas_that_have_moved(shape: tuple[int, int, int]) -> None:
    """All bookies that it knows are gone, or have no entries any more."""

    async def main() -> None:
        size = shape[0]
        cluster = await FakeCluster.made(2 * size)
        await cluster.ledger(shape, range(10), state=CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert (await reader.read_entry(3)).payload == payload(3)
            moved = tuple(f"b{index + size}" for index in range(size))
            for old, new in zip(list(cluster.bookies), moved):
                cluster[new].entries, cluster[old].entries = cluster[old].entries, {}
            cluster["b0"].die()
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(cluster.store, LEDGER, stored, lambda now: _moved(now, moved))
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(10)]

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
@pytest.mark.parametrize("windows", [False, True], ids=["entries", "windows"])
def test_reads_at_the_same_time_all_find_replicas_that_have_moved(
    shape: tuple[int, int, int], windows: bool
) -> None:
    """Each of them failed with the old metadata, but only one was the first to read the new one."""

    async def main() -> None:
        size = shape[0]
        cluster = await FakeCluster.made(2 * size)
        await cluster.ledger(shape, range(200), state=CLOSED)
        config = dataclasses.replace(CONFIG, read_window_bytes=16 * ENTRY_BYTES)
        async with cluster.client(config) as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            await reader.read_entry(0)
            moved = tuple(f"b{index + size}" for index in range(size))
            for old, new in zip(list(cluster.bookies), moved):
                cluster[new].entries = dict(cluster[old].entries)
                cluster[old].entries.clear()
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(cluster.store, LEDGER, stored, lambda now: _moved(now, moved))
            if windows:
                found = [entry.payload async for entry in reader.read()]
                assert found == [payload(entry) for entry in range(200)]
            else:
                reads = [reader.read_entry(entry) for entry in range(20)]
                found = [one.payload for one in await asyncio.gather(*reads)]
                assert found == [payload(entry) for entry in range(20)]

    simulated(main)


@pytest.mark.parametrize("batches", [True, False])
def test_single_entry_reads_are_used_only_for_bookies_that_never_answered_a_batch(
    batches: bool,
) -> None:
    """A short network failure would otherwise slow a reader down for ever."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            if batches:
                await reader.read_entry(0)
            refused = {bookie.name for bookie in cluster.bookies.values()}

            def cut(name: str) -> Callable[[Ask], Any]:
                def says(ask: Ask) -> Any:
                    if name not in refused:
                        return ...
                    refused.discard(name)
                    return BookieUnavailableError("the network is cut")

                return says

            for bookie in cluster.bookies.values():
                bookie.says = cut(bookie.name)
            assert (await reader.read_entry(3)).payload == payload(3)
            assert not refused
            assert reader._engine.batches is batches
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(10)]

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_38_the_newest_metadata_decides_whose_denial_counts(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int]
) -> None:
    """A server of the metadata store may lag behind the process that has moved the replicas.

    Read from it, the metadata was the same as before, and NoSuchEntryError was raised for
    acknowledged entries.
    """

    async def main() -> None:
        size = shape[0]
        cluster = await FakeCluster.made(2 * size)
        await cluster.ledger(shape, range(10), state=CLOSED)
        lagging = await cluster.store.read_ledger(LEDGER)
        async with cluster.client() as client:
            store = client.metadata
            read, sync = store.read_ledger, store.tree.sync
            caught_up = False

            async def read_from_server(ledger_id: int) -> Versioned[LedgerMetadata]:
                return await read(ledger_id) if caught_up else lagging

            async def catch_up() -> None:
                nonlocal caught_up
                caught_up = True
                await sync()

            monkeypatch.setattr(store, "read_ledger", read_from_server)
            monkeypatch.setattr(store.tree, "sync", catch_up)
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            moved = tuple(f"b{index + size}" for index in range(size))
            for old, new in zip(list(cluster.bookies), moved):
                cluster[new].entries, cluster[old].entries = cluster[old].entries, {}
            await update_ledger(cluster.store, LEDGER, lagging, lambda now: _moved(now, moved))
            payloads = [entry.payload async for entry in reader.read(3)]
            assert payloads == [payload(entry) for entry in range(3, 10)]

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_an_entry_that_cannot_be_read_is_named_while_the_metadata_store_is_away(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int]
) -> None:
    """The error of the metadata store hid which entry it was, and ended a listing at that entry.

    That the known replicas deny an entry proves nothing, because they may have been replaced.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(shape[0])
        await cluster.ledger(shape, range(10), state=CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)

            async def away(ledger_id: int) -> Versioned[LedgerMetadata]:
                raise MetadataUnavailableError("the metadata store does not answer")

            monkeypatch.setattr(client.metadata, "read_ledger", away)
            for bookie in cluster.bookies.values():
                bookie.entries.pop(3, None)
                if 6 in bookie.entries:
                    bookie.entries[6] = b"x" + bookie.entries[6][1:]
            found = [one async for one in outcomes(reader, 0, 9)]
        assert [entry_id for entry_id, _ in found] == list(range(10))
        errors = {entry: one for entry, one in found if isinstance(one, ReadError)}
        assert sorted(errors) == [3, 6]
        assert type(errors[3]) is ReadError
        assert errors[3].entry_id == 3
        assert len(errors[3].causes) == shape[1]
        assert "it may exist" in str(errors[3])
        assert "the metadata store" in str(errors[3])
        assert type(errors[6]) is DigestError

    simulated(main)


def _moved(metadata: LedgerMetadata, ensemble: tuple[str, ...]) -> LedgerMetadata | None:
    if metadata.segments[0].ensemble == ensemble:
        return None
    return dataclasses.replace(metadata, segments=(Segment(0, ensemble),))


def test_rule_39_a_lac_never_goes_back() -> None:
    one = view(lac=5)
    one.confirmed(3)
    assert one.last_add_confirmed == 5
    one.confirmed(8)
    assert one.last_add_confirmed == 8
    assert not one.adopt(Versioned(METADATA, 0)), "older metadata is not adopted"
    # A writer begins a segment after its last confirmed entry.
    one.adopt(Versioned(METADATA.with_ensemble_from(6, ("b3", "b1", "b2")), 2))
    assert one.last_add_confirmed == 8
    one.adopt(Versioned(METADATA.with_ensemble_from(20, ("b4", "b1", "b2")), 3))
    assert one.last_add_confirmed == 19


def test_lacs_read_during_a_recovery_do_not_count() -> None:
    """Its entries may carry a LAC of entries that a concurrent recovery cuts off (6.6)."""
    one = view(METADATA.with_state(LedgerState.IN_RECOVERY), lac=5)
    one.confirmed(8)
    assert one.last_add_confirmed == 5


def test_a_read_is_limited_to_acknowledged_entries() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(10))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert reader.last_add_confirmed == 8
            asked = sum(len(bookie.asked) for bookie in cluster.bookies.values())
            with pytest.raises(
                ReadError, match="only entries up to 8 are known to be acknowledged"
            ):
                await reader.read_entry(9)
            assert sum(len(bookie.asked) for bookie in cluster.bookies.values()) == asked

    simulated(main)


def test_a_read_without_a_last_entry_that_begins_too_late_names_its_first_entry() -> None:
    """The error said that the range 5..2 is not valid, although nobody had given its end."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            last = reader.last_add_confirmed
            assert [e async for e in reader.read(last + 1)] == []
            with pytest.raises(ReadError, match=f"entry {last + 2} of ledger") as early:
                _ = [e async for e in reader.read(last + 2)]
            assert not isinstance(early.value, NoSuchEntryError)
            assert early.value.entry_id == last + 2
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(cluster.store, LEDGER, stored, lambda now: now.with_close(3, 36))
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert [e async for e in reader.read(4)] == []
            with pytest.raises(NoSuchEntryError, match="closed and ends at entry 3") as late:
                _ = [e async for e in reader.read(5)]
            assert late.value.entry_id == 5

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_unconfirmed_entries_are_read_on_request(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        # The last one is on one bookie only, and there is another after a gap.
        await cluster.ledger(
            shape, [*range(300), 302],
            on=lambda n: [f"b{(n + k) % shape[0]}" for k in range(3)][: 1 if n == 299 else 3],
        )  # fmt: skip
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            found = [e async for e in reader.read_unconfirmed(0)]
            assert [e.payload for e in found] == [payload(n) for n in range(300)]
            assert found[-1].ledger_length == cluster.length(299)
            found = [e async for e in reader.read_unconfirmed(290, 299)]
            assert [e.entry_id for e in found] == list(range(290, 300))
            entries = reader.read_unconfirmed(298, 302)
            assert [(await anext(entries)).entry_id for _ in range(2)] == [298, 299]
            with pytest.raises(NoSuchEntryError):
                await anext(entries)
            assert [e.entry_id async for e in reader.read_unconfirmed(300)] == []
            with pytest.raises(UsageError):
                _ = [e async for e in reader.read_unconfirmed(5, 4)]

    simulated(main)


def test_reading_unconfirmed_entries_of_a_closed_ledger_ends_at_its_end() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(3), on=lambda n: ["b0", "b1"])
        async with cluster.client() as client:
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert reader.ledger_closed
            found = [[e.entry_id async for e in reader.read_unconfirmed(n)] for n in range(5)]
            assert found == [[0, 1, 2], [1, 2], [2], [], []]
            assert [e.entry_id async for e in reader.read_unconfirmed(1, 2)] == [1, 2]
            with pytest.raises(UsageError):
                _ = [e async for e in reader.read_unconfirmed(2, 0)]

    simulated(main)


def test_an_unconfirmed_entry_that_may_exist_is_not_the_end() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5), on=lambda n: ["b0"] if n == 4 else ["b0", "b1"])
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            cluster["b0"].die()
            with pytest.raises(ReadError) as failed:
                _ = [e async for e in reader.read_unconfirmed(4)]
            assert not isinstance(failed.value, NoSuchEntryError)

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_damage_is_never_absence_for_a_reader(shape: tuple[int, int, int]) -> None:
    """The reader reports "no such entry" only if all replicas say so."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(shape, range(4), state=CLOSED)
        members = [cluster[f"b{(2 + k) % shape[0]}"] for k in range(3)]
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for bookie in members:
                bookie.says = bookie.no
            with pytest.raises(NoSuchEntryError, match="never had it"):
                await reader.read_entry(2)
            members[1].says = lambda ask: cluster.entry(ask.entry)[:-1] + b"?"
            with pytest.raises(DigestError) as damaged:
                await reader.read_entry(2)
            assert not isinstance(damaged.value, NoSuchEntryError)
            members[0].says = members[0].silent
            with pytest.raises(ReadError) as silent:
                await reader.read_entry(2)
            assert not isinstance(silent.value, NoSuchEntryError | DigestError)

    simulated(main)


def _lacks_all(bookie: FakeBookie) -> None:
    bookie.says = bookie.no


def _spoils_all(bookie: FakeBookie) -> None:
    bookie.says = lambda ask: bookie.entries[ask.entry][:-1] + b"?"


@pytest.mark.parametrize(
    "trouble",
    [
        _lacks_all,
        _spoils_all,
        FakeBookie.die,
        lambda bookie: setattr(bookie, "says", bookie.silent),
    ],
    ids=["denied", "damaged", "dead", "silent"],
)
def test_entries_missing_on_one_bookie_are_requested_from_the_next_at_once(
    trouble: Callable[[FakeBookie], None],
) -> None:
    """Hundreds of entries of a striped ledger take some round trips, not one each."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 2, 2), range(600), state=CLOSED)
        for bookie in cluster.bookies.values():
            bookie.answers_in_s = 0.2
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            trouble(cluster["b0"])
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(600)]
            assert loop.time() - began_s < 5.0
            lacking = [ask for ask in cluster["b0"].asked if ask.entry >= 0]
            assert len(lacking) <= 600 * 2 // 3, (
                "a bookie is not asked again for an entry that it has refused"
            )

    simulated(main)


def test_late_answers_of_a_striped_read_are_used() -> None:
    """On a slow line each window takes longer than `speculative_read_s`."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 2, 2), range(600), state=CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            for bookie in cluster.bookies.values():
                bookie.answers_in_s = 1.5 * CONFIG.speculative_read_s
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(600)]
            assert loop.time() - began_s < 10.0
            asked = sum(
                ask.entry >= 0 for bookie in cluster.bookies.values() for ask in bookie.asked
            )
            assert asked <= 2 * 600, "each entry is requested from at most two replicas"

    simulated(main)


def test_single_reads_in_flight_are_bounded_by_bytes() -> None:
    """The first of them by their number; when their size is known, by `read_window_bytes` for each
    bookie of the ensemble."""

    async def main() -> None:
        config = dataclasses.replace(CONFIG, read_window_bytes=10 * ENTRY_BYTES)
        cluster = await FakeCluster.made(3, config)
        await cluster.ledger((3, 2, 2), range(1_000), state=CLOSED)
        most = 0

        def says(ask: Ask) -> Any:
            nonlocal most
            asked = max(ask.entry for bookie in cluster.bookies.values() for ask in bookie.asked)
            most = max(most, asked - given)
            return ...

        given = -1
        for bookie in cluster.bookies.values():
            bookie.says = says
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            most = 0
            async for run in reader.read_runs():
                given = run.last
        assert given == 999
        assert FIRST_SINGLE_READS <= most <= 3 * 10 * (config.read_windows + 1)

    simulated(main)
