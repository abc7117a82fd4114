"""A superfluous copy is dropped, and a copy that the metadata may be about to name never is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.bookie.background import over_replicated
from quire.bookie.background.over_replicated import OverReplicated
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.underreplication import LockHolder, lock_path
from quire.errors import (
    CollectionOffError,
    CookieError,
    LedgerRecreatedError,
    MetadataTooLargeError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)
from quire.metadata.tree import Create
from quire.metadata.uri import replication_root
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import Unguarded, memory_metadata
from tests.support.storage.storage import StoreOnDisk, entries, fill_segments, opened

ME, OTHER = "me:1", "other:1"


def ledger(*ensembles: tuple[str, ...], state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    segments = tuple(Segment(5 * at, ensemble) for at, ensemble in enumerate(ensembles))
    size = len(ensembles[0])
    closed = {"last_entry_id": 30, "length": 300} if state is LedgerState.CLOSED else {}
    return LedgerMetadata(size, 1, 1, segments, state=state, **closed)


@dataclass
class Scene:
    """A bookie with some ledgers, and the removal of superfluous copies on it."""

    box: StoreOnDisk
    metadata: MemoryStore
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    guard: Any = field(default_factory=Unguarded)
    copies: OverReplicated = field(init=False)

    async def begin(self) -> None:
        instance = await self.metadata.instance_id()
        self.copies = OverReplicated(
            self.box.store, self.metadata, self.box.clock, ME, instance, self.guard
        )

    async def collect(self) -> list[int]:
        return await self.copies.collect(
            lambda event, **fields: self.events.append((event, fields))
        )

    async def has(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.box.append(entries(ledger_id, 0, 5))
        self.box.idle()
        await self.metadata.create_ledger(metadata, ledger_id)

    @property
    def here(self) -> set[int]:
        return set(self.box.store.ledger_ids())

    def lock_of(self, ledger_id: int) -> str:
        return lock_path(replication_root(self.metadata.uri), ledger_id)

    async def is_locked(self, ledger_id: int) -> bool:
        return await self.metadata.tree.exists(self.lock_of(ledger_id))


@pytest.fixture
async def there() -> AsyncIterator[Scene]:
    metadata = memory_metadata()
    await metadata.initialise()
    scene = Scene(opened(), metadata)
    await scene.begin()
    yield scene
    await metadata.close()


async def test_a_copy_is_dropped_by_the_second_pass_that_finds_it_unchanged(there: Scene) -> None:
    await there.has(1, ledger((OTHER,)))
    await there.has(2, ledger((OTHER,), (ME,)))
    before = await there.metadata.read_ledger(1)
    assert await there.collect() == []
    assert (there.copies.waiting, there.copies.dropped, there.here) == (1, 0, {1, 2})
    assert (await there.metadata.read_ledger(1)).version == before.version
    assert await there.collect() == [1]
    assert (there.copies.waiting, there.copies.dropped, there.here) == (0, 1, {2})
    assert there.events == [("over_replicated_dropped", {"count": 1, "first": 1})]
    after = await there.metadata.read_ledger(1)
    assert after.version > before.version, "nobody can name a copy with the old version"
    assert after.value == before.value
    assert not await there.is_locked(1)
    assert await there.collect() == []


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
async def test_needed_copies_are_kept(there: Scene, state: LedgerState) -> None:
    """The ledger is not closed, one of its segments names this bookie, it does not exist, or it
    cannot be read."""
    await there.has(1, ledger((OTHER,), state=state))
    await there.has(2, ledger((ME,), (OTHER,)))
    await there.has(3, ledger((OTHER,), (ME,)))
    await there.has(4, ledger((OTHER,)))
    await there.metadata.delete_ledger(4)
    await there.has(5, ledger((OTHER,)))
    there.metadata.cluster.unreadable[5] = b"damaged"
    for _ in range(4):
        assert await there.collect() == []
        assert there.copies.waiting == 0
        assert 5 in there.copies.unread
    assert there.here == {1, 2, 3, 4, 5}
    [(event, fields), *_] = there.events
    assert (event, fields["count"], list(fields["ledgers"])) == (
        "over_replicated_unreadable",
        1,
        [5],
    )


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_copy_that_was_added_to_since_the_last_pass_waits_again(
    there: Scene, *, sealed: bool
) -> None:
    await there.has(1, ledger((OTHER,)))
    if sealed:
        fill_segments(there.box, 1, 1)
        there.box.idle()
    for number in range(3):
        assert await there.collect() == []
        there.box.append(entries(1, 1_000 + 10 * number, 1))
        if sealed:
            fill_segments(there.box, 1, 1)
        there.box.idle()
    assert await there.collect() == []
    assert await there.collect() == [1]


async def test_a_ledger_that_was_changed_since_the_last_pass_waits_again(there: Scene) -> None:
    await there.has(1, ledger((OTHER,)))
    for number in range(3):
        assert await there.collect() == []
        stored = await there.metadata.read_ledger(1)
        changed = replace(stored.value, custom={"n": b"%d" % number})
        await there.metadata.write_ledger(1, changed, stored.version)
    assert await there.collect() == []
    assert await there.collect() == [1]


async def test_a_ledger_locked_by_another_process_is_left_alone(there: Scene) -> None:
    """The lock of the other process is not touched."""
    await there.has(1, ledger((OTHER,)))
    tree, path = there.metadata.tree, there.lock_of(1)
    await tree.make_path(path.rpartition("/")[0])
    theirs = LockHolder("worker", 5, "tag").encode()
    await tree.commit(Create(path, theirs, ephemeral=True))
    version = (await there.metadata.read_ledger(1)).version
    for _ in range(3):
        assert await there.collect() == []
        assert there.copies.waiting == 1
    assert (await tree.read(path)).value == theirs
    assert (await there.metadata.read_ledger(1)).version == version


@pytest.mark.parametrize("what", ["added", "changed", "deleted", "conflict", "recreated", "large"])
async def test_a_change_of_the_ledger_under_the_lock_keeps_the_copy(
    there: Scene, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is released."""
    await there.has(1, ledger((OTHER,)))
    assert await there.collect() == []
    metadata = there.metadata
    read, write = metadata.read_ledger, metadata.write_ledger
    reads = 0

    async def reading(ledger_id: int) -> Any:
        nonlocal reads
        reads += 1
        if reads == 2:
            assert await there.is_locked(1)
            if what == "changed":
                stored = await read(ledger_id)
                named = replace(stored.value, segments=(Segment(0, (ME,)),))
                await write(ledger_id, named, stored.version)
            elif what == "deleted":
                await metadata.delete_ledger(ledger_id)
        return await read(ledger_id)

    async def writing(*how: Any) -> Any:
        if what == "added":
            there.box.append(entries(1, 100, 1))
        errors = {
            "conflict": VersionConflictError("changed"),
            "recreated": LedgerRecreatedError("created again", ledger_id=1),
            "large": MetadataTooLargeError("too large"),
        }
        if what in errors:
            raise errors[what]
        return await write(*how)

    monkeypatch.setattr(metadata, "read_ledger", reading)
    monkeypatch.setattr(metadata, "write_ledger", writing)
    assert await there.collect() == []
    assert there.here == {1}
    assert reads == 2
    assert not await there.is_locked(1)
    assert there.copies.dropped == 0


async def test_an_unreliable_store_drops_nothing(there: Scene) -> None:
    """Each pass checks the store before it reads, and again when it has found something."""
    await there.has(1, ledger((OTHER,)))
    assert await there.collect() == []
    checks: list[int] = []

    class Guard:
        def __init__(self, bad: int) -> None:
            self.bad = bad

        async def check(self) -> None:
            checks.append(self.bad)
            if checks.count(self.bad) >= self.bad:
                raise CollectionOffError("off")

    for bad in (1, 2):
        there.copies._guard = Guard(bad)  # type: ignore[assignment]
        with pytest.raises(CollectionOffError):
            await there.collect()
        assert checks.count(bad) == bad
        assert there.here == {1}
    there.copies._guard = there.guard
    there.copies._instance_id = "another cluster"
    with pytest.raises(CookieError):
        await there.collect()
    assert there.here == {1}


async def test_many_ledgers_are_examined_in_parts(
    there: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_replicated, "READS_MAX", 2)
    for ledger_id in range(1, 8):
        await there.has(ledger_id, ledger((OTHER,) if ledger_id != 4 else (ME,)))
    assert await there.collect() == []
    assert there.copies.waiting == 6
    assert await there.collect() == [1, 2, 3, 5, 6, 7]
    assert there.here == {4}
    assert there.events[-1] == ("over_replicated_dropped", {"count": 6, "first": 1})


@pytest.mark.parametrize("made", [True, False])
async def test_a_lock_whose_creation_was_not_answered_is_released_by_the_next_pass(
    there: Scene, *, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await there.has(1, ledger((OTHER,)))
    assert await there.collect() == []
    tree = there.metadata.tree
    commit = tree.commit

    async def unanswered(*changes: Any) -> Any:
        if made:
            await commit(*changes)
        raise MetadataUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(tree, "commit", unanswered)
        with pytest.raises(MetadataUnavailableError):
            await there.collect()
    assert await there.is_locked(1) is made
    assert there.here == {1}
    there.copies._seen.clear()
    assert await there.collect() == []
    assert not await there.is_locked(1)
    assert await there.collect() == [1]


async def test_a_lock_that_is_gone_or_owned_by_another_is_not_released(there: Scene) -> None:
    await there.has(1, ledger((OTHER,)))
    path = there.lock_of(1)
    there.copies._held[path] = b"mine"
    tree = there.metadata.tree
    with pytest.raises(NoSuchKeyError):
        await tree.read(path)
    assert await there.collect() == []
    assert there.copies._held == {}
    there.copies._held[path] = b"mine"
    await tree.make_path(path.rpartition("/")[0])
    await tree.commit(Create(path, b"theirs", ephemeral=True))
    assert await there.collect() == []
    assert there.copies._held == {}
    assert (await tree.read(path)).value == b"theirs"
    assert there.here == {1}
