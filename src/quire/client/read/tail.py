"""What is new in a ledger that is written (wire-protocol spec, 6.6 and 6.7; replication spec, 8).

    long poll on one bookie: "tell me when your LAC passes the one that I know", with its last entry
      -> batch read from the same bookie: all that it has from there on, acknowledged or not
      -> the LACs in these entries prove how far they are acknowledged: runs, to be delivered
    while the poll waits for long: batch reads, of what will be acknowledged all at once

What is not proven to be acknowledged yet is held for the next round, within a bound. So where
entries come one by one a round is the poll alone: its entry proves the one before it, which is
held, and is held itself. Where rounds bring more than one, the poll is left out: a round is one
batch read, which waits for a little on a bookie of Quire if it comes too early; and the slower the
reader the more entries in a round. Where entries prove nothing new
(the writer has told its LAC in a message of its own), cannot be read in batches (striped ledgers),
or too much is held, the answer to the poll brings the proof, or READ_LAC where the bookie is not of
Quire, and what is not held is read from any replica.

A bookie with no news, or with an error, hands over to the next of the ensemble. Where news are
overdue, going by how far apart the latest ones came, the next one is asked beside it, and whoever
has them first is asked from then on: a bookie that a writer need not wait for shall not keep its
readers waiting. The metadata is watched beside it all: a new ensemble, the end, or the deletion of
the ledger interrupts a poll.

What is delivered rests on verified LACs only (`LedgerReader.tail` says why). A LAC of one bookie is
enough: it names an entry that an ack quorum had (invariant I3).

Who delivers, and to how many, is the matter of `quire.client.read.follow`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from quire._runtime.retry import Backoff
from quire._runtime.tasks import cancelled
from quire.client.cluster.health import misbehaviour_of
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
    ClientClosedError,
    LedgerRecreatedError,
    NoSuchLedgerError,
    QuireError,
    ReadError,
    SilentConnectionError,
)
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.creation import recreated
from quire.net.answer_codes import NoEntryAnswer
from quire.net.control import ControlChannel, PollAnswer

OVERDUE_GAPS = 4
"""News that have not come within so many times their usual distance are overdue,"""
OVERDUE_MIN_S = 0.004
"""but not before this: so long a sync may take. Where that is later than `speculative_read_s`, no
distance is usual."""
LEVEL_POLL_MS = 50
"""A poll of a bookie that may not know as much as the reader yet."""
POLLS_MAX = 2
"""Bookies that one tail asks at the same time."""
PROOF_ENTRY_BYTES_MAX = 16 * 1024
AHEAD_BYTES_MAX = 512 * KIB
"""The largest answer to a batch read that reads ahead. A bookie gives such an answer within one
event-loop iteration, because it has the end of a ledger in memory. Larger reads go to its threads.
"""
ASK_BACKOFF = Backoff(0.01, 0.25)
"""The pauses before the bookies of an ensemble are asked again, none of which had an answer."""
EMPTY_BACKOFF = Backoff(0.01, 0.05)
"""The same, where a bookie answers that it knows nothing of the ledger: the first entry is still to
come, and no bookie can be asked to wait for it."""


def bytes_of(run: EntryRun) -> int:
    """About what it takes of its buffer."""
    return run.ends[-1] - run.offsets[0]


class LedgerTail:
    """The end of one ledger. What it learns of the LAC is in `view`."""

    def __init__(
        self,
        view: LedgerView,
        codec: EntryCodec,
        engine: ReadEngine,
        pool: BookiePool,
        config: ClientConfig,
    ) -> None:
        self.upcoming = view.last_add_confirmed + 1
        """The next entry to give out."""
        self.near: str | None = None
        """The bookie that proved the LAC: it is likely to have all up to there."""
        self.gone: Callable[[int], QuireError] | None = None
        """Return the error for a ledger that was deleted and possibly created again under the same
        id."""
        """The ledger is gone."""
        self.wanted = True
        """The entries are, and not only to know of them."""
        self._view = view
        self._codec = codec
        self._engine = engine
        self._pool = pool
        self._config = config
        self._at = pool.any_index(view.metadata.ensemble_size)
        """The ensemble index of the bookie to ask."""
        self._aimed_at = -1
        """In a striped ledger: the entry for which it was chosen."""
        self._flowing = False
        """The last round brought more than one entry: there may be more already."""
        self._gap_s = math.inf
        """The usual time between two rounds that brought news; a running mean."""
        self._news_at = 0.0
        """When the latest one ended (the loop's clock)."""
        self._misses = 0
        """Bookies asked in a row without an answer to rely on."""
        self._empty = False
        """The last one knew nothing of the ledger."""
        self._levels: dict[str, int] = {}
        """The LAC that a bookie of the ensemble is known to know."""
        self._held: deque[EntryRun] = deque()
        """Consecutive verified entries from `upcoming` on, not known to be acknowledged."""
        self._held_bytes = 0
        self._spare: EntryRun | None = None
        """The last entry that a poll brought, where those before it were not here."""
        self._entry_bytes = 0
        """Of the entries given out last."""
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- what is acknowledged -----------------------------------------------------------------

    def ready(self) -> Iterator[EntryRun]:
        """What is held and acknowledged by now; it is not held any more."""
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
        """These are given out."""
        self.upcoming = run.last + 1
        self._entry_bytes = bytes_of(run) // len(run)

    def skip(self) -> None:
        """Go on behind what is known to be acknowledged, whatever is before it."""
        for _ in self.ready():
            pass
        self.upcoming = self._view.last_add_confirmed + 1

    # -- what is new --------------------------------------------------------------------------

    async def news(self) -> bool:
        """Ask one bookie. Whether more is known to be acknowledged, or the metadata has changed, or
        somebody has interrupted; else it is the turn of the next. Cancel-safe; one call at a
        time."""
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
            # It has the entry itself, and gets the next one, which carries the LAC that we wait
            # for.
            self._aimed_at = self.upcoming
            self._at = self.upcoming + 1
        return self._at % metadata.ensemble_size

    def _note_news(self) -> None:
        now = asyncio.get_running_loop().time()
        gap_s, self._news_at = now - self._news_at, now
        known = min(self._gap_s, self._config.speculative_read_s)
        self._gap_s = known + (min(gap_s, self._config.speculative_read_s) - known) / 4

    async def _first(self, order: list[str], changed: asyncio.Future[None]) -> str | None:
        """Which of these bookies proves that the next entry is acknowledged. The second is asked as
        well where the first should have told by now. None: nobody does, or the metadata changed."""
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
        """Wait for this bookie to prove that the next entry is acknowledged, and return whether it
        did. It is asked `again` over a new connection if the old one died silently."""
        if self._pool.closed:
            raise ClientClosedError("the client is closed")
        config = self._config
        patience = config.speculative_read_s
        if self._misses >= self._view.metadata.ensemble_size:
            patience = config.read_timeout_s  # nobody was quick
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
                # No entry proves an explicit LAC that covers the last one.
                explicit = wants_last and NO_ENTRY < learnt <= poll.max_lac
                async with asyncio.timeout(patience):
                    if not explicit and await self._proven(channel, ahead=True):
                        return True
                    if await self._proven(channel):
                        return True
            waited = asyncio.get_running_loop().time() - asked_at >= poll_s / 2
            if waited or self._view.last_add_confirmed > known:
                self._misses = 0  # it answers, and there is no news, or less than we wait for
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
        """Where news are overdue, what comes meanwhile is read and held: if a disk keeps the writer
        waiting, all of it is acknowledged at once in the end. None: that has brought the proof."""
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
                    break  # nothing comes
            return await polling
        finally:
            await cancelled((polling,))

    @property
    def _overdue_s(self) -> float | None:
        """When news are overdue, behind the latest; None: no distance of them is usual."""
        overdue_s = max(OVERDUE_GAPS * self._gap_s, OVERDUE_MIN_S)
        return overdue_s if overdue_s < self._config.speculative_read_s else None

    def _poll_ms(self, bookie: str, known: int) -> int:
        """How long to wait on this bookie.

        Apache's bookie wakes a poll once, at the next move of its own LAC, and if that does not
        pass what the reader knows it lets it wait for the time-out. So one that may be behind is
        asked again soon."""
        if self._levels.get(bookie, -2) >= known:
            return round(1000 * self._config.long_poll_s)
        return min(round(1000 * self._config.long_poll_s), LEVEL_POLL_MS)

    async def _proven(
        self, channel: ControlChannel, ahead: bool = False, wait: bool = False
    ) -> bool:
        """Learn the LAC that the bookie can prove; whether it has passed the next entry. `ahead`:
        by the entries that are wanted next, where that will do; `wait` for them on the bookie, for
        a little."""
        try:
            if self._engine.trust.compares_copies:
                # One bookie proves nothing. Without coverage: those that are away tell nothing.
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
        """The next entry that is not here."""
        return self._held[-1].last + 1 if self._held else self.upcoming

    @property
    def _has_room(self) -> bool:
        """For more that is held."""
        return self._held_bytes < self._config.read_windows * self._config.read_window_bytes

    @property
    def _reads_ahead(self) -> bool:
        """Whether a bookie can be asked for what follows, and there is room for it."""
        return not self._engine.trust.compares_copies and self._engine.batches and self._has_room

    def _hold_spare(self) -> None:
        if self._spare is not None and self._spare.first <= self._unheld:
            if self._spare.first == self._unheld:
                self._hold(self._spare)
            self._spare = None

    def _hold(self, run: EntryRun) -> None:
        """Begins no later than with the next entry that is not here; another bookie may have
        brought that one meanwhile."""
        self._view.confirmed(run.last_add_confirmed)
        if run.last >= self._unheld:
            run = run.part(max(run.first, self._unheld), run.last)
            self._held.append(run)
            self._held_bytes += bytes_of(run)

    @property
    def _wants_proof(self) -> bool:
        """Whether a poll should bring the last entry, whose LAC proves the entries before it, which
        may be held already: one exchange less. Not where entries are large, for it will be read
        again; nor of an empty ledger, of which that is an error."""
        return self._view.last_add_confirmed >= 0 and self._entry_bytes <= PROOF_ENTRY_BYTES_MAX

    def _misbehaved(self, bookie: str, error: BadEntryError) -> None:
        self._pool.health.misbehaved(bookie, misbehaviour_of(error), self._view.ledger_id, -1)

    def _learn(self, bookie: str, poll: PollAnswer) -> int:
        """From what came with the answer to a poll; the id of its entry, or NO_ENTRY."""
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
            return NO_ENTRY  # another replica will be asked
        if entry_id >= self._unheld and self._has_room:
            self._spare = self._engine.run_of(entry_id, [poll.entry])
            self._hold_spare()
        self._view.confirmed(lac)
        return entry_id

    # -- the metadata -------------------------------------------------------------------------

    def on_metadata(self, stored: Versioned[LedgerMetadata] | None) -> None:
        try:
            if stored is None:
                self.gone = _deleted
            elif not self._view.adopt(stored):
                return
        except LedgerRecreatedError:
            self.gone = recreated
        self.interrupt()

    def interrupt(self) -> None:
        """End a poll, or a pause."""
        if not self._changed.done():
            self._changed.set_result(None)

    def expect_change(self) -> asyncio.Future[None]:
        """What has changed so far is known; what changes from now on ends this future. Wait for it
        with `asyncio.wait`, which does not cancel it: others may wait for it, too."""
        if self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed


def _deleted(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError(f"ledger {ledger_id} was deleted while it was followed")
