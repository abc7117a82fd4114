"""The memory budget of answers: reservations that are cancelled, and requests that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from quire.bookie.protocol.answer_budget import Account, AnswerBudget

LIMIT_BYTES = 1000


class Sink:
    """A connection whose client receives everything at once."""

    unsent_size = 0

    def progress(self) -> tuple[int, int]:
        return 1, 1

    def pause(self, reason: str) -> None:
        pass

    def resume(self, reason: str) -> None:
        pass

    def cut_off(self, event: str, why: str) -> None:
        raise AssertionError(event)


@pytest.fixture
def budget() -> AnswerBudget:
    return AnswerBudget(LIMIT_BYTES, LIMIT_BYTES, lambda: 0.0)


async def hold(budget: AnswerBudget, account: Account, ended: asyncio.Event) -> None:
    async with budget.room(account, LIMIT_BYTES):
        await ended.wait()


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_wait_for_memory_reserves_nothing(
    budget: AnswerBudget, steps: int
) -> None:
    """Memory that was granted just before the cancellation was once never released."""
    first, second = Account(Sink()), Account(Sink())
    ended = asyncio.Event()
    holder = asyncio.create_task(hold(budget, first, ended))
    await asyncio.sleep(0)
    waiter = asyncio.create_task(hold(budget, second, asyncio.Event()))
    await asyncio.sleep(0)
    assert budget.held_bytes == LIMIT_BYTES
    ended.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    budget.forget(second)
    waiter.cancel()
    await asyncio.gather(holder, waiter, return_exceptions=True)
    assert budget.held_bytes == 0
    assert second.reserved_bytes == 0


async def test_a_request_that_fails_does_not_keep_others_waiting(budget: AnswerBudget) -> None:
    """Later requests, also those of other connections, were once never started."""
    mine, other = Account(Sink()), Account(Sink())
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )
    ended = asyncio.Event()
    holder = asyncio.create_task(hold(budget, Account(Sink()), ended))
    await asyncio.sleep(0)
    started: list[str] = []

    def fails() -> None:
        raise RuntimeError("this request fails")

    def starting(name: str, account: Account) -> Callable[[], None]:
        def start() -> None:
            started.append(name)
            budget.release(account, 0)

        return start

    budget.wait(mine, fails)
    budget.wait(mine, starting("mine", mine))
    budget.wait(other, starting("other", other))
    ended.set()
    await holder
    async with asyncio.timeout(5):
        while len(started) < 2:
            await asyncio.sleep(0)
    assert sorted(started) == ["mine", "other"]
    assert [str(error) for error in reported] == ["this request fails"]
    assert budget.held_bytes == 0
    assert budget.requests_waiting == 0


async def test_a_read_that_waits_before_all_others_is_counted(budget: AnswerBudget) -> None:
    """Such a read was once counted as dropped, but never as one that waited."""
    mine, ended = Account(Sink()), asyncio.Event()
    holder = asyncio.create_task(hold(budget, Account(Sink()), ended))
    await asyncio.sleep(0)
    budget.run(mine, 10, lambda: None, first=True)
    assert budget.counters.waited == budget.requests_waiting == 1
    budget.forget(mine)
    assert budget.counters.dropped == 1
    ended.set()
    await holder


async def test_a_read_that_waits_twice_is_counted_once(budget: AnswerBudget) -> None:
    """It waits first for its turn, and then for as much memory as its entry needs."""
    mine, other, started = Account(Sink()), Account(Sink()), list[int]()

    def read() -> None:
        started.append(budget.held_bytes)

    budget.run(other, 600, lambda: None)
    budget.run(Account(Sink()), 400, lambda: None)
    budget.wait(mine, lambda: budget.run(mine, 500, read, first=True))
    assert budget.counters.waited == 1
    budget.release(other, 100)
    await asyncio.sleep(0)
    assert started == []
    assert budget.counters.waited == budget.requests_waiting == 1
    budget.release(other, 500)
    await asyncio.sleep(0)
    assert started == [900]
    assert budget.counters.waited == 1
