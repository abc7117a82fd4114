"""Requirements for every metadata store. One suite runs with three drivers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from quire._runtime.clock import SystemClock
from quire.codec.entry.digest import DigestType
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    KeyExistsError,
    LedgerExistsError,
    LedgerRecreatedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UsageError,
    VersionConflictError,
)
from quire.metadata import common as _common
from quire.metadata import open_metadata
from quire.metadata.interface import (
    BookieAddress,
    Bookies,
    KnownRanges,
    LedgerRange,
    MetadataStore,
    Versioned,
)
from quire.metadata.ledgers.update import update_ledger
from quire.metadata.sqlite import store as sqlite
from quire_simulator.metadata import store as memory
from tests.support.metadata.backends import Backend
from tests.support.waiting import until

METADATA = LedgerMetadata(3, 2, 2, (Segment(0, ("a:1", "b:1", "c:1")),))
ONE = BookieAddress("bookie-1", "10.0.0.1", 3181, {"zone": "a"})
TWO = BookieAddress("10.0.0.2:3181", "10.0.0.2", 3181)


async def next_millisecond() -> None:
    """Wait until the clock that dates creations shows a later millisecond than now."""
    clock = SystemClock()
    now_ms = clock.now_ms()
    await until(lambda: clock.now_ms() > now_ms)


async def ranges_of(store: MetadataStore, first: int = 0) -> list[LedgerRange]:
    return [ledgers async for ledgers in store.list_ledgers(first)]


def assert_cover(ranges: Sequence[LedgerRange], first: int, ids: Sequence[int]) -> None:
    """The ranges ascend from `first` to the end without a gap, and hold exactly `ids`."""
    start = first
    for ledgers in ranges:
        assert ledgers.first == start
        assert ledgers.last >= ledgers.first
        assert all(ledgers.first <= i <= ledgers.last for i in ledgers.ledger_ids)
        start = ledgers.last + 1
    assert start == LEDGER_ID_MAX + 1
    assert [i for ledgers in ranges for i in ledgers.ledger_ids] == sorted(ids)


async def down(store: MetadataStore, last: int = LEDGER_ID_MAX) -> list[LedgerRange]:
    return [ledgers async for ledgers in store.list_ledgers_down(last)]


def assert_cover_down(ranges: Sequence[LedgerRange], last: int, ids: Sequence[int]) -> None:
    """The ranges descend from `last` to 0 without a gap, and hold exactly `ids`."""
    end = last
    for ledgers in ranges:
        assert ledgers.last == end
        assert ledgers.first <= ledgers.last
        assert list(ledgers.ledger_ids) == sorted(ledgers.ledger_ids)
        assert all(ledgers.first <= i <= ledgers.last for i in ledgers.ledger_ids)
        end = ledgers.first - 1
    assert end == -1
    assert sorted(i for ledgers in ranges for i in ledgers.ledger_ids) == sorted(ids)


# -- the cluster ------------------------------------------------------------------------------


async def test_all_stores_see_the_same_instance_id(backend: Backend) -> None:
    one, two = await backend.store(), await backend.store()
    assert await one.is_initialised()
    assert len(await one.instance_id()) == 36
    assert await one.instance_id() == await two.instance_id()
    with pytest.raises(KeyExistsError):
        await one.initialise()


async def test_every_call_reports_an_uninitialised_cluster(empty_backend: Backend) -> None:
    """Every call reports it, because an empty answer would make a bookie delete its data."""
    if empty_backend.name == "sqlite":
        with pytest.raises(ClusterNotInitialisedError, match=r"metadata\.db"):
            await empty_backend.store()
        return
    store = await empty_backend.store()
    assert not await store.is_initialised()
    calls = [
        store.instance_id(),
        store.create_ledger(METADATA),
        store.read_ledger(1),
        store.write_ledger(1, METADATA, 0),
        store.delete_ledger(1),
        ranges_of(store),
        down(store),
        store.register_bookie(ONE),
        store.bookies(),
        store.read_cookie("b:1"),
        store.write_cookie("b:1", b"", None),
        store.delete_cookie("b:1"),
        store.list_cookies(),
        store.read_value(("a",)),
        store.write_value(("a",), b"", None),
        store.delete_value(("a",)),
        store.list_values(()),
    ]
    for call in calls:
        with pytest.raises(ClusterNotInitialisedError, match="quire cluster init"):
            await call
    instance_id = await store.initialise()
    assert await store.is_initialised()
    assert await store.instance_id() == instance_id
    assert_cover(await ranges_of(store), 0, [])


async def test_only_the_first_store_creates_the_cluster(empty_backend: Backend) -> None:
    """The first store makes the cluster, and only its first `initialise` reports it."""
    one = await open_metadata(empty_backend.uri, create=True)
    two = None
    try:
        assert await one.is_initialised() == (empty_backend.name != "zookeeper")
        instance_id = await one.initialise()
        assert instance_id == await one.instance_id()
        with pytest.raises(KeyExistsError):
            await one.initialise()
        two = await open_metadata(empty_backend.uri, create=True)
        assert await two.instance_id() == instance_id
        with pytest.raises(KeyExistsError):
            await two.initialise()
    finally:
        await one.close()
        if two is not None:
            await two.close()


async def test_only_zookeeper_has_ledger_managers(empty_backend: Backend) -> None:
    store = await open_metadata(empty_backend.uri, create=True)
    try:
        if empty_backend.name == "zookeeper":
            await store.initialise("hierarchical")
        else:
            with pytest.raises(UsageError, match="ledger managers"):
                await store.initialise("hierarchical")
            await store.initialise()
    finally:
        await store.close()


async def test_a_closed_store_raises_client_closed(backend: Backend) -> None:
    store = await backend.store()
    await store.close()
    await store.close()
    with pytest.raises(ClientClosedError):
        await store.read_ledger(1)
    with pytest.raises(ClientClosedError):
        await ranges_of(store)
    with pytest.raises(ClientClosedError):
        await store.bookies()


# -- ledgers ----------------------------------------------------------------------------------


async def test_create_and_read(ledger_store: MetadataStore) -> None:
    ledger_id, created = await ledger_store.create_ledger(METADATA)
    assert created.version == 0
    assert created.value.ctime_ms > 0
    assert await ledger_store.read_ledger(ledger_id) == created
    wanted = replace(METADATA, ctime_ms=created.value.ctime_ms, ctoken=created.value.ctoken)
    assert created.value == wanted
    with pytest.raises(NoSuchLedgerError, match="77"):
        await ledger_store.read_ledger(77)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_ledger_keeps_its_metadata_format(
    ledger_store: MetadataStore, version: int
) -> None:
    metadata = replace(METADATA, format_version=version)
    if version == 1:
        metadata = replace(metadata, digest=None, password=None)
    ledger_id, created = await ledger_store.create_ledger(metadata)
    assert created.value.format_version == version
    recovering = await ledger_store.write_ledger(
        ledger_id, created.value.with_state(LedgerState.IN_RECOVERY), 0
    )
    moved = recovering.value.with_ensemble_from(5, ("a:1", "b:1", "d:1"))
    closed = await ledger_store.write_ledger(ledger_id, moved.with_close(9, 900), 1)
    assert closed.value == moved.with_close(9, 900)
    assert closed.value.format_version == version
    assert await ledger_store.read_ledger(ledger_id) == closed


async def test_all_metadata_fields_are_stored(ledger_store: MetadataStore) -> None:
    metadata = replace(
        METADATA,
        segments=(Segment(0, ("a:1", "b:1", "c:1")), Segment(70, ("a:1", "d-é", "c:1"))),
        digest=DigestType.HMAC,
        password=b"\0\xff secret",
        custom={"k": b"\0\1", "": b""},
        ctime_stored=True,
        ctime_ms=1234,
        ctoken=99,
    )
    ledger_id, created = await ledger_store.create_ledger(metadata)
    assert created.value == metadata
    assert (await ledger_store.read_ledger(ledger_id)).value == metadata


async def test_the_store_fills_in_the_creation_time(ledger_store: MetadataStore) -> None:
    ledger_id, created = await ledger_store.create_ledger(replace(METADATA, ctime_stored=True))
    assert created.value.ctime_stored
    assert created.value.ctime_ms > 0
    assert await ledger_store.read_ledger(ledger_id) == created


async def test_new_ids_are_unique_and_ascend(ledger_backend: Backend) -> None:
    one, two = await ledger_backend.store(), await ledger_backend.store()
    first = [(await one.create_ledger(METADATA))[0] for _ in range(3)]
    assert first == sorted(first)
    created = await asyncio.gather(*(s.create_ledger(METADATA) for s in (one, two) * 10))
    ids = [*first, *(ledger_id for ledger_id, _ in created)]
    assert len(set(ids)) == len(ids)
    assert_cover(await ranges_of(two), 0, ids)


async def test_a_ledger_can_be_created_with_a_chosen_id(ledger_store: MetadataStore) -> None:
    for ledger_id in (0, 2**31 - 2, 2**31 - 1, LEDGER_ID_MAX):
        created_id, created = await ledger_store.create_ledger(METADATA, ledger_id)
        assert created_id == ledger_id
        assert await ledger_store.read_ledger(ledger_id) == created
        with pytest.raises(LedgerExistsError, match=str(ledger_id)):
            await ledger_store.create_ledger(METADATA, ledger_id)
    made, _ = await ledger_store.create_ledger(METADATA)
    assert made not in (0, 2**31 - 2, 2**31 - 1, LEDGER_ID_MAX)
    for bad in (-1, LEDGER_ID_MAX + 1):
        with pytest.raises(UsageError):
            await ledger_store.create_ledger(METADATA, bad)


async def test_creating_again_with_the_same_token_is_success(ledger_store: MetadataStore) -> None:
    mine = replace(METADATA, ctoken=12345)
    _, created = await ledger_store.create_ledger(mine, 7)
    assert await ledger_store.create_ledger(mine, 7) == (7, created)
    with pytest.raises(LedgerExistsError):
        await ledger_store.create_ledger(replace(METADATA, ctoken=54321), 7)


async def test_a_write_with_an_old_version_is_refused(ledger_store: MetadataStore) -> None:
    ledger_id, created = await ledger_store.create_ledger(METADATA)
    recovering = created.value.with_state(LedgerState.IN_RECOVERY)
    written = await ledger_store.write_ledger(ledger_id, recovering, 0)
    assert written == Versioned(recovering, 1)
    with pytest.raises(VersionConflictError, match=str(ledger_id)):
        await ledger_store.write_ledger(ledger_id, created.value.with_close(1, 1), 0)
    assert await ledger_store.read_ledger(ledger_id) == written
    with pytest.raises(VersionConflictError):
        await ledger_store.write_ledger(ledger_id, recovering, 2)
    with pytest.raises(UsageError):
        await ledger_store.write_ledger(ledger_id, recovering, -1)
    with pytest.raises(NoSuchLedgerError):
        await ledger_store.write_ledger(ledger_id + 1000, recovering, 0)


async def test_metadata_that_cannot_be_stored_is_refused(ledger_store: MetadataStore) -> None:
    with pytest.raises(UsageError):
        await ledger_store.create_ledger(replace(METADATA, format_version=1))
    large = replace(METADATA, custom={"k": bytes(_common.NODE_BYTES_MAX)})
    with pytest.raises(UsageError, match="too large"):
        await ledger_store.create_ledger(large)
    with pytest.raises(UsageError, match="too large"):
        await ledger_store.write_value(("v",), bytes(_common.NODE_BYTES_MAX + 1), None)
    assert await ledger_store.write_value(("v",), bytes(_common.NODE_BYTES_MAX), None) == 0


async def test_concurrent_updates_of_a_ledger_lose_nothing(ledger_backend: Backend) -> None:
    """Each adds 20 segments; none is lost, though they write the same ledger."""
    stores = [await ledger_backend.store(), await ledger_backend.store()]
    ledger_id, created = await stores[0].create_ledger(METADATA)
    rounds = 20

    async def add(store: MetadataStore, who: str) -> None:
        current = created
        for number in range(rounds):
            name = f"{who}-{number}"

            def change(now: LedgerMetadata, name: str = name) -> LedgerMetadata:
                start = now.last_segment.first_entry_id + 1
                return now.with_ensemble_from(start, (name, "b:1", "c:1"))

            current = await update_ledger(store, ledger_id, current, change)

    await asyncio.gather(add(stores[0], "x"), add(stores[1], "y"))
    found = await stores[0].read_ledger(ledger_id)
    assert found.version == 2 * rounds
    names = [segment.ensemble[0] for segment in found.value.segments[1:]]
    assert sorted(names) == sorted(f"{who}-{n}" for who in "xy" for n in range(rounds))


async def test_update_ledger_retries_after_a_conflict(ledger_backend: Backend) -> None:
    mine, other = await ledger_backend.store(), await ledger_backend.store()
    ledger_id, created = await mine.create_ledger(METADATA)
    assert await update_ledger(mine, ledger_id, created, lambda now: None) == created
    await other.write_ledger(ledger_id, created.value.with_close(5, 50), 0)
    seen = []

    def close(now: LedgerMetadata) -> LedgerMetadata | None:
        seen.append(now.state)
        return None if now.closed else now.with_close(9, 90)

    found = await update_ledger(mine, ledger_id, created, close)
    assert seen == [LedgerState.OPEN, LedgerState.CLOSED]
    assert (found.version, found.value.last_entry_id) == (1, 5)
    await other.delete_ledger(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await update_ledger(mine, ledger_id, created, lambda now: now.with_close(1, 1))


async def test_delete_is_idempotent(ledger_store: MetadataStore) -> None:
    ids = [(await ledger_store.create_ledger(METADATA))[0] for _ in range(2)]
    await ledger_store.delete_ledger(ids[0])
    await ledger_store.delete_ledger(ids[0])
    await ledger_store.delete_ledger(4711)
    with pytest.raises(NoSuchLedgerError):
        await ledger_store.read_ledger(ids[0])
    assert_cover(await ranges_of(ledger_store), 0, ids[1:])
    await ledger_store.delete_ledger(ids[1])
    assert_cover(await ranges_of(ledger_store), 0, [])
    assert_cover_down(await down(ledger_store), LEDGER_ID_MAX, [])
    # Its parents may be gone as well: they come back.
    assert (await ledger_store.create_ledger(METADATA, ids[0]))[0] == ids[0]


async def test_listings_cover_gaps_in_the_ids(ledger_store: MetadataStore) -> None:
    chosen = [
        0, 1, 9_999, 10_000, 123_456, 99_999_999, 100_000_000, 2**31 - 2,
        2**31 - 1, 2**31, 2**40 + 7, 2**40 + 8, LEDGER_ID_MAX - 1, LEDGER_ID_MAX,
    ]  # fmt: skip
    shuffled = random.Random(1).sample(chosen, len(chosen))
    for ledger_id in shuffled:
        await ledger_store.create_ledger(METADATA, ledger_id)
    assert_cover(await ranges_of(ledger_store), 0, chosen)
    for first in (1, 2, 9_999, 123_457, 2**31 - 2, 2**31 - 1, 2**40 + 8, LEDGER_ID_MAX):
        assert_cover(await ranges_of(ledger_store, first), first, [i for i in chosen if i >= first])
    assert_cover_down(await down(ledger_store), LEDGER_ID_MAX, chosen)
    for last in (0, 1, 9_998, 9_999, 10_000, 123_455, 2**31 - 2, 2**31 - 1, 2**40 + 7):
        assert_cover_down(await down(ledger_store, last), last, [i for i in chosen if i <= last])


async def test_listings_of_many_ledgers_are_complete(
    ledger_store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledgers are in several ranges, some of which are full and some empty."""
    for module in (memory, sqlite):
        monkeypatch.setattr(module, "LIST_RANGE_LEDGERS", 50)
    chosen = [*range(150), *range(10_000, 10_100), *range(30_000, 30_001)]
    for at in range(0, len(chosen), 50):
        some = chosen[at : at + 50]
        await asyncio.gather(
            *(ledger_store.create_ledger(METADATA, ledger_id) for ledger_id in some)
        )
    ranges = await ranges_of(ledger_store)
    assert_cover(ranges, 0, chosen)
    # The flat manager has one list of all.
    assert len(ranges) > 1 or ledger_store.uri.startswith("zk+flat:")
    descending = await down(ledger_store)
    assert_cover_down(descending, LEDGER_ID_MAX, chosen)
    assert len(descending) > 1 or ledger_store.uri.startswith("zk+flat:")
    assert_cover_down(await down(ledger_store, 10_049), 10_049, [i for i in chosen if i < 10_050])


async def test_a_listing_can_omit_unchanged_ranges(
    ledger_store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LIST_RANGE_LEDGERS", 4)
    chosen = [1, 2, 3, 4, 10_001, 10_002, 10_003, 30_000]
    for ledger_id in chosen:
        await ledger_store.create_ledger(METADATA, ledger_id)
    before: dict[int, Sequence[int]] = {}

    async def listed(known: KnownRanges | None) -> tuple[set[int], KnownRanges]:
        """Check a list, and return the first ids of the ranges that were listed, and all stamps."""
        ranges = [span async for span in ledger_store.list_ledgers(complete=True, known=known)]
        for span in ranges:
            if span.unchanged:
                assert span.ledger_ids == ()
                assert (known or {})[span.first, span.last] == span.stamp
            else:
                before[span.first] = span.ledger_ids
        whole = [replace(span, ledger_ids=before[span.first]) for span in ranges]
        assert_cover(whole, 0, chosen)
        stamps = {(span.first, span.last): span.stamp for span in ranges if span.stamp is not None}
        return {span.first for span in ranges if not span.unchanged and span.ledger_ids}, stamps

    everything, known = await listed(None)
    again, _ = await listed(known)
    if known:
        assert again == set()
    else:  # SQLite and the flat manager have no stamps
        assert again == everything
    chosen.remove(10_002)
    await ledger_store.delete_ledger(10_002)
    changed, known = await listed(known)
    assert any(10_003 in before[first] for first in changed)
    assert not known or not any(2 in before[first] for first in changed)
    chosen.insert(5, 10_002)
    await ledger_store.create_ledger(METADATA, 10_002)
    changed, known = await listed(known)
    assert any(10_002 in before[first] for first in changed)
    # Parents of leaves that are gone and come back are not the former ones.
    for _ in range(2):
        await ledger_store.delete_ledger(30_000)
        chosen.remove(30_000)
        _, known = await listed(known)
        await ledger_store.create_ledger(METADATA, 30_000)
        chosen.append(30_000)
        changed, known = await listed(known)
        assert any(30_000 in before[first] for first in changed)


async def test_a_ledger_watch_reports_changes_and_the_deletion(ledger_backend: Backend) -> None:
    writer, reader = await ledger_backend.store(), await ledger_backend.store()
    ledger_id, created = await writer.create_ledger(METADATA)
    seen: list[Versioned[LedgerMetadata] | None] = []
    own: list[Versioned[LedgerMetadata] | None] = []
    closed: list[Versioned[LedgerMetadata] | None] = []
    reader.watch_ledger(ledger_id, seen.append)
    writer.watch_ledger(ledger_id, own.append)
    unwanted = reader.watch_ledger(ledger_id, closed.append)
    await until(lambda: seen == [created] and own == [created] and closed == [created])
    unwanted.close()
    unwanted.close()
    await writer.write_ledger(ledger_id, created.value.with_state(LedgerState.IN_RECOVERY), 0)
    await until(lambda: len(seen) == 2 and len(own) == 2)
    written = await writer.write_ledger(ledger_id, created.value.with_close(3, 4), 1)
    await until(lambda: written in seen and written in own)
    await writer.delete_ledger(ledger_id)
    await until(lambda: seen[-1] is None and own[-1] is None)
    versions = [found.version for found in seen if found is not None]
    assert versions == sorted(set(versions))
    assert closed == [created]


async def test_a_watch_of_a_missing_ledger_reports_its_absence(ledger_store: MetadataStore) -> None:
    seen: list[Versioned[LedgerMetadata] | None] = []
    ledger_store.watch_ledger(4711, seen.append)
    await until(lambda: seen == [None])


# -- nobody there -----------------------------------------------------------------------------


async def test_an_unreachable_zookeeper_raises_metadata_unavailable() -> None:
    from quire._runtime.clock import SystemClock
    from quire.metadata.uri import parse_uri
    from quire.metadata.zookeeper.store import ZooKeeperStore

    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1\b") as raised:
        await ZooKeeperStore.connect(
            parse_uri("zk://127.0.0.1:1/ledgers"),
            clock=SystemClock(),
            rng=random.Random(1),
            connect_timeout_s=0.5,
        )
    assert "refused" in str(raised.value)


async def test_an_unreachable_memory_store_raises_metadata_unavailable() -> None:
    store = await open_metadata("memory://unreachable", create=True)
    assert isinstance(store, memory.MemoryStore)
    memory.forget_memory("unreachable")
    other = memory.MemoryStore(store.cluster)
    await store.register_bookie(ONE)
    store.expire_session(back=False)
    assert await other.bookies() == Bookies({}, {})
    with pytest.raises(MetadataUnavailableError):
        await store.read_ledger(1)
    store.restore_session()
    assert await other.bookies() == Bookies({ONE.bookie_id: ONE}, {})
    await store.close()
    await other.close()


async def test_a_lost_answer_can_be_modelled() -> None:
    """The simulator's hook: the write is done, its answer is not given."""

    async def lose_writes(name: str, done: bool) -> None:
        if name == "write_ledger" and done:
            raise MetadataUnavailableError("the answer was lost")

    store = await open_metadata("memory://lost-answers", create=True)
    assert isinstance(store, memory.MemoryStore)
    memory.forget_memory("lost-answers")
    ledger_id, created = await store.create_ledger(METADATA)
    losing = memory.MemoryStore(store.cluster, hook=lose_writes)
    with pytest.raises(MetadataUnavailableError):
        await losing.write_ledger(ledger_id, created.value.with_close(1, 1), 0)
    assert (await store.read_ledger(ledger_id)).version == 1
    await losing.close()
    await store.close()


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_write_is_refused_if_the_ledger_was_recreated(
    ledger_store: MetadataStore, version: int
) -> None:
    """Both ledgers are at version 0: a compare-and-swap on the version alone would succeed."""
    metadata = replace(METADATA, format_version=version)
    if version == 1:
        metadata = replace(metadata, digest=None, password=None)
    ledger_id, old = await ledger_store.create_ledger(metadata)
    await ledger_store.delete_ledger(ledger_id)
    await next_millisecond()  # creations of one millisecond look alike to SQLite
    _, new = await ledger_store.create_ledger(replace(metadata, ctoken=0), ledger_id)
    assert old.created != new.created
    with pytest.raises(LedgerRecreatedError, match=str(ledger_id)) as failed:
        await ledger_store.write_ledger(ledger_id, old.value.with_close(5, 50), 0, old)
    assert failed.value.outcome_known
    assert await ledger_store.read_ledger(ledger_id) == new
    with pytest.raises(LedgerRecreatedError):
        await update_ledger(ledger_store, ledger_id, old, lambda now: now.with_close(5, 50))
    closed = await ledger_store.write_ledger(ledger_id, new.value.with_close(1, 9), 0, new)
    assert closed.created == new.created
    read = await ledger_store.read_ledger(ledger_id)
    assert (read.version, read.created) == (1, new.created)


async def test_skipped_ids_are_never_assigned(backend: Backend) -> None:
    """A restored store assigns the ids of lost ledgers again unless they are skipped."""
    store = await backend.store()
    first, _ = await store.create_ledger(METADATA)
    for last in (first + 200, first + 10, 0):
        await store.skip_ledger_ids(last)
        ledger_id, _ = await store.create_ledger(METADATA)
        assert ledger_id > first + 200
    await store.create_ledger(METADATA, first + 5)  # whoever chooses an id has it
    far = 7 * 2**32 + 5
    await store.skip_ledger_ids(far)
    ledger_id, _ = await store.create_ledger(METADATA)
    assert ledger_id > far


async def test_a_watch_distinguishes_a_recreated_ledger(
    ledger_backend: Backend,
) -> None:
    """Whether it sees the deletion, or only another creation at the version that it has seen."""
    writer, watcher = await ledger_backend.store(), await ledger_backend.store()
    ledger_id, old = await writer.create_ledger(METADATA)
    seen: list[Versioned[LedgerMetadata] | None] = []
    watcher.watch_ledger(ledger_id, seen.append)
    await until(lambda: len(seen) == 1)
    assert seen[0] is not None
    assert seen[0].created == old.created
    await next_millisecond()  # creations of one millisecond look alike to SQLite
    await writer.delete_ledger(ledger_id)
    await writer.create_ledger(METADATA, ledger_id)
    await until(lambda: len(seen) > 1)
    assert seen[1] is None or seen[1].created != old.created
