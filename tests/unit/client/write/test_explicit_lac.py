"""When a writer sends its LAC to bookies in a separate message, and when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quire._runtime.tasks import TaskSet
from quire.client.write.explicit_lac import ExplicitLac
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.config import ClientConfig
from quire.errors import BookieUnavailableError
from quire_simulator.machine import SimulatedLoop

CODEC = EntryCodec(7, DigestType.CRC32C, b"")
KEY = bytes(20)


class Bookies:
    """A pool of which every bookie takes LACs, but for those in `failing`."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []
        self.failing: set[str] = set()
        self.silent: set[str] = set()
        self.takes_s = 0.0
        """Seconds that each bookie takes for its answer."""

    async def ask_control(self, bookie: str, call: Callable[[Any], Awaitable[None]]) -> None:
        await call(await self.control(bookie))

    async def control(self, bookie: str) -> Any:
        async def write_lac(ledger_id: int, lac: int, key: bytes, packet: bytes) -> None:
            assert (ledger_id, key, CODEC.unpack_lac(packet)) == (7, KEY, lac)
            self.written.append((bookie, lac))
            if bookie in self.silent:
                await asyncio.Event().wait()
            await asyncio.sleep(self.takes_s)

        if bookie in self.failing:
            raise BookieUnavailableError(f"bookie {bookie}")
        return SimpleNamespace(write_lac=write_lac)


class Session(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(
            pipeline=SimpleNamespace(last_confirmed=-1, accepted=-1),
            lac_pushed=-1,
            failure=None,
            ensemble=("a", "b", "c"),
            ack_quorum=2,
            config=ClientConfig(),
            pool=Bookies(),
            tasks=TaskSet(),
            waiting=[],
        )

    def wait_for(self, entry_id: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append((entry_id, future))
        return future

    def confirm(self, entry_id: int, told: int) -> None:
        """Acknowledge entries up to this one. The newest entry sent carries the LAC `told`."""
        self.lac_pushed = told
        self.pipeline.last_confirmed = self.pipeline.accepted = entry_id
        self.wake()

    def end(self) -> None:
        self.failure = BookieUnavailableError("the session has ended")
        self.wake()

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for entry_id, future in waiting:
            if self.failure is not None:
                future.set_exception(self.failure)
            elif entry_id <= self.pipeline.accepted:
                future.set_result(entry_id)
            else:
                self.waiting.append((entry_id, future))


@pytest.fixture
def loop() -> SimulatedLoop:
    return SimulatedLoop(1)


def test_a_pause_sends_one_explicit_lac_and_a_steady_stream_none(loop: SimulatedLoop) -> None:
    async def main() -> None:
        session = Session()
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        written = session.pool.written
        await asyncio.sleep(1)
        assert written == [], "there is no new LAC to send"
        session.confirm(0, -1)
        await asyncio.sleep(0.02)
        assert written == [("a", 0), ("b", 0), ("c", 0)], "the LAC is sent at once after a pause"
        for entry in range(1, 100):  # Each entry carries the LAC of the one before it.
            session.confirm(entry, entry - 1)
            await asyncio.sleep(0.02)
        assert len(written) == 3
        await asyncio.sleep(0.1)
        assert written[3:] == [("a", 99), ("b", 99), ("c", 99)]
        await asyncio.sleep(5)
        assert len(written) == 6
        session.confirm(100, 99)
        lac.stop()
        await asyncio.sleep(5)
        assert len(written) == 6, "no LAC is sent after the end"
        assert lac.failures == 0

    loop.run(main())


def test_failed_explicit_lacs_are_counted_and_retried(loop: SimulatedLoop) -> None:
    async def main() -> None:
        session = Session()
        session.pool.failing = {"a", "b"}
        session.confirm(4, -1)
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        await asyncio.sleep(0.31)
        assert session.pool.written == [("c", 4)] * 3
        assert lac.failures == 6
        session.pool.failing = {"a"}
        await asyncio.sleep(1)
        assert session.pool.written == [("c", 4)] * 3 + [("b", 4), ("c", 4)]
        session.end()
        session.pipeline.last_confirmed = 5
        await asyncio.sleep(1)
        assert len(session.pool.written) == 5
        await session.tasks.close()

    loop.run(main())


def test_an_unexpected_error_is_reported_and_later_lacs_are_sent(loop: SimulatedLoop) -> None:
    """After such an error, readers once never saw the newest entry of a writer that paused."""

    class Broken(Bookies):
        broken = True

        async def control(self, bookie: str) -> Any:
            if self.broken:
                raise RuntimeError("oops")
            return await super().control(bookie)

    async def main() -> None:
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, what: told.append(what))
        session = Session()
        session.pool = Broken()
        session.confirm(4, -1)
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        await asyncio.sleep(0.1)
        assert lac.failures == 3
        assert [repr(one["exception"]) for one in told] == ["RuntimeError('oops')"]
        session.pool.broken = False
        await asyncio.sleep(1)
        assert session.pool.written == [("a", 4), ("b", 4), ("c", 4)]
        lac.stop()
        await session.tasks.close()

    loop.run(main())


def test_an_explicit_lac_is_sent_between_half_and_one_interval_after_an_entry(
    loop: SimulatedLoop,
) -> None:
    async def main() -> None:
        session = Session()
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        for entry in range(0, 10, 2):
            await asyncio.sleep(1)
            session.confirm(entry, entry - 1)
            await asyncio.sleep(0.001)
            assert session.pool.written[-3:] == [(name, entry) for name in "abc"]
            await asyncio.sleep(0.09)
            session.confirm(entry + 1, entry)
            await asyncio.sleep(0.049)
            assert session.pool.written[-3:] == [(name, entry) for name in "abc"]
            await asyncio.sleep(0.052)
            assert session.pool.written[-3:] == [(name, entry + 1) for name in "abc"]
        assert len(session.pool.written) == 30
        lac.stop()

    loop.run(main())


def test_a_writer_that_waits_for_each_entry_sends_no_explicit_lac(loop: SimulatedLoop) -> None:
    """However slow its bookies are, the next entry carries the LAC first."""

    async def main() -> None:
        session = Session()
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()

        async def appends() -> None:
            for entry in range(20):
                await session.wait_for(entry)
                # An appended entry is sent at the end of the event-loop iteration.
                asyncio.get_running_loop().call_soon(setattr, session, "lac_pushed", entry)

        writer = asyncio.ensure_future(appends())
        for entry in range(20):
            await asyncio.sleep(0.3)
            session.confirm(entry, entry - 1)
        await writer
        await asyncio.sleep(1)
        assert session.pool.written == []
        lac.stop()

    loop.run(main())


def test_a_silent_bookie_does_not_delay_the_explicit_lacs_of_others(loop: SimulatedLoop) -> None:
    """The bookie has one unanswered LAC, and receives the newest one when it returns."""

    async def main() -> None:
        session = Session()
        session.pool.silent = {"b"}
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        for entry in range(5):
            session.confirm(entry, entry - 1)
            await asyncio.sleep(0.2)
        assert session.pool.written == [
            ("a", 0), ("b", 0), ("c", 0),
            *((name, entry) for entry in range(1, 5) for name in "ac"),
        ]  # fmt: skip
        session.pool.silent = set()
        await asyncio.sleep(session.config.add_timeout_s)
        assert lac.failures == 1
        session.confirm(5, 4)
        await asyncio.sleep(0.2)
        assert ("b", 5) in session.pool.written
        lac.stop()
        await session.tasks.close()
        assert not session.waiting or all(future.done() for _, future in session.waiting)

    loop.run(main())


def test_with_deferred_sync_a_force_sends_an_explicit_lac(loop: SimulatedLoop) -> None:
    """Entries are accepted long before a force confirms them."""

    async def main() -> None:
        session = Session()
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        session.pipeline.accepted = 9
        session.wake()
        await asyncio.sleep(1)
        assert session.pool.written == []
        session.pipeline.last_confirmed = 9
        await asyncio.sleep(0.2)
        assert session.pool.written == [("a", 9), ("b", 9), ("c", 9)]
        lac.stop()

    loop.run(main())


def test_with_deferred_sync_no_lac_is_sent_before_its_entry_is_durable(loop: SimulatedLoop) -> None:
    """Readers would be given entries that a crash of the bookies takes away."""

    async def main() -> None:
        session = Session()
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        session.pipeline.accepted, session.pipeline.last_confirmed = 9, 4
        session.wake()
        await asyncio.sleep(1)
        assert session.pool.written == [("a", 4), ("b", 4), ("c", 4)]
        lac.stop()

    loop.run(main())


@pytest.mark.parametrize("takes_ms", [0, 30, 70, 130, 310])
@pytest.mark.parametrize("after_ms", range(0, 400, 15))
def test_the_last_entry_becomes_known_whenever_it_is_acknowledged(
    loop: SimulatedLoop, takes_ms: int, after_ms: int
) -> None:
    """An entry that is acknowledged while an earlier LAC is being sent gets one of its own."""

    async def main() -> None:
        session = Session()
        session.pool.takes_s = takes_ms / 1000
        lac = ExplicitLac(session, CODEC, KEY, 0.1)  # type: ignore[arg-type]
        lac.start()
        await asyncio.sleep(1)
        session.confirm(4, 3)
        await asyncio.sleep(after_ms / 1000)
        session.confirm(5, 3)  # it was sent together with the one before, and carries no later LAC
        await asyncio.sleep(2)
        assert {bookie for bookie, told in session.pool.written if told == 5} == set("abc")
        assert session.pool.written[-1][1] == 5
        assert lac.failures == 0
        lac.stop()
        await session.tasks.close()

    loop.run(main())
