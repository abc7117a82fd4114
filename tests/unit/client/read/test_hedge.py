"""A request that several bookies are asked for in turn: who is asked, waited for, and reported."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf

import pytest

from quire.client.read.hedge import PATIENCE_ROUNDS, Hedge
from quire.config import ClientConfig
from quire.errors import BookieIOError, BookieTimeoutError
from quire_simulator.machine import SimulatedLoop

CONFIG = ClientConfig(speculative_read_s=1.0, read_timeout_s=10.0)


@pytest.fixture
def loop() -> SimulatedLoop:
    return SimulatedLoop(1)


class Bookies:
    """Bookies that answer after some seconds. `trickling` ones send data, but no answer."""

    def __init__(self, **answers_in_s: float) -> None:
        self.answers_in_s = answers_in_s
        self.trickling: set[str] = set()
        self.trickle_s = inf
        """The seconds after which trickling bookies send nothing more."""
        self.failing: set[str] = set()
        self.asked: dict[str, float] = {}
        """The seconds after which each bookie was asked."""
        self._begun_s = asyncio.get_running_loop().time()
        self.overtaken: list[str] = []
        self._received: Counter[str] = Counter()
        self.hedge = Hedge(CONFIG, self.received_bytes, self.overtaken.append)

    @property
    def passed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._begun_s

    def received_bytes(self, bookie: str) -> int:
        self._received[bookie] += bookie in self.trickling and self.passed_s <= self.trickle_s
        return self._received[bookie]

    async def ask(self, bookie: str) -> str:
        self.asked[bookie] = self.passed_s
        await asyncio.sleep(self.answers_in_s[bookie])
        if bookie in self.failing:
            raise BookieIOError(f"bookie {bookie} failed")
        return f"from {bookie}"


def test_only_bookies_that_were_asked_earlier_count_as_slow(loop: SimulatedLoop) -> None:
    """A bookie that was asked later had less time, so it does not count as slow."""

    async def main() -> None:
        bookies = Bookies(a=60.0, b=1.5, c=60.0)
        found, errors = await bookies.hedge.first_good("abc", bookies.ask)
        assert (found, errors) == ("from b", {})
        assert bookies.asked == {"a": 0.0, "b": 1.0, "c": 2.0}
        assert bookies.overtaken == ["a"]

    loop.run(main())


def test_a_bookie_that_fails_is_followed_at_once_and_is_not_slow(loop: SimulatedLoop) -> None:
    async def main() -> None:
        bookies = Bookies(a=0.25, b=0.5, c=0.5)
        bookies.failing = {"a"}
        found, errors = await bookies.hedge.first_good("abc", bookies.ask)
        assert (found, list(errors)) == ("from b", ["a"])
        assert bookies.asked == {"a": 0.0, "b": 0.25}
        assert bookies.overtaken == []

    loop.run(main())


@pytest.mark.parametrize("trickles", [False, True])
def test_the_time_allowed_to_a_bookie_that_sends_data_is_limited(
    loop: SimulatedLoop, *, trickles: bool
) -> None:
    """A bookie that sends data gets more time than others, up to a limit."""

    async def main() -> None:
        bookies = Bookies(a=10_000.0)
        bookies.trickling = {"a"} if trickles else set()
        found, errors = await bookies.hedge.first_good("a", bookies.ask)
        rounds = PATIENCE_ROUNDS if trickles else 1
        assert found is None
        assert isinstance(errors["a"], BookieTimeoutError)
        assert f"within {10 * rounds} s" in str(errors["a"])
        assert bookies.passed_s == pytest.approx(10.0 * rounds)

    loop.run(main())


@pytest.mark.parametrize("rounds", range(PATIENCE_ROUNDS + 2))
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_a_bookie_that_stops_sending_data_gets_no_more_time(
    loop: SimulatedLoop, rounds: int, part: float
) -> None:
    """Each extension needs data that has come since the one before it."""

    async def main() -> None:
        bookies = Bookies(a=10_000.0)
        bookies.trickling = {"a"}
        bookies.trickle_s = 10.0 * (rounds + part) if rounds else 0.0
        found, errors = await bookies.hedge.first_good("a", bookies.ask)
        # The data of a round is seen at its end.
        with_data = int(bookies.trickle_s // 10.0)
        waited = min(with_data + 1, PATIENCE_ROUNDS)
        assert found is None
        assert f"within {10 * waited} s" in str(errors["a"])
        assert bookies.passed_s == pytest.approx(10.0 * waited)

    loop.run(main())
