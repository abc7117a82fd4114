"""Scheduling of a server's threads: a thread that is woken lets the waking thread finish first.

Linux takes the processor at once from a thread that wakes another one. In a server the waker often
holds the interpreter's lock, which the woken thread needs next, or it is a client in the middle of
sending. The result is two needless context switches. Under `SCHED_BATCH` the woken thread waits for
its turn instead. docs/internals/benchmarks.md has figures ("Who gets the processor").

Next to processes that are always busy, a thread waits several ms for its turn each time. Therefore
the time that threads wait for a processor is measured. If it is much longer than the time that they
run, the normal policy is restored, and `SCHED_BATCH` is tried again later.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

LOOK_INTERVAL_S = 0.5
"""Seconds between two measurements of how long threads wait for a processor."""
RUNS_MIN = 30
"""The smallest number of times that threads must have run for a measurement to count. The figures
of a smaller measurement are added to those of the next one."""
WAITED_SHARE_MAX = 5.0
"""The longest time that threads may wait, as a multiple of the time that they run. Three bookies
and a client that fill two processors wait for three times as long as they run. Next to two
processes that are always busy it is six to twenty times."""
LATE_LOOKS_MAX = 2
"""The number of measurements beyond `WAITED_SHARE_MAX`, in a row, after which the normal policy is
restored."""
REST_S = 60.0
"""Seconds until `SCHED_BATCH` is tried again after the normal policy was restored. The time doubles
each time that the policy has to be restored again."""
REST_MAX_S = 3600.0
"""The longest time, in seconds, until `SCHED_BATCH` is tried again."""


class Times(NamedTuple):
    """The time that all threads together ran and waited since the previous measurement."""

    ran_ns: int
    """The nanoseconds that threads ran on a processor."""
    waited_ns: int
    """The nanoseconds that threads were ready to run and waited for a processor."""
    runs: int
    """The number of times that a thread was given a processor."""


class Threads(Protocol):
    """The threads of a process, as the operating system schedules and measures them."""

    def schedule(self, *, batch: bool) -> bool:
        """Set the policy of all threads: `SCHED_BATCH` if `batch` is true, else the normal one.

        Threads that start later inherit the policy. Return whether the system accepted it.
        """

    def times(self) -> Times | None:
        """Return the threads' times since the previous call, or None if they are not available."""


class BatchScheduling:
    """A controller that switches threads between `SCHED_BATCH` and the normal policy.

    It decides at each measurement of the time that threads wait for a processor.
    """

    def __init__(self, threads: Threads, log: Callable[..., None]) -> None:
        self._threads = threads
        self._log = log
        self._late_looks = 0
        self._rest_s = REST_S
        self._again_s = 0.0
        self._ran_ns = self._waited_ns = self._runs = 0
        self.batch = False

    def begin(self) -> bool:
        """Switch to `SCHED_BATCH`. Return False if this system does not support it."""
        self.batch = self._threads.times() is not None and self._threads.schedule(batch=True)
        return self.batch

    def look(self, now_s: float) -> None:
        """Measure how long threads wait, and change the scheduling policy if necessary.

        `now_s` is the time of a monotonic clock, in seconds.
        """
        if not self.batch:
            if now_s >= self._again_s:
                self._threads.times()
                self.batch = self._threads.schedule(batch=True)
            return
        times = self._threads.times()
        if times is None:
            return
        self._ran_ns += times.ran_ns
        self._waited_ns += times.waited_ns
        self._runs += times.runs
        if self._runs < RUNS_MIN:
            return
        late = self._waited_ns > WAITED_SHARE_MAX * self._ran_ns
        self._ran_ns = self._waited_ns = self._runs = 0
        self._late_looks = self._late_looks + 1 if late else 0
        if self._late_looks < LATE_LOOKS_MAX:
            if now_s >= self._again_s + REST_MAX_S:
                self._rest_s = REST_S
            return
        self._late_looks = 0
        self.batch = not self._threads.schedule(batch=False)
        self._again_s = now_s + self._rest_s
        self._log("processors_are_busy", scheduled="normally", seconds=self._rest_s)
        self._rest_s = min(2 * self._rest_s, REST_MAX_S)


class ProcessThreads:
    """The threads of this process on Linux."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._known: dict[int, Times] = {}

    def schedule(self, *, batch: bool) -> bool:
        if not hasattr(os, "SCHED_BATCH"):
            return False
        before, after = os.SCHED_OTHER, os.SCHED_BATCH
        if not batch:
            before, after = after, before
        try:
            for thread in self._ids():
                with suppress(ProcessLookupError):
                    # Keep a policy that somebody else has chosen for this process.
                    if os.sched_getscheduler(thread) == before:
                        os.sched_setscheduler(thread, after, os.sched_param(0))
        except OSError:
            return False
        return True

    def times(self) -> Times | None:
        now: dict[int, Times] = {}
        try:
            for thread in self._ids():
                with suppress(FileNotFoundError, ProcessLookupError):
                    text = (self._tasks / str(thread) / "schedstat").read_text("ascii")
                    now[thread] = Times(*map(int, text.split()))
        except (OSError, ValueError, TypeError):
            return None
        if not now:
            return None
        none = Times(0, 0, 0)
        changes = [
            [new - old for new, old in zip(times, self._known.get(thread, none))]
            for thread, times in now.items()
        ]
        self._known = now
        return Times(*map(sum, zip(*changes)))

    def _ids(self) -> list[int]:
        return [int(name) for name in os.listdir(self._tasks)]


async def schedule_as_batch(log: Callable[..., None]) -> None:
    """Run this process's threads under `SCHED_BATCH`, and measure whether that helps.

    The coroutine returns at once if the system does not support this, and otherwise runs until it
    is cancelled. `log` receives an event whenever the normal policy is restored.
    """
    scheduling = BatchScheduling(ProcessThreads(), log)
    if not scheduling.begin():
        return
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        scheduling.look(time.monotonic())
