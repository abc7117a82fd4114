"""The threads below the storage interfaces."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from quire.storage.log.job_queue import JobQueue
from quire.storage.worker import ThreadReader, ThreadWorker

LIMIT_S = 20


async def test_every_wake_is_followed_by_a_step_that_sees_earlier_work() -> None:
    loop = asyncio.get_running_loop()
    worker = ThreadWorker(loop, "test")
    queue: list[int] = []
    taken: list[int] = []

    def step() -> None:
        while queue:
            taken.append(queue.pop(0))

    worker.start(step)
    for number in range(2_000):
        queue.append(number)
        worker.wake()
        if number % 100 == 0:
            await asyncio.sleep(0)
    await worker.stop()
    assert taken == list(range(2_000))


async def test_the_step_may_wake_itself_and_posts_run_in_order_on_the_loop() -> None:
    loop = asyncio.get_running_loop()
    worker = ThreadWorker(loop, "test")
    posted: list[tuple[int, int]] = []
    done = asyncio.Event()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        number = steps
        worker.post(lambda: posted.append((number, threading.get_ident())))
        if steps < 50:
            worker.wake()
        else:
            worker.post(done.set)

    worker.start(step)
    worker.wake()
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    await worker.stop()
    assert [number for number, _ in posted] == list(range(1, steps + 1))
    assert {thread for _, thread in posted} == {threading.get_ident()}


async def test_stop_waits_for_running_and_pending_steps_and_for_posts() -> None:
    loop = asyncio.get_running_loop()
    worker = ThreadWorker(loop, "test")
    started, go_on = threading.Event(), threading.Event()
    steps: list[int] = []
    heard: list[int] = []

    def step() -> None:
        started.set()
        assert go_on.wait(LIMIT_S)
        steps.append(1)
        worker.post(lambda: heard.append(1))

    worker.start(step)
    worker.wake()
    await asyncio.to_thread(started.wait, LIMIT_S)
    worker.wake()
    loop.call_later(0.01, go_on.set)
    await worker.stop()
    assert len(heard) == len(steps) == 2


async def test_a_worker_can_be_stopped_without_start_or_wake() -> None:
    loop = asyncio.get_running_loop()
    await ThreadWorker(loop, "never started").stop()
    worker = ThreadWorker(loop, "never woken")
    worker.start(lambda: pytest.fail("nobody asked for a step"))
    await worker.stop()


async def test_a_step_that_raises_is_reported_and_the_next_one_runs() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: reported.append(context))
    worker = ThreadWorker(loop, "test")
    done = asyncio.Event()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            worker.wake()
            raise RuntimeError("first")
        worker.post(done.set)

    worker.start(step)
    worker.wake()
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    await worker.stop()
    assert [str(context["exception"]) for context in reported] == ["first"]


async def test_reads_run_off_the_loop() -> None:
    reader = ThreadReader(asyncio.get_running_loop(), threads=1)
    assert await reader.run(threading.get_ident) != threading.get_ident()
    found: list[object] = []
    done = asyncio.Event()
    reader.read(threading.get_ident, lambda ident: (found.append(ident), done.set())[1])
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    assert found != [threading.get_ident()]
    reader.close()


async def test_read_ahead_does_not_delay_reads() -> None:
    """Read-ahead once used the same threads, so a read of one entry waited for all of it."""
    reader = ThreadReader(asyncio.get_running_loop(), threads=1)
    go = threading.Event()
    ended: list[None] = []
    for _ in range(8):
        reader.ahead(lambda: ended.append(go.wait(LIMIT_S) or None), lambda: None)  # type: ignore[func-returns-value]
    async with asyncio.timeout(LIMIT_S):
        assert await reader.run(lambda: 7) == 7
    assert not ended
    go.set()
    reader.close()


async def test_a_read_that_was_not_run_is_reported_as_none() -> None:
    loop = asyncio.get_running_loop()
    reader = ThreadReader(loop, threads=1)
    begun, go = threading.Event(), threading.Event()
    told: asyncio.Queue[object] = asyncio.Queue()
    reader.read(lambda: begun.set() or go.wait(LIMIT_S), told.put_nowait)  # type: ignore[func-returns-value]
    reader.read(lambda: 7, told.put_nowait)
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    loop.call_later(0.01, go.set)
    await asyncio.to_thread(reader.close)
    async with asyncio.timeout(LIMIT_S):
        assert {await told.get(), await told.get()} == {True, None}


async def test_a_read_with_a_bug_is_reported() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, object]] = []
    loop.set_exception_handler(lambda loop, context: reported.append(context))
    reader = ThreadReader(loop, threads=1)
    told: asyncio.Queue[object] = asyncio.Queue()
    reader.read(lambda: [][1], told.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        assert await told.get() is None
    assert isinstance(reported[0]["exception"], IndexError)
    reader.close()


async def test_threads_start_on_demand_and_end_with_the_reader() -> None:
    def there() -> list[str]:
        return sorted(
            one.name for one in threading.enumerate() if one.name.startswith("quire-read")
        )

    reader = ThreadReader(asyncio.get_running_loop(), threads=2)
    assert there() == []
    assert [await reader.run(lambda: 1), await reader.run(lambda: 2)] == [1, 2]
    assert there() == ["quire-read_0"]
    both = threading.Barrier(2)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(reader.run(lambda: both.wait(LIMIT_S)) for _ in range(2)))
    assert there() == ["quire-read_0", "quire-read_1"]
    reader.close()
    assert there() == []


async def test_a_closed_reader_runs_nothing() -> None:
    reader = ThreadReader(asyncio.get_running_loop())
    reader.close()
    told: asyncio.Queue[object] = asyncio.Queue()
    reader.read(lambda: 7, told.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        assert await told.get() is None
        with pytest.raises(asyncio.CancelledError):
            await reader.run(lambda: 7)


async def test_an_error_is_raised_to_the_caller_that_waits_for_the_read() -> None:
    reader = ThreadReader(asyncio.get_running_loop(), threads=1)
    with pytest.raises(IndexError):
        await reader.run(lambda: [][1])
    reader.close()


@pytest.mark.parametrize("draining", [False, True])
async def test_a_job_that_fails_unexpectedly_does_not_delay_the_others(draining: bool) -> None:
    """The other jobs once ran only when another job was queued, and not at all at a stop."""
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    worker = ThreadWorker(loop, "test")
    jobs = JobQueue(worker)
    go_on = threading.Event()
    ended: list[tuple[str, object]] = []
    all_ended = asyncio.Event()

    def bad() -> str:
        assert go_on.wait(LIMIT_S)
        raise RuntimeError("an error that no job should raise")

    def done(name: str, result: object, error: Exception | None) -> None:
        ended.append((name, result if error is None else str(error)))
        if len(ended) == 3:
            all_ended.set()

    jobs.start()
    jobs.run(bad, partial(done, "bad"))
    for name in ("first", "second"):
        jobs.run(lambda: "a result", partial(done, name))
    if draining:
        jobs.draining = True
        go_on.set()
        await worker.stop()
    else:
        go_on.set()
        async with asyncio.timeout(LIMIT_S):
            await all_ended.wait()
        await worker.stop()
    assert ended == [
        ("bad", "an error that no job should raise"),
        ("first", "a result"),
        ("second", "a result"),
    ]
    assert [str(error) for error in reported] == ["an error that no job should raise"]
