"""Rejoining of ensemble members that became unreachable, and writing without them.

While every write set has its ack quorum the session continues with fewer members. If one has not,
and no other bookie can replace a member, nothing is acknowledged, and the members are tried again
for a while. Connections to several bookies that break at the same moment usually break because of
the network between (a switch restarts), and the bookies are alive. Apache's client gives up the
ledger in this case (replication spec, 4.2).

A ledger whose metadata has no room to name another ensemble is treated in the same way (`no_room`):
its members are tried again, and no other bookie is used.

This changes nothing in the metadata, and relies on no assumption about the members. Entries that a
member had acknowledged are on its disk, and count. With deferred sync they may be gone, and do not
count (`DeferredPipeline.park`). A member that returns, restarted or not, is sent everything after
the last confirmed entry. It refuses these entries if the ledger was fenced meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from quire.client.observability.logs import log_event
from quire.core.placement.words import some
from quire.errors import NotEnoughBookiesError, QuireError

if TYPE_CHECKING:
    from quire.client.write.add_session import AddSession

REJOIN_DELAY_S = 1.0
REJOIN_DELAY_MAX_S = 30.0
"""Between two attempts to have a member back, which doubles; the first where no ack quorum is
left."""


class Away:
    """Made by a session that misses a member for the first time."""

    def __init__(self, session: AddSession) -> None:
        self.indexes: frozenset[int] = frozenset()
        self._session = session
        self._delays: dict[int, float] = {}
        self._giving_up: asyncio.TimerHandle | None = None
        """There is one while no ack quorum is left, and perhaps a little longer."""
        self._done: tuple[int, int] | None = None
        """Accepted and durable when that began."""
        self._late = False
        """The time was up while members were there that had not answered yet."""

    @property
    def full(self) -> bool:
        """Nobody is there whose answers are missing, and still too much waits for them."""
        session = self._session
        if session.bearable():
            return False
        return session.pipeline.unconfirmed_bytes >= session.config.max_unacked_bytes

    def go_on_without(self, indexes: Collection[int]) -> None:
        session = self._session
        session.pipeline.park(indexes)
        new = [index for index in indexes if index not in self.indexes]
        self.indexes = self.indexes.union(new)
        if not session.bearable():
            self._limit_the_wait()
        for index in new:
            session.tasks.start(self._bring_back(index))

    def replaced(self, indexes: Collection[int]) -> None:
        """Other bookies are in these places."""
        self.indexes = self.indexes.difference(indexes)

    def stop(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _limit_the_wait(self) -> None:
        """It begins anew only where something was acknowledged since, or nothing had to be: so
        members that accept connections and break them again, or never answer, cannot draw it
        out."""
        session = self._session
        moved = session.done != self._done or not session.owes
        if self._late and not moved:
            session.fail(nobody_left(session, self.indexes))
        elif self._giving_up is None or moved:
            self.stop()
            self._done, self._late = session.done, False
            limit_s = session.config.lost_quorum_limit_s
            self._giving_up = asyncio.get_running_loop().call_later(limit_s, self._give_up)

    def _give_up(self) -> None:
        session = self._session
        self._giving_up = None
        if not session.bearable():
            session.fail(nobody_left(session, self.indexes))
        else:
            self._late = session.owes and session.done == self._done

    async def _bring_back(self, index: int) -> None:
        """Replace the member, or have it back, as soon as a bookie can be had."""
        session = self._session
        member, pool = session.member(index), session.pool
        await self._pause(index, longer=True)
        while session.failure is None and index in self.indexes and session.member(index) is member:
            try:
                wanted = session.wanted({index: member.bookie_id})
                found = session.no_room is None and pool.pick_now(wanted, rested=True)
            except QuireError as error:  # a placement policy that does not work
                session.fail(error)
                return
            if found:
                self.replaced((index,))
                session.fail_member(member)
                return
            there = pool.bookies.find(member.bookie_id) is not None
            reached = there and await self._reached(member.bookie_id)
            if not reached:
                await self._pause(index, longer=there)
            elif session.pipeline.frozen:
                await self._pause(index, longer=False)
            elif session.failure is None and index in self.indexes:
                self.replaced((index,))
                session.begin_again({index})
                log_event(
                    logging.INFO, "bookie_rejoined", ledger=session.ledger_id,
                    entry=session.pipeline.last_confirmed + 1, bookie=member.bookie_id,
                )  # fmt: skip
                return

    async def _reached(self, bookie_id: str) -> bool:
        try:
            await self._session.connect(bookie_id)
        except QuireError:
            return False
        return True

    async def _pause(self, index: int, *, longer: bool) -> None:
        """Until bookies came or went, or it is time for another attempt."""
        delay = self._delays.get(index, REJOIN_DELAY_S)
        if longer:
            self._delays[index] = min(2 * delay, REJOIN_DELAY_MAX_S)
        if not self._session.bearable():
            delay = REJOIN_DELAY_S
        await self._session.pool.changed(asyncio.get_running_loop().time() + delay)


def nobody_left(session: AddSession, indexes: Iterable[int]) -> NotEnoughBookiesError:
    """These members cannot be had, nor others in their places."""
    lost = {index: session.ensemble[index] for index in sorted(indexes)}
    placement = session.pool.placement
    limit_s = session.patience_s
    tried = f", which were tried again for {limit_s:g} s: " if limit_s else ": "
    if session.no_room is None:
        what, remedy = "no bookie is left to replace", "Start another bookie"
        why = placement.why(session.wanted(lost), placement.view())
    else:
        what, remedy = "the metadata has no room to replace", "Start these bookies again"
        why = session.no_room.args[0]
    return NotEnoughBookiesError(
        f"ledger {session.ledger_id}: {what} {some(lost.values())}{tried}{why}",
        ledger_id=session.ledger_id,
        causes=session.causes,
        remedy=f"{remedy}, then open the ledger with recovery",
    )
