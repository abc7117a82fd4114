"""The new entries of a ledger that is being written.

An entry contains the LAC of the moment at which it was written, so it *proves* that earlier entries
are acknowledged. Entries that no LAC covers yet are *held*, within a limit, until a later entry
proves them. A tail works in rounds. A round gets new LACs from one bookie:

    long poll: "answer when your LAC passes mine, and add your last entry"
      -> batch read from the same bookie: everything after that, acknowledged or not
      -> the LACs in these entries prove how far they are acknowledged: runs to be delivered
    while the poll takes long: batch reads of entries that will be acknowledged together

A round is shorter in these cases:

- Entries come one by one. The round is the poll alone: the entry in its answer proves the one
  before, which is held, and is then held itself.
- The last round returned several entries. The round is one batch read without a poll. If it comes
  too early, a bookie of Quire waits for a moment before it answers. The slower the reader, the more
  entries there are in a round.

In these cases no batch read can prove anything: the writer has sent an explicit LAC, so no entry
contains it; the ledger is striped; or too much is held already. Then the proof is the explicit LAC
or the entry in the answer to the poll, or in an answer to READ_LAC if the bookie is not Quire's.
Entries that are not held are then read from any replica.

A round has *news* if it proves more entries. After a bookie without news, or with an error, the
next one of the ensemble is asked. If the usual interval between news has long passed, the next
bookie is asked at the same time, and whichever has news first is asked from then on. So a slow
bookie, for which the writer need not wait, does not delay readers either. The metadata is watched
meanwhile. A new ensemble, the close or the deletion of the ledger interrupts a poll.

Only verified LACs decide what is delivered (`LedgerReader.tail` explains why). The LAC of one
bookie is enough, because it names an entry that an ack quorum had.

`quire.client.read.follow` decides which reader does this work, and delivers the entries to all
readers.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from quire._runtime.retry import Backoff
from quire._runtime.tasks import cancelled
from quire.client.cluster.pool import BookiePool
from quire.client.read.engine import MAX_WINDOW_ENTRIES, ReadEngine
from quire.client.read.last_confirmed import read_last_confirmed, verified_lac
from quire.client.read.ledger_view import LedgerView
from quire.codec.entry.entry import BadEntryError, EntryCodec, EntryRun
from quire.codec.metadata.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from quire.codec.wire.v2 import Flag
from quire.config import KIB, ClientConfig
from quire.errors import (
    BookieError,
    LedgerRecreatedError,
    NoSuchLedgerError,
    QuireError,
    ReadError,
    SilentConnectionError,
    client_closed,
)
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.creation import recreated
from quire.net.answer_codes import NoEntryAnswer
from quire.net.control import ControlChannel, PollAnswer

OVERDUE_GAPS = 4
"""The number of usual intervals between two new LACs after which the next one is overdue."""
OVERDUE_MIN_S = 0.004
"""The least number of seconds until the next LAC is overdue, because a sync may take that long. If
the next LAC would be overdue only after `speculative_read_s`, it is never overdue."""
LEVEL_POLL_MS = 50
"""The longest poll, in milliseconds, of a bookie whose LAC may be lower than the reader's."""
POLLS_MAX = 2
"""The largest number of bookies that one tail asks at the same time."""
PROOF_ENTRY_BYTES_MAX = 16 * 1024
"""The largest mean size of entries, in bytes, with which a poll also asks for the last entry."""
AHEAD_BYTES_MAX = 512 * KIB
"""The largest answer, in bytes, to a batch read that reads ahead. A bookie of Quire answers a read
of this size within one event-loop iteration, because it has the end of a ledger in memory. It
passes larger reads to threads."""
ASK_BACKOFF = Backoff(0.01, 0.25)
"""The pauses before the bookies of an ensemble are asked again if none gave a usable answer."""
EMPTY_BACKOFF = Backoff(0.01, 0.05)
"""The pauses before the bookies are asked again if the last one knew nothing about the ledger.
There is no first entry yet, and a long poll cannot wait for it."""


def bytes_of(run: EntryRun) -> int:
    """Return the approximate number of bytes that the entries of a run take in its buffer."""
    return run.ends[-1] - run.offsets[0]


class LedgerTail:
    """The polls and reads that find new entries at the end of one ledger.

    The LACs that they prove raise `view.last_add_confirmed`.
    """

    def __init__(
        self,
        view: LedgerView,
        codec: EntryCodec,
        engine: ReadEngine,
        pool: BookiePool,
        config: ClientConfig,
    ) -> None:
        self.upcoming = view.last_add_confirmed + 1
        """The id of the next entry to deliver."""
        self.near: str | None = None
        """The bookie that proved the newest LAC, or None. It probably has every entry up to it."""
        self.gone: Callable[[int], QuireError] | None = None
        """A function that returns the error for a ledger id, if the ledger was deleted or created
        again with its id. None while the ledger exists."""
        self.wanted = True
        """Whether the followers want the entries. Otherwise they want only the LAC."""
        self._view = view
        self._codec = codec
        self._engine = engine
        self._pool = pool
        self._config = config
        self._at = pool.any_index(view.metadata.ensemble_size)
        """The ensemble index of the bookie to ask next, modulo the ensemble size."""
        self._aimed_at = -1
        """In a striped ledger, the entry for which the bookie at `_at` was chosen."""
        self._flowing = False
        """Whether the last round proved more than one entry, so that there may already be more."""
        self._gap_s = math.inf
        """The usual number of seconds between two new LACs, as a running mean."""
        self._news_at = 0.0
        """The loop time at which the newest LAC was proved."""
        self._misses = 0
        """The number of bookies asked in a row that gave no usable answer."""
        self._empty = False
        """Whether the bookie that was asked last knew nothing about the ledger."""
        self._levels: dict[str, int] = {}
        """The newest LAC that each bookie of the ensemble has reported, by bookie id."""
        self._held: deque[EntryRun] = deque()
        """Consecutive verified entries from `upcoming` on that wait to be proved acknowledged."""
        self._held_bytes = 0
        self._spare: EntryRun | None = None
        """The entry in the answer to a poll, while the entries before it are not held, or None."""
        self._entry_bytes = 0
        """The mean size, in bytes, of the entries in the run that was delivered last."""
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- what is acknowledged -----------------------------------------------------------------

    def ready(self) -> Iterator[EntryRun]:
        """Yield the held entries that are acknowledged by now, and count them as delivered."""
        last = self._view.last_add_confirmed
        while self._held and self.upcoming <= last:
            run = self._held.popleft()
            if run.last > last:
                self._held.appendleft(run.part(last + 1, run.last))
                run = run.part(run.first, last)
            self._held_bytes -= bytes_of(run)
            self.passed(run)
            yield run

    def passed(self, run: EntryRun) -> None:
        """Record that the entries of a run were delivered. The next entry is the one after them."""
        self.upcoming = run.last + 1
        self._entry_bytes = bytes_of(run) // len(run)

    def skip(self) -> None:
        """Continue after the last acknowledged entry, and drop the held entries before it."""
        for _ in self.ready():
            pass
        self.upcoming = self._view.last_add_confirmed + 1

    # -- what is new --------------------------------------------------------------------------

    async def news(self) -> bool:
        """Ask a bookie for a higher LAC, and return whether there is something new.

        A second bookie is asked as well if the first one is late. The result is True if more
        entries are known to be acknowledged, if the metadata has changed, or if `interrupt` was
        called. Otherwise the next call asks the next bookie. Only one call may run at a time.
        Raises ClientClosedError if the client is closed. Cancel-safe.
        """
        self._hold_spare()
        changed, before = self.expect_change(), self._view.last_add_confirmed
        await self._round(changed)
        return changed.done() or self._view.last_add_confirmed > before

    async def _round(self, changed: asyncio.Future[None]) -> None:
        metadata = self._view.metadata
        if metadata.state is not LedgerState.OPEN:
            await asyncio.wait((changed,))
            return
        before, rounds = self._view.last_add_confirmed, self._misses // metadata.ensemble_size
        ensemble = metadata.last_segment.ensemble
        if not self._levels.keys() <= set(ensemble):
            self._levels.clear()
        at = self._index(metadata)
        order = [*ensemble[at:], *ensemble[:at]][:POLLS_MAX]
        found = await self._first(order, changed)
        if found is not None:
            self.near, self._misses = found, 0
            self._at += order.index(found)
            self._flowing = self._view.last_add_confirmed > before + 1
            self._note_news()
            return
        self._flowing = False
        self._at += 1
        if self._misses // metadata.ensemble_size > rounds:
            rounds = self._misses // metadata.ensemble_size
            backoff = EMPTY_BACKOFF if self._empty else ASK_BACKOFF
            await asyncio.wait((changed,), timeout=backoff.pause_s(rounds, self._pool.rng))

    def _index(self, metadata: LedgerMetadata) -> int:
        if metadata.ensemble_size != metadata.write_quorum and self._aimed_at != self.upcoming:
            # It has the entry itself, and will get the next one, which carries the wanted LAC.
            self._aimed_at = self.upcoming
            self._at = self.upcoming + 1
        return self._at % metadata.ensemble_size

    def _note_news(self) -> None:
        now = asyncio.get_running_loop().time()
        gap_s, self._news_at = now - self._news_at, now
        known = min(self._gap_s, self._config.speculative_read_s)
        self._gap_s = known + (min(gap_s, self._config.speculative_read_s) - known) / 4

    async def _first(self, order: list[str], changed: asyncio.Future[None]) -> str | None:
        """Return the first bookie that proves that the next entry is acknowledged, or None.

        `order` has one or two bookies. The second is asked as well if the first should have
        answered by now. Returns None if neither proves it, or if `changed` ends first.
        """
        overdue_s = self._overdue_s
        asked: dict[asyncio.Future[Any], str] = {
            asyncio.ensure_future(self._ask(order[0])): order[0]
        }
        try:
            if len(order) > 1 and overdue_s is not None:
                done, _ = await asyncio.wait(
                    (*asked, changed), timeout=overdue_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    asked[asyncio.ensure_future(self._ask(order[1]))] = order[1]
            while True:
                told = [name for task, name in asked.items() if task.done() and task.result()]
                waiting = [task for task in asked if not task.done()]
                if told or not waiting or changed.done():
                    return told[0] if told else None
                await asyncio.wait((*waiting, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(asked)

    async def _ask(self, bookie: str, *, again: bool = False) -> bool:
        """Ask a bookie to prove that the next entry is acknowledged, and return whether it did.

        If its connection died silently, it is asked once more over a new one (`again`).
        """
        if self._pool.closed:
            raise client_closed()
        config = self._config
        patience = config.speculative_read_s
        if self._misses >= self._view.metadata.ensemble_size:
            patience = config.read_timeout_s  # no bookie answered quickly
        try:
            async with asyncio.timeout(patience):
                channel = await self._pool.control(bookie)
                if self._flowing and await self._proven(channel, ahead=True, wait=True):
                    return True
            known, wants_last = self._view.last_add_confirmed, self._wants_proof
            poll_s = self._poll_ms(bookie, known) / 1000
            asked_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(patience + poll_s):
                poll = await self._poll(channel, known, int(poll_s * 1000), wants_last)
            if poll is None:
                return True
            self._levels[bookie] = poll.max_lac
            if poll.max_lac > known:
                learnt = self._learn(bookie, poll)
                if (confirmed := self._view.last_add_confirmed) > known:
                    missing = confirmed + 1 - self._unheld
                    few = missing * self._entry_bytes < AHEAD_BYTES_MAX
                    if self.wanted and self._reads_ahead and missing > 0 and few:
                        async with asyncio.timeout(patience):
                            await self._proven(channel, ahead=True)
                    return True
                # No entry can prove an explicit LAC that includes the last entry.
                explicit = wants_last and NO_ENTRY < learnt <= poll.max_lac
                async with asyncio.timeout(patience):
                    if not explicit and await self._proven(channel, ahead=True):
                        return True
                    if await self._proven(channel):
                        return True
            waited = asyncio.get_running_loop().time() - asked_at >= poll_s / 2
            if waited or self._view.last_add_confirmed > known:
                self._misses = 0  # it answers, but has no news, or fewer than are wanted
                return False
            self._empty = False
        except (QuireError, TimeoutError) as error:
            if isinstance(error, SilentConnectionError) and not again:
                return await self._ask(bookie, again=True)
            self._empty = isinstance(error, NoEntryAnswer)
        self._misses += 1
        return False

    async def _poll(
        self, channel: ControlChannel, known: int, poll_ms: int, wants_last: bool
    ) -> PollAnswer | None:
        """Do a long poll, and return its answer. If it is overdue, read and hold new entries.

        If a disk delays the writer, all entries that arrive meanwhile are acknowledged together in
        the end. Returns None if these reads have proved that the next entry is acknowledged.

        Args:
            channel: The connection to the bookie.
            known: The LAC that the bookie's LAC must exceed.
            poll_ms: The longest time that the bookie may wait, in milliseconds.
            wants_last: Whether the answer should contain the bookie's last entry.
        """
        poll = channel.long_poll(self._view.ledger_id, known, poll_ms, last_entry=wants_last)
        overdue_s = self._overdue_s
        if overdue_s is None:
            return await poll
        polling = asyncio.ensure_future(poll)
        try:
            while True:
                done, _ = await asyncio.wait((polling,), timeout=overdue_s)
                before = self._unheld
                if done or not (self.wanted and self._reads_ahead):
                    break
                if await self._proven(channel, ahead=True):
                    return None
                if self._unheld == before:
                    break  # nothing arrives
            return await polling
        finally:
            await cancelled((polling,))

    @property
    def _overdue_s(self) -> float | None:
        """The number of seconds after which an answer with a new LAC is overdue.

        None if `speculative_read_s` would pass first. Nothing is overdue then.
        """
        overdue_s = max(OVERDUE_GAPS * self._gap_s, OVERDUE_MIN_S)
        return overdue_s if overdue_s < self._config.speculative_read_s else None

    def _poll_ms(self, bookie: str, known: int) -> int:
        """Return the number of milliseconds that a bookie may wait before it answers a long poll.

        `known` is the reader's LAC. Apache's bookie wakes a poll once, at the next change of its
        own LAC. If that LAC is not above the reader's, the poll waits for its time-out. Therefore
        the poll of a bookie that may lag behind is short.
        """
        if self._levels.get(bookie, -2) >= known:
            return round(1000 * self._config.long_poll_s)
        return min(round(1000 * self._config.long_poll_s), LEVEL_POLL_MS)

    async def _proven(
        self, channel: ControlChannel, ahead: bool = False, wait: bool = False
    ) -> bool:
        """Learn the LAC that a bookie can prove, and return whether it includes the next entry.

        With `ahead`, the LAC comes from the next entries, which are read in a batch and held, if
        that is possible. With `wait`, the bookie waits for a moment if it does not have the next
        entry yet.
        """
        try:
            if self._engine.trust.compares_copies:
                # One bookie proves nothing. Do not wait for coverage: unreachable bookies never
                # answer.
                metadata, timeout_s = self._view.metadata, self._config.speculative_read_s / 2
                known = await read_last_confirmed(
                    metadata, self._codec, self._pool, timeout_s,
                    trust=self._engine.trust, cover=False,
                )  # fmt: skip
                self._view.confirmed(known.lac)
            elif ahead and self._reads_ahead:
                first = self._unheld
                last = first + MAX_WINDOW_ENTRIES - 1
                size = min(self._config.read_window_bytes, AHEAD_BYTES_MAX)
                flags = Flag.WAIT if wait else Flag.NONE
                run = await self._engine.batch(
                    channel.bookie_id, first, last, size, flags=int(flags)
                )
                self._levels[channel.bookie_id] = run.last_add_confirmed
                self._hold(run)
            else:
                answer = await channel.read_lac(self._view.ledger_id)
                lac = verified_lac(self._codec, answer)
                self._pool.health.lac(channel.bookie_id, self._view.ledger_id, lac)
                self._levels[channel.bookie_id] = lac
                self._view.confirmed(lac)
        except BadEntryError as error:
            self._misbehaved(channel.bookie_id, error)
            return False
        except (BookieError, ReadError):
            return False
        return self._view.last_add_confirmed >= self.upcoming

    @property
    def _unheld(self) -> int:
        """The id of the first entry that is neither delivered nor held."""
        return self._held[-1].last + 1 if self._held else self.upcoming

    @property
    def _has_room(self) -> bool:
        """Whether the held entries leave room for more within the limit in bytes."""
        return self._held_bytes < self._config.read_windows * self._config.read_window_bytes

    @property
    def _reads_ahead(self) -> bool:
        """Whether the next entries can be read from one bookie in a batch and held."""
        return not self._engine.trust.compares_copies and self._engine.batches and self._has_room

    def _hold_spare(self) -> None:
        if self._spare is not None and self._spare.first <= self._unheld:
            if self._spare.first == self._unheld:
                self._hold(self._spare)
            self._spare = None

    def _hold(self, run: EntryRun) -> None:
        """Hold the entries of a run that are not held yet, and learn the LAC in them.

        The run must begin at or before `_unheld`. Another bookie may have returned some of its
        entries meanwhile.
        """
        self._view.confirmed(run.last_add_confirmed)
        if run.last >= self._unheld:
            run = run.part(max(run.first, self._unheld), run.last)
            self._held.append(run)
            self._held_bytes += bytes_of(run)

    @property
    def _wants_proof(self) -> bool:
        """Whether a poll should return the last entry, whose LAC proves the entries before it.

        If the entries before it are held already, no other request is needed. The last entry is not
        wanted if entries are large, because it will be read again. It is also not wanted while no
        entry is known to be acknowledged, because the ledger may be empty, and the request is then
        an error.
        """
        return self._view.last_add_confirmed >= 0 and self._entry_bytes <= PROOF_ENTRY_BYTES_MAX

    def _misbehaved(self, bookie: str, error: BadEntryError) -> None:
        self._pool.health.bad_entry(bookie, error, self._view.metadata, self._codec, -1)

    def _learn(self, bookie: str, poll: PollAnswer) -> int:
        """Learn the LAC that the answer to a poll proves, and hold its entry if possible.

        Returns the id of the entry in the answer. It is NO_ENTRY if there is no valid one, or if
        copies have to be compared.
        """
        if self._engine.trust.compares_copies:
            return NO_ENTRY
        try:
            if poll.packet:
                self._view.confirmed(self._codec.unpack_lac(poll.packet))
            if not poll.entry:
                return NO_ENTRY
            entry_id, lac, _ = self._codec.check(poll.entry)
        except BadEntryError as error:
            self._misbehaved(bookie, error)
            return NO_ENTRY  # another replica is asked next
        if entry_id >= self._unheld and self._has_room:
            self._spare = self._engine.run_of(entry_id, [poll.entry])
            self._hold_spare()
        self._view.confirmed(lac)
        return entry_id

    # -- the metadata -------------------------------------------------------------------------

    def on_metadata(self, stored: Versioned[LedgerMetadata] | None) -> None:
        """Handle a change of the ledger's metadata. `stored` is None if the ledger was deleted."""
        try:
            if stored is None:
                self.gone = _deleted
            elif not self._view.adopt(stored):
                return
        except LedgerRecreatedError:
            self.gone = recreated
        self.interrupt()

    def interrupt(self) -> None:
        """End the wait of a running `news`, and complete the future of `expect_change`."""
        if not self._changed.done():
            self._changed.set_result(None)

    def expect_change(self) -> asyncio.Future[None]:
        """Return a future that completes at the next change of the metadata or `interrupt`.

        Changes before this call do not count. Wait for the future with `asyncio.wait`, which does
        not cancel it, because others may wait for it too.
        """
        if self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed


def _deleted(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError(
        f"ledger {ledger_id} was deleted while it was being followed, so no further entry will come"
    )
