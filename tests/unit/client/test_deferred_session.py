"""The session of a deferred-sync ledger on links whose answers the test gives."""

from __future__ import annotations

import asyncio

from quire._runtime.tasks import TaskSet
from quire.client.cluster.pool import BookiePool
from quire.client.observability.metrics import ClientCounters
from quire.client.observability.tracing import Tracing
from quire.client.write.add_session import SharedByWriters
from quire.client.write.deferred_session import DeferredSession
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.config import ClientConfig
from quire.net.control import ControlChannel
from quire.net.link import AddSink

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


class OneBookie(BookiePool):
    def __init__(self, link: Answered) -> None:
        self.link = link
        self.counters = ClientCounters()
        self.tracing = Tracing()

    async def control(self, bookie_id: str, adds_of: int | None = None) -> ControlChannel:
        return self.link

    def control_now(self, bookie_id: str, adds_of: int) -> None:
        return None


async def no_change(
    failed: dict[int, str], replacements: dict[int, str], first: int
) -> tuple[str, ...]:
    raise AssertionError("nothing failed")


def session_on(link: Answered, tasks: TaskSet) -> DeferredSession:
    config, pool = ClientConfig(max_unforced_bytes=len(PAYLOAD)), OneBookie(link)
    return DeferredSession(
        codec=EntryCodec(LEDGER, DigestType.CRC32C, b""),
        key=master_key(b""),
        pool=pool,
        shared=SharedByWriters.of_client(config, pool.counters),
        config=config,
        tasks=tasks,
        ensemble=("one",),
        write_quorum=1,
        ack_quorum=1,
        change_ensemble=no_change,
    )


async def test_a_force_waits_for_what_a_member_that_began_again_accepts_once_more() -> None:
    """Its acknowledgement comes to no quorum that there was not before; the force needs it."""
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
        assert link.force_asked.empty(), "it has lost what it had accepted, perhaps"
        link.sink.on_acked_run(0, 0)
        (await link.force_asked.get()).set_result(None)
        assert await forced == 0
    session.stop()
    await tasks.close()


async def test_what_is_accepted_during_a_force_is_forced_where_a_writer_waits_for_room() -> None:
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
        assert session.owes, "who forces waits for members, too"
        second.set_result(None)
        await waiting
        assert session.pipeline.last_confirmed == 1
        assert not session.owes
    session.stop()
    await tasks.close()
