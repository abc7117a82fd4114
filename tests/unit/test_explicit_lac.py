"""When a writer tells bookies its LAC in a message of its own, and when not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quire.client.explicit_lac import ExplicitLac
from quire.codec.digest import DigestType
from quire.codec.entry import EntryCodec
from quire.config import ClientConfig
from quire.errors import BookieUnavailableError
from quire.tasks import TaskSet
from quire.testing import SimulatedLoop

CODEC = EntryCodec(7, DigestType.CRC32C, b"")
KEY = bytes(20)


class Bookies:
    """A pool of which every bookie takes LACs, but for those in `failing`."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []
        self.failing: set[str] = set()

    async def control(self, bookie: str) -> Any:
        async def write_lac(ledger_id: int, lac: int, key: bytes, packet: bytes) -> None:
            assert (ledger_id, key, CODEC.unpack_lac(packet)) == (7, KEY, lac)
            self.written.append((bookie, lac))

        if bookie in self.failing:
            raise BookieUnavailableError(f"bookie {bookie}")
        return SimpleNamespace(write_lac=write_lac)


class Session(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(
            pipeline=SimpleNamespace(last_confirmed=-1),
            lac_pushed=-1,
            failure=None,
            ensemble=("a", "b", "c"),
            ack_quorum=2,
            config=ClientConfig(),
            pool=Bookies(),
            tasks=TaskSet(),
        )


@pytest.fixture
def loop() -> SimulatedLoop:
    return SimulatedLoop(1)


def test_a_pause_is_told_once_and_a_stream_never(loop: SimulatedLoop) -> None:
    async def main() -> None:
        session = Session()
        lac = ExplicitLac(session, CODEC, KEY, 100)  # type: ignore[arg-type]
        lac.start()
        written = session.pool.written
        await asyncio.sleep(1)
        assert written == [], "there is nothing to tell"
        for entry in range(100):  # each entry tells of the one before it
            session.pipeline.last_confirmed, session.lac_pushed = entry, entry - 1
            await asyncio.sleep(0.02)
        assert written == []
        await asyncio.sleep(0.1)
        assert written == [("a", 99), ("b", 99), ("c", 99)]
        await asyncio.sleep(5)
        assert len(written) == 3
        session.pipeline.last_confirmed, session.lac_pushed = 100, 99
        lac.stop()
        await asyncio.sleep(5)
        assert len(written) == 3, "nothing after the end"
        assert lac.failures == 0

    loop.run(main())


def test_failures_are_counted_and_tried_again(loop: SimulatedLoop) -> None:
    async def main() -> None:
        session = Session()
        session.pool.failing = {"a", "b"}
        session.pipeline.last_confirmed = 4
        lac = ExplicitLac(session, CODEC, KEY, 100)  # type: ignore[arg-type]
        lac.start()
        await asyncio.sleep(0.31)
        assert session.pool.written == [("c", 4)] * 5
        assert lac.failures == 10
        session.pool.failing = {"a"}
        await asyncio.sleep(1)
        assert session.pool.written == [("c", 4)] * 5 + [("b", 4), ("c", 4)]
        session.failure = BookieUnavailableError("the session has ended")
        session.pipeline.last_confirmed = 5
        await asyncio.sleep(1)
        assert len(session.pool.written) == 7
        await session.tasks.close()

    loop.run(main())
