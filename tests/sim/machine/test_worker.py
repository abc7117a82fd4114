"""The simulated worker: steps, posts, stopping, and the death of its node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire_simulator.machine import (
    PowerLossError,
    SimDisk,
    SimulatedLoop,
    SimulationError,
    SimWorker,
    current_node,
)
from quire_simulator.machine.loop import START_TIME_S

Scenario = Callable[[SimulatedLoop, SimWorker, list[Any]], Coroutine[Any, Any, None]]


def play(scenario: Scenario, seed: int, disk: SimDisk | None = None) -> list[Any]:
    log: list[Any] = []
    loop = SimulatedLoop(seed)
    worker = SimWorker(loop, loop.derive("worker"), disk)
    loop.run(scenario(loop, worker, log))
    return log


def test_wakes_during_one_step_cause_one_more_step() -> None:
    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        def step() -> None:
            log.append("step")
            worker.post(lambda: log.append(1))
            worker.post(lambda: log.append(2))
            if log.count("step") == 1:
                worker.wake()
                worker.wake()

        worker.wake()
        worker.wake()
        await asyncio.sleep(1)
        assert log == []  # not started
        worker.start(step)
        await asyncio.sleep(1)
        assert log == ["step", 1, 2] * 2
        worker.wake()
        assert len(log) == 6  # never within the call
        await worker.stop()
        assert log == ["step", 1, 2] * 3
        worker.wake()
        await asyncio.sleep(1)
        assert len(log) == 9

    for seed in range(30):
        play(scenario, seed)


def test_a_wake_during_pending_posts_is_not_lost() -> None:
    steps: set[int] = set()

    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        queue: list[int] = []

        def step() -> None:
            taken, queue[:] = list(queue), []
            log.append("step")
            worker.post(lambda: log.extend(taken))

        worker.start(step)
        rng = loop.derive("test")
        for number in range(50):
            queue.append(number)
            worker.wake()
            await asyncio.sleep(rng.random() * 0.01)
        await worker.stop()
        assert [entry for entry in log if entry != "step"] == list(range(50))
        steps.add(log.count("step"))

    for seed in range(30):
        play(scenario, seed)
    assert len(steps) > 5


def test_a_stop_waits_for_all_posted_calls() -> None:
    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        worker.start(lambda: worker.post(lambda: log.append("posted")))
        worker.wake()
        await asyncio.sleep(loop.derive("test").random() * 0.01)
        await asyncio.gather(worker.stop(), worker.stop())
        assert log == ["posted"]

    for seed in range(50):
        play(scenario, seed)


def test_a_wake_from_another_node_during_a_stop_is_harmless() -> None:
    seen: set[int] = set()

    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        other = loop.node("other")

        def step() -> None:
            log.append("step")
            if len(log) < 20:
                worker.post(lambda: other.call_soon(worker.wake))

        worker.start(step)
        worker.wake()
        await worker.stop()
        steps = len(log)
        await asyncio.sleep(1)
        assert len(log) == steps
        seen.add(steps)

    for seed in range(100):
        play(scenario, seed)
    assert len(seen) > 2


def test_a_worker_dies_with_its_node_before_a_step_or_its_posts() -> None:
    seen: set[tuple[int, int]] = set()

    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        def step() -> None:
            assert current_node.get().name == "bookie"
            log.append("step")
            worker.post(lambda: log.append(current_node.get().name))

        async def serve() -> None:
            worker.start(step)
            worker.wake()

        node = loop.node("bookie")
        node.create_task(serve())
        await asyncio.sleep(loop.derive("test").random() * 0.005)
        node.kill()
        before = list(log)
        worker.wake()
        await asyncio.sleep(1)
        assert log == before
        seen.add((log.count("step"), log.count("bookie")))

    for seed in range(100):
        play(scenario, seed)
    assert seen == {(0, 0), (1, 0), (1, 1)}


def test_a_worker_waits_while_its_node_is_stopped() -> None:
    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        async def serve() -> None:
            worker.start(lambda: log.append("step"))
            worker.wake()

        node = loop.node("bookie")
        await node.create_task(serve())
        node.stop()
        await asyncio.sleep(5)
        assert log == []
        node.cont()
        await asyncio.sleep(5)
        assert log == ["step"]

    play(scenario, 1)


def test_a_power_loss_in_a_step_ends_only_its_node() -> None:
    disk = SimDisk(random.Random(1), "disk")

    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        node = loop.node("bookie")

        def step() -> None:
            file = disk.create("f")
            log.append("made")
            try:
                file.sync()
            except PowerLossError:
                log.append("struck")
                raise
            log.append("never")

        async def serve() -> None:
            worker.start(step)
            worker.wake()
            await asyncio.Event().wait()

        disk.crash_after(2, node.kill)
        node.create_task(serve())
        await asyncio.sleep(5)
        assert node.dead

    assert play(scenario, 1, disk) == ["made", "struck"]


def test_a_power_loss_in_a_task_ends_only_its_node() -> None:
    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        node = loop.node("bookie")
        disk = SimDisk(loop.derive("disk"), "disk")

        async def serve() -> None:
            disk.create("f")

        disk.crash_after(1, node.kill)
        node.create_task(serve())
        await asyncio.sleep(5)
        assert node.dead

    play(scenario, 1)


def test_a_step_that_raises_ends_the_run() -> None:
    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        worker.start(lambda: {}["missing"])
        worker.wake()
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="missing"):
        play(scenario, 1)


def test_a_lenient_exception_handler_allows_the_next_step() -> None:
    async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
        loop.set_exception_handler(lambda _, context: log.append(type(context["exception"])))

        def step() -> None:
            if len(log) == 0:
                raise KeyError
            log.append("step")

        worker.start(step)
        for _ in range(2):
            worker.wake()
            await asyncio.sleep(1)
        await worker.stop()
        assert log == [KeyError, "step"]

    play(scenario, 1)


def test_a_slow_disk_slows_its_worker() -> None:
    def duration(slowness: float) -> float:
        times: list[float] = []

        async def scenario(loop: SimulatedLoop, worker: SimWorker, log: list[Any]) -> None:
            worker.start(lambda: None)
            worker.wake()
            await worker.stop()
            times.append(loop.time())

        disk = SimDisk(random.Random(1), "disk")
        disk.slowness = slowness
        play(scenario, 1, disk)
        return times[0] - START_TIME_S

    assert duration(100.0) == pytest.approx(100 * duration(1.0), rel=1e-6)
