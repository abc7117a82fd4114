"""The session of a deferred-sync ledger on links whose answers the test gives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire._runtime.tasks import TaskSet
from quire.client.cluster.pool import BookiePool
from quire.client.observability.metrics import ClientCounters
from quire.client.observability.tracing import Tracing
from quire.client.write.add_session import SharedByWriters
from quire.client.write.deferred_session import DeferredSession
from quire.client.write.ensemble_changes import EnsembleMember
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.config import ClientConfig
from quire.errors import BookieIOError, ClientClosedError, LedgerFencedError, WriteError
from quire.net.control import ControlChannel
from quire.net.link import AddSink
from quire_simulator.world.world import World

LEDGER = 7
PATIENCE_S = 30
PAYLOAD = bytes(100)


class Answered(ControlChannel):
    """Sends nothing; answers come from the test."""

    sink: AddSink

    def __init__(self) -> None:
        self.force_asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    def takes_adds_of(self, ledger_id: int) -> bool:
        return True

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        self.sink = sink

    def detach(self, ledger_id: int, sink: AddSink, *, unanswered: bool) -> None:
        pass

    def send(self, data: bytes) -> None:  # type: ignore[override]
        pass

    async def force(self, ledger_id: int) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.force_asked.put_nowait(answer)
        await answer


class Bookies(BookiePool):
    """The bookies of an ensemble, each with one link. There is no other bookie."""

    def __init__(self, links: dict[str, Answered]) -> None:
        self.links = links
        self.counters = ClientCounters()
        self.tracing = Tracing()
        self.rng = random.Random(1)
        self.failed: list[str] = []

    @property
    def closed(self) -> bool:
        return False

    async def control(self, bookie_id: str, adds_of: int | None = None) -> ControlChannel:
        return self.links[bookie_id]

    def control_now(self, bookie_id: str, adds_of: int) -> None:
        return None

    def mark_failed(self, bookie_id: str) -> None:
        self.failed.append(bookie_id)

    def examine_links(self, bookie_id: str) -> None:
        pass


async def no_change(
    failed: dict[int, str], replacements: dict[int, str], first: int
) -> tuple[str, ...]:
    raise AssertionError("nothing failed")


def session_on(
    link: Answered | dict[str, Answered],
    tasks: TaskSet,
    config: ClientConfig | None = None,
    quorums: tuple[int, int] = (1, 1),
    kind: type[DeferredSession] = DeferredSession,
) -> DeferredSession:
    links = link if isinstance(link, dict) else {"one": link}
    config, pool = config or ClientConfig(max_unforced_bytes=len(PAYLOAD)), Bookies(links)
    return kind(
        codec=EntryCodec(LEDGER, DigestType.CRC32C, b""),
        key=master_key(b""),
        pool=pool,
        shared=SharedByWriters.of_client(config, pool.counters),
        config=config,
        tasks=tasks,
        ensemble=tuple(links),
        write_quorum=quorums[0],
        ack_quorum=quorums[1],
        change_ensemble=no_change,
    )


async def test_a_force_waits_for_entries_that_a_restarted_member_must_accept_again() -> None:
    """The member's acknowledgement completes no new quorum, but the force needs it."""
    link, tasks = Answered(), TaskSet()
    session = session_on(link, tasks)
    async with asyncio.timeout(PATIENCE_S):
        session.push([PAYLOAD])
        while not hasattr(link, "sink"):
            await asyncio.sleep(0)
        link.sink.on_acked_run(0, 0)
        assert session.pipeline.accepted == 0
        del link.sink
        session.begin_again({0})
        while not hasattr(link, "sink"):
            await asyncio.sleep(0)
        forced = asyncio.ensure_future(session.force())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert link.force_asked.empty(), "the member may have lost the entries it had accepted"
        link.sink.on_acked_run(0, 0)
        (await link.force_asked.get()).set_result(None)
        assert await forced == 0
    session.stop()
    await tasks.close()


async def test_entries_accepted_during_a_force_are_forced_if_a_writer_waits_for_space() -> None:
    """Nothing forced these entries, so the writer waited forever (found by the simulator)."""
    link, tasks = Answered(), TaskSet()
    session = session_on(link, tasks)
    async with asyncio.timeout(PATIENCE_S):
        session.push([PAYLOAD, PAYLOAD])
        waiting = asyncio.ensure_future(session.room())
        while not hasattr(link, "sink"):
            await asyncio.sleep(0)
        link.sink.on_acked([0])
        first = await link.force_asked.get()
        link.sink.on_acked([1])
        first.set_result(None)
        second = await link.force_asked.get()
        assert session.pipeline.last_confirmed == 0
        assert session.pipeline.accepted == session.pipeline.last_pushed
        assert session.owes, "a force waits for members, too"
        second.set_result(None)
        await waiting
        assert session.pipeline.last_confirmed == 1
        assert not session.owes
    session.stop()
    await tasks.close()


# -- several members --------------------------------------------------------------------------


class Unreplaced(DeferredSession):
    """A session whose failed members are not replaced."""

    __slots__ = ()

    def fail_member(self, member: EnsembleMember, *, may_return: bool = False) -> None:
        member.leave()


LIMITED = ClientConfig(add_timeout_s=0.05)


@asynccontextmanager
async def accepted_by_all(
    config: ClientConfig | None = None, entries: int = 1
) -> AsyncIterator[tuple[DeferredSession, list[Answered]]]:
    """A session whose three members have accepted these entries, which are not durable yet.

    Members that fail are recorded in the pool, and are not replaced.
    """
    links, tasks = {name: Answered() for name in ("a", "b", "c")}, TaskSet()
    session = session_on(links, tasks, config or ClientConfig(), (3, 2), Unreplaced)
    async with asyncio.timeout(PATIENCE_S):
        session.push([PAYLOAD] * entries)
        while not all(hasattr(link, "sink") for link in links.values()):
            await asyncio.sleep(0)
        for link in links.values():
            link.sink.on_acked_run(0, entries - 1)
        assert session.pipeline.accepted == entries - 1
        assert session.pipeline.last_confirmed == -1
        try:
            yield session, list(links.values())
        finally:
            session.stop()
            await tasks.close()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_entries_are_durable_once_every_present_member_has_answered_a_force() -> None:
    async with accepted_by_all() as (session, links):
        forced = asyncio.ensure_future(session.force())
        answers = [await link.force_asked.get() for link in links]
        for answer in answers[:-1]:
            answer.set_result(None)
        await settle()
        assert not forced.done()
        assert session.pipeline.last_confirmed == -1
        answers[-1].set_result(None)
        assert await forced == 0
        assert session.pipeline.last_confirmed == 0


async def test_entries_accepted_after_a_force_was_sent_are_not_durable_by_it() -> None:
    async with accepted_by_all() as (session, links):
        first = asyncio.ensure_future(session.force())
        answers = [await link.force_asked.get() for link in links]
        session.push([PAYLOAD])
        for link in links:
            link.sink.on_acked_run(1, 1)
        assert session.pipeline.accepted == 1
        second = asyncio.ensure_future(session.force())
        await settle()
        assert all(link.force_asked.empty() for link in links), (
            "only one force is in flight at a time"
        )
        for answer in answers:
            answer.set_result(None)
        assert await first == 0
        assert session.pipeline.last_confirmed == 0
        for link in links:
            (await link.force_asked.get()).set_result(None)
        assert await second == 1


async def test_a_member_that_fails_a_force_makes_nothing_durable() -> None:
    """The member may have lost entries. It fails, and the others are asked again."""
    async with accepted_by_all() as (session, links):
        forced = asyncio.ensure_future(session.force())
        answers = [await link.force_asked.get() for link in links]
        answers[0].set_exception(BookieIOError("disk"))
        for answer in answers[1:]:
            answer.set_result(None)
        await settle()
        assert not forced.done()
        assert session.pipeline.last_confirmed == -1
        assert session.pool.failed == ["a"]  # type: ignore[attr-defined]
        assert isinstance(session.causes["a"], BookieIOError)


async def test_a_force_that_is_not_answered_in_time_fails_its_member() -> None:
    async with accepted_by_all(LIMITED) as (session, links):
        forced = asyncio.ensure_future(session.force())
        answers = [await link.force_asked.get() for link in links]
        for answer in answers[:-1]:
            answer.set_result(None)
        while not session.pool.failed:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        assert session.pool.failed == ["c"]  # type: ignore[attr-defined]
        assert "did not answer a force of ledger 7 within 0.05 s" in str(session.causes["c"])
        assert session.pipeline.last_confirmed == -1
        assert not forced.done()


async def test_a_member_that_restarts_during_a_force_invalidates_its_answers() -> None:
    """It is sent everything again, and accepts it again before the next force."""
    async with accepted_by_all() as (session, links):
        forced = asyncio.ensure_future(session.force())
        answers = [await link.force_asked.get() for link in links]
        del links[0].sink
        session.begin_again({0})
        for answer in answers:
            answer.set_result(None)
        await settle()
        assert session.pipeline.last_confirmed == -1
        assert not forced.done()
        while not hasattr(links[0], "sink"):
            await asyncio.sleep(0)
        links[0].sink.on_acked_run(0, 0)
        for link in links:
            (await link.force_asked.get()).set_result(None)
        assert await forced == 0


async def test_nothing_is_forced_while_the_ensemble_changes() -> None:
    async with accepted_by_all() as (session, links):
        session.pipeline.frozen = True
        forced = asyncio.ensure_future(session.force())
        await settle()
        assert all(link.force_asked.empty() for link in links)
        session.pipeline.frozen = False
        session.after_acks()
        for link in links:
            (await link.force_asked.get()).set_result(None)
        assert await forced == 0


async def test_an_unexpected_error_of_a_force_ends_the_session() -> None:
    """The callers of `force`, and a close, waited for ever."""
    told: list[dict[str, Any]] = []
    async with accepted_by_all() as (session, links):
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        forces = [asyncio.ensure_future(session.force()) for _ in range(2)]
        (await links[0].force_asked.get()).set_exception(KeyError("oops"))
        for forced in forces:
            with pytest.raises(WriteError, match=r"because of a bug: KeyError\('oops'\)") as error:
                async with asyncio.timeout(PATIENCE_S):
                    await forced
            assert not error.value.outcome_known
        assert "KeyError('oops')" in [repr(one["exception"]) for one in told]


async def test_a_force_waits_for_a_member_that_is_being_connected() -> None:
    """An ack quorum has the entry, but the third copy is part of what was accepted."""
    async with accepted_by_all() as (session, links):
        connect, connected = session.pool.control, asyncio.Event()

        async def slowly(bookie_id: str, adds_of: int | None = None) -> ControlChannel:
            await connected.wait()
            return await connect(bookie_id, adds_of)

        session.pool.control = slowly  # type: ignore[method-assign]
        session.begin_again({2})
        forced = asyncio.ensure_future(session.force())
        await settle()
        assert all(link.force_asked.empty() for link in links)
        connected.set()
        await settle()
        links[2].sink.on_acked_run(0, 0)
        for link in links:
            (await link.force_asked.get()).set_result(None)
        assert await forced == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_the_outcome_is_unknown_if_a_session_ends_with_entries_that_are_not_durable(
    *, durable: bool
) -> None:
    """An acknowledgement of deferred sync does not say that the entry survives."""
    async with accepted_by_all() as (session, links):
        if durable:
            forced = asyncio.ensure_future(session.force())
            for link in links:
                (await link.force_asked.get()).set_result(None)
            assert await forced == 0
        error = ClientClosedError("the client was closed")
        assert error.outcome_known
        session.fail(error)
        assert error.outcome_known == durable
        assert session.failure is error


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_session_that_ends_during_a_force_fails_all_waiting_callers(
    *, cancelled: bool
) -> None:
    async with accepted_by_all(entries=2) as (session, links):
        waiting = [asyncio.ensure_future(session.force()) for _ in range(3)]
        answers = [await link.force_asked.get() for link in links]
        if cancelled:
            waiting[0].cancel()
            await settle()
        session.fail(LedgerFencedError("fenced", ledger_id=LEDGER))
        for answer in answers:
            answer.set_result(None)
        for future in waiting[cancelled:]:
            with pytest.raises(LedgerFencedError) as told:
                await future
            assert not told.value.outcome_known
        with pytest.raises(LedgerFencedError):
            await session.force()
        assert session.pipeline.last_confirmed == -1


async def test_a_force_with_nothing_to_make_durable_sends_no_request() -> None:
    async with accepted_by_all() as (session, links):
        forced = asyncio.ensure_future(session.force())
        for link in links:
            (await link.force_asked.get()).set_result(None)
        assert await forced == 0
        assert await session.force() == 0
        assert all(link.force_asked.empty() for link in links)


# -- callers ----------------------------------------------------------------------------------


async def test_callers_are_confirmed_in_the_order_of_entries() -> None:
    links, tasks = {name: Answered() for name in ("a", "b", "c")}, TaskSet()
    session = session_on(links, tasks, ClientConfig(), (3, 2), Unreplaced)
    async with asyncio.timeout(PATIENCE_S):
        session.push([PAYLOAD] * 4)
        waits = {entry: session.wait_for(entry) for entry in (3, 1, 2, 0, 1)}
        again = session.wait_for(1)
        while not all(hasattr(link, "sink") for link in links.values()):
            await asyncio.sleep(0)
        for last in range(4):
            for link in list(links.values())[:2]:
                link.sink.on_acked_run(last, last)
            assert {entry for entry, future in waits.items() if future.done()} == {*range(last + 1)}
            assert again.done() == (last >= 1)
    assert [await waits[entry] for entry in range(4)] == [0, 1, 2, 3]
    session.stop()
    await tasks.close()


def test_closing_a_deferred_ledger_forces_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata names its last entry, which a crash of the bookies must not take away."""
    world, forced = World.make(7, 3), list[int]()
    real = DeferredSession.force

    async def force(self: DeferredSession) -> int:
        forced.append(await real(self))
        return forced[-1]

    monkeypatch.setattr(DeferredSession, "force", force)

    async def main() -> None:
        for name in world.disks:
            await world.start(name)
        async with world.client("client") as client:
            writer = await client.create_ledger(deferred_sync=True)
            await writer.append(b"0")
            await writer.append(b"1")
            assert await writer.close() == 1
            assert forced == [1]
            assert (await client.ledger_metadata(writer.ledger_id)).last_entry_id == 1
        for name in list(world.bookies):
            await world.stop(name)

    world.loop.run(main())
