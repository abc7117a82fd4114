"""The memory that answers may take: a share for each connection, and a limit for the whole bookie.

An answer counts from before its bytes are read until the client's socket has taken them. A request
that finds no room waits in its connection's account, as a small object. The accounts that wait for
room in the bookie take turns, one request each, so that a connection with a thousand requests
delays the others by one. An account that has used up its own share delays nobody.

An account is favoured while it holds little, and asks for little or has taken all that it asked
for before. A part of the limit is for favoured accounts only, so that clients that ask for
much and take nothing do not keep the others from reading.

Adds never wait here. A connection stops being read only when too many of its requests wait.

Three rules keep this from standing still:

- A share or a limit that nothing uses admits any answer, however large.
- All that waits ends with its connection.
- While requests wait for room, connections that do not take their answers are closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

TURN_BYTES = 1024 * 1024
"""Bytes of answers built in one iteration of the event loop, for all connections together. Adds
wait for no more than this."""
REQUEST_COST_BYTES = 1024
"""Bytes that each request adds to `TURN_BYTES`, because looking for an entry takes time, too."""
TURN_NOTICED_BYTES = TURN_BYTES // 2
"""Fewer bytes are not worth a callback at the end of the iteration: the next one counts on."""
TURN_WAITS = 256
"""Requests that begin to wait in one iteration of the event loop. Connections with more of them are
read on in the next ones."""
RESUMED_AT_ONCE = 8
"""The number of these connections that are read again in one iteration."""
MAX_WAITING_REQUESTS = 1024
"""Requests of one connection that wait for room. Beyond it the connection is not read."""
MAX_WAITING_IN_ALL = 65_536
"""Requests of all connections that wait for room. Beyond it a connection with one is not read."""
PUMP_S = 0.02
"""Seconds between two looks at what the sockets have taken, while requests wait."""
PRESSED_STALL_S = 2.0
"""Seconds a client may leave its answers untaken while requests wait for room in the bookie."""
TAKING_BYTES = 64 * 1024
"""A client that takes fewer bytes than this within a time-out, and leaves others, has taken
nothing."""
PRESSED_TAKING_BYTES = 1024 * 1024
"""Bytes that a client must take within `PRESSED_STALL_S` while requests wait."""
FAVOURED_BYTES = 256 * 1024
"""The most that a favoured account holds, or asks for before it has shown that it takes answers."""
UNFAVOURED_PERCENT = 75
"""The part of the limit that is open to all accounts."""

Start = Callable[[], None]


class AnswerSink(Protocol):
    """The connection that answers go to."""

    @property
    def unsent_size(self) -> int:
        """The bytes of answers that the client's socket has not taken."""
        ...

    def progress(self) -> tuple[int, int]:
        """The bytes handed to the socket since the connection began, and those of them that it has
        taken."""
        ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def cut_off(self, event: str, why: str) -> None:
        """Close the connection without waiting for the client."""
        ...


@dataclass(slots=True)
class BudgetCounters:
    """Plain numbers, read by the metrics."""

    waited: int = 0
    """Requests that had to wait for room."""
    dropped: int = 0
    """Requests that waited, and ended with their connection."""
    stalled: int = 0
    """Connections that were closed because the client did not take its answers."""


class Account:
    """The memory that the answers of one connection take."""

    __slots__ = (
        "_moved_s", "_seen_sent", "_seen_taken", "_tasks", "full", "gone", "reserved_bytes",
        "sink", "unsent_bytes", "waiting",
    )  # fmt: skip

    def __init__(self, sink: AnswerSink) -> None:
        self.sink = sink
        self.reserved_bytes = 0
        """Bytes of the answers that are being read."""
        self.unsent_bytes = 0
        """Bytes of the answers that were built, as far as it is known that they are still here."""
        self.waiting: deque[tuple[int, Start]] | None = None
        """The requests that wait, each with the bytes that it needs: 0 where one more answer is
        built at once."""
        self.full = False
        """Whether the connection is not read because too many requests wait."""
        self.gone = False
        """Whether the connection has ended."""
        self._tasks: dict[asyncio.Task[None], int] = {}
        """The requests under way, each with the bytes reserved for it."""
        self._seen_sent = self._seen_taken = 0
        """When the client was last seen to take answers."""
        self._moved_s = 0.0

    @property
    def held_bytes(self) -> int:
        return self.reserved_bytes + self.unsent_bytes

    @property
    def busy(self) -> bool:
        """Whether requests are under way, or wait."""
        return bool(self._tasks or self.waiting)

    @property
    def takes(self) -> bool:
        """Whether its client has taken all answers so far, and there were some."""
        sent, taken = self.sink.progress()
        return 0 < sent == taken

    def stalled_s(self, now_s: float, least_bytes: int) -> float:
        """The seconds since the client was last seen to have taken this much, or all."""
        sent, taken = self.sink.progress()
        if taken >= min(self._seen_sent, self._seen_taken + least_bytes):
            self._seen_sent, self._seen_taken, self._moved_s = sent, taken, now_s
        return now_s - self._moved_s


class AnswerBudget:
    """All accounts of a bookie. Used on the event loop."""

    def __init__(self, limit_bytes: int, share_bytes: int, monotonic: Callable[[], float]) -> None:
        """`limit_bytes` for the bookie, `share_bytes` for each connection."""
        self.limit_bytes = limit_bytes
        self.share_bytes = share_bytes
        self.counters = BudgetCounters()
        self.held_bytes = 0
        """Bytes reserved and unsent, of all accounts."""
        self.peak_bytes = 0
        """The largest value of `held_bytes` since a reader last reset it."""
        self.requests_waiting = 0
        self._monotonic = monotonic
        # Dictionaries as sets that keep their order: the same seed, the same run.
        self._ring: dict[Account, None] = {}
        """Favoured accounts whose first request waits for room in the bookie, in the order of
        their turns."""
        self._late: dict[Account, None] = {}
        """The other accounts that wait for the same."""
        self._beginning: Account | None = None
        """The account whose turn it is."""
        self._over_share: dict[Account, None] = {}
        """Accounts whose first request waits for room in their own share."""
        self._unsent: dict[Account, None] = {}
        """Accounts with unsent bytes."""
        self._turn_bytes = 0
        self._turn_waits = 0
        self._turn_noticed = False
        self._yielding: dict[Account, None] = {}
        """Accounts whose connection is read on in one of the next iterations."""
        self._granting = False
        self._pumping = False
        self._closed = False

    @property
    def accounts_waiting(self) -> int:
        return len(self._ring) + len(self._late) + len(self._over_share)

    # -- room ---------------------------------------------------------------------------------

    def has_room(self, account: Account) -> bool:
        """Whether one more answer may be built at once: nobody is to be served before, and neither
        bound is reached. The answer may pass the bounds, by its own size."""
        if self._ring or account.waiting or self._turn_bytes >= TURN_BYTES or account.gone:
            return False
        held = account.reserved_bytes + account.unsent_bytes  # A call of `held_bytes` is slower.
        if self.held_bytes < self.limit_bytes and held < self.share_bytes:
            return True
        self._look_at(account)
        return self.held_bytes < self.limit_bytes and account.held_bytes < self.share_bytes

    def built(self, account: Account, size: int) -> None:
        """An answer of this size was handed to the connection."""
        if account.gone:
            return
        account.unsent_bytes += size
        self.held_bytes += size
        if self.held_bytes > self.peak_bytes:
            self.peak_bytes = self.held_bytes
        self._turn_bytes += size + REQUEST_COST_BYTES
        if self._turn_bytes >= TURN_NOTICED_BYTES and not self._turn_noticed:
            self._notice_turn()

    def one_waits(self, account: Account) -> None:
        """A request of this connection begins to wait, for room or for news. With too many of them
        in one iteration of the event loop the rest of the connection waits for another."""
        self._turn_waits += 1
        self._notice_turn()
        if self._turn_waits >= TURN_WAITS and not account.full:
            account.full = True
            self._yielding[account] = None
            account.sink.pause("answers")

    def _notice_turn(self) -> None:
        if not self._turn_noticed:
            self._turn_noticed = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def settle(self, account: Account, size: int) -> None:
        """The task that calls this has built its answer: these bytes take the place of what was
        reserved for it."""
        task = asyncio.current_task()
        reserved = account._tasks.get(task, 0) if task is not None else 0
        if task is not None and reserved:
            account._tasks[task] = 0
            account.reserved_bytes -= reserved
            self.held_bytes -= reserved
        self.built(account, size)

    def sent(self, account: Account, unsent_bytes: int) -> None:
        """Note the bytes that the connection still holds, which the caller has just counted."""
        self.held_bytes += unsent_bytes - account.unsent_bytes
        account.unsent_bytes = unsent_bytes
        if unsent_bytes:
            self._unsent[account] = None
        elif account in self._unsent:
            del self._unsent[account]
        if account.waiting:
            self._freed(account)

    def run(self, account: Account, size: int, start: Start, *, first: bool = False) -> None:
        """Reserve `size` bytes and call `start`, now or when there is room; never if the connection
        ends before. `first`: it has waited already, so that it goes before the others of its
        connection."""
        if account.gone or self._closed:
            return
        if (
            self._is_next(account, size, first)
            and self._fits_share(account, size)
            and (self._fits_limit(account, size))
        ):
            self._reserve(account, size)
            start()
            return
        self._wait(account, size, start, first=first)

    @asynccontextmanager
    async def room(self, account: Account, size: int) -> AsyncIterator[None]:
        """Wait for room, and have these bytes reserved inside."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def start() -> None:
            if ready.done():  # The one who waited was cancelled.
                self.release(account, size)
            else:
                ready.set_result(None)

        self.run(account, size, start)
        await ready
        try:
            yield
        finally:
            self.release(account, size)

    def track(self, account: Account, task: asyncio.Task[None], size: int) -> None:
        """The request for which `size` bytes were reserved is this task; they are given back when
        it ends, and the task is cancelled when the connection ends."""
        account._tasks[task] = size
        task.add_done_callback(lambda ended: self._ended(account, ended))

    def wait(self, account: Account, start: Start) -> None:
        """Call `start` once one more answer may be built (see `has_room`)."""
        if not account.gone and not self._closed:
            self._wait(account, 0, start, first=False)

    def release(self, account: Account, size: int) -> None:
        """Give back what was reserved."""
        account.reserved_bytes -= size
        self.held_bytes -= size
        if account.waiting:
            self._freed(account)
        self._soon()

    def forget(self, account: Account) -> None:
        """The connection has ended: drop what waits, and cancel what is under way."""
        account.gone = True
        for accounts in (self._ring, self._late, self._over_share, self._yielding):
            accounts.pop(account, None)
        self.sent(account, 0)
        if account.waiting:
            self.requests_waiting -= len(account.waiting)
            self.counters.dropped += len(account.waiting)
            account.waiting = None
        for task in list(account._tasks):
            task.cancel()
        self._soon()

    def close(self) -> None:
        """Nothing that waits is begun any more."""
        self._closed = True

    def cut_stalled(self, limit_s: float, least_bytes: int = TAKING_BYTES) -> None:
        """Close the connections whose clients have taken next to nothing for this long."""
        now = self._monotonic()
        for account in list(self._unsent):
            self._look_at(account)
            stalled_s = account.stalled_s(now, least_bytes)
            if stalled_s > limit_s:
                self.counters.stalled += 1
                what = (
                    f"{account.unsent_bytes} bytes of answers were not taken for {stalled_s:.0f} s"
                )
                account.sink.cut_off("client_stalled", what)

    # -- inside -------------------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def _reserve(self, account: Account, size: int) -> None:
        account.reserved_bytes += size
        self._hold(size)

    def _is_next(self, account: Account, size: int, first: bool) -> bool:
        """Whether no other request is to be begun before this one."""
        if account is self._beginning:
            return first
        if self._ring or (account.waiting and not first):
            return False
        return not self._late or self._favoured(account, size)

    @staticmethod
    def _favoured(account: Account, size: int) -> bool:
        if account.held_bytes > FAVOURED_BYTES:
            return False
        return size <= FAVOURED_BYTES or account.takes

    def _fits_share(self, account: Account, size: int) -> bool:
        held = account.held_bytes
        return not held or held + max(size, 1) <= self.share_bytes

    def _fits_limit(self, account: Account, size: int) -> bool:
        limit = self.limit_bytes
        if not self._favoured(account, size):
            limit = limit * UNFAVOURED_PERCENT // 100
        return not self.held_bytes or self.held_bytes + max(size, 1) <= limit

    def _wait(self, account: Account, size: int, start: Start, *, first: bool) -> None:
        if account.waiting is None:
            account.waiting = deque()
        if first:
            account.waiting.appendleft((size, start))
        else:
            account.waiting.append((size, start))
            self.counters.waited += 1
        self.requests_waiting += 1
        if account is not self._beginning and account not in self._over_share:
            self._line_up(account)
        if not account.full and self._has_too_many(account):
            account.full = True
            account.sink.pause("answers")
        if not first:
            self.one_waits(account)
        self._soon()

    def _has_too_many(self, account: Account) -> bool:
        count = len(account.waiting or ())
        return count >= MAX_WAITING_REQUESTS or (
            count > 0 and self.requests_waiting >= MAX_WAITING_IN_ALL
        )

    def _line_up(self, account: Account) -> None:
        """Append the account to its queue, unless it has a place there already."""
        assert account.waiting
        if self._favoured(account, account.waiting[0][0]):
            self._late.pop(account, None)
            self._ring[account] = None
        elif account not in self._ring:
            self._late[account] = None

    def _freed(self, account: Account) -> None:
        """It holds less than before, and requests of it wait."""
        assert account.waiting
        if account in self._over_share and self._fits_share(account, account.waiting[0][0]):
            del self._over_share[account]
            self._line_up(account)
            self._soon()
        elif account in self._late:
            self._line_up(account)

    def _ended(self, account: Account, task: asyncio.Task[None]) -> None:
        self.release(account, account._tasks.pop(task))

    def _look_at(self, account: Account) -> None:
        self.sent(account, account.sink.unsent_size)

    def _next_turn(self) -> None:
        self._turn_noticed = False
        self._turn_bytes = self._turn_waits = 0
        for account in list(islice(self._yielding, RESUMED_AT_ONCE)):
            del self._yielding[account]
            if not self._has_too_many(account):
                account.full = False
                account.sink.resume("answers")
        if self._yielding:
            self._notice_turn()
        self._grant()

    def _soon(self) -> None:
        """Look for room at the end of this iteration of the event loop."""
        if self.requests_waiting and not self._granting and not self._closed:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        """Begin what there is room for, in turns."""
        self._granting = False
        begun = True
        while begun and not self._closed:
            begun = self._begin_one_of(self._ring)
            begun = self._begin_one_of(self._late) or begun
        if self.requests_waiting and not self._pumping and not self._closed:
            self._pumping = True
            asyncio.get_running_loop().call_later(PUMP_S, self._pump)

    def _begin_one_of(self, accounts: dict[Account, None]) -> bool:
        """The first request of the first account that has room in its share. False: there is none,
        or the bookie has no room."""
        while accounts and self._turn_bytes < TURN_BYTES:
            account = next(iter(accounts))
            assert account.waiting
            size, start = account.waiting[0]
            if not self._fits_share(account, size):
                del accounts[account]
                self._over_share[account] = None
            elif self._fits_limit(account, size):
                del accounts[account]
                self._begin(account, size, start)
                return True
            else:
                return False
        return False

    def _begin(self, account: Account, size: int, start: Start) -> None:
        """The account then goes to the end of those that wait."""
        waiting = account.waiting
        assert waiting
        waiting.popleft()
        self.requests_waiting -= 1
        self._reserve(account, size)
        self._beginning = account
        try:
            start()
        finally:
            self._beginning = None
        if account.gone:
            return
        if waiting:
            self._line_up(account)
        few = len(waiting) <= MAX_WAITING_REQUESTS // 2
        if account.full and few and account not in self._yielding:
            account.full = False
            account.sink.resume("answers")

    def _pump(self) -> None:
        """See what the sockets have taken meanwhile."""
        self._pumping = False
        for account in list(self._unsent):
            self._look_at(account)
        self._grant()
        if (self._ring or self._late) and self._turn_bytes < TURN_BYTES:
            self.cut_stalled(PRESSED_STALL_S, PRESSED_TAKING_BYTES)  # There is no room for them.
