"""The election of the auditor, and messages between auditors and operators, on each store.

In ZooKeeper they are as in Apache's.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.codec.metadata.underreplication import CHECKED_LEDGERS, LockHolder, checked_at
from quire.errors import MetadataError, MetadataUnavailableError, UsageError
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.tree import Create, Delete, Operation, Put, Result
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire.replication.autorecovery.election import Election, auditor_of
from quire.replication.explain.status import marked_ledgers, overview, why_not
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import LastFailure, forget_failure, note_failure
from tests.support.metadata.backends import Backend, tree
from tests.support.metadata.tree import lose_session
from tests.support.waiting import until

LIMIT_S = 30


def election(store: MetadataStore, owner: str) -> Election:
    return Election(store, owner, SystemClock())


async def names_of(store: MetadataStore, auditor: str | None) -> None:
    """Wait until this one is the auditor."""
    await until(
        lambda: auditor_of(store),
        right=lambda found: (found.owner if found is not None else None) == auditor,
    )


async def votes_of(store: MetadataStore, count: int) -> None:
    """Wait until there is this number of votes."""
    root = election(store, "x").root
    await until(lambda: store.tree.children(root), right=lambda found: len(found) == count)


async def test_the_next_candidate_is_elected_when_the_auditor_leaves(
    backend: Backend, store: MetadataStore
) -> None:
    other = await backend.store()
    assert await auditor_of(store) is None
    order: list[str] = []
    leave = asyncio.Event()

    async def candidate(where: MetadataStore, name: str) -> None:
        async with election(where, name).won():
            order.append(name)
            await leave.wait()
            leave.clear()

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        group.create_task(candidate(store, "a"))
        await names_of(store, "a")
        group.create_task(candidate(other, "b"))
        await votes_of(store, 2)
        group.create_task(candidate(store, "c"))
        await votes_of(store, 3)
        for left in ("b", "c", None):
            leave.set()
            await names_of(store, left)
    assert order == ["a", "b", "c"]
    assert await store.tree.children(election(store, "x").root) == []


async def test_a_candidate_reads_no_vote_of_another(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each candidate read all votes, the start of a cluster would cost the square of its size.

    Only a candidate whose call was not answered looks for its vote among all of them.
    """
    read: list[str] = []
    answered: list[str] = []
    real, commit = store.tree.read, store.tree.commit

    async def counted(path: str) -> Versioned[bytes]:
        read.append(path)
        return await real(path)

    async def counted_commit(*operations: Operation) -> list[Result]:
        results = await commit(*operations)
        answered.append("")
        return results

    async def answers() -> int:
        return len(answered)

    monkeypatch.setattr(store.tree, "read", counted)
    monkeypatch.setattr(store.tree, "commit", counted_commit)
    async with asyncio.timeout(LIMIT_S), election(store, "first").won():
        waiting = [asyncio.ensure_future(_win(election(store, f"x{n}"))) for n in range(5)]
        # The vote of a candidate that is cancelled before its answer would be in doubt.
        await until(answers, right=lambda count: count >= 6)
        await votes_of(store, 6)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await votes_of(store, 1)
        assert read == []

        async def unanswered(*operations: Operation) -> list[Result]:
            await commit(*operations)
            raise MetadataUnavailableError("the answer was lost")

        lost = election(store, "lost")
        monkeypatch.setattr(store.tree, "commit", unanswered)
        with pytest.raises(MetadataUnavailableError):
            await _win(lost)
        await votes_of(store, 1)
        assert len(read) == 2, "the vote of the first candidate, and the one that was in doubt"


@pytest.mark.parametrize("owner", ["host-1", "10.0.0.1:3181", "[::1]:3181", "a@b=c;d^e"])
async def test_a_vote_in_doubt_is_withdrawn_whatever_the_name_of_its_candidate(
    owner: str, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the candidate waits behind its own vote, and nobody is the auditor."""
    commit = store.tree.commit

    async def unanswered(*operations: Operation) -> list[Result]:
        await commit(*operations)
        raise MetadataUnavailableError("the answer was lost")

    candidate = election(store, owner)
    monkeypatch.setattr(store.tree, "commit", unanswered)
    with pytest.raises(MetadataUnavailableError):
        await _win(candidate)
    monkeypatch.setattr(store.tree, "commit", commit)
    await votes_of(store, 0)
    async with asyncio.timeout(LIMIT_S):
        await _win(candidate)


async def _win(candidate: Election) -> None:
    async with candidate.won():
        pass


async def test_the_next_candidate_is_elected_when_the_session_ends(
    backend: Backend, store: MetadataStore
) -> None:
    mortal = await backend.store()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(election(mortal, "mortal").won())
        waiting = asyncio.create_task(stack.enter_async_context(election(store, "heir").won()))
        await names_of(store, "mortal")
        await mortal.close()
        async with asyncio.timeout(LIMIT_S):
            await waiting
        found = await auditor_of(store)
        assert found is not None
        assert found.owner == "heir"
        stack.pop_all()  # the first one cannot give anything back any more


async def test_a_vote_created_by_a_new_session_is_withdrawn(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ended just before the candidate stood. Its vote would outlast the candidate."""
    store, other = await backend.store(1_000), await backend.store()
    candidate, make_path = election(store, "host-1"), store.tree.make_path
    async with candidate.won():
        pass  # it begins a session in a SQLite store

    async def losing(path: str, value: bytes = b"") -> None:
        monkeypatch.setattr(store.tree, "make_path", make_path)
        await make_path(path, value)
        await lose_session(backend, store)

    monkeypatch.setattr(store.tree, "make_path", losing)
    before = store.tree.session_id
    async with candidate.won():
        assert store.tree.session_id != before
        await votes_of(other, 1)
    await votes_of(other, 0)
    async with candidate.won():
        await names_of(other, "host-1")
    await store.close()


async def test_a_deleted_vote_ends_the_term_of_the_auditor(store: MetadataStore) -> None:
    one = election(store, "a")
    async with one.won() as lost:
        assert not lost.is_set()
        [vote] = await store.tree.children(one.root)
        await store.tree.commit(Delete(f"{one.root}/{vote}"))
        async with asyncio.timeout(LIMIT_S):
            await lost.wait()


async def test_a_candidate_that_stops_waiting_leaves_no_vote(
    backend: Backend, store: MetadataStore
) -> None:
    other = election(await backend.store(), "b")
    async with election(store, "a").won():
        waiting = asyncio.create_task(other.won().__aenter__())
        await votes_of(store, 2)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert len(await store.tree.children(other.root)) == 1


async def test_votes_are_ordered_like_apaches(store: MetadataStore) -> None:
    """Votes are ordered by number. There are also other names, and votes without our comment."""
    root = election(store, "x").root
    await store.tree.make_path(root)
    for name, value in (
        ("V_0000000007", b'bookieId: "10.0.0.7:3181"\n'),
        ("V_0000000010", b'bookieId: "10.0.0.10:3181"\n'),
        ("other", b"?"),
    ):
        await store.tree.commit(Create(f"{root}/{name}", value))
    assert await auditor_of(store) == LockHolder("10.0.0.7:3181")


def test_the_name_of_an_auditor_must_be_a_valid_bookie_id() -> None:
    with pytest.raises(UsageError, match="cannot be a bookie id"):
        Election(None, "my host", SystemClock())  # type: ignore[arg-type]


async def test_election_and_mark_nodes_have_apaches_paths(
    backend: Backend, store: MetadataStore
) -> None:
    marks = ReplicationMarks(store)
    await marks.prepare()
    await marks.prepare()
    await marks.begin_delay(0)
    await marks.set_checked(CHECKED_LEDGERS, 1_600_000_000_123)
    assert await marks.disable()
    async with election(store, "10.0.0.1:3181").won():
        if not isinstance(store, ZooKeeperStore):
            assert not marks.root.startswith("/ledgers")
            return
        root = parse_uri(backend.uri).root
        nodes = await tree(store._root.zk, f"{root}/underreplication")
    vote = nodes.pop("/auditorelection/V_0000000000")
    assert vote.startswith(b'bookieId: "10.0.0.1:3181"\n# since_ms=')
    nodes.pop("", None)
    assert nodes == {
        "/LAYOUT": b'type: "BASIC"\nversion: 1\n',
        "/ledgers": b"",
        "/locks": b"",
        "/auditorelection": b'bookieId: "10.0.0.1:3181"\n',
        "/disable": b"",
        "/lostBookieRecoveryDelay": b"0",
        "/checkallledgersctime": bytes.fromhex("08fb80babbc82e"),
    }


async def test_an_unknown_layout_of_the_marks_is_refused(store: MetadataStore) -> None:
    marks = ReplicationMarks(store)
    await store.tree.make_path(f"{marks.root}/LAYOUT", b'type: "OTHER"\nversion: 2\n')
    with pytest.raises(MetadataError, match="the layout has type OTHER and version 2"):
        await marks.prepare()


async def test_autorecovery_is_switched_off_and_on(store: MetadataStore) -> None:
    marks = ReplicationMarks(store)
    seen: asyncio.Queue[bool] = asyncio.Queue()
    watch = marks.watch_enabled(seen.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        assert await seen.get() is True
        assert await marks.enabled()
        assert await marks.disable()
        assert not await marks.disable()
        assert await seen.get() is False
        assert not await marks.enabled()
        assert await marks.enable()
        assert not await marks.enable()
        assert await seen.get() is True
    watch.close()


async def test_a_delay_watcher_is_notified_even_if_the_delay_is_unchanged(
    store: MetadataStore,
) -> None:
    marks = ReplicationMarks(store)
    assert await marks.delay_s() == 0
    seen: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    watch = marks.watch_delay(lambda seconds, version: seen.put_nowait((seconds, version)))
    async with asyncio.timeout(LIMIT_S):
        await marks.begin_delay(5)
        assert await seen.get() == (5, 0)
        await marks.begin_delay(9)
        await marks.trigger()
        assert await seen.get() == (5, 1)
        await marks.set_delay(60)
        assert await seen.get() == (60, 2)
    watch.close()
    assert await marks.delay_s() == 60
    await store.tree.commit(Put(f"{marks.root}/lostBookieRecoveryDelay", b"soon"))
    with pytest.raises(MetadataError, match=r"b'soon', not a number of seconds"):
        await marks.delay_s()


async def test_a_delay_that_others_keep_recreating_is_given_up(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = ReplicationMarks(store)
    commit, tries = store.tree.commit, 0

    async def commit_behind_others(*operations: Any) -> Any:
        nonlocal tries
        tries += 1
        path = f"{marks.root}/lostBookieRecoveryDelay"
        if isinstance(operations[0], Create):
            await commit(Create(path, b"1"))
        elif await store.tree.exists(path):
            await commit(Delete(path))
        return await commit(*operations)

    await marks.prepare()
    monkeypatch.setattr(marks._tree, "commit", commit_behind_others)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(MetadataError, match="other processes created and removed"):
            await marks.set_delay(60)
    assert tries == 20
    monkeypatch.undo()
    await marks.set_delay(60)
    assert await marks.delay_s() == 60


async def test_marked_ledgers_are_listed_in_order_or_at_random(store: MetadataStore) -> None:
    marks, locks = ReplicationMarks(store), ReplicationLocks(store, "host-1", SystemClock())
    assert [one async for one in marks.walk()] == []
    ids = [0, 1, 0xFFFF, 0x1_0000, 0x1_0001, 2**40, 2**62 + 1]
    for ledger_id in ids:
        await locks.mark(ledger_id, ["a:1"])
    await store.tree.make_path(f"{marks.root}/ledgers/what")
    assert [one async for one in marks.walk()] == ids
    orders = {tuple([one async for one in marks.walk(random.Random(n))]) for n in range(5)}
    assert len(orders) > 1
    assert all(sorted(order) == ids for order in orders)
    async with locks.hold(0xFFFF):
        assert await marks.locked() == {0xFFFF}
        async with asyncio.timeout(LIMIT_S):
            heard = asyncio.Event()
            watch = marks.watch_ledgers(heard.set)
            await heard.wait()
            watch.close()


async def test_the_time_of_a_check_is_stored(store: MetadataStore) -> None:
    marks = ReplicationMarks(store)
    assert await marks.checked_ms(CHECKED_LEDGERS) is None
    await marks.set_checked(CHECKED_LEDGERS, 5)
    await marks.set_checked(CHECKED_LEDGERS, 1_750_000_000_000)
    assert await marks.checked_ms(CHECKED_LEDGERS) == 1_750_000_000_000
    assert checked_at(b"") is None


async def test_the_reason_why_a_ledger_is_not_repaired_is_reported(store: MetadataStore) -> None:
    locks = ReplicationLocks(store, "host-1", SystemClock())
    assert await why_not(store, 7) is None
    await locks.mark(7, ["a:1"])
    found = await why_not(store, 7)
    assert found is not None
    assert (found.replicas, found.lock_owner, found.failure) == (("a:1",), None, None)
    assert found.age_s is not None
    assert found.sentence() == (
        "no worker has started on it yet, and no autorecovery process is running (`quire "
        "autorecovery start` runs one)"
    )
    failure = LastFailure("no bookie is left", 1, 3, 2, "host-2")
    await note_failure(store, 7, failure)
    await note_failure(store, 7, failure)
    await note_failure(store, 8, failure)
    async with locks.hold(7):
        found = await why_not(store, 7)
        assert found is not None
        assert (found.lock_owner, found.failure) == ("host-1", failure)
        assert found.lock_age_s is not None
        assert found.sentence().startswith("host-1 has been repairing it for ")
        assert (await overview(store)).locked == 1
    assert [one.ledger async for one in marked_ledgers(store)] == [7]
    seen = await overview(store)
    assert (seen.marked, seen.failing, seen.enabled, seen.auditor) == (1, 1, True, None)
    await forget_failure(store, 7)
    await forget_failure(store, 7)
    await ReplicationMarks(store).disable()
    found = await why_not(store, 7)
    assert found is not None
    assert found.failure is None
    assert found.sentence() == (
        "autorecovery is switched off (`quire autorecovery enable` switches it on)"
    )
