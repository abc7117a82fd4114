"""Large reads give way to adds: while entries are taken, those who catch up share a rate.

Else one of them at full speed has most of what a bookie can do, its event loop, its interpreter
lock and its device in turn, and every add waits for each of these: five times as long as alone.
Where more is added than the rate, they get a multiple of that: who is behind must come nearer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STEP_S = 0.01
"""So often is looked whether entries are still taken."""
PAUSE_S = 0.02
"""Behind the last ones: between two groups nothing waits, for a moment."""
STEP_MIN_S = 0.001
"""No wait is shorter: what is left may be a fraction of a byte."""
READ_PER_TAKEN = 2
"""Bytes may be read for each that is added."""


class ReadBudget:
    """Of one data directory. Used on the event loop."""

    def __init__(self, bytes_per_s: int, taken: Callable[[], tuple[int, int]]) -> None:
        """`bytes_per_s` 0: no bound. `taken`: bytes that wait for the log, and that it has
        written since its start."""
        self._bytes_per_s = bytes_per_s
        self._taken = taken
        self._spent = self._earned = 0.0
        """Bytes since the start. What is not spent is not saved up."""
        self._looked_s = 0.0
        """When it was earned up to, by the loop's clock."""
        self._all_taken = 0
        """Up to then."""
        self._written: int | None = None
        """When it was last looked."""
        self._taken_s: float | None = None
        """When entries were last seen to be taken."""
        self.waited_s = 0.0
        """By all reads together, since the start."""

    async def spend(self, size_bytes: int) -> None:
        """Note that this much of a read is done, and wait until more of it is due.

        Waits at least one event-loop iteration. Cancel-safe.
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
        """Or were a moment ago."""
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
