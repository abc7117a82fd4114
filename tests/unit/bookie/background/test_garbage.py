"""Garbage collection never takes an unreliable store's "nothing exists" for a fact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie.background import garbage
from quire.bookie.background.garbage import (
    MASS_LEDGERS_MIN,
    MassDeletionCheck,
    UnchangedRanges,
    collect_garbage,
)
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire.v2 import add_request, add_response, read_request, read_response
from quire.errors import (
    ClusterNotInitialisedError,
    CollectionOffError,
    CookieError,
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    QuireError,
    UnreadableMetadataError,
)
from quire.metadata.interface import KnownRanges, LedgerRange, Versioned
from quire.storage.segment.segment import segment_name
from tests.support.bookies.bookie import (
    SMALL,
    Unguarded,
    free_port,
    memory_metadata,
    peer_of,
    running_bookie,
)
from tests.support.waiting import until

LAST = 2**63 - 1
METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("one",)),))


KEY = master_key(b"")


def entry(ledger_id: int, entry_id: int) -> bytes:
    codec = EntryCodec(ledger_id, DigestType.CRC32C, b"")
    return codec.pack(entry_id, entry_id - 1, 0, b"payload")


class Ids(set[int]):
    """The ids of a store's ledgers, of which nothing else is known."""

    def get(self, ledger_id: int) -> None:
        return None


class Store:
    """The bookie's side: which ledgers it has, and what was dropped."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = Ids(ledgers)
        self.dropped: list[int] = []

    def ledger_ids(self) -> list[int]:
        return sorted(self.ledgers)

    def drop_ledgers(self, ids: list[int]) -> None:
        self.dropped.extend(ids)


class Metadata:
    uri = "memory://test"

    def __init__(
        self,
        ranges: list[LedgerRange],
        *,
        instance: str = "A",
        alive: set[int] | None = None,
        error: Callable[[], QuireError] | None = None,
        read_error: Callable[[], QuireError] | None = None,
        unreadable: dict[int, QuireError] | None = None,
    ) -> None:
        self.ranges = ranges
        self.instance = instance
        self.alive = alive or set()
        self.error = error
        self.read_error = read_error
        self.unreadable = unreadable or {}

    async def instance_id(self) -> str:
        return self.instance

    async def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: object = None
    ) -> AsyncIterator[LedgerRange]:
        assert complete
        for span in self.ranges:
            yield span
        if self.error is not None:
            raise self.error()

    async def read_ledger(self, ledger_id: int) -> object:
        if self.read_error is not None:
            raise self.read_error()
        if ledger_id in self.unreadable:
            raise self.unreadable[ledger_id]
        if ledger_id not in self.alive:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return object()


def quiet(event: str, **fields: object) -> None:
    pass


async def collect(store: Store, metadata: Metadata) -> list[int]:
    return await collect_garbage(store, metadata, "A", quiet, Unguarded())  # type: ignore[arg-type]


async def test_deleted_ledgers_are_dropped_and_others_stay() -> None:
    store = Store(1, 5, 9, 40, LAST)
    ranges = [LedgerRange(0, 9, [1, 2, 9]), LedgerRange(10, LAST, [40])]
    assert await collect(store, Metadata(ranges)) == [5, LAST]
    assert store.dropped == [5, LAST]


async def test_an_empty_bookie_does_not_read_the_metadata_store() -> None:
    assert await collect(Store(), Metadata([], error=lambda: MetadataError("never asked"))) == []


async def test_another_clusters_store_deletes_nothing() -> None:
    store = Store(1, 2)
    with pytest.raises(CookieError, match="holds cluster B, but this bookie belongs to cluster A"):
        await collect(store, Metadata([LedgerRange(0, LAST, [])], instance="B"))
    assert store.dropped == []


@pytest.mark.parametrize(
    "error", [MetadataUnavailableError, ClusterNotInitialisedError, MetadataError]
)
@pytest.mark.parametrize("listed", [0, 1])
async def test_an_interrupted_list_deletes_nothing(error: type[MetadataError], listed: int) -> None:
    store = Store(1, 2)
    metadata = Metadata([LedgerRange(0, 99, [])][:listed], error=lambda: error("gone"))
    with pytest.raises(error):
        await collect(store, metadata)
    assert store.dropped == []


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [LedgerRange(0, 99, [])],
        [LedgerRange(5, LAST, [])],
        [LedgerRange(0, 10, []), LedgerRange(12, LAST, [])],
    ],
    ids=["nothing", "ends early", "begins late", "a hole"],
)
async def test_an_incomplete_list_deletes_nothing(ranges: list[LedgerRange]) -> None:
    store = Store(1, 2, 11, 200)
    with pytest.raises(MetadataError):
        await collect(store, Metadata(ranges))
    assert store.dropped == []


async def test_each_ledger_is_looked_up_again_before_it_is_dropped() -> None:
    store = Store(1, 2)
    metadata = Metadata([LedgerRange(0, LAST, [])], alive={2})
    assert await collect(store, metadata) == [1]
    store = Store(1, 2)
    metadata.read_error = lambda: MetadataUnavailableError("no answer")
    with pytest.raises(MetadataUnavailableError):
        await collect(store, metadata)
    assert store.dropped == []


@pytest.mark.parametrize(
    "error",
    [UnreadableMetadataError("damaged", ledger_id=2), MetadataDeniedError("denied")],
    ids=["unreadable", "denied"],
)
async def test_a_ledger_with_unreadable_metadata_is_not_dropped(error: QuireError) -> None:
    """It counts as existing, and the pass goes on."""
    store = Store(1, 2, 3)
    metadata = Metadata([LedgerRange(0, LAST, [])], unreadable={2: error})
    assert await collect(store, metadata) == [1, 3]
    assert store.dropped == [1, 3]


async def test_a_store_that_is_replaced_while_it_is_listed_deletes_nothing() -> None:
    store = Store(1, 2)
    metadata = Metadata([LedgerRange(0, LAST, [])])
    listed = metadata.list_ledgers

    async def replaced(
        first: int = 0, *, complete: bool = False, known: object = None
    ) -> AsyncIterator[LedgerRange]:
        async for span in listed(first, complete=complete):
            yield span
        metadata.instance = "B"

    metadata.list_ledgers = replaced  # type: ignore[method-assign]
    with pytest.raises(CookieError, match="holds cluster B"):
        await collect(store, metadata)
    assert store.dropped == []


@pytest.mark.parametrize("refuses_at", [1, 2])
async def test_the_guard_is_asked_before_and_after_the_ledgers_are_listed(refuses_at: int) -> None:
    """Collection is switched off, or the store goes back, while a pass is under way."""
    store = Store(1, 2)
    metadata = Metadata([LedgerRange(0, LAST, [])])
    asked: list[int] = []

    class Guard(Unguarded):
        async def check(self) -> None:
            asked.append(1)
            if len(asked) == refuses_at:
                raise CollectionOffError("garbage collection is switched off")

    with pytest.raises(CollectionOffError):
        await collect_garbage(store, metadata, "A", quiet, Guard())  # type: ignore[arg-type]
    assert store.dropped == []
    dropped = await collect_garbage(store, metadata, "A", quiet, Guard())  # type: ignore[arg-type]
    assert dropped == store.dropped == [1, 2]


async def test_a_bookie_without_an_instance_id_deletes_nothing() -> None:
    store = Store(1, 2)
    metadata = Metadata([LedgerRange(0, LAST, [])], instance="")
    with pytest.raises(CookieError, match="nothing was deleted"):
        await collect_garbage(store, metadata, "", quiet, Unguarded())  # type: ignore[arg-type]
    assert store.dropped == []


@pytest.mark.parametrize("when", ["reads", "checks"])
async def test_entries_added_after_a_ledger_was_found_missing_are_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The id of the ledger is used again while the pass still looks for others."""
    metadata = memory_metadata()
    async with running_bookie(tmp_path, SMALL, metadata) as bookie, peer_of(bookie) as peer:
        for ledger_id in (5, 7):
            answer = await peer.ask(add_request(KEY, entry(ledger_id, 0)))
            assert answer == add_response(0, ledger_id, 0)

        async def use_again() -> None:
            if 5 not in made:
                made.append(5)
                await metadata.create_ledger(METADATA, 5)
                assert await peer.ask(add_request(KEY, entry(5, 0))) == add_response(0, 5, 0)

        made: list[int] = []
        read_ledger = metadata.read_ledger
        assert bookie.collection is not None
        check, checks = bookie.collection.check, 0

        async def reading(ledger_id: int) -> Versioned[LedgerMetadata]:
            if when == "reads" and ledger_id == 7:
                await use_again()
            return await read_ledger(ledger_id)

        async def checking() -> None:
            nonlocal checks
            checks += 1
            if when == "checks" and checks == 2:
                await use_again()
            await check()

        monkeypatch.setattr(metadata, "read_ledger", reading)
        monkeypatch.setattr(bookie.collection, "check", checking)
        assert await bookie.collect_garbage() == ""
        assert made == [5]
        assert 7 not in bookie.store.ledgers
        assert await peer.ask(read_request(5, 0)) == read_response(0, 5, 0, entry(5, 0))
        await metadata.delete_ledger(5)
        assert await bookie.collect_garbage() == ""
        assert 5 not in bookie.store.ledgers


async def test_a_mass_deletion_needs_two_passes() -> None:
    events: list[str] = []

    def log(event: str, **fields: object) -> None:
        events.append(event)

    now_s = 1000.0
    store, mass_deletion = (
        Store(*range(2 * MASS_LEDGERS_MIN)),
        MassDeletionCheck(60.0, lambda: now_s),
    )
    metadata = Metadata([LedgerRange(0, LAST, [])], alive=set(range(10)))

    async def one_pass() -> list[int]:
        return await collect_garbage(store, metadata, "A", log, Unguarded(), mass_deletion)  # type: ignore[arg-type]

    assert await one_pass() == []
    assert events == ["garbage_waits"]
    metadata.alive = {5}  # Some exist again, and some have gone since.
    for _ in range(3):
        assert await one_pass() == []  # an operator asks for passes, or the disk is full
        now_s += 19.9
    assert events == ["garbage_waits"]
    now_s += 0.4
    assert await one_pass() == list(range(10, 2 * MASS_LEDGERS_MIN))
    store.ledgers = Ids({5, *range(10)})
    assert await one_pass() == [0, 1, 2, 3, 4, 6, 7, 8, 9]  # a few go at once


async def test_ledgers_that_reappeared_wait_again_before_a_mass_deletion() -> None:
    now_s = 0.0
    store, mass_deletion = (
        Store(*range(2 * MASS_LEDGERS_MIN)),
        MassDeletionCheck(60.0, lambda: now_s),
    )
    metadata = Metadata([LedgerRange(0, LAST, [])])

    async def one_pass() -> list[int]:
        return await collect_garbage(store, metadata, "A", quiet, Unguarded(), mass_deletion)  # type: ignore[arg-type]

    assert await one_pass() == []
    now_s = 30.0
    metadata.alive = {*range(100)}
    assert await one_pass() == []
    metadata.alive = set()
    now_s = 61.0
    assert await one_pass() == list(range(100, 2 * MASS_LEDGERS_MIN))


async def test_concurrent_passes_do_not_count_as_two(tmp_path: Path) -> None:
    events: list[str] = []
    async with running_bookie(tmp_path, log=lambda event, **fields: events.append(event)) as bookie:
        for ledger_id in range(2 * MASS_LEDGERS_MIN):
            bookie.store.create_ledger(ledger_id, b"k" * 20)
        await asyncio.gather(*(bookie.collect_garbage() for _ in range(3)))
        assert events.count("garbage_waits") == 1
        assert len(bookie.store.ledger_ids()) == 2 * MASS_LEDGERS_MIN


async def test_a_bookie_read_only_before_its_disk_filled_collects_more_often(
    tmp_path: Path,
) -> None:
    """A bookie that was already read-only, for instance because of a loss, reports no change."""
    config = replace(SMALL, min_free_bytes=1, check_space_s=0.01, gc_full_interval_s=0.01)
    assert config.gc_interval_s >= 600
    metadata = memory_metadata()
    async with running_bookie(tmp_path, config, metadata, free_port(), "one"):
        pass
    (tmp_path / segment_name(1)).unlink()
    async with running_bookie(tmp_path, config, metadata, free_port(), "one") as bookie:
        assert not bookie.writable
        bookie.store.create_ledger(5, b"k" * 20)
        bookie._disks[0].free_bytes = lambda: 0  # type: ignore[method-assign]
        await until(lambda: 5 not in bookie.store.ledgers)


async def test_ledgers_that_reappear_at_the_next_pass_reset_a_mass_deletion() -> None:
    store, mass_deletion = Store(*range(2 * MASS_LEDGERS_MIN)), MassDeletionCheck(0.0, lambda: 0.0)
    metadata = Metadata([LedgerRange(0, LAST, [])])
    assert await collect_garbage(store, metadata, "A", quiet, Unguarded(), mass_deletion) == []  # type: ignore[arg-type]
    metadata.alive = set(store.ledgers)
    assert await collect_garbage(store, metadata, "A", quiet, Unguarded(), mass_deletion) == []  # type: ignore[arg-type]
    metadata.alive = set()
    assert await collect_garbage(store, metadata, "A", quiet, Unguarded(), mass_deletion) == []  # type: ignore[arg-type]
    assert store.dropped == []


class Stamped(Metadata):
    """Two ranges of ledgers with stamps. It counts which ranges are listed."""

    def __init__(self, *alive: int) -> None:
        super().__init__([], alive=set(alive))
        self.changes = [0, 0]
        self.listed: list[int] = []

    def delete(self, ledger_id: int) -> None:
        self.alive.remove(ledger_id)
        self.changes[ledger_id >= 10] += 1

    async def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: object = None
    ) -> AsyncIterator[LedgerRange]:
        assert complete
        assert isinstance(known, dict)
        for number, (low, high) in enumerate(((0, 9), (10, LAST))):
            stamp = (7, self.changes[number])
            if known.get((low, high)) == stamp:
                yield LedgerRange(low, high, (), stamp, unchanged=True)
                continue
            self.listed.append(number)
            there = sorted(ledger for ledger in self.alive if low <= ledger <= high)
            yield LedgerRange(low, high, there, stamp)
        if self.error is not None:
            raise self.error()


async def test_a_range_that_has_not_changed_is_not_listed_again() -> None:
    store, metadata, unchanged = Store(1, 2, 11, 12), Stamped(1, 2, 3, 11, 12), UnchangedRanges()

    async def one_pass() -> tuple[list[int], list[int]]:
        """The ledgers that were dropped, and the ranges that were listed."""
        metadata.listed.clear()
        dropped = await collect_garbage(
            store, metadata, "A", quiet, Unguarded(), None, unchanged  # type: ignore[arg-type]
        )  # fmt: skip
        store.ledgers.difference_update(dropped)
        return dropped, list(metadata.listed)

    assert await one_pass() == ([], [0, 1])
    assert await one_pass() == ([], [])
    metadata.delete(3)  # another bookie had it
    assert await one_pass() == ([], [0])
    metadata.delete(12)
    assert await one_pass() == ([12], [1])
    assert await one_pass() == ([], [1])  # a range with deleted ledgers is listed once more
    assert await one_pass() == ([], [])
    store.ledgers.add(5)  # the copy of a ledger that was deleted before
    assert await one_pass() == ([5], [0])


async def test_a_failed_pass_remembers_no_unchanged_ranges() -> None:
    store, metadata, unchanged = Store(1, 11), Stamped(1, 11), UnchangedRanges()

    async def one_pass() -> list[int]:
        return await collect_garbage(
            store, metadata, "A", quiet, Unguarded(), None, unchanged  # type: ignore[arg-type]
        )  # fmt: skip

    metadata.error = lambda: MetadataUnavailableError("no answer")
    with pytest.raises(MetadataUnavailableError):
        await one_pass()
    metadata.error = None
    await one_pass()
    assert metadata.listed == [0, 1, 0, 1]


async def test_all_ranges_are_listed_again_after_a_number_of_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "FULL_LIST_PASSES", 3)
    store, metadata, unchanged = Store(1, 11), Stamped(1, 11), UnchangedRanges()
    counts = []
    for _ in range(7):
        await collect_garbage(
            store, metadata, "A", quiet, Unguarded(), None, unchanged  # type: ignore[arg-type]
        )  # fmt: skip
        counts.append(len(metadata.listed))
        metadata.listed.clear()
    assert counts == [2, 0, 2, 0, 0, 2, 0]


async def test_a_bookie_remembers_unchanged_ranges(tmp_path: Path) -> None:
    metadata = memory_metadata()
    asked: list[KnownRanges | None] = []
    listing = metadata.list_ledgers

    def noted(
        first: int = 0, *, complete: bool = False, known: KnownRanges | None = None
    ) -> AsyncIterator[LedgerRange]:
        asked.append(known)
        return listing(first, complete=complete, known=known)

    async with running_bookie(tmp_path, SMALL, metadata) as bookie:
        metadata.list_ledgers = noted  # type: ignore[method-assign]
        await metadata.create_ledger(METADATA, 5)
        bookie.store.create_ledger(5, b"k" * 20)
        for _ in range(2):
            assert await bookie.collect_garbage() == ""
        assert asked[0] == {}
        assert asked[1] is not None
        assert list(asked[1]) == [(0, LAST)]
        assert 5 in bookie.store.ledgers
        await metadata.delete_ledger(5)
        assert await bookie.collect_garbage() == ""
        assert 5 not in bookie.store.ledgers
