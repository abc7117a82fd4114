"""Followers of a ledger that is being written. The followers in one client share a feed.

    Feed            It polls the bookies for all followers, and keeps new entries for a while.
    LedgerFollower  One reader's position. It takes kept entries from the feed, and reads the rest.

No task works for the feed alone. The first follower that has delivered all known entries and has to
wait *drives* the feed: it polls and reads. The others are woken when there is something new. If the
driving follower leaves in the middle, another one continues. So a single follower costs no more
than without a feed, no task has to be supervised, and everything ends with the last follower.

A follower has no queue: it takes the kept entries at its own speed. A follower that is more than
`read_windows` windows of entries behind does not find its next entry among the kept ones, and reads
it from the bookies. It delays no other follower, and takes no more memory.

A feed is shared only by readers of one client with the same password and the same `assume_liars`,
so that evidence that one of them may trust is good for all of them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from quire._runtime.retry import Backoff, Retry
from quire.client.cluster.pool import BookiePool
from quire.client.read.engine import ReadEngine
from quire.client.read.ledger_view import LedgerView
from quire.client.read.tail import LedgerTail, bytes_of
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec, EntryRun
from quire.config import ClientConfig
from quire.core.recovery import TrustModel
from quire.errors import (
    MetadataUnavailableError,
    QuireError,
    ReadError,
    client_closed,
)
from quire.metadata.interface import Watch

KEPT_RUNS_MAX = 1_024
"""The largest number of runs that a feed keeps for followers that are a little behind. Their bytes
are limited to `read_windows` windows. A run has the entries of one answer: a single entry, if
entries come one by one."""
READ_ATTEMPTS = 6
"""The number of failed attempts in a row to read an acknowledged entry after which the follower
raises the error."""
READ_BACKOFF = Backoff(0.1)
"""The pauses between two failed attempts to read an acknowledged entry."""

FeedKey = tuple[int, tuple[int, int], DigestType, bytes, TrustModel]
"""The identity of a feed: the ledger id, `LedgerView.creation`, the digest type, the password, and
the trust model for bookies."""


class Feeds:
    """The feeds of one client. Followers of a ledger with an equal `FeedKey` share a feed."""

    def __init__(self, pool: BookiePool, config: ClientConfig) -> None:
        self._pool = pool
        self._config = config
        self._open: dict[FeedKey, Feed] = {}

    def __len__(self) -> int:
        return len(self._open)

    def interrupt(self) -> None:
        """Wake all followers, because the client is closed."""
        for feed in self._open.values():
            feed.interrupt()

    @contextmanager
    def joined(
        self,
        follower: LedgerFollower,
        view: LedgerView,
        codec: EntryCodec,
        password: bytes,
        trust: TrustModel,
    ) -> Iterator[Feed]:
        """Return a context manager in which a follower has joined the feed of its ledger.

        Entering it returns the feed, which is created for the first follower and dropped with the
        last one.
        """
        key = (codec.ledger_id, view.creation, codec.digest, password, trust)
        feed = self._open.get(key)
        if feed is None:
            feed = self._open[key] = Feed(view.copy(), codec, trust, self._pool, self._config)
        try:
            feed.join(follower, view)
            yield feed
        finally:
            if not feed.leave(follower):
                del self._open[key]


class Feed:
    """A source of the new entries of one ledger, which its followers in this client share."""

    def __init__(
        self,
        view: LedgerView,
        codec: EntryCodec,
        trust: TrustModel,
        pool: BookiePool,
        config: ClientConfig,
    ) -> None:
        self.view = view
        self.rng = pool.rng
        self._pool = pool
        self._engine = ReadEngine(codec, lambda: view.metadata, view.refresh, pool, config, trust)
        self._tail = LedgerTail(view, codec, self._engine, pool, config)
        self._kept: deque[EntryRun] = deque()
        """Consecutive acknowledged entries, up to the one before `_tail.upcoming`."""
        self._kept_bytes = 0
        self._kept_bytes_max = config.read_windows * config.read_window_bytes
        self._followers: dict[LedgerFollower, None] = {}
        """The followers, in the order in which they joined."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._driven = False
        """Whether one of the followers drives the feed now, that is, polls the bookies for all."""
        self._behind = True
        """Whether each follower reads the acknowledged entries from `_tail.upcoming` on itself. The
        feed does not collect them, because they are too many, unwanted or unreadable."""
        self._watch: Watch | None = None

    # -- coming and going ---------------------------------------------------------------------

    def join(self, follower: LedgerFollower, view: LedgerView) -> None:
        """Add a follower, and learn what its `view` knows about the ledger.

        Raises LedgerRecreatedError as `learn` does.
        """
        self._followers[follower] = None
        if self._watch is None:
            self._watch = self.view.store.watch_ledger(self.view.ledger_id, self._tail.on_metadata)
        self.learn(view)

    def leave(self, follower: LedgerFollower) -> bool:
        """Remove a follower, and return whether any is left."""
        self._followers.pop(follower, None)
        if not self._followers and self._watch is not None:
            self._watch.close()
        return bool(self._followers)

    def learn(self, view: LedgerView) -> None:
        """Learn the LAC and the metadata that the view of a follower has, if they are newer.

        Raises LedgerRecreatedError if the view is of another ledger with the same id.
        """
        before = self.view.last_add_confirmed
        if not self.view.learn(view):
            return
        if self.view.last_add_confirmed > before:
            self._behind = self._behind or not self._driven
        self.interrupt()  # even for new metadata alone: the watch does not report it again

    # -- what there is ------------------------------------------------------------------------

    @property
    def gone(self) -> QuireError | None:
        """The error to raise if the ledger was deleted or created again, or None.

        Each access returns a new exception object.
        """
        gone = self._tail.gone
        return None if gone is None else gone(self.view.ledger_id)

    @property
    def near(self) -> str | None:
        """The id of the bookie that proved the newest LAC, or None. It probably has the entries."""
        return self._tail.near

    def kept(self, first: int, last: int) -> EntryRun | None:
        """Return a kept run of acknowledged entries that begins at `first`, or None.

        The run ends at `last` at the latest. None means that entry `first` is not kept.
        """
        kept = self._kept
        if not kept or not kept[0].first <= first < self._tail.upcoming:
            return None
        run = kept[-1]
        if first < run.first:
            run = kept[bisect_right(kept, first, key=lambda one: one.first) - 1]
        return run.part(first, last) if first <= run.last else None

    def gap(self, first: int, last: int) -> int:
        """Return the last entry that a follower at entry `first`, which is not kept, must read.

        It is the entry before the first kept one, or `last` if that is smaller or no later entry is
        kept.
        """
        kept = self._kept
        return min(last, kept[0].first - 1) if kept and kept[0].first > first else last

    def collects(self, entry_id: int) -> bool:
        """Return whether the feed will read an entry that the caller knows to be acknowledged.

        The result is True if the entry is the next one that the feed reads, and if the feed knows
        that it is acknowledged. A follower can know more than the feed, because a feed whose
        metadata shows a recovery ignores later LACs.
        """
        known = entry_id <= self.view.last_add_confirmed
        return known and entry_id == self._tail.upcoming and not self._behind

    # -- what is new --------------------------------------------------------------------------

    async def more(self) -> None:
        """Wait until there are new entries or new metadata, or until `interrupt` is called.

        The first follower that waits drives the feed: it polls the bookies for all. Raises
        ClientClosedError if the client is closed. Cancel-safe.
        """
        if self._pool.closed:
            raise client_closed()
        if self._driven:
            await self._woken()
            return
        self._driven = True
        try:
            await self._drive()
        finally:
            self._driven = False
            self._wake()

    async def looked_around(self, timeout_s: float) -> None:
        """Wait until the metadata changes or `interrupt` is called, for `timeout_s` at most."""
        await asyncio.wait((self._tail.expect_change(),), timeout=timeout_s)

    def interrupt(self) -> None:
        """Wake the follower that drives the feed, which wakes the others, and all that pause."""
        self._tail.interrupt()

    async def _woken(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _drive(self) -> None:
        tail = self._tail
        if len(self._followers) == 1:
            self._forget()  # the only follower has had everything
        if tail.upcoming <= self.view.last_add_confirmed:
            if not self._behind:  # the follower that drove the feed before left in the middle
                await self._collect()
                return
            tail.skip()
            self._forget()
        self._behind = False
        tail.wanted = self._read_by_any
        while not await tail.news():
            pass
        await self._collect()

    @property
    def _read_by_any(self) -> bool:
        return any(follower.reads for follower in self._followers)

    async def _collect(self) -> None:
        """Keep the new acknowledged entries, and read those that the polls did not return.

        It reads at most about `_kept_bytes_max` bytes, and nothing if no follower wants entries.
        """
        tail, last = self._tail, self.view.last_add_confirmed
        for run in tail.ready():
            self._keep(run)
        if tail.upcoming > last:
            return
        if not self._read_by_any:
            self._behind = True
            return
        taken = 0
        try:
            async with aclosing(self._engine.runs(tail.upcoming, last, tail.near)) as runs:
                async for run in runs:
                    tail.passed(run)
                    self._keep(run)
                    self._wake()
                    taken += bytes_of(run)
                    if taken >= self._kept_bytes_max:
                        break
        except QuireError:
            pass  # a follower that wants these entries reads them itself, with several attempts
        self._behind = tail.upcoming <= last

    def _keep(self, run: EntryRun) -> None:
        kept = self._kept
        kept.append(run)
        self._kept_bytes += bytes_of(run)
        while len(kept) > 1 and (
            self._kept_bytes > self._kept_bytes_max or len(kept) > KEPT_RUNS_MAX
        ):
            self._kept_bytes -= bytes_of(kept.popleft())

    def _forget(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0


class LedgerFollower:
    """The position of one reader that follows a ledger, and the delivery of entries to it."""

    def __init__(
        self, view: LedgerView, engine: ReadEngine, first: int, *, reads: bool = True
    ) -> None:
        """Create a follower whose next entry is `first`.

        With `reads` false the follower only waits for acknowledgements (see `wait`), and the feed
        reads no entries for it.
        """
        self.reads = reads
        self._view = view
        self._engine = engine
        self._upcoming = first
        """The id of the next entry to deliver."""
        self._stopped: QuireError | None = None
        self._feed: Feed | None = None

    def stop(self, error: QuireError) -> None:
        """Make `runs` or `wait` raise `error` soon."""
        self._stopped = error
        if self._feed is not None:
            self._feed.interrupt()

    async def runs(self, feed: Feed) -> AsyncGenerator[EntryRun, None]:
        """Yield acknowledged entries as runs, until the ledger is closed and all were yielded.

        Raises the error that was passed to `stop`, and ClientClosedError if the client is closed.
        If `READ_ATTEMPTS` attempts in a row to read an entry fail, raises the last ReadError or
        MetadataUnavailableError. If the ledger was deleted, or another one has its id by now,
        raises NoSuchLedgerError or LedgerRecreatedError.
        """
        self._feed = feed
        while True:
            last = self._look(feed)
            if self._upcoming <= last:
                run = feed.kept(self._upcoming, last)
                if run is not None:
                    self._upcoming = run.last + 1
                    yield run
                elif feed.collects(self._upcoming):
                    await feed.more()
                else:
                    gap = feed.gap(self._upcoming, last)
                    async with aclosing(self._read(feed, gap)) as runs:
                        async for run in runs:
                            yield run
                            if self._stopped is not None:
                                raise self._stopped
                if self._stopped is not None:
                    raise self._stopped
            elif self._view.closed:
                return
            else:
                await self._more(feed)

    async def wait(self, feed: Feed) -> None:
        """Wait until this follower's next entry is known to be acknowledged.

        Return also if the ledger is closed and ends before that entry. Raises the error that was
        passed to `stop`, and ClientClosedError if the client is closed. If the ledger was deleted,
        or another one has its id by now, raises NoSuchLedgerError or LedgerRecreatedError.
        """
        self._feed = feed
        while self._upcoming > self._look(feed) and not self._view.closed:
            await self._more(feed)

    def _look(self, feed: Feed) -> int:
        """Return the last entry that this follower or the feed knows to be acknowledged.

        Both then know the newest metadata and LAC.
        """
        self._view.learn(feed.view)
        feed.learn(self._view)
        return self._view.last_add_confirmed

    async def _more(self, feed: Feed) -> None:
        if self._stopped is not None:
            raise self._stopped
        if (gone := feed.gone) is not None:
            raise gone
        await feed.more()

    async def _read(self, feed: Feed, last: int) -> AsyncGenerator[EntryRun, None]:
        """Read the entries from the next one to `last` from the bookies, and yield them as runs."""
        retry = Retry(READ_BACKOFF, feed.rng, attempts=READ_ATTEMPTS)
        while self._upcoming <= last:
            try:
                found = self._engine.runs(self._upcoming, last, feed.near)
                async with aclosing(found) as runs:
                    async for run in runs:
                        retry.reset()
                        self._upcoming = run.last + 1
                        self._view.confirmed(run.last_add_confirmed)
                        yield run
            except (ReadError, MetadataUnavailableError):
                # The bookies of this entry may come back, or another bookie may get a copy.
                if not retry.failed() or self._stopped is not None:
                    raise
                await self._pause(feed, retry.pause_s())

    async def _pause(self, feed: Feed, seconds: float) -> None:
        """Pause for `seconds`, or until the metadata changes or `stop` is called."""
        loop, before = asyncio.get_running_loop(), self._view.metadata
        deadline = loop.time() + seconds
        while self._stopped is None and self._view.metadata == before:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return
            await feed.looked_around(left_s)
            self._look(feed)
