"""When the threads of a bookie let the waking thread finish first, and when they do not."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from quire._runtime.scheduling import (
    LATE_LOOKS_MAX,
    REST_MAX_S,
    REST_S,
    RUNS_MIN,
    WAITED_SHARE_MAX,
    BatchScheduling,
    ProcessThreads,
    Times,
    schedule_as_batch,
)

RAN = 1_000_000
IN_TIME = Times(RAN, int(WAITED_SHARE_MAX * RAN), RUNS_MIN)
LATE = Times(RAN, int(WAITED_SHARE_MAX * RAN) + 1, RUNS_MIN)
FEW_LATE = Times(RAN, 100 * RAN, RUNS_MIN // 2)


class HandThreads:
    def __init__(self, upcoming: Times | None = IN_TIME, *, may: bool = True) -> None:
        self.upcoming = upcoming
        self.may = may
        self.calls: list[bool] = []

    def schedule(self, *, batch: bool) -> bool:
        if self.may:
            self.calls.append(batch)
        return self.may

    def times(self) -> Times | None:
        return self.upcoming


class Rig:
    def __init__(self) -> None:
        self.threads = HandThreads()
        self.said: list[dict[str, object]] = []
        self.scheduling = BatchScheduling(
            self.threads, lambda event, **fields: self.said.append({"event": event, **fields})
        )
        self.now_s = 1_000.0
        assert self.scheduling.begin()

    def look(self, times: Times, looks: int = 1) -> bool:
        self.threads.upcoming = times
        for _ in range(looks):
            self.now_s += 0.5
            self.scheduling.look(self.now_s)
        return self.scheduling.batch


def test_batch_scheduling_stays_while_threads_run_in_time() -> None:
    rig = Rig()
    assert rig.look(IN_TIME, 100)
    assert rig.look(LATE, LATE_LOOKS_MAX - 1)
    assert rig.look(IN_TIME)
    assert rig.look(LATE, LATE_LOOKS_MAX - 1)
    assert rig.threads.calls == [True]
    assert rig.said == []


def test_batch_scheduling_ends_if_threads_wait_too_long_and_is_tried_again() -> None:
    rig = Rig()
    assert not rig.look(LATE, LATE_LOOKS_MAX)
    assert rig.said == [
        {"event": "processors_are_busy", "scheduled": "normally", "seconds": REST_S}
    ]
    assert not rig.look(LATE, int(REST_S / 0.5) - 1)
    assert rig.look(IN_TIME)
    assert rig.threads.calls == [True, False, True]


def test_the_pause_doubles_up_to_an_hour_and_resets_after_a_good_period() -> None:
    rig = Rig()
    rests = []
    for _ in range(8):
        assert not rig.look(LATE, LATE_LOOKS_MAX)
        rests.append(rig.said[-1]["seconds"])
        rig.now_s += REST_MAX_S
        assert rig.look(IN_TIME)
    assert rests == [60, 120, 240, 480, 960, 1920, REST_MAX_S, REST_MAX_S]
    rig.now_s += REST_MAX_S
    assert rig.look(IN_TIME)
    assert not rig.look(LATE, LATE_LOOKS_MAX)
    assert rig.said[-1]["seconds"] == REST_S


def test_few_runs_are_not_judged_until_there_are_more() -> None:
    rig = Rig()
    assert rig.look(FEW_LATE)
    assert rig.look(FEW_LATE)  # now there are enough: late for the first time
    assert rig.look(FEW_LATE)
    assert not rig.look(FEW_LATE)


@pytest.mark.parametrize("threads", [HandThreads(None), HandThreads(may=False)])
def test_batch_scheduling_does_not_begin_on_a_system_without_it(threads: HandThreads) -> None:
    assert not BatchScheduling(threads, lambda *_, **__: None).begin()
    assert threads.calls == []


def test_batch_scheduling_stays_if_the_system_stops_reporting_times() -> None:
    rig = Rig()
    rig.threads.upcoming = None
    rig.scheduling.look(2_000.0)
    assert rig.scheduling.batch


def test_times_cover_the_threads_that_exist(tmp_path: Path) -> None:
    def thread(number: int, text: str) -> None:
        (tmp_path / str(number)).mkdir(exist_ok=True)
        (tmp_path / str(number) / "schedstat").write_text(text)

    threads = ProcessThreads(tmp_path)
    assert threads.times() is None
    thread(7, "100 10 1\n")
    thread(8, "200 20 2\n")
    assert threads.times() == (300, 30, 3)
    thread(7, "150 15 2\n")
    (tmp_path / "8" / "schedstat").unlink()  # it has ended
    thread(9, "7 8 9\n")
    assert threads.times() == (57, 13, 10)
    thread(7, "nonsense\n")
    assert threads.times() is None
    assert ProcessThreads(tmp_path / "nowhere").times() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
def test_scheduling_applies_to_all_existing_and_new_threads() -> None:
    ended = threading.Event()
    seen: list[int] = []
    begun = threading.Thread(target=ended.wait)
    begun.start()
    threads = ProcessThreads()
    try:
        assert threads.times() is not None
        assert threads.schedule(batch=True)
        later = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        later.start()
        later.join()
        assert begun.native_id is not None
        assert os.sched_getscheduler(begun.native_id) == os.SCHED_BATCH
        assert (os.sched_getscheduler(0), seen) == (os.SCHED_BATCH, [os.SCHED_BATCH])
    finally:
        assert threads.schedule(batch=False)
        ended.set()
        begun.join()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
async def test_a_scheduling_policy_chosen_by_the_user_is_kept() -> None:
    chosen = threading.Event()
    ended = threading.Event()

    def rests() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        chosen.set()
        ended.wait()

    thread = threading.Thread(target=rests)
    thread.start()
    chosen.wait()
    task = asyncio.create_task(schedule_as_batch(lambda *_, **__: None))
    try:
        await asyncio.sleep(0)
        assert thread.native_id is not None
        assert os.sched_getscheduler(thread.native_id) == os.SCHED_IDLE
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        ProcessThreads().schedule(batch=False)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        ended.set()
        thread.join()
