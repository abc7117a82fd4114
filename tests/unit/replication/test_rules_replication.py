"""The rules of re-replication (docs/internals/replication-rules.md) about single requests."""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.codec.metadata.underreplication import lock_path
from quire.codec.wire.v2 import Flag
from quire.core.fragments import stored_by
from quire.core.replicas import Copies
from quire.errors import (
    BookieTimeoutError,
    ClientClosedError,
    MetadataUnavailableError,
    UsageError,
)
from quire.metadata.interface import Versioned
from quire.metadata.tree import Create, Delete, Operation, Result
from quire.replication import LockHeldError, ReplicationLocks
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.repair.opened_ledger import open_for_repair
from quire.replication.repair.recovery_adds import RecoveryAdds
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.fake_bookies import LEDGER, FakeCluster, FakeLink, payload, simulated
from tests.support.metadata.lagging import LaggingServer
from tests.support.replication import replicate_fragment


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2)], ids=["plain", "striped"])
def test_rule_23_entries_are_copied_to_a_bookie_that_has_the_ledger_fenced(
    shape: tuple[int, int, int],
) -> None:
    """Unchanged in payload and length (rule 22), and only those that belong there."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        metadata = await cluster.ledger(shape, range(9), state=LedgerState.CLOSED)
        target = cluster["b4"]
        target.fenced = True
        cluster["b1"].die()
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            [fragment] = opened.fragments()
            await replicate_fragment(client, opened, fragment, {1: "b4"})
        expected = list(stored_by(metadata, 1, 0, 8))
        assert sorted(target.entries) == expected
        assert [entry for entry, _, _ in target.added] == expected
        for entry, flags, data in target.added:
            assert flags & Flag.RECOVERY_ADD
            whole = cluster.codec.unpack(data, entry)
            assert (whole.payload, whole.ledger_length) == (payload(entry), cluster.length(entry))
        assert "b1" not in (await cluster.stored()).segments[0].ensemble

    simulated(main)


def test_rule_24_segments_still_being_written_are_not_copied() -> None:
    """Only the segments before the last one of an open ledger are complete."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(4, ("b0", "b1", "b3")))
        await cluster.ledger((3, 3, 2), range(9), segments=segments)
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            complete, newest = opened.fragments()
            with pytest.raises(UsageError, match="still being written"):
                await replicate_fragment(client, opened, newest, {0: "b4"})
            assert cluster["b4"].added == []
            assert await cluster.stored() == opened.metadata
            await replicate_fragment(client, opened, complete, {0: "b4"})
            assert sorted(cluster["b4"].entries) == [0, 1, 2, 3]
        expected = (Segment(0, ("b4", "b1", "b2")), segments[1])
        assert (await cluster.stored()).segments == expected

    simulated(main)


def test_rule_26_a_mark_that_changed_since_it_was_read_is_not_removed() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = ReplicationLocks(cluster.store, "worker", cluster.clock)
        await locks.mark(LEDGER, ["b1"])
        async with locks.hold(LEDGER) as lock:
            await locks.mark(LEDGER, ["b2"])
            assert not await locks.replicated(lock)
        mark = await locks.marked(LEDGER)
        assert mark is not None
        assert list(mark.value.replicas) == ["b1", "b2"]
        async with locks.hold(LEDGER) as lock:
            assert await locks.replicated(lock)
            assert await locks.marked(LEDGER) is None
            await locks.mark(LEDGER, ["b3"])  # its version is that of the first one
            assert await locks.replicated(lock)
        assert await locks.is_marked(LEDGER)

    simulated(main)


def test_rule_26_a_mark_that_was_repeated_since_it_was_read_is_not_removed() -> None:
    """A named bookie may lose something again after the worker has examined it."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = ReplicationLocks(cluster.store, "worker", cluster.clock)
        assert await locks.mark(LEDGER, ["b1"])
        async with locks.hold(LEDGER) as lock:
            assert not await locks.mark(LEDGER, ["b1"])
            assert not await locks.replicated(lock)
        mark = await locks.marked(LEDGER)
        assert lock.mark is not None
        assert mark is not None
        assert mark.value == lock.mark.value
        async with locks.hold(LEDGER) as lock:
            assert await locks.replicated(lock)
        assert not await locks.is_marked(LEDGER)

    simulated(main)


def test_rule_26_a_server_that_lags_does_not_let_a_later_mark_be_removed() -> None:
    """The session of the lock was lost unnoticed. Another worker removed the mark, and the ledger
    was marked again, with the same version."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = ReplicationLocks(cluster.store, "one", cluster.clock)
        other = ReplicationLocks(MemoryStore(cluster.metadata), "two", cluster.clock)
        await locks.mark(LEDGER, ["b1"])
        server = LaggingServer(cluster.store)
        async with locks.hold(LEDGER) as lock:
            server.fall_behind()
            await other._tree.commit(Delete(lock_path(locks.root, LEDGER)))
            async with other.hold(LEDGER) as taken:
                assert await other.replicated(taken)
            await other.mark(LEDGER, ["b2"])
            assert not await locks.replicated(lock)
        assert await other.is_marked(LEDGER)

    simulated(main)


@pytest.mark.parametrize("session", ["goes on", "ends"])
def test_a_lock_that_another_process_took_meanwhile_is_not_released(session: str) -> None:
    """The store did not answer the release, and has done it all the same, or ended the session."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = ReplicationLocks(cluster.store, "one", cluster.clock)
        other = ReplicationLocks(MemoryStore(cluster.metadata), "two", cluster.clock)
        tree = cluster.store.tree
        commit = tree.commit

        async def without_answer(*operations: Operation) -> list[Result]:
            if session == "goes on":
                await commit(*operations)
            raise MetadataUnavailableError("the store does not answer")

        async with locks.hold(LEDGER):
            tree.commit = without_answer  # type: ignore[method-assign]
        if session == "ends":
            cluster.store.expire_session()
        async with other.hold(LEDGER):
            tree.commit = commit  # type: ignore[method-assign]
            await locks.tidy()
            holder = await other.held_by(LEDGER)
            assert holder is not None
            assert holder.owner == "two"
            with pytest.raises(LockHeldError, match="two is copying or repairing"):
                async with locks.hold(LEDGER):
                    pass
        async with locks.hold(LEDGER):
            pass

    simulated(main)


@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("failure", ["no answer", "client closed", "unexpected", "cancelled"])
@pytest.mark.parametrize("answers_again", [False, True])
def test_a_lock_that_could_not_be_taken_keeps_nobody_from_the_ledger(
    failure: str, created: bool, answers_again: bool
) -> None:
    """The store may have created the lock all the same. The next `hold` of this process, or the
    `tidy` of its next search, releases it."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = ReplicationLocks(cluster.store, "one", cluster.clock)
        other = ReplicationLocks(MemoryStore(cluster.metadata), "two", cluster.clock)
        tree = cluster.store.tree
        commit, at_store = tree.commit, asyncio.Event()

        async def fails(*operations: Operation) -> list[Result]:
            if not any(isinstance(one, Create) and one.ephemeral for one in operations):
                if at_store.is_set() and not answers_again:
                    raise MetadataUnavailableError("the store does not answer")
                return await commit(*operations)
            if created:
                await commit(*operations)
            at_store.set()
            match failure:
                case "no answer":
                    raise MetadataUnavailableError("the store does not answer")
                case "client closed":
                    raise ClientClosedError("the client is closed")
                case "unexpected":
                    raise RuntimeError("oops")
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        tree.commit = fails  # type: ignore[method-assign]
        attempt = asyncio.ensure_future(locks.hold(LEDGER).__aenter__())
        await at_store.wait()
        if failure == "cancelled":
            await asyncio.sleep(0)
            attempt.cancel()
        await asyncio.wait([attempt])
        assert attempt.cancelled() or not isinstance(attempt.exception(), LockHeldError)
        tree.commit = commit  # type: ignore[method-assign]
        if answers_again:  # one process tries again, or the other one after a search of the first
            await locks.tidy()
            async with other.hold(LEDGER):
                pass
        async with locks.hold(LEDGER):
            with pytest.raises(LockHeldError, match="one is copying or repairing"):
                async with locks.hold(LEDGER):
                    pass
            with pytest.raises(LockHeldError, match="one is copying or repairing"):
                async with other.hold(LEDGER):
                    pass
        async with other.hold(LEDGER), locks.hold(LEDGER + 1):
            pass
        async with locks.hold(LEDGER):
            pass

    simulated(main)


def test_a_session_that_ends_during_a_release_keeps_the_lock_of_another_process() -> None:
    """The store sends a request in the next session if the former one ended before."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = ReplicationLocks(cluster.store, "one", cluster.clock)
        other = ReplicationLocks(MemoryStore(cluster.metadata), "two", cluster.clock)
        tree, taken = cluster.store.tree, other.hold(LEDGER)
        commit, read, late = tree.commit, tree.read, False

        async def lose_the_session() -> None:
            nonlocal late
            if not late:
                late = True
                cluster.store.expire_session()
                await taken.__aenter__()

        async def late_commit(*operations: Operation) -> list[Result]:
            await lose_the_session()
            return await commit(*operations)

        async def late_read(path: str) -> Versioned[bytes]:
            await lose_the_session()
            return await read(path)

        async with locks.hold(LEDGER):
            tree.commit = late_commit  # type: ignore[method-assign]
            tree.read = late_read  # type: ignore[method-assign]
        assert late
        holder = await other.held_by(LEDGER)
        assert holder is not None
        assert holder.owner == "two"
        await taken.__aexit__(None, None, None)
        async with locks.hold(LEDGER):
            pass

    simulated(main)


def test_answers_to_abandoned_copies_do_not_count_for_later_copies() -> None:
    """They have the same ledger and entry ids, so they would prove copies that are still lost."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(6), state=LedgerState.CLOSED)
        copies = Copies(
            [*range(6)], [payload(n) for n in range(6)], [cluster.length(n) for n in range(6)]
        )
        target = cluster["b3"]
        target.holds_acks = True

        async def copy_again(adds: RecoveryAdds, given_up: list[FakeLink]) -> None:
            async with adds:
                await adds.write(copies)
                target.holds_acks = False
                for link in given_up:
                    link.unanswered = [*range(6)]
                    link.answer_adds()
                target.holds_acks = True

        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            first = asyncio.ensure_future(copy_again(RecoveryAdds(client, opened, "b3"), []))
            await asyncio.sleep(1)
            first.cancel()
            await asyncio.wait([first])
            given_up = list(target.links)
            assert sorted(target.entries) == [*range(6)]
            adds = RecoveryAdds(client, opened, "b3")
            with pytest.raises(BookieTimeoutError):
                await copy_again(adds, given_up)
            assert adds.failed

    simulated(main)


def test_a_connection_whose_copies_were_all_answered_is_used_again() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(3), state=LedgerState.CLOSED)
        copies = Copies([0], [payload(0)], [cluster.length(0)])
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            for _ in range(3):
                async with RecoveryAdds(client, opened, "b3") as adds:
                    await adds.write(copies)
                assert not adds.failed
            assert len(cluster["b3"].links) == 1

    simulated(main)


def test_rule_29_bookies_that_died_before_an_auditor_began_are_noticed() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(9), state=LedgerState.CLOSED)
        for name in cluster.bookies:
            await cluster.store.write_cookie(name, b"4\nbookieHost: x\n", None)
        await cluster.registrations["b1"].close()
        async with cluster.client() as client:
            locks = ReplicationLocks(cluster.store, "auditor", cluster.clock)
            auditor = Auditor(
                client,
                locks,
                settings=AutorecoverySettings(),
                stats=AutorecoveryStats(),
                clock=cluster.clock,
                rng=random.Random(1),
                log=lambda event, **fields: None,
            )
            running = asyncio.ensure_future(auditor.run())
            try:
                while (mark := await locks.marked(LEDGER)) is None:
                    await asyncio.sleep(0.1)
                assert list(mark.value.replicas) == ["b1"]
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    simulated(main)
