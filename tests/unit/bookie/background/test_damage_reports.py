"""The damage that a bookie reports, how often it does, and what it does not report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quire.bookie.background.complete_ledger import is_complete
from quire.bookie.background.damage import (
    AGAIN_S,
    LEDGERS_PER_PASS,
    NAMED_PER_PASS,
    RECOVERIES_END_S,
    SOON_S,
    DamageReports,
    names,
)
from quire.bookie.background.over_replicated import OverReplicated
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.underreplication import Underreplicated, mark_path
from quire.errors import (
    CookieError,
    MetadataError,
    MetadataUnavailableError,
    MetadataWentBackError,
    StorageError,
    UnreadableMetadataError,
)
from quire.metadata.interface import LedgerRange
from quire.metadata.tree import Delete
from quire.metadata.uri import replication_root
from quire_simulator.metadata import store as memory
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import Unguarded, memory_metadata
from tests.support.storage.scrubbed_store import filled
from tests.support.storage.storage import HandClock, StoreOnDisk, sealed, sim_disk

ME, OTHER = "me:3181", "other:3181"


class FakeStore:
    def __init__(self) -> None:
        self.ledgers: dict[int, object] = {}
        self.damaged: dict[int, list[tuple[int, int]]] = {}
        self.negatives_unknown = False
        self.deletions_logged = True
        self.synced: asyncio.Future[StorageError | None] | None = None
        """The outcome of the next barrier, or None if barriers succeed at once."""

    def absence_unknown(self, ledger_id: int) -> bool:
        return self.negatives_unknown

    @property
    def log_lossy(self) -> bool:
        return self.negatives_unknown

    def barrier(self, done: Callable[[StorageError | None], None]) -> None:
        if self.synced is None:
            done(None)
        else:
            self.synced.add_done_callback(lambda synced: done(synced.result()))

    def mark_repaired(self, done: Callable[[StorageError | None], None]) -> None:
        self.negatives_unknown = False
        done(None)

    def lacking_ledgers(self) -> set[int]:
        return set(self.damaged)

    def lacking(self, ledger_ids: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        assert len(ledger_ids) <= LEDGERS_PER_PASS
        return {one: self.damaged[one] for one in ledger_ids}


class Scene:
    def __init__(self) -> None:
        self.metadata: MemoryStore = memory_metadata()
        self.store = FakeStore()
        self.clock = HandClock()
        self.events: list[tuple[str, dict[str, object]]] = []

    async def begin(self) -> DamageReports:
        await self.metadata.initialise()
        own = await self.metadata.instance_id()
        assert own is not None
        store: Any = self.store
        guard: Any = Unguarded()
        return DamageReports(store, self.metadata, self.clock, ME, own, guard)

    def log(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    async def ledger(self, ledger_id: int, *ensembles: tuple[str, ...]) -> None:
        """Each ensemble has ten entries."""
        segments = tuple(Segment(10 * n, one) for n, one in enumerate(ensembles))
        size = len(ensembles[0])
        await self.metadata.create_ledger(LedgerMetadata(size, size, size, segments), ledger_id)

    async def marked(self, ledger_id: int) -> tuple[str, ...]:
        path = mark_path(replication_root(self.metadata.uri), ledger_id)
        if not await self.metadata.tree.exists(path):
            return ()
        return Underreplicated.decode((await self.metadata.tree.read(path)).value).replicas


async def test_a_ledger_is_marked_once_and_again_if_its_mark_disappears() -> None:
    there = Scene()
    reports = await there.begin()
    assert await reports.report(there.log) == 0
    await there.ledger(1, (ME, OTHER))
    there.store.damaged = {1: [(3, 5)]}
    assert await reports.report(there.log) == 1
    assert await there.marked(1) == (ME,)
    assert there.events == [("damage_reported", {"ledgers": 1, "lacking": 1, "unknown": False})]
    assert await reports.report(there.log) == 0
    # Somebody removed the mark, but the entries are still missing.
    path = mark_path(replication_root(there.metadata.uri), 1)
    await there.metadata.tree.commit(Delete(path))
    assert await reports.report(there.log) == 0
    there.clock.ms += int(AGAIN_S * 1000)
    assert await reports.report(there.log) == 1
    assert await there.marked(1) == (ME,)
    # Healed, and damaged again: that is news.
    await there.metadata.tree.commit(Delete(path))
    there.store.damaged = {}
    assert await reports.report(there.log) == 0
    there.store.damaged = {1: [(3, 3)]}
    assert await reports.report(there.log) == 1


async def test_deleted_ledgers_and_those_of_other_bookies_are_not_marked() -> None:
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (OTHER,))
    await there.ledger(2, (OTHER,), (ME,), (OTHER,))
    await there.ledger(3, (OTHER,), (ME,), (OTHER,))
    there.store.damaged = {1: [(0, 5)], 2: [(0, 9), (20, 30)], 3: [(5, 10)], 4: [(0, 0)]}
    assert await reports.report(there.log) == 1
    assert [await there.marked(n) for n in (1, 2, 3, 4)] == [(), (), (ME,), ()]


async def test_nothing_is_reported_to_another_cluster() -> None:
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (ME,))
    reports._instance_id = "another"
    there.store.damaged = {1: [(0, 0)]}
    with pytest.raises(CookieError, match="nothing was marked"):
        await reports.report(there.log)
    assert await there.marked(1) == ()


async def test_a_pass_is_limited_and_the_next_one_continues() -> None:
    there = Scene()
    reports = await there.begin()
    count = LEDGERS_PER_PASS + 30
    for ledger_id in range(count):
        await there.ledger(ledger_id, (ME, OTHER))
    there.store.damaged = {ledger_id: [(0, 0)] for ledger_id in range(count)}
    assert await reports.report(there.log) == LEDGERS_PER_PASS
    assert await reports.report(there.log) == 30
    assert await reports.report(there.log) == 0


async def test_a_failed_report_is_retried() -> None:
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (ME,))
    there.store.damaged = {1: [(0, 0)]}
    failing = [True]

    async def hook(operation: str, done: bool) -> None:
        if failing and operation == "read_ledger" and not done:
            failing.clear()
            raise MetadataUnavailableError("the store is away")

    there.metadata._hook = hook
    with pytest.raises(MetadataUnavailableError):
        await reports.report(there.log)
    assert not failing
    assert await reports.report(there.log) == 1


async def test_every_ledger_of_the_bookie_is_marked_if_the_losses_are_unknown() -> None:
    there = Scene()
    reports = await there.begin()
    count = LEDGERS_PER_PASS + 10
    for ledger_id in range(count):
        await there.ledger(ledger_id, (OTHER,), (ME,))
    await there.ledger(count, (OTHER,))
    there.store.negatives_unknown = True
    passes = [await reports.report(there.log) for _ in range(4)]
    assert passes == [LEDGERS_PER_PASS, 10, 0, 0]
    assert await there.marked(count) == ()
    there.store.negatives_unknown = False
    assert await reports.report(there.log) == 0


async def test_listing_a_cluster_does_not_hold_all_its_ledgers_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass may end anywhere in a range of ids, and the next one retries what failed."""
    monkeypatch.setattr(memory, "LIST_RANGE_LEDGERS", 70)
    there = Scene()
    reports = await there.begin()
    count = 2 * LEDGERS_PER_PASS + 10
    for ledger_id in range(0, 3 * count, 3):
        await there.ledger(ledger_id, (ME,))
    there.store.negatives_unknown = True
    asked: list[int] = []
    there.store.absence_unknown = lambda one: bool(asked.append(one)) or True  # type: ignore[method-assign, func-returns-value]
    assert await reports.report(there.log) == LEDGERS_PER_PASS
    read = there.metadata.read_ledger

    async def fails(ledger_id: int) -> Any:
        raise MetadataUnavailableError("gone")

    monkeypatch.setattr(there.metadata, "read_ledger", fails)
    with pytest.raises(MetadataUnavailableError):
        await reports.report(there.log)
    monkeypatch.setattr(there.metadata, "read_ledger", read)
    passes = [await reports.report(there.log) for _ in range(3)]
    assert passes == [LEDGERS_PER_PASS, 10, 0]
    assert sorted(set(asked)) == list(range(0, 3 * count, 3))
    assert len(asked) < count + LEDGERS_PER_PASS


async def test_new_reports_come_before_repeated_ones() -> None:
    there = Scene()
    reports = await there.begin()
    for ledger_id in range(LEDGERS_PER_PASS + 20):
        await there.ledger(ledger_id, (ME, OTHER))
    there.store.damaged = {one: [(0, 0)] for one in range(LEDGERS_PER_PASS)}
    assert await reports.report(there.log) == LEDGERS_PER_PASS
    there.clock.ms += int(AGAIN_S * 1000)
    there.store.damaged |= {LEDGERS_PER_PASS + n: [(0, 0)] for n in range(20)}
    assert await reports.report(there.log) == 20  # the others are marked still
    assert all([await there.marked(LEDGERS_PER_PASS + n) for n in range(20)])
    there.store.damaged = {}
    assert await reports.report(there.log) == 0
    assert not reports._told_s


async def test_a_ledger_whose_mark_was_removed_is_reported_again_when_it_is_due() -> None:
    there = Scene()
    reports = await there.begin()
    for ledger_id in (1, 2):
        await there.ledger(ledger_id, (ME, OTHER))
        there.store.damaged[ledger_id] = [(0, 0)]
        assert await reports.report(there.log) == 1
        there.clock.ms += int(AGAIN_S * 500)
    path = mark_path(replication_root(there.metadata.uri), 2)
    await there.metadata.tree.commit(Delete(path))
    assert await reports.report(there.log) == 0  # Ledger 1 is still marked, and only it is due.
    there.clock.ms += int(AGAIN_S * 500)
    assert await reports.report(there.log) == 1
    assert await there.marked(2) == (ME,)


def test_a_bookie_should_have_only_entries_of_segments_that_name_it() -> None:
    segments = (Segment(0, (OTHER,)), Segment(10, (ME,)), Segment(20, (OTHER,)))
    metadata = LedgerMetadata(1, 1, 1, segments)
    assert names(metadata, ME, [(0, 3), (19, 19)])
    assert names(metadata, ME, [(9, 10)])
    assert not names(metadata, ME, [(0, 9), (20, 50)])
    assert not names(metadata, ME, [])
    assert names(LedgerMetadata(1, 1, 1, (Segment(0, (ME,)),)), ME, [(10**9, 10**9)])


async def test_damaged_entries_after_the_end_of_a_closed_ledger_are_not_reported() -> None:
    """Nobody has them, so the ledger was once marked again every ten minutes.

    A recovery may close a ledger before entries that a single bookie has received.
    """
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (ME, OTHER), (ME, OTHER))
    there.store.damaged = {1: [(15, 20)]}
    stored = await there.metadata.read_ledger(1)
    closed = replace(stored.value, state=LedgerState.CLOSED, last_entry_id=14, length=1)
    await there.metadata.write_ledger(1, closed, stored.version)
    assert await reports.report(there.log) == 0
    assert not await there.marked(1)
    there.store.damaged = {1: [(14, 20)]}
    there.clock.ms += int(AGAIN_S * 1000)
    assert await reports.report(there.log) == 1


# -- metadata that makes no sense -----------------------------------------------------------------


def damaged_metadata(there: Scene, monkeypatch: pytest.MonkeyPatch, *bad: int) -> None:
    read = there.metadata.read_ledger

    async def reading(ledger_id: int) -> Any:
        if ledger_id in bad:
            raise UnreadableMetadataError("ledger metadata has format 9; known are 1, 2 and 3")
        return await read(ledger_id)

    monkeypatch.setattr(there.metadata, "read_ledger", reading)


async def test_invalid_metadata_of_one_ledger_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Scene()
    reports = await there.begin()
    count = LEDGERS_PER_PASS + 30
    for ledger_id in range(count):
        await there.ledger(ledger_id, (ME, OTHER))
    there.store.damaged = {ledger_id: [(0, 0)] for ledger_id in range(count)}
    damaged_metadata(there, monkeypatch, *range(12))
    assert await reports.report(there.log) == LEDGERS_PER_PASS - 12
    named = dict(there.events)["metadata_unreadable"]
    assert named["count"] == 12
    assert named["ledgers"] == list(range(NAMED_PER_PASS))
    assert "format 9" in str(named["error"])
    assert await reports.report(there.log) == 30
    # It is not due yet. Then it is checked again, and has been repaired in the meantime.
    assert await reports.report(there.log) == 0
    there.clock.ms += int(AGAIN_S * 1000)
    monkeypatch.undo()
    assert await reports.report(there.log) == 12
    assert reports.unreadable == 12


async def test_a_loss_does_not_end_while_metadata_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (OTHER,))
    await there.ledger(2, (OTHER,))
    there.store.negatives_unknown = True
    damaged_metadata(there, monkeypatch, 1)
    assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (1, 0)
    there.clock.ms += int(AGAIN_S * 1000)
    monkeypatch.undo()
    assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (0, 1)
    assert there.events[-1] == ("loss_healed", {"bookie": ME})
    assert await reports.report(there.log) == 0
    assert reports.losses_repaired == 1


async def test_unreadable_metadata_does_not_shorten_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ledger with unreadable metadata has no mark that could be gone."""
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (OTHER,))
    there.store.negatives_unknown = True
    damaged_metadata(there, monkeypatch, 1)
    for round_number in (1, 2):
        assert await reports.report(there.log) == 0
        assert reports.unreadable == round_number
        for _ in range(3):
            there.clock.ms += int(SOON_S * 1000)
            assert await reports.report(there.log) == 0
        assert reports.unreadable == round_number
        there.clock.ms += int(AGAIN_S * 1000)


@pytest.mark.parametrize("error", [None, StorageError("the disk failed")])
async def test_a_loss_ends_only_when_the_restored_copies_are_durable(
    error: StorageError | None,
) -> None:
    """They may be in the log of another data directory than the record that the loss has ended."""
    there = Scene()
    reports = await there.begin()
    there.store.negatives_unknown = True
    there.store.synced = asyncio.get_running_loop().create_future()
    reporting = asyncio.ensure_future(reports.report(there.log))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reporting.done()
    assert there.store.negatives_unknown
    there.store.synced.set_result(error)
    if error is None:
        assert await reporting == 0
    else:
        with pytest.raises(StorageError):
            await reporting
    assert there.store.negatives_unknown == (error is not None)
    assert reports.losses_repaired == (error is None)


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ledgers that are complete on the bookie."""
    found: set[int] = set()

    async def is_in(store: object, ledger_id: int, *facts: object, recoveries_over: bool) -> bool:
        return ledger_id in found

    monkeypatch.setattr("quire.bookie.background.damage.is_complete", is_in)
    return found


async def test_a_loss_ends_soon_after_the_marks_are_gone(complete: set[int]) -> None:
    """The bookie once stayed read-only for nine more minutes, until its next round."""
    there = Scene()
    reports = await there.begin()
    for ledger_id in (1, 2):
        await there.ledger(ledger_id, (ME, OTHER))
    there.store.negatives_unknown = True
    assert await reports.report(there.log) == 2
    there.clock.ms += int(SOON_S * 1000)
    assert await reports.report(there.log) == 0
    assert reports.losses_repaired == 0
    for ledger_id in (2, 1):
        path = mark_path(replication_root(there.metadata.uri), ledger_id)
        await there.metadata.tree.commit(Delete(path))
        complete.add(ledger_id)
        assert reports.losses_repaired == 0
        assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (0, 1)


async def test_a_mark_removed_too_early_is_repeated_after_a_short_pause(
    complete: set[int],
) -> None:
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (ME, OTHER))
    there.store.negatives_unknown = True
    path = mark_path(replication_root(there.metadata.uri), 1)
    for _ in range(3):
        assert await reports.report(there.log) == 1
        await there.metadata.tree.commit(Delete(path))
        there.clock.ms += int(SOON_S * 500)
        assert await reports.report(there.log) == 0
        there.clock.ms += int(SOON_S * 500)


async def test_a_loss_does_not_end_while_a_recovery_may_run() -> None:
    there = Scene()
    reports = await there.begin()
    await there.ledger(1, (OTHER,))
    stored = await there.metadata.read_ledger(1)
    recovering = stored.value.with_state(LedgerState.IN_RECOVERY)
    await there.metadata.write_ledger(1, recovering, stored.version)
    there.store.negatives_unknown = True
    assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (1, 0)
    assert not await there.marked(1), "nothing is missing here"
    there.clock.ms += int(RECOVERIES_END_S * 1000)
    assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (0, 1)


async def test_a_loss_does_not_end_while_the_log_has_no_space_for_a_refusal() -> None:
    """After a crash the ledger could be written again, and its lost fence would be unknown."""
    there = Scene()
    reports = await there.begin()
    there.store.negatives_unknown, there.store.deletions_logged = True, False
    assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (1, 0)
    there.clock.ms += int(AGAIN_S * 1000)
    there.store.deletions_logged = True
    assert await reports.report(there.log) == 0
    assert (reports.wanting, reports.losses_repaired) == (0, 1)


async def test_a_list_with_a_gap_ends_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list ends no loss either."""
    there = Scene()
    reports = await there.begin()
    there.store.negatives_unknown = True

    async def gap(first: int = 0) -> AsyncIterator[LedgerRange]:
        yield LedgerRange(first, 9, ())
        yield LedgerRange(11, 2**63 - 1, ())

    async def empty(first: int = 0) -> AsyncIterator[LedgerRange]:
        for span in ():
            yield span

    monkeypatch.setattr(there.metadata, "list_ledgers", gap)
    with pytest.raises(MetadataError, match="gap before ledger 11"):
        await reports.report(there.log)
    monkeypatch.setattr(there.metadata, "list_ledgers", empty)
    for _ in range(3):
        assert await reports.report(there.log) == 0
    assert reports.losses_repaired == 0
    monkeypatch.undo()
    assert await reports.report(there.log) == 0
    assert reports.losses_repaired == 1


async def test_another_cluster_ends_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cluster replaces ours while its ledgers are listed."""
    there = Scene()
    reports = await there.begin()
    there.store.negatives_unknown = True
    answers = [await there.metadata.instance_id(), "another"]

    async def instance_id() -> str | None:
        return answers.pop(0)

    monkeypatch.setattr(there.metadata, "instance_id", instance_id)
    with pytest.raises(CookieError):
        await reports.report(there.log)
    assert reports.losses_repaired == 0


# -- what is whole --------------------------------------------------------------------------------


def closed(*ensembles: tuple[str, ...], last: int, **quorums: int) -> LedgerMetadata:
    segments = tuple(Segment(10 * n, one) for n, one in enumerate(ensembles))
    size = len(ensembles[0])
    metadata = LedgerMetadata(size, quorums.get("write", size), 1, segments)
    return metadata.with_close(last, 0)


async def is_here(metadata: LedgerMetadata, *here: tuple[int, int], lacks: Any = ()) -> bool:
    box = StoreOnDisk(sim_disk())
    box.open()
    ids = [entry for first, last in here for entry in range(first, last + 1)]
    if ids:
        box.append([(1, entry, b"x" * 16) for entry in ids])
        box.pump()
    store: Any = box.store
    store.lacking = lambda ledger_ids: {1: list(lacks)}
    work = asyncio.ensure_future(is_complete(store, 1, metadata, ME))
    while not work.done():
        await asyncio.sleep(0)
        box.idle()
    if work.result() and metadata.closed and any(ME in s.ensemble for s in metadata.segments):
        assert store.ledgers[1].fence_durable
    else:
        assert 1 not in store.ledgers or not store.ledgers[1].fenced
    return await work


async def test_a_ledger_is_complete_if_all_its_entries_for_the_bookie_are_present() -> None:
    one = closed((ME, OTHER), last=9)
    assert await is_here(one, (0, 9))
    assert not await is_here(one, (0, 8))
    assert not await is_here(one, (1, 9))
    assert not await is_here(one, (0, 4), (6, 9))
    assert not await is_here(one)
    assert not await is_here(one, (0, 9), lacks=[(3, 3)])
    # Nothing of the ledger should be here, so its fence is created without entries.
    assert await is_here(closed((ME, OTHER), last=-1))
    assert await is_here(closed((OTHER,), (ME,), last=9))
    assert await is_here(closed((OTHER,), last=9))
    assert await is_here(closed((OTHER,), (ME,), (OTHER,), last=25), (10, 19))
    assert not await is_here(closed((OTHER,), (ME,), (OTHER,), last=25), (10, 18))


async def test_a_striped_ledger_is_complete_if_all_entries_of_its_stripe_are_present() -> None:
    striped = closed(("a", ME, "b"), last=8, write=2)  # 0, 1, 3, 4, 6, 7 are its own
    assert await is_here(striped, (0, 1), (3, 4), (6, 7))
    assert await is_here(striped, (0, 8))
    assert not await is_here(striped, (0, 1), (3, 3), (6, 7))
    assert not await is_here(striped, (0, 4), (6, 6))


async def test_an_open_ledger_is_complete_if_all_its_closed_segments_are_present() -> None:
    now = replace(closed((ME,), (OTHER,), last=-1), state=LedgerState.OPEN)
    assert await is_here(now, (0, 9))
    assert not await is_here(now, (0, 8))
    assert not await is_here(now.with_state(LedgerState.IN_RECOVERY), (0, 9))
    last = replace(closed((OTHER,), (ME,), last=-1), state=LedgerState.OPEN)
    assert not await is_here(last, (10, 30))


async def test_damage_in_a_ledger_of_other_bookies_ends_without_a_copy() -> None:
    """The ledger is closed and its metadata does not name this bookie, so nobody repairs or reads
    it here.

    The damage ends with the collection of surplus copies, and not earlier.
    """
    box = filled()
    number = sealed(box)[0]
    box.append([(50, 0, b"of a ledger that is not in that segment")])
    box.idle()
    box.flip(number, 4)
    box.later()
    lost = set(box.store.lacking_ledgers())
    assert lost
    assert lost < set(box.store.ledger_ids())
    there = Scene()
    await there.begin()
    for ledger_id in box.store.ledger_ids():
        member = OTHER if ledger_id in lost else ME
        closed = LedgerMetadata(
            1, 1, 1, (Segment(0, (member,)),), state=LedgerState.CLOSED, last_entry_id=9, length=9
        )
        await there.metadata.create_ledger(closed, ledger_id)
    instance = await there.metadata.instance_id()
    assert instance is not None
    guard: Any = Unguarded()
    copies = OverReplicated(box.store, there.metadata, there.clock, ME, instance, guard)
    assert await copies.collect(there.log) == []
    box.later()
    assert box.records()
    assert set(await copies.collect(there.log)) == lost
    box.later()
    assert not box.store.lacking_ledgers()
    assert (box.records(), box.store.stats().damaged_segments) == ([], 0)
    assert not lost & set(box.store.ledger_ids())
    box.acknowledged = {key: one for key, one in box.acknowledged.items() if key[0] not in lost}
    assert box.unreadable() == {}
    assert box.acknowledged


async def test_a_store_that_went_back_ends_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that the store does not name may have been here.

    So absence does not count again by its list, or by a list that may be incomplete.
    """
    there = Scene()
    reports = await there.begin()
    there.store.negatives_unknown = True

    async def went_back() -> None:
        raise MetadataWentBackError("older")

    monkeypatch.setattr(reports._guard, "check_store", went_back)
    with pytest.raises(MetadataWentBackError):
        await reports.report(there.log)
    monkeypatch.undo()
    listed = there.metadata.list_ledgers

    async def strange(
        first: int = 0, *, complete: bool = False, known: object = None
    ) -> AsyncIterator[LedgerRange]:
        if complete:
            raise MetadataError("L12 is not understood")
        async for span in listed(first):
            yield span

    monkeypatch.setattr(there.metadata, "list_ledgers", strange)
    with pytest.raises(MetadataError, match="not understood"):
        await reports.report(there.log)
    assert reports.losses_repaired == 0
    monkeypatch.undo()
    assert await reports.report(there.log) == 0
    assert reports.losses_repaired == 1
