"""How a server shares the processors: its threads, once woken, let whoever woke them finish.

Linux takes the processor at once from a thread that wakes another one. Here that is often one that
holds the interpreter's lock, which the woken one wants next, or a client in the middle of what it
sends: two changes of threads for nothing. Under `SCHED_BATCH` the woken one waits for its turn.
Figures: docs/internals/benchmarks.md, "Who gets the processor".

Beside processes that never rest its turn comes late, by some ms each time. How long threads wait
for a processor tells: where that is much more than they run, they are scheduled as all others, and
after a while the other way is tried again.
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
RUNS_MIN = 30
"""Fewer tell nothing yet: they are counted with the next."""
WAITED_SHARE_MAX = 5.0
"""Of the time that they run. Three bookies and a client, all there is on two processors, wait for
three times as long as they run; beside two processes that never rest it is six to twenty."""
LATE_LOOKS_MAX = 2
"""So many in a row, and they are scheduled as all others."""
REST_S = 60.0
"""Until it is tried again; twice as long after each time that it was too late once more."""
REST_MAX_S = 3600.0


class Times(NamedTuple):
    """Of all threads, since they were asked for before."""

    ran_ns: int
    waited_ns: int
    """For a processor, ready to run."""
    runs: int


class Threads(Protocol):
    def schedule(self, *, batch: bool) -> bool:
        """All of the process, and those that it begins from now on; whether it could be done."""

    def times(self) -> Times | None:
        """None: the system does not tell."""


class BatchScheduling:
    """Decides, each time that it looks."""

    def __init__(self, threads: Threads, log: Callable[..., None]) -> None:
        self._threads = threads
        self._log = log
        self._late_looks = 0
        self._rest_s = REST_S
        self._again_s = 0.0
        self._ran_ns = self._waited_ns = self._runs = 0
        self.batch = False

    def begin(self) -> bool:
        """False: not on this system."""
        self.batch = self._threads.times() is not None and self._threads.schedule(batch=True)
        return self.batch

    def look(self, now_s: float) -> None:
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
        self._log("processors_are_busy", scheduled="as all others", seconds=self._rest_s)
        self._rest_s = min(2 * self._rest_s, REST_MAX_S)


class ProcessThreads:
    """The threads of this process, as Linux knows them."""

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
                    # What somebody has chosen for this process stays.
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
    """For the whole process, as long as this runs."""
    scheduling = BatchScheduling(ProcessThreads(), log)
    if not scheduling.begin():
        return
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        scheduling.look(time.monotonic())
