"""Large reads beside adds share a rate, which does not apply without adds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from quire.storage.read.read_budget import PAUSE_S, STEP_S, ReadBudget
from quire.storage.read.reader import SLICE_BYTES
from quire_simulator.machine import SimulatedLoop
from tests.support.storage.storage import SMALL, entries, opened

RATE = 1_000_000
KB = 1000


class Log:
    """Records the events of the log."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.written = 7

    def taken(self) -> tuple[int, int]:
        return self.queued_bytes, self.written


def play(scenario: Callable[[SimulatedLoop, Log, ReadBudget], Coroutine[Any, Any, None]]) -> None:
    loop, log = SimulatedLoop(1), Log()
    loop.run(scenario(loop, log, ReadBudget(RATE, log.taken)))


def test_reads_are_not_limited_without_adds() -> None:
    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        began = loop.time()
        for _ in range(100):
            await budget.spend(500 * KB)
        assert loop.time() - began < 0.01
        assert budget.waited_s == 0.0

    play(scenario)


def test_concurrent_reads_share_the_rate_while_adds_wait() -> None:
    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        async def read() -> None:
            for _ in range(10):
                await budget.spend(100 * KB)

        log.queued_bytes = 1
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(read())
        assert loop.time() - began == pytest.approx(4.0, rel=0.02)
        assert budget.waited_s > 4.0  # by all four together

    play(scenario)


def test_entries_written_since_the_last_check_count_as_adds() -> None:
    """The queue may be empty for a moment between two checks."""

    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        await budget.spend(100 * KB)
        log.written += 1
        began = loop.time()
        spending = asyncio.ensure_future(budget.spend(100 * KB))
        while not spending.done():
            log.written += 1
            await asyncio.sleep(PAUSE_S * 0.9)
        assert loop.time() - began == pytest.approx(0.1, abs=2 * STEP_S)

    play(scenario)


def test_reads_stop_waiting_once_the_adds_end() -> None:
    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        log.queued_bytes = 1
        began = loop.time()
        spending = [asyncio.ensure_future(budget.spend(100 * KB)) for _ in range(100)]
        await asyncio.sleep(0.05)
        log.queued_bytes = 0
        await asyncio.gather(*spending)
        assert loop.time() - began < 0.05 + PAUSE_S + 3 * STEP_S
        log.queued_bytes = 1
        await budget.spend(100 * KB)
        assert loop.time() - began < 0.25  # the ten seconds of before are forgiven

    play(scenario)


def test_a_reader_behind_a_fast_writer_catches_up() -> None:
    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        log.queued_bytes = 1
        began, read = loop.time(), 0

        async def write() -> None:
            while True:
                log.written += 30 * KB
                await asyncio.sleep(0.01)  # three times the rate

        writing = asyncio.ensure_future(write())
        while loop.time() - began < 2.0:
            await budget.spend(100 * KB)
            read += 100 * KB
        writing.cancel()
        assert 1.5 < read / (log.written - 7) <= 2.0

    play(scenario)


def test_waiting_for_the_budget_can_be_cancelled() -> None:
    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        log.queued_bytes = 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await budget.spend(1000 * KB)
        assert budget.waited_s == pytest.approx(0.03, abs=0.001)

    play(scenario)


def test_a_rate_of_0_means_no_limit() -> None:
    async def scenario(loop: SimulatedLoop, log: Log, budget: ReadBudget) -> None:
        log.queued_bytes = 1
        began = loop.time()
        await ReadBudget(0, log.taken).spend(1 << 40)
        assert loop.time() - began < 0.001

    play(scenario)


def test_a_store_limits_its_reads_while_entries_wait_for_the_log() -> None:
    size = 20_000
    config = replace(
        SMALL, segment_bytes=1 << 20, max_group_bytes=1 << 20, max_queued_bytes=1 << 20,
        catch_up_bytes_per_s=RATE,
    )  # fmt: skip
    box = opened(config)
    for first in range(0, 200, 10):
        box.append(entries(1, first, 10, size // 3))
        box.pump()
    box.idle()
    box.append(entries(2, 0, 1))  # nothing pumps: it waits
    loop = SimulatedLoop(1)

    async def read() -> float:
        began = loop.time()
        found = await box.store.read_blocking(1, 0, 200, 1 << 30)
        assert [bytes(entry) for entry in found] == [box.written[1, n] for n in range(200)]
        return loop.time() - began

    total = sum(map(len, box.written.values()))
    took_s = loop.run(read())
    assert took_s == pytest.approx((total - SLICE_BYTES / 2) / RATE, abs=SLICE_BYTES / RATE)
    assert box.store.stats().catch_up_waited_seconds == pytest.approx(took_s, rel=0.05)
