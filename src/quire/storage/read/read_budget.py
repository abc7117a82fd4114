"""Limit the rate of large reads while entries are being added.

A single reader that catches up at full speed takes most of the event loop, the interpreter lock and
the device in turn. Each add waits for all three and takes five times as long. So all such readers
of a directory share a rate. If entries are added faster than this rate, readers get a multiple of
the rate of the adds. Otherwise they would never catch up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STEP_S = 0.01
"""Seconds between two checks whether entries are still being added."""
PAUSE_S = 0.02
"""Seconds after the last add during which entries still count as being added. Between two groups
there is always a moment in which nothing waits."""
STEP_MIN_S = 0.001
"""The fewest seconds to wait, because only a fraction of a byte may be left to wait for."""
READ_PER_TAKEN = 2
"""The number of bytes that may be read for each byte that is added."""


class ReadBudget:
    """The budget that all large reads of one data directory share. It belongs to the event loop."""

    def __init__(self, bytes_per_s: int, taken: Callable[[], tuple[int, int]]) -> None:
        """Create a budget of `bytes_per_s` while entries are being added. 0 means no limit.

        `taken` returns the number of bytes that wait for the log, and the number that the log has
        written since its start.
        """
        self._bytes_per_s = bytes_per_s
        self._taken = taken
        self._spent = self._earned = 0.0
        """The bytes that were read since the start. `_earned` has the bytes that were allowed. An
        allowance that is not used at once is lost."""
        self._looked_s = 0.0
        """The time in seconds, by the event loop's clock, up to which `_earned` is calculated."""
        self._all_taken = 0
        """The bytes of adds, waiting and written, that `_earned` accounts for."""
        self._written: int | None = None
        """The bytes that the log had written at the last check, or None before the first one."""
        self._taken_s: float | None = None
        """The time in seconds, by the event loop's clock, when entries were last seen to be added,
        or None."""
        self.waited_s = 0.0
        """The seconds that all reads together have waited since the start."""

    async def spend(self, size_bytes: int) -> None:
        """Count these bytes of a read, and wait until the budget allows more.

        The wait lasts at least one event-loop iteration. Safe to cancel.
        """
        if not self._bytes_per_s or not self._entries_are_taken():
            self._earned = self._spent
            await asyncio.sleep(0)
            return
        now = asyncio.get_running_loop().time
        began_s = now()
        self._earn(began_s)
        self._earned = min(self._earned, self._spent)
        self._spent = due = self._spent + size_bytes
        try:
            while (left := due - self._earned) > 0:
                await asyncio.sleep(min(max(left / self._bytes_per_s, STEP_MIN_S), STEP_S))
                if not self._entries_are_taken():
                    self._earned = self._spent
                    return
                self._earn(now())
        finally:
            self.waited_s += now() - began_s

    def _entries_are_taken(self) -> bool:
        """Return whether entries are being added, or were a moment ago."""
        queued_bytes, written = self._taken()
        before, self._written = self._written, written
        if queued_bytes > 0 or (before is not None and written != before):
            self._taken_s = asyncio.get_running_loop().time()
            return True
        if self._taken_s is None:
            return False
        return asyncio.get_running_loop().time() - self._taken_s < PAUSE_S

    def _earn(self, now_s: float) -> None:
        by_time = (now_s - self._looked_s) * self._bytes_per_s
        self._looked_s = now_s
        all_taken = sum(self._taken())
        by_adds = (all_taken - self._all_taken) * READ_PER_TAKEN
        self._all_taken = all_taken
        self._earned += max(by_time, by_adds)
