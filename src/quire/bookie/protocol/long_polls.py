"""Readers that wait until a ledger's LAC (last add confirmed) rises."""

from __future__ import annotations

import asyncio
from typing import Protocol


class PollTarget(Protocol):
    """A request that waits for a new LAC and is answered when its wait is over."""

    def ready(self, moved: bool) -> None:
        """End the wait of the request.

        `moved` says that the LAC is greater than the one that the reader knows, or that its entries
        are here. Otherwise the time is up, the ledger was fenced or dropped, or the bookie stops.
        """
        ...


class LongPoll:
    """The wait of one reader for a new LAC. `LongPolls.wait` creates it."""

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
        """Stop waiting without an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._polls.remove(self)


class LongPolls:
    """The waits of all readers on one bookie for a new LAC.

    Dictionaries serve as ordered sets, so that the same seed gives the same run in the simulator.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[int, dict[LongPoll, None]] = {}
        self._woken: list[LongPoll] = []
        """The polls whose wait is over and that are not answered yet."""
        self.count = 0

    def __len__(self) -> int:
        """Return the number of waiting readers."""
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
        """End the waits of the readers of this ledger that know only a lower LAC than `lac`.

        The next call of `tell` answers these readers. Call `wake` only when the entries that
        arrived with the LAC can be read.
        """
        for poll in list(self._waiting.get(ledger_id, ())):
            if poll.previous_lac < lac:
                poll.cancel()
                self._woken.append(poll)

    def tell(self) -> None:
        """Answer the readers whose waits `wake` has ended."""
        if self._woken:
            woken, self._woken = self._woken, []
            for poll in woken:
                poll.target.ready(True)

    def release(self, ledger_id: int) -> None:
        """End all waits for a ledger that was fenced or dropped.

        The readers are answered as if their time were up.
        """
        for poll in list(self._waiting.get(ledger_id, ())):
            poll.give_up()

    def release_all(self) -> None:
        for ledger_id in list(self._waiting):
            self.release(ledger_id)

    def ledger_ids(self) -> list[int]:
        return list(self._waiting)
