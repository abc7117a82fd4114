"""Followers of a ledger that is written. Those of one client share what is new.

    Feed            one poll of the bookies, one read of what is new, and the newest entries, kept
    LedgerFollower  one reader's place in the ledger: it takes what is kept, and reads the rest

Nobody works for the feed alone: of the followers that have had everything, the first to wait does
the work, the others are woken when there is something; when it leaves in the middle, another one
goes on. So a lone follower costs what it always did, there is no task to be looked after, and the
last one to leave ends everything.

A follower has no queue: it takes from what is kept at its own speed. One that is further behind
than `read_windows` windows of entries finds its next entry gone from there and reads it from the
bookies; it holds nobody up, and nothing grows behind it.

A feed is shared by readers of one client with the same password and the same `assume_liars` only,
so that what one of them may believe is what all of them may.
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
    ClientClosedError,
    MetadataUnavailableError,
    QuireError,
    ReadError,
)
from quire.metadata.interface import Watch

KEPT_RUNS_MAX = 1_024
"""Of the newest entries, for followers that are a little behind; and no more bytes of them than
`read_windows` windows. A run is what one answer brought: one entry, where they come one by one."""
READ_ATTEMPTS = 6
"""In a row, to read an entry that is known to be acknowledged; behind that the reader is told."""
READ_BACKOFF = Backoff(0.1)
"""The pauses between these."""

FeedKey = tuple[int, tuple[int, int], DigestType, bytes, TrustModel]
"""The ledger, its creation, its digest and password, and the trust model for bookies."""


class Feeds:
    """Of one client: one for each ledger that is followed."""

    def __init__(self, pool: BookiePool, config: ClientConfig) -> None:
        self._pool = pool
        self._config = config
        self._open: dict[FeedKey, Feed] = {}

    def __len__(self) -> int:
        return len(self._open)

    def interrupt(self) -> None:
        """Everybody looks around: the client is closed."""
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
    """What is new in one ledger, for all who follow it in this client."""

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
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._driven = False
        """One of the followers does the work now; the others wait."""
        self._behind = True
        """What is acknowledged from `_tail.upcoming` on is not collected: there is too much of it,
        nobody wanted it, or it cannot be read. Each follower reads it for itself."""
        self._watch: Watch | None = None

    # -- coming and going ---------------------------------------------------------------------

    def join(self, follower: LedgerFollower, view: LedgerView) -> None:
        self._followers[follower] = None
        if self._watch is None:
            self._watch = self.view.store.watch_ledger(self.view.ledger_id, self._tail.on_metadata)
        self.learn(view)

    def leave(self, follower: LedgerFollower) -> bool:
        """Whether anybody is left."""
        self._followers.pop(follower, None)
        if not self._followers and self._watch is not None:
            self._watch.close()
        return bool(self._followers)

    def learn(self, view: LedgerView) -> None:
        """A reader of the ledger may know more than all who follow it."""
        before = self.view.last_add_confirmed
        if not self.view.learn(view):
            return
        if self.view.last_add_confirmed > before:
            self._behind = self._behind or not self._driven
        self.interrupt()  # also for the metadata alone: the watch will not tell it once more

    # -- what there is ------------------------------------------------------------------------

    @property
    def gone(self) -> QuireError | None:
        """Return a new error that says why nothing more can come, or None."""
        gone = self._tail.gone
        return None if gone is None else gone(self.view.ledger_id)

    @property
    def near(self) -> str | None:
        """The bookie that has the newest entries for sure."""
        return self._tail.near

    def kept(self, first: int, last: int) -> EntryRun | None:
        """Acknowledged entries from `first` on, up to `last` at most; None: they are not here."""
        kept = self._kept
        if not kept or not kept[0].first <= first < self._tail.upcoming:
            return None
        run = kept[-1]
        if first < run.first:
            run = kept[bisect_right(kept, first, key=lambda one: one.first) - 1]
        return run.part(first, last) if first <= run.last else None

    def gap(self, first: int, last: int) -> int:
        """Up to where of `last` nothing is here from `first` on, which is not here itself."""
        kept = self._kept
        return min(last, kept[0].first - 1) if kept and kept[0].first > first else last

    def collects(self, entry_id: int) -> bool:
        """Whether this entry, which is acknowledged, is the next to be read for all. Not if only
        one follower has heard that it is: who knows of a recovery first is told nothing more."""
        known = entry_id <= self.view.last_add_confirmed
        return known and entry_id == self._tail.upcoming and not self._behind

    # -- what is new --------------------------------------------------------------------------

    async def more(self) -> None:
        """Wait until anything is new: entries, or the metadata. Who waits first does the work for
        all. Raises ClientClosedError. Cancel-safe."""
        if self._pool.closed:
            raise ClientClosedError("the client is closed")
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
        """Until somebody interrupts, or the metadata changes; so long at most."""
        await asyncio.wait((self._tail.expect_change(),), timeout=timeout_s)

    def interrupt(self) -> None:
        """Who works or pauses looks around, and wakes the others."""
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
            self._forget()  # it has had everything
        if tail.upcoming <= self.view.last_add_confirmed:
            if not self._behind:  # the one before has left in the middle
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
        """Keep what is acknowledged by now, and what of it has to be read from the bookies, within
        the bound."""
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
            pass  # who wants them finds out for itself, and tries again
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
    """One walk along one ledger, from `first` on."""

    def __init__(
        self, view: LedgerView, engine: ReadEngine, first: int, *, reads: bool = True
    ) -> None:
        """`reads`: it wants the entries, and not only to know of them."""
        self.reads = reads
        self._view = view
        self._engine = engine
        self._upcoming = first
        """The next entry to deliver."""
        self._stopped: QuireError | None = None
        self._feed: Feed | None = None

    def stop(self, error: QuireError) -> None:
        """End with `error`, soon."""
        self._stopped = error
        if self._feed is not None:
            self._feed.interrupt()

    async def runs(self, feed: Feed) -> AsyncGenerator[EntryRun, None]:
        """Ends behind the last entry of the ledger, once it is closed."""
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
        """Until the first entry may be delivered, or the ledger is closed before it."""
        self._feed = feed
        while self._upcoming > self._look(feed) and not self._view.closed:
            await self._more(feed)

    def _look(self, feed: Feed) -> int:
        """The last entry that is known to be acknowledged."""
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
        """What the feed does not have, up to `last`."""
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
                # Its bookies may be on their way back, or another one be getting a copy.
                if not retry.failed() or self._stopped is not None:
                    raise
                await self._pause(feed, retry.pause_s())

    async def _pause(self, feed: Feed, seconds: float) -> None:
        """So long, or until the metadata changes."""
        loop, before = asyncio.get_running_loop(), self._view.metadata
        deadline = loop.time() + seconds
        while self._stopped is None and self._view.metadata == before:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return
            await feed.looked_around(left_s)
            self._look(feed)
