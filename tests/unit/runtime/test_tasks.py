"""Task groups leave the state of their caller's task unchanged."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from quire._runtime.tasks import TaskGroup, TaskSet, UnexpectedErrors, cancelled, each

ROOT = Path(__file__).resolve().parents[3]


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError


async def waits() -> None:
    await asyncio.sleep(3600)


async def one_task_fails() -> None:
    async with TaskGroup() as group:
        group.create_task(fails())


async def one_of_two_fails() -> None:
    async with TaskGroup() as group:
        group.create_task(waits())
        group.create_task(fails())


async def the_body_is_interrupted() -> None:
    async with TaskGroup() as group:
        group.create_task(fails())
        await waits()


async def an_inner_and_an_outer_group_fail() -> None:
    async with TaskGroup() as outer, TaskGroup() as inner:
        outer.create_task(fails())
        inner.create_task(fails())


async def one_item_fails() -> None:
    async def work(item: int) -> None:
        await fails()

    await each([1, 2, 3], work)


FAILING = [
    one_task_fails,
    one_of_two_fails,
    the_body_is_interrupted,
    an_inner_and_an_outer_group_fail,
    one_item_fails,
]


@pytest.mark.parametrize("failing", FAILING, ids=lambda one: one.__name__)
async def test_a_timeout_after_a_failed_group_is_a_timeout(
    failing: Callable[[], Awaitable[None]],
) -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises((ValueError, ExceptionGroup)):
        await failing()
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await waits()


async def test_a_cancellation_from_outside_still_counts() -> None:
    async def group_that_waits() -> None:
        async with TaskGroup() as group:
            group.create_task(waits())

    task = asyncio.create_task(group_that_waits())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


def test_quire_uses_no_other_task_group() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "simulator").rglob("*.py")]
    using = [
        path.relative_to(ROOT).as_posix()
        for path in sources
        if "asyncio.TaskGroup" in path.read_text(encoding="utf-8")
    ]
    assert using == ["src/quire/_runtime/tasks.py"]


async def test_tasks_that_have_already_ended_are_not_waited_for() -> None:
    """`asyncio.gather` skips the wait on Python 3.11 only.

    A seed of the simulator gave another run there than on 3.13.
    """
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    done: list[asyncio.Future[Any]] = [loop.create_task(fails()), loop.create_task(fails())]
    await asyncio.wait(done)
    later = loop.create_future()
    loop.call_soon(later.set_result, None)
    await cancelled([*done, loop.create_future()])
    assert not later.done()
    running = loop.create_task(asyncio.sleep(3_600))
    await cancelled([running, *done])
    assert running.cancelled()
    assert later.done()
    del done
    gc.collect()
    assert reported == []


async def test_repeated_work_continues_after_unexpected_errors() -> None:
    """The work once ended for good without notice. One log line a second would be as bad."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    raised = [KeyError("a"), KeyError("b"), TypeError("c"), KeyError("d")]
    calls = 0
    enough = asyncio.Event()

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            enough.set()
        if calls <= len(raised):
            raise raised[calls - 1]

    errors, tasks = UnexpectedErrors(), TaskSet()
    tasks.start(errors.repeat(0.0, work))
    async with asyncio.timeout(10):
        await enough.wait()
    await tasks.close()
    assert errors.count == 4
    assert [one["exception"] for one in reported] == [raised[0], raised[2]]
    assert all("work" in one["message"] and "goes on" in one["message"] for one in reported)
