"""One timer serves all writers of a client.

Each writer is checked in its interval, however many there are, and nothing keeps running after the
last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from quire.client.write.add_session import AT_ONCE, CHECKS, STEPS_MAX, AddTimeouts
from tests.support.bookies.fake_bookies import FakeCluster, payload, simulated

LIMIT_S = 5.0
INTERVAL_S = LIMIT_S / CHECKS


class Watched:
    def __init__(self, looks: list[tuple[float, Watched]]) -> None:
        self._looks = looks

    def check_timeouts(self, now: float) -> None:
        self._looks.append((now, self))


@pytest.mark.parametrize("count", [1, AT_ONCE + 1, AT_ONCE * STEPS_MAX * 2 + 3])
def test_each_session_is_checked_once_per_interval(count: int) -> None:
    async def main() -> None:
        timeouts = AddTimeouts(LIMIT_S)
        looks: list[tuple[float, Watched]] = []
        watched = [cast(Any, Watched(looks)) for _ in range(count)]
        for one in watched:
            timeouts.watch(one)
        await asyncio.sleep(INTERVAL_S * 3.5)
        seen = Counter(one for _, one in looks)
        assert len(seen) == count
        assert set(seen.values()) <= {2, 3, 4}
        steps = Counter(at for at, _ in looks)
        assert max(steps.values()) <= max(AT_ONCE, -(-count // STEPS_MAX))

    simulated(main)


def test_a_check_that_fails_unexpectedly_does_not_stop_the_others() -> None:
    """A program's log handler or tracer may raise. Nobody would notice a silent bookie any more."""

    class Broken(Watched):
        def check_timeouts(self, now: float) -> None:
            super().check_timeouts(now)
            raise RuntimeError("a handler of the program")

    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        timeouts = AddTimeouts(LIMIT_S)
        looks: list[tuple[float, Watched]] = []
        watched = [cast(Any, kind(looks)) for kind in (Watched, Broken, Watched)]
        for one in watched:
            timeouts.watch(one)
        await asyncio.sleep(INTERVAL_S * 3.5)
        # The first one was watched when the first round began, and the others from the second on.
        assert Counter(one for _, one in looks) == dict(zip(watched, (3, 2, 2)))
        # The first error of a kind is reported. Each round would report it again.
        assert [str(what["exception"]) for what in reported] == ["a handler of the program"]
        assert timeouts._unexpected.count == 2
        for one in watched:
            timeouts.forget(one)
        assert timeouts._timer is None

    simulated(main)


def test_a_session_that_fails_to_end_with_its_client_does_not_stop_the_others() -> None:
    """The callers of the others waited for ever, because a log handler of the program raised."""

    class Ending(Watched):
        ended = 0

        def end_with_client(self) -> None:
            self.ended += 1
            raise RuntimeError("a handler of the program")

    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        timeouts = AddTimeouts(LIMIT_S)
        watched = [cast(Any, Ending([])) for _ in range(3)]
        for one in watched:
            timeouts.watch(one)
        timeouts.end_sessions()
        assert [one.ended for one in watched] == [1, 1, 1]
        assert [str(what["exception"]) for what in reported] == ["a handler of the program"]
        for one in watched:
            timeouts.forget(one)

    simulated(main)


def test_a_forgotten_session_is_not_checked_and_the_timer_ends() -> None:
    async def main() -> None:
        timeouts = AddTimeouts(LIMIT_S)
        looks: list[tuple[float, Watched]] = []
        first, second = (cast(Any, Watched(looks)) for _ in range(2))
        timeouts.watch(first)
        await asyncio.sleep(INTERVAL_S * 1.5)
        timeouts.forget(first)
        assert timeouts._timer is None
        timeouts.forget(first)
        timeouts.watch(second)
        await asyncio.sleep(INTERVAL_S * 1.5)
        assert [one for _, one in looks] == [first, second]

    simulated(main)


async def test_answers_that_came_during_a_pause_of_the_loop_are_read_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program computed something. A loop that is late each time still finds silent bookies."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    timeouts = AddTimeouts(LIMIT_S)
    looks: list[tuple[float, Watched]] = []
    one = cast(Any, Watched(looks))
    timeouts.watch(one)
    seen = []
    for pause in (2 * LIMIT_S, INTERVAL_S, 2 * LIMIT_S, 2 * LIMIT_S, 2 * LIMIT_S, INTERVAL_S):
        now += pause
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(len(looks))
    timeouts.forget(one)
    assert seen == [0, 1, 1, 2, 2, 3]


def test_a_silent_bookie_is_replaced_for_each_of_many_writers() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        silent = cluster["b0"]
        async with cluster.client() as client:
            writers = [
                await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                for _ in range(20)
            ]
            silent.holds_acks = True
            begun = asyncio.get_running_loop().time()
            for writer in writers:
                await writer.append(payload(0))
            async with asyncio.timeout(LIMIT_S * 2):
                while any(
                    silent.name in writer.metadata.last_segment.ensemble for writer in writers
                ):
                    await asyncio.sleep(0.1)
            took = asyncio.get_running_loop().time() - begun
            assert LIMIT_S < took < LIMIT_S + INTERVAL_S * 3
            for writer in writers:
                await writer.close()
            assert not client._shared.timeouts._sessions

    simulated(main)
