"""Readers that wait for a ledger's last add confirmed to move (wire-protocol spec, 6.7)."""

from __future__ import annotations

import asyncio
from typing import Protocol


class PollTarget(Protocol):
    """What a poll answers to when its waiting is over."""

    def ready(self, moved: bool) -> None:
        """`moved`: the LAC passed what the reader knows; else the time is up, the ledger was
        fenced, or the bookie stops."""
        ...


class LongPoll:
    """One reader that waits; made by `LongPolls.wait`."""

    __slots__ = ("_polls", "_timer", "ledger_id", "previous_lac", "target")

    def __init__(
        self, polls: LongPolls, ledger_id: int, previous_lac: int, target: PollTarget
    ) -> None:
        self._polls = polls
        self._timer: asyncio.TimerHandle | None = None
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.target = target

    def start(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, self.give_up)

    def give_up(self) -> None:
        self.cancel()
        self.target.ready(False)

    def cancel(self) -> None:
        """The reader is gone: no answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._polls.remove(self)


class LongPolls:
    """All readers that wait on one bookie. Dictionaries as sets: the same seed, the same run."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[int, dict[LongPoll, None]] = {}
        self._woken: list[LongPoll] = []
        """What they waited for has come, and they are not told yet."""
        self.count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self.count

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._waiting

    @property
    def full(self) -> bool:
        return self.count >= self._limit

    def wait(
        self, ledger_id: int, previous_lac: int, timeout_s: float, target: PollTarget
    ) -> LongPoll:
        poll = LongPoll(self, ledger_id, previous_lac, target)
        self._waiting.setdefault(ledger_id, {})[poll] = None
        self.count += 1
        poll.start(timeout_s)
        return poll

    def remove(self, poll: LongPoll) -> None:
        waiting = self._waiting.get(poll.ledger_id, {})
        if poll in waiting:
            del waiting[poll]
            self.count -= 1
            if not waiting:
                del self._waiting[poll.ledger_id]

    def wake(self, ledger_id: int, lac: int) -> None:
        """The LAC of this ledger moved. Who waited for that is told by `tell`, once the entries
        that came with it can be read."""
        for poll in list(self._waiting.get(ledger_id, ())):
            if poll.previous_lac < lac:
                poll.cancel()
                self._woken.append(poll)

    def tell(self) -> None:
        """Answer those that were woken, in the event-loop iteration in which they were."""
        if self._woken:
            woken, self._woken = self._woken, []
            for poll in woken:
                poll.target.ready(True)

    def release(self, ledger_id: int) -> None:
        """Nothing will move there any more: the ledger was fenced or deleted."""
        for poll in list(self._waiting.get(ledger_id, ())):
            poll.give_up()

    def release_all(self) -> None:
        for ledger_id in list(self._waiting):
            self.release(ledger_id)

    def ledger_ids(self) -> list[int]:
        return list(self._waiting)
