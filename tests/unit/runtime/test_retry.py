"""Pauses between retries grow, have jitter, and stay within their limits."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

import quire
from quire._runtime.retry import EQUAL_JITTER, Backoff, Retry


class Passing(Exception):
    pass


class Recorder:
    """A clock that moves on by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def retry(self, backoff: Backoff, seed: int = 1, **bounds: float) -> Retry:
        return Retry(
            backoff, random.Random(seed), now=self.now, sleep=self.sleep,
            **bounds,  # type: ignore[arg-type]
        )  # fmt: skip


async def failing(retry: Retry, failures: int) -> int:
    """Fail this often, then succeed. Return the number of attempts."""
    attempts = 0
    while True:
        try:
            attempts += 1
            if attempts <= failures:
                raise Passing
            return attempts
        except Passing:
            if not await retry.pause():
                raise


def test_the_longest_pause_doubles_up_to_its_limit() -> None:
    backoff = Backoff(0.1, 1.0)
    longest = [backoff.longest_s(failures) for failures in range(1, 7)]
    assert longest == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.longest_s(10_000) == 1.0
    assert Backoff(5.0, 5.0).longest_s(3) == 5.0


def test_jitter_subtracts_up_to_its_share() -> None:
    rng = random.Random(7)
    for jitter in (0.0, 0.25, EQUAL_JITTER, 1.0):
        pauses = [Backoff(1.0, 1.0, jitter).pause_s(1, rng) for _ in range(1_000)]
        assert all(1.0 - jitter <= pause <= 1.0 for pause in pauses)
        assert (len(set(pauses)) == 1) == (jitter == 0.0)
        assert min(pauses) < 1.0 - 0.9 * jitter or jitter == 0.0


async def test_the_same_seed_gives_the_same_pauses() -> None:
    runs = []
    for seed in (1, 1, 2):
        world = Recorder()
        await failing(world.retry(Backoff(0.1, 2.0), seed), 8)
        runs.append(world.pauses)
    assert runs[0] == runs[1] != runs[2]


async def test_the_number_of_attempts_is_limited() -> None:
    world = Recorder()
    with pytest.raises(Passing):
        await failing(world.retry(Backoff(0.1), attempts=4), 100)
    assert len(world.pauses) == 3
    assert await failing(Recorder().retry(Backoff(0.1), attempts=4), 3) == 4


async def test_the_total_time_is_limited() -> None:
    world = Recorder()
    with pytest.raises(Passing):
        await failing(world.retry(Backoff(1.0, 4.0, 0.0), limit_s=9.0), 100)
    assert world.pauses == [1.0, 2.0, 4.0, 4.0]


async def test_progress_resets_the_pause_to_the_shortest() -> None:
    world = Recorder()
    retry = world.retry(Backoff(1.0, jitter=0.0))
    for _ in range(3):
        await retry.pause()
    retry.reset()
    await retry.pause()
    assert world.pauses == [1.0, 2.0, 4.0, 1.0]


async def test_the_event_loop_is_the_default_clock() -> None:
    retry = Retry(Backoff(0.001), random.Random(1), limit_s=0.0)
    assert not retry.failed()
    assert await Retry(Backoff(0.0), random.Random(1), limit_s=60.0).pause()


async def test_a_pause_can_be_cancelled() -> None:
    task = asyncio.ensure_future(Retry(Backoff(60.0), random.Random(1)).pause())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


GROWING = re.compile(
    r"(delay|pause|wait)\w* \*= 2|2 \* (delay|pause)"
    r"|2 ?\*\* ?\(?(min\()?\w*(attempt|round|unknown|number)"
)


def test_growing_pauses_are_implemented_in_one_place() -> None:
    root = Path(quire.__file__).parent
    found = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if GROWING.search(path.read_text())
    ]
    assert found == []
    assert GROWING.search("delay_s = min(2 * delay_s, MAX)")
