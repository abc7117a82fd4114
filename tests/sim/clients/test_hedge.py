"""One request to several bookies, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire.client.read.hedge import PATIENCE_ROUNDS, Hedge
from quire.config import ClientConfig
from quire.errors import BookieIOError, BookieTimeoutError, QuireError
from quire_simulator.machine.loop import SimulatedLoop

CONFIG = ClientConfig(speculative_read_s=1.0, read_timeout_s=5.0)
Outcome = tuple[str | None, dict[str, QuireError]]


class Bookies:
    """Each answers after its time: its name, or an error."""

    def __init__(self, **answers: tuple[float, bool]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, float]] = []
        self.cancelled: list[str] = []
        self.began_s = self.took_s = 0.0
        self.received: Callable[[str], int] = lambda bookie: 0

    async def ask(self, bookie: str) -> str:
        self.asked.append((bookie, asyncio.get_running_loop().time() - self.began_s))
        after_s, good = self.answers[bookie]
        try:
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            self.cancelled.append(bookie)
            raise
        if good:
            return bookie
        raise BookieIOError(f"bookie {bookie} cannot")

    def first_good(self) -> Outcome:
        loop = SimulatedLoop(1)

        async def main() -> tuple[Outcome, float]:
            self.began_s = loop.time()
            hedge = Hedge(CONFIG, lambda bookie: self.received(bookie))
            outcome = await hedge.first_good(self.answers, self.ask)
            return outcome, loop.time() - self.began_s

        try:
            outcome, self.took_s = loop.run(main())
        finally:
            loop.close()
        return outcome


def test_a_fast_bookie_is_the_only_one_asked() -> None:
    bookies = Bookies(a=(0.5, True), b=(0.1, True))
    assert bookies.first_good() == ("a", {})
    assert [name for name, _ in bookies.asked] == ["a"]


def test_the_next_bookie_is_asked_at_once_after_an_error() -> None:
    bookies = Bookies(a=(0.5, False), b=(0.1, True))
    found, errors = bookies.first_good()
    assert (found, set(errors)) == ("b", {"a"})
    assert bookies.took_s == pytest.approx(0.6)


def test_a_late_answer_is_used() -> None:
    """Seed 6800: the only replica was asked again, and its answer thrown away."""
    bookies = Bookies(a=(3.0, True))
    assert bookies.first_good() == ("a", {})
    assert len(bookies.asked) == 1
    assert bookies.took_s == pytest.approx(3.0)


def test_the_first_answer_of_several_slow_bookies_wins() -> None:
    bookies = Bookies(a=(3.0, True), b=(4.0, True), c=(1.5, False))
    found, errors = bookies.first_good()
    assert (found, set(errors)) == ("a", set())
    assert [(name, round(at, 3)) for name, at in bookies.asked] == [("a", 0), ("b", 1), ("c", 2)]
    assert sorted(bookies.cancelled) == ["b", "c"]


def test_every_bookie_has_the_full_timeout() -> None:
    bookies = Bookies(a=(60.0, True), b=(60.0, True), c=(0.2, False))
    found, errors = bookies.first_good()
    assert found is None
    assert {name: type(error) for name, error in errors.items()} == {
        "a": BookieTimeoutError, "b": BookieTimeoutError, "c": BookieIOError,
    }  # fmt: skip
    assert bookies.took_s == pytest.approx(6.0)  # b was asked a second later


def test_a_bookie_that_keeps_sending_has_more_time_but_not_forever() -> None:
    bookies = Bookies(a=(14.0, True))
    count = iter(range(1_000))
    bookies.received = lambda bookie: next(count)
    assert bookies.first_good() == ("a", {})
    bookies = Bookies(a=(1_000.0, True))
    bookies.received = lambda bookie: next(count)
    found, errors = bookies.first_good()
    assert found is None
    assert f"did not answer within {5 * PATIENCE_ROUNDS} s" in str(errors["a"])
    assert bookies.took_s == pytest.approx(5.0 * PATIENCE_ROUNDS)


def test_a_cancelled_hedge_leaves_no_task() -> None:
    bookies = Bookies(a=(60.0, True), b=(60.0, True))
    loop = SimulatedLoop(1)

    async def main() -> None:
        waiting: Awaitable[Outcome] = Hedge(CONFIG, bookies.received).first_good(
            bookies.answers, bookies.ask
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await waiting

    try:
        loop.run(main())
    finally:
        loop.close()
    assert sorted(bookies.cancelled) == ["a", "b"]
