"""The memory for answers: a share for each connection, and a limit for the whole bookie.

An answer counts from before its bytes are read until the client's socket has accepted them. There
is *room* for an answer if it exceeds neither the share of its connection nor the limit of the
bookie. A request for which there is no room waits in its connection's account, as a small object.
The accounts that wait for the limit take turns with one request each. So a connection with a
thousand requests delays the others by one request. An account that has used up its own share delays
nobody.

An account is favoured while it holds little memory, and either asks for little or has received
everything that it asked for before. A part of the limit is reserved for favoured accounts. So
clients that ask for much and receive nothing cannot prevent others from reading.

Adds never wait here. A connection stops being read only when too many of its requests wait.

Three rules prevent a standstill:

- If nothing uses a share or the limit, any answer is admitted, however large.
- A waiting request ends with its connection.
- While requests wait for room, connections that do not receive their answers are closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from quire._runtime.units import counted

TURN_BYTES = 1024 * 1024
"""The bytes of answers that all connections together may build in one event-loop iteration. Adds
that arrive in the meantime wait for no more than this."""
REQUEST_COST_BYTES = 1024
"""The bytes that each answer counts toward `TURN_BYTES` in addition to its own size, because
finding an entry takes time too."""
TURN_NOTICED_BYTES = TURN_BYTES // 2
"""The bytes of answers in one event-loop iteration from which their count is reset after the
iteration. A smaller count is not worth a callback, and carries over to the next iteration."""
TURN_WAITS = 256
"""The number of requests that may begin to wait in one event-loop iteration. A connection whose
request reaches this number is not read until a later iteration."""
RESUMED_AT_ONCE = 8
"""The most connections that are read again in one event-loop iteration after they were paused
because of `TURN_WAITS`."""
MAX_WAITING_REQUESTS = 1024
"""The number of requests of one connection that may wait for room. A connection with this many is
not read."""
MAX_WAITING_IN_ALL = 65_536
"""The number of requests of all connections that may wait for room. At this number, a connection
with a waiting request is not read."""
PUMP_S = 0.02
"""Seconds between two checks of how much the sockets have accepted, while requests wait for
room."""
PRESSED_STALL_S = 2.0
"""The most seconds without progress of a client that receives its answers too slowly, while
requests wait because of the limit of the bookie. After that, its connection is closed."""
TAKING_BYTES = 64 * 1024
"""The bytes of answers that a client must receive within `unsent_timeout_s`, unless it has received
all that it was sent. Otherwise its connection is closed."""
PRESSED_TAKING_BYTES = 1024 * 1024
"""The bytes of answers that a client must receive within `PRESSED_STALL_S` while requests wait
because of the limit of the bookie, unless it has received all that it was sent."""
FAVOURED_BYTES = 256 * 1024
"""The most bytes that a favoured account holds. It may also ask for at most this much at once,
unless it has received all answers to its earlier requests."""
UNFAVOURED_PERCENT = 75
"""The percentage of the limit of the bookie that accounts which are not favoured may use."""

Start = Callable[[], None]


class AnswerSink(Protocol):
    """The connection that answers go to, as far as the budget needs it."""

    @property
    def unsent_size(self) -> int:
        """The number of bytes of answers that the client's socket has not accepted yet."""
        ...

    def progress(self) -> tuple[int, int]:
        """Return how many bytes were written to the connection, and how many the socket took.

        Both numbers count from the beginning of the connection.
        """
        ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def cut_off(self, event: str, why: str) -> None:
        """Close the connection without waiting for the client, and log `event` with `why`."""
        ...


@dataclass(slots=True)
class BudgetCounters:
    """The numbers of requests and connections that the limits of memory for answers have affected.

    The metrics read them.
    """

    waited: int = 0
    """The number of requests that had to wait for memory for their answer."""
    dropped: int = 0
    """The number of requests that were dropped while they waited, because their connection
    ended."""
    stalled: int = 0
    """The number of connections that were closed because the client did not receive its answers."""


class Account:
    """The memory that the answers of one connection use."""

    __slots__ = (
        "_moved_s", "_seen_sent", "_seen_taken", "_tasks", "full", "gone", "reserved_bytes",
        "sink", "unsent_bytes", "waiting",
    )  # fmt: skip

    def __init__(self, sink: AnswerSink) -> None:
        self.sink = sink
        self.reserved_bytes = 0
        """The number of bytes reserved for answers that are being read."""
        self.unsent_bytes = 0
        """The number of bytes of built answers that the client had not received at the last
        check."""
        self.waiting: deque[tuple[int, Start]] | None = None
        """The waiting requests, each with the bytes to reserve for its answer and the function that
        starts it. The bytes are 0 for a request whose answer is built at once. None before the
        first one waits."""
        self.full = False
        """Whether reading from the connection is paused because too many of its requests wait."""
        self.gone = False
        """Whether the connection has ended."""
        self._tasks: dict[asyncio.Task[None], int] = {}
        """The tasks of running requests, each with the bytes reserved for it."""
        self._seen_sent = self._seen_taken = 0
        """The bytes written to the connection, as of the last check at which the client had made
        enough progress. `_seen_taken` has the bytes accepted by then."""
        self._moved_s = 0.0

    @property
    def held_bytes(self) -> int:
        return self.reserved_bytes + self.unsent_bytes

    @property
    def busy(self) -> bool:
        """Whether requests of the connection are running or waiting."""
        return bool(self._tasks or self.waiting)

    @property
    def takes(self) -> bool:
        """Whether the connection has sent answers, and the client has received all of them."""
        sent, taken = self.sink.progress()
        return 0 < sent == taken

    def stalled_s(self, now_s: float, least_bytes: int) -> float:
        """Return the seconds since the client last made enough progress in receiving its answers.

        That is `least_bytes` more than before, or everything that had been sent by the previous
        check.
        """
        sent, taken = self.sink.progress()
        if taken >= min(self._seen_sent, self._seen_taken + least_bytes):
            self._seen_sent, self._seen_taken, self._moved_s = sent, taken, now_s
        return now_s - self._moved_s


class AnswerBudget:
    """The memory for the answers of all connections of a bookie. It belongs to the event loop."""

    def __init__(self, limit_bytes: int, share_bytes: int, monotonic: Callable[[], float]) -> None:
        """Create a budget of `limit_bytes` for the bookie and `share_bytes` for each connection."""
        self.limit_bytes = limit_bytes
        self.share_bytes = share_bytes
        self.counters = BudgetCounters()
        self.held_bytes = 0
        """The sum of the reserved and the unsent bytes of all accounts."""
        self.peak_bytes = 0
        """The largest value of `held_bytes` since a reader last reset it."""
        self.requests_waiting = 0
        self._monotonic = monotonic
        # Dictionaries serve as ordered sets, so that the same seed gives the same run.
        self._ring: dict[Account, None] = {}
        """The favoured accounts whose first request waits because of the limit. The first account
        is served next."""
        self._late: dict[Account, None] = {}
        """The other accounts whose first request waits because of the limit."""
        self._beginning: Account | None = None
        """The account whose waiting request is being started."""
        self._over_share: dict[Account, None] = {}
        """The accounts whose first request waits because their own share is used up."""
        self._unsent: dict[Account, None] = {}
        """The accounts with unsent bytes."""
        self._turn_bytes = 0
        self._turn_waits = 0
        self._turn_noticed = False
        self._yielding: dict[Account, None] = {}
        """The accounts of connections that are paused because of `TURN_WAITS`. They are read again
        in later event-loop iterations."""
        self._granting = False
        self._pumping = False
        self._closed = False

    @property
    def accounts_waiting(self) -> int:
        return len(self._ring) + len(self._late) + len(self._over_share)

    # -- room ---------------------------------------------------------------------------------

    def has_room(self, account: Account) -> bool:
        """Return whether one more answer of this account may be built at once.

        It may if no other request comes first, and neither the share of the account nor the limit
        of the bookie is used up. The answer itself may exceed them.
        """
        if self._ring or account.waiting or self._turn_bytes >= TURN_BYTES or account.gone:
            return False
        held = account.reserved_bytes + account.unsent_bytes  # faster than `account.held_bytes`
        if self.held_bytes < self.limit_bytes and held < self.share_bytes:
            return True
        self._look_at(account)
        return self.held_bytes < self.limit_bytes and account.held_bytes < self.share_bytes

    def built(self, account: Account, size: int) -> None:
        """Count an answer of `size` bytes that was passed to the connection."""
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
        """Count a request of this connection that begins to wait, for memory or for a new LAC.

        If too many requests begin to wait in one event-loop iteration, the connection is paused and
        read again in a later one.
        """
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
        """Count an answer of `size` bytes by the current task, and release its reservation."""
        task = asyncio.current_task()
        reserved = account._tasks.get(task, 0) if task is not None else 0
        if task is not None and reserved:
            account._tasks[task] = 0
            account.reserved_bytes -= reserved
            self.held_bytes -= reserved
        self.built(account, size)

    def sent(self, account: Account, unsent_bytes: int) -> None:
        """Set the unsent bytes of an account to `unsent_bytes`, which were just measured."""
        self.held_bytes += unsent_bytes - account.unsent_bytes
        account.unsent_bytes = unsent_bytes
        if unsent_bytes:
            self._unsent[account] = None
        elif account in self._unsent:
            del self._unsent[account]
        if account.waiting:
            self._freed(account)

    def run(self, account: Account, size: int, start: Start, *, first: bool = False) -> None:
        """Reserve `size` bytes of memory and call `start`, now or when there is room.

        If the connection ends, or the budget is closed, before that, `start` is never called. With
        `first`, the request comes before the other waiting requests of its connection, because it
        came before them. It may have waited already.
        """
        if account.gone or self._closed:
            return
        if (
            self._is_next(account, size, first)
            and self._fits_share(account, size)
            and (self._fits_limit(account, size))
        ):
            self._start(account, size, start)
            return
        self._wait(account, size, start, first=first)

    @asynccontextmanager
    async def room(self, account: Account, size: int) -> AsyncIterator[None]:
        """Wait for room, and reserve `size` bytes of memory until the block ends.

        The wait may be cancelled. If the connection ends meanwhile, only a cancellation ends the
        wait.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def start() -> None:
            if ready.done():  # the waiting task was cancelled
                self.release(account, size)
            else:
                ready.set_result(None)

        self.run(account, size, start)
        try:
            await ready
        except BaseException:
            if ready.done() and not ready.cancelled():
                self.release(account, size)  # It was reserved just before the cancellation.
            raise
        try:
            yield
        finally:
            self.release(account, size)

    def track(self, account: Account, task: asyncio.Task[None], size: int) -> None:
        """Register the task of a request for which `size` bytes were reserved.

        The bytes are released when the task ends. The task is cancelled when the connection ends.
        """
        account._tasks[task] = size
        task.add_done_callback(lambda ended: self._ended(account, ended))

    def wait(self, account: Account, start: Start) -> None:
        """Queue `start`, and call it in a later callback, when one more answer may be built.

        It is never called if the connection ends, or the budget is closed, before that.
        """
        if not account.gone and not self._closed:
            self._wait(account, 0, start, first=False)

    def release(self, account: Account, size: int) -> None:
        """Release `size` reserved bytes of an account."""
        account.reserved_bytes -= size
        self.held_bytes -= size
        if account.waiting:
            self._freed(account)
        self._soon()

    def forget(self, account: Account) -> None:
        """Drop the waiting requests of a connection that has ended, and cancel its running ones."""
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
        """Start no further waiting requests."""
        self._closed = True

    def cut_stalled(self, limit_s: float, least_bytes: int = TAKING_BYTES) -> None:
        """Close the connections whose clients make too little progress for more than `limit_s`.

        Enough progress is `least_bytes` more, or everything that had been sent.
        """
        now = self._monotonic()
        for account in list(self._unsent):
            self._look_at(account)
            stalled_s = account.stalled_s(now, least_bytes)
            if stalled_s > limit_s:
                self.counters.stalled += 1
                what = (
                    f"the client has left {counted(account.unsent_bytes, 'byte')} of answers "
                    f"unreceived for {stalled_s:.0f} s"
                )
                account.sink.cut_off("client_stalled", what)

    # -- internal methods ---------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def _reserve(self, account: Account, size: int) -> None:
        account.reserved_bytes += size
        self._hold(size)

    def _start(self, account: Account, size: int, start: Start) -> None:
        """Reserve `size` bytes and call `start`. If it raises an error, nothing stays reserved."""
        self._reserve(account, size)
        try:
            start()
        except BaseException:
            self.release(account, size)
            raise

    def _is_next(self, account: Account, size: int, first: bool) -> bool:
        """Return whether the order of the waiting requests lets this request start now."""
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
        if account is not self._beginning:  # Otherwise the request was counted when it came.
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
        """Append the account to the queue of favoured accounts or to that of all others."""
        assert account.waiting
        if self._favoured(account, account.waiting[0][0]):
            self._late.pop(account, None)
            self._ring[account] = None
        elif account not in self._ring:
            self._late[account] = None

    def _freed(self, account: Account) -> None:
        """Queue an account whose requests wait again, after it has released memory."""
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
        """Start waiting requests for which there is room after this event-loop iteration."""
        if self.requests_waiting and not self._granting and not self._closed:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        """Start the waiting requests for which there is room, favoured accounts first."""
        self._granting = False
        begun = True
        while begun and not self._closed:
            begun = self._begin_one_of(self._ring)
            begun = self._begin_one_of(self._late) or begun
        if self.requests_waiting and not self._pumping and not self._closed:
            self._pumping = True
            asyncio.get_running_loop().call_later(PUMP_S, self._pump)

    def _begin_one_of(self, accounts: dict[Account, None]) -> bool:
        """Start the first request of the first account whose share it does not exceed.

        Return False if no request was started: because no account is left, the limit would be
        exceeded, or this event-loop iteration has built `TURN_BYTES`.
        """
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
        """Start the first waiting request of an account. Queue the account again if it has more."""
        waiting = account.waiting
        assert waiting
        waiting.popleft()
        self.requests_waiting -= 1
        self._beginning = account
        try:
            self._start(account, size, start)
        finally:
            self._beginning = None
            self._go_on(account, waiting)

    def _go_on(self, account: Account, waiting: deque[tuple[int, Start]]) -> None:
        """Queue an account again if it has more requests, after one of them was started."""
        if account.gone:
            return
        if waiting:
            self._line_up(account)
        few = len(waiting) <= MAX_WAITING_REQUESTS // 2
        if account.full and few and account not in self._yielding:
            account.full = False
            account.sink.resume("answers")

    def _pump(self) -> None:
        """Measure what the sockets have accepted, and start requests for which there is room now.

        If requests still lack room, close connections whose clients do not receive their answers.
        """
        self._pumping = False
        for account in list(self._unsent):
            self._look_at(account)
        self._grant()
        if (self._ring or self._late) and self._turn_bytes < TURN_BYTES:
            self.cut_stalled(PRESSED_STALL_S, PRESSED_TAKING_BYTES)  # requests still lack room
