"""The simulated loop: asyncio's behaviour, simulated time, nodes, limits, determinism."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from quire_simulator.machine import (
    DeadlockError,
    LimitError,
    SimClock,
    SimulatedLoop,
    SimulationError,
    Trace,
    current_node,
)
from tests.support.sim.scenario import play

Log = list[Any]


def simulate(main: Callable[[SimulatedLoop], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    loop = SimulatedLoop(seed)
    return loop.run(main(loop))


# -- as asyncio does --------------------------------------------------------------------------


async def order_of_callbacks(log: Log) -> None:
    loop = asyncio.get_running_loop()
    cancelled = loop.call_soon(log.append, "never")
    for number in range(5):
        loop.call_soon(log.append, number)
    cancelled.cancel()
    log.append(cancelled.cancelled())
    timer = loop.call_later(3600, log.append, "never")
    timer.cancel()
    timer.cancel()
    await asyncio.sleep(0)
    loop.call_soon(lambda: loop.call_soon(log.append, "inner"))
    loop.call_soon(log.append, "outer")
    for _ in range(3):
        await asyncio.sleep(0)


async def tasks_interleave(log: Log) -> None:
    async def work(name: str) -> str:
        for number in range(3):
            log.append((name, number))
            await asyncio.sleep(0)
        return name

    log.append(await asyncio.gather(work("a"), work("b"), work("c")))


async def group_cancels(log: Log) -> None:
    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            raise
        finally:
            await asyncio.sleep(0)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("bad")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("first"))
            group.create_task(fail())
            log.append("body")
            await asyncio.Event().wait()
    except* ValueError as errors:
        log.append([repr(error) for error in errors.exceptions])


async def timeouts(log: Log) -> None:
    for delay in (0, -1, 0.001):
        try:
            async with asyncio.timeout(delay) as scope:
                await asyncio.Event().wait()
        except TimeoutError:
            log.append(("timeout", scope.expired()))
    async with asyncio.timeout(3600) as scope:
        await asyncio.sleep(0)
    log.append(scope.expired())
    try:
        async with asyncio.timeout(3600):
            async with asyncio.timeout(0.001):
                await asyncio.shield(asyncio.Event().wait())
    except TimeoutError:
        log.append("inner")
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)
    except TimeoutError:
        log.append("wait_for")


async def cancellation(log: Log) -> None:
    started = asyncio.Event()

    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            log.append(error.args)
        task = asyncio.current_task()
        assert task is not None
        log.append((task.cancelling(), task.uncancel()))
        return "went on"

    async def early() -> None:
        log.append("never")

    task = asyncio.create_task(stubborn())
    await started.wait()
    log.append(task.cancel("please"))
    log.append(await task)
    log.append(task.cancel())
    task2 = asyncio.create_task(early())
    task2.cancel()
    log.append(repr(await asyncio.gather(task2, return_exceptions=True)))


async def primitives(log: Log) -> None:
    lock, queue, condition = asyncio.Lock(), asyncio.Queue[int](2), asyncio.Condition()

    async def producer() -> None:
        for number in range(5):
            await queue.put(number)
            log.append(("put", number))
        async with condition:
            condition.notify_all()

    async def consumer(name: str) -> None:
        for _ in range(2):
            async with lock:
                log.append((name, await queue.get()))
        async with condition:
            log.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(consumer("x"))
        group.create_task(consumer("y"))
        group.create_task(producer())
    done, pending = await asyncio.wait(
        [asyncio.create_task(queue.get()), asyncio.create_task(queue.get())],
        return_when=asyncio.FIRST_COMPLETED,
    )
    log.append((len(done), len(pending)))
    for task in pending:
        task.cancel()


async def generators(log: Log) -> None:
    async def count() -> Any:
        try:
            for number in range(10):
                yield number
                await asyncio.sleep(0)
        finally:
            log.append("closed")

    async for number in count():
        if number == 2:
            break
    for _ in range(3):
        await asyncio.sleep(0)
    log.append("after")


async def executor(log: Log) -> None:
    def fail() -> None:
        raise KeyError("inside")

    log.append(await asyncio.to_thread(lambda: 7))
    try:
        await asyncio.get_running_loop().run_in_executor(None, fail)
    except KeyError as error:
        log.append(error.args)


@pytest.mark.parametrize(
    "behaviour",
    [
        order_of_callbacks,
        tasks_interleave,
        group_cancels,
        timeouts,
        cancellation,
        primitives,
        generators,
        executor,
    ],
)
def test_the_simulated_loop_behaves_like_asyncio(
    behaviour: Callable[[Log], Coroutine[Any, Any, None]],
) -> None:
    real: Log = []
    asyncio.run(behaviour(real))
    assert len(real) > 1
    for seed in range(5):
        simulated: Log = []
        SimulatedLoop(seed).run(behaviour(simulated))
        assert simulated == real


def test_an_asyncio_runner_can_use_the_simulated_loop() -> None:
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(1)) as runner:
        loop = runner.get_loop()
        before = loop.time()
        runner.run(asyncio.sleep(3600))
        assert loop.time() == before + 3600


# -- time -------------------------------------------------------------------------------------


def test_time_passes_only_when_nothing_can_run() -> None:
    async def main(loop: SimulatedLoop) -> None:
        start = loop.time()
        for _ in range(100):
            await asyncio.sleep(0)
        assert loop.time() == start
        await asyncio.sleep(86_400)
        assert loop.time() == start + 86_400

    simulate(main)


def test_a_timer_that_is_due_is_not_starved() -> None:
    async def main(loop: SimulatedLoop) -> None:
        due: list[str] = []
        loop.call_later(0, due.append, "zero")
        loop.call_at(loop.time() - 5, due.append, "past")
        loop.call_later(0, due.append, "never").cancel()
        while len(due) < 2:
            await asyncio.sleep(0)
        assert due == ["zero", "past"]

    loop = SimulatedLoop(1, max_steps=100)
    loop.run(main(loop))


def test_timers_fire_in_order_of_time_then_of_creation() -> None:
    fired: list[tuple[int, float]] = []

    async def main(loop: SimulatedLoop) -> None:
        start = loop.time()
        for number, delay in enumerate([5, 1, 3, 1, 5, 2, 1]):
            loop.call_at(start + delay, lambda n=number: fired.append((n, loop.time() - start)))
        await asyncio.sleep(10)

    simulate(main)
    assert fired == [(1, 1), (3, 1), (6, 1), (5, 2), (2, 3), (0, 5), (4, 5)]


def test_a_cancelled_timer_does_not_advance_time_and_uses_no_memory() -> None:
    async def main(loop: SimulatedLoop) -> None:
        start = loop.time()
        for _ in range(10_000):
            loop.call_later(5, print).cancel()
        assert len(loop._timers) < 200
        await asyncio.sleep(7)
        assert loop.time() == start + 7

    simulate(main)


def test_the_clock_follows_the_loop_and_may_be_wrong() -> None:
    async def main(loop: SimulatedLoop) -> None:
        right, wrong = SimClock(loop), SimClock(loop, skew_ms=-250)
        assert right.now_ms() - wrong.now_ms() == 250
        before = right.now_ms(), right.monotonic()
        await asyncio.sleep(2)
        assert (right.now_ms(), right.monotonic()) == (before[0] + 2000, before[1] + 2)
        wrong.skew_ms = 1000
        assert wrong.now_ms() == right.now_ms() + 1000

    simulate(main)


# -- ends -------------------------------------------------------------------------------------


def test_a_deadlock_names_the_waiting_tasks_and_their_lines() -> None:
    async def forgotten_answer() -> None:
        await asyncio.Event().wait()

    async def main(loop: SimulatedLoop) -> None:
        loop.node("bookie").create_task(asyncio.Event().wait(), name="serve")
        loop.node("sleeper").stop()
        await forgotten_answer()

    with pytest.raises(DeadlockError) as caught:
        simulate(main, seed=77)
    message = str(caught.value)
    assert "main of main" in message
    assert "serve of bookie" in message
    assert "locks.py" in message
    assert "stopped nodes: sleeper" in message
    assert "seed 77" in message


def test_timers_of_a_dead_node_do_not_hide_a_deadlock() -> None:
    async def main(loop: SimulatedLoop) -> None:
        loop.node("n").create_task(asyncio.sleep(3600))
        await asyncio.sleep(1)
        loop.node("n").kill()
        await asyncio.Event().wait()

    loop = SimulatedLoop(1)
    begin = loop.time()
    with pytest.raises(DeadlockError):
        loop.run(main(loop))
    assert loop.time() == begin + 1


def test_a_run_ends_at_its_limits_of_steps_and_time() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)

    loop = SimulatedLoop(1, max_steps=500)
    with pytest.raises(LimitError, match="500 steps"):
        loop.run(spin())
    assert loop.steps == 500
    loop = SimulatedLoop(1, max_time_s=30)
    begin = loop.time()
    with pytest.raises(LimitError, match="main of main"):
        loop.run(tick())
    assert loop.time() == begin + 30


def test_an_exception_in_a_callback_ends_the_run() -> None:
    async def main(loop: SimulatedLoop) -> None:
        loop.call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(SimulationError, match="ZeroDivisionError") as caught:
        simulate(main)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_in_an_unawaited_task_ends_the_run() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    async def main(loop: SimulatedLoop) -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="never retrieved"):
        simulate(main)


def test_an_exception_handler_may_be_more_lenient() -> None:
    seen: list[dict[str, Any]] = []

    async def main(loop: SimulatedLoop) -> str:
        loop.set_exception_handler(lambda _, context: seen.append(context))
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        return "done"

    assert simulate(main) == "done"
    assert isinstance(seen[0]["exception"], ZeroDivisionError)


def test_the_end_of_a_run_cancels_tasks_in_order_of_creation() -> None:
    log: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            log.append(number)

    async def main(loop: SimulatedLoop) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(wait(number)) for number in range(20)]
        await asyncio.sleep(1)
        return tasks

    loop = SimulatedLoop(1)
    tasks = loop.run(main(loop))
    assert log == list(range(20))
    assert all(task.cancelled() for task in tasks)
    assert loop.is_closed()


def test_an_error_while_cancelling_is_not_lost() -> None:
    async def bad() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in finally")

    async def main(loop: SimulatedLoop) -> None:
        loop.node("n").create_task(bad())
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="in finally"):
        simulate(main)


def test_the_error_of_the_main_coroutine_is_raised() -> None:
    async def main(loop: SimulatedLoop) -> None:
        asyncio.create_task(asyncio.Event().wait())  # noqa: RUF006
        await asyncio.sleep(1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        simulate(main)
    assert gc.isenabled()


def test_real_sockets_and_calls_on_a_closed_loop_are_refused() -> None:
    async def main(loop: SimulatedLoop) -> None:
        with pytest.raises((NotImplementedError, AttributeError)):
            loop.add_reader(0, print)

    loop = SimulatedLoop(1)
    loop.run(main(loop))
    with pytest.raises(RuntimeError, match="closed"):
        loop.create_task(main(loop))


# -- nodes ------------------------------------------------------------------------------------


def test_callbacks_and_tasks_inherit_their_node() -> None:
    async def main(loop: SimulatedLoop) -> None:
        node = loop.node("n")
        seen: list[str] = []

        def note() -> None:
            seen.append(current_node.get().name)

        async def work() -> None:
            note()
            loop.call_soon(note)
            loop.call_later(1, note)
            await asyncio.create_task(asyncio.sleep(2))
            await asyncio.gather(asyncio.to_thread(note), asyncio.sleep(1))
            done.set_result(None)

        done = loop.create_future()
        done.add_done_callback(lambda _: seen.append(current_node.get().name))
        node.create_task(work())
        node.call_soon(note)
        await done
        assert seen == ["n"] * 5 + ["main"]
        assert current_node.get() is loop.main
        assert loop.node("n") is node

    simulate(main)


def test_order_within_a_node_is_kept_and_between_nodes_is_seeded() -> None:
    def order(seed: int) -> list[tuple[str, int]]:
        log: list[tuple[str, int]] = []

        async def main(loop: SimulatedLoop) -> None:
            for number in range(6):
                for name in "abc":
                    loop.node(name).call_soon(log.append, (name, number))
            await asyncio.sleep(1)

        simulate(main, seed)
        return log

    orders = [order(seed) for seed in range(30)]
    for log in orders:
        for name in "abc":
            assert [number for who, number in log if who == name] == list(range(6))
    assert len({tuple(log) for log in orders}) > 25
    assert orders == [order(seed) for seed in range(30)]


def test_a_stopped_node_pauses_and_continues() -> None:
    async def main(loop: SimulatedLoop) -> None:
        node = loop.node("n")
        log: list[Any] = []

        async def work() -> None:
            for number in range(4):
                await asyncio.sleep(1)
                log.append((number, loop.time() - start))

        start = loop.time()
        task = node.create_task(work())
        await asyncio.sleep(1.5)
        node.call_soon(log.append, "held")
        node.stop()
        node.stop()
        await asyncio.sleep(10)
        assert log == [(0, 1)]
        node.cont()
        node.cont()
        await task
        assert log == [(0, 1), "held", (1, 11.5), (2, 12.5), (3, 13.5)]

    simulate(main)


def test_no_code_of_a_killed_node_runs_not_even_finally() -> None:
    log: list[str] = []
    after_the_run: list[str] = []

    async def forgotten(loop: SimulatedLoop) -> None:
        try:
            await asyncio.sleep(2)
        finally:
            (after_the_run if loop.is_closed() else log).append("forgotten")

    async def work(loop: SimulatedLoop) -> None:
        loop.call_later(2, log.append, "timer")
        asyncio.create_task(forgotten(loop))  # noqa: RUF006
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(2))
                await asyncio.Event().wait()
        finally:
            (after_the_run if loop.is_closed() else log).append("finally")
            await asyncio.sleep(1)

    async def main(loop: SimulatedLoop) -> None:
        node = loop.node("n")
        future = loop.create_future()
        node.create_task(work(loop))
        node.call_soon(lambda: future.add_done_callback(lambda _: log.append("woken")))
        await asyncio.sleep(1)
        node.kill()
        node.kill()
        future.set_result(None)
        node.call_soon(log.append, "soon")
        node.create_task(work(loop))
        gc.collect()
        await asyncio.sleep(5)
        again = loop.node("n")
        assert again is not node
        again.call_soon(log.append, "new life")
        await asyncio.sleep(1)

    simulate(main)
    assert log == ["new life"]
    assert sorted(after_the_run) == ["finally", "forgotten"]


def test_a_node_can_kill_itself_and_a_stopped_one_can_be_killed() -> None:
    log: list[str] = []

    async def main(loop: SimulatedLoop) -> None:
        async def suicide() -> None:
            await asyncio.sleep(1)
            current_node.get().kill()
            log.append("to the end of this step")
            await asyncio.sleep(0)
            log.append("no further")

        loop.node("a").create_task(suicide())
        stopped = loop.node("b")
        stopped.stop()
        stopped.call_soon(log.append, "never")
        stopped.kill()
        stopped.cont()
        await asyncio.sleep(3)

    simulate(main)
    assert log == ["to the end of this step"]


def test_a_node_stopped_at_the_end_does_not_block_the_end() -> None:
    async def main(loop: SimulatedLoop) -> str:
        node = loop.node("n")
        node.create_task(asyncio.sleep(5))
        await asyncio.sleep(1)
        node.stop()
        return "end"

    assert simulate(main) == "end"


def test_a_finished_world_can_be_collected() -> None:
    async def main(loop: SimulatedLoop) -> None:
        loop.node("n").create_task(asyncio.Event().wait())
        await asyncio.sleep(1)
        loop.node("n").kill()

    loop = SimulatedLoop(1)
    loop.run(main(loop))
    reference = weakref.ref(loop)
    del loop
    gc.collect()
    assert reference() is None


# -- the same run twice -----------------------------------------------------------------------


def test_sets_of_tasks_and_futures_have_an_order() -> None:
    async def main(loop: SimulatedLoop) -> None:
        tasks = {asyncio.create_task(asyncio.sleep(0)) for _ in range(200)}
        order = [task.sequence for task in tasks]
        assert order == sorted(order)
        futures = {loop.create_future() for _ in range(200)}
        assert [f.sequence for f in futures] == sorted(f.sequence for f in futures)
        names = [task.get_name() for task in sorted(tasks, key=lambda task: task.sequence)]
        assert names == [f"Task-{2 + number}" for number in range(200)]
        await asyncio.wait(tasks)

    simulate(main)


def test_derived_generators_are_independent_and_repeatable() -> None:
    first, second, third = SimulatedLoop(9), SimulatedLoop(9), SimulatedLoop(10)
    assert first.derive("disk").random() == second.derive("disk").random()
    assert first.derive("disk").random() != first.derive("network").random()
    assert first.derive("disk").random() != third.derive("disk").random()
    for loop in (first, second, third):
        loop.close()


def test_same_seed_same_run_in_this_process() -> None:
    runs = [play(seed) for seed in range(12)]
    assert runs == [play(seed) for seed in range(12)]
    assert len(set(runs)) == 12


def test_same_seed_same_run_in_other_processes() -> None:
    """The other processes have other hashes and addresses."""
    program = f"from {play.__module__} import play; print([play(seed) for seed in range(6)])"
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    printed = []
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        printed.append(done.stdout.strip())
    assert printed == [str([play(seed) for seed in range(6)])] * 3


def test_trace_keeps_the_last_lines_and_hashes_all() -> None:
    now = 1.5
    trace = Trace(lambda: now, keep=3)
    for number in range(3000):
        trace.record("node", "event", number=number, name="x y", flag=True)
    assert trace.count == 3000
    assert trace.lines()[0] == "1.500000000 node event number=2997 name='x y' flag=True"
    assert len(trace.lines()) == 3

    other = Trace(lambda: now)
    for number in range(3000):
        if number % 7 == 0:
            other.hexdigest()  # when it is asked for makes no difference
        other.record("node", "event", number=number, name="x y", flag=True)
    assert other.hexdigest() == trace.hexdigest()
    other.record("node", "more")
    assert other.hexdigest() != trace.hexdigest()
