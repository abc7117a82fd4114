"""Members of an ensemble that failed: one change of the ensemble at a time, named in the metadata
before anything that it stores counts. Nothing is confirmed meanwhile (replication spec, 4.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING

from quire.client.observability.logs import log_event
from quire.client.observability.tracing import note
from quire.errors import MetadataTooLargeError, QuireError, WriteError

if TYPE_CHECKING:
    from quire.client.write.add_member import Member
    from quire.client.write.add_session import AddSession

RETURN_REST_S = 30.0
"""Seconds until a member may return over a new connection once more. A member whose next connection
dies silently within that time is replaced."""

ChangeEnsemble = Callable[[dict[int, str], dict[int, str], int], Awaitable[tuple[str, ...]]]
"""(index -> failed bookie, index -> replacement, first entry of the new ensemble) -> the ensemble
now in force. Raises what ends the session."""


class Replacement:
    """Made by a session of which a member failed for the first time."""

    def __init__(self, session: AddSession, change_ensemble: ChangeEnsemble) -> None:
        self._session = session
        self._change_ensemble = change_ensemble
        self._failed: dict[int, Member] = {}
        self._may_return: set[int] = set()
        """The members that only lost their connections, as far as is known."""
        self._returned: dict[int, float] = {}
        """The loop time at which each member last returned over a new connection, by its index."""
        self._changes = 0

    def of(self, member: Member, *, may_return: bool = False) -> None:
        """Replace a member as soon as no other change of the ensemble is in progress.

        With `may_return`, try a new connection to the same bookie first.
        """
        session = self._session
        self._failed[member.index] = member
        self._may_return.discard(member.index)
        if may_return:
            self._may_return.add(member.index)
        if not session.pipeline.frozen:
            session.pipeline.frozen = True
            session.tasks.start(self._run())

    async def _run(self) -> None:
        """Until none is left that failed (replication spec, 4.2 and 4.3)."""
        session = self._session
        try:
            while self._failed and session.failure is None:
                failed = {index: member.bookie_id for index, member in self._failed.items()}
                self._failed.clear()
                may_return = self._may_return.intersection(failed)
                self._may_return.clear()
                for index in failed:
                    session.member(index).leave()
                for index in await self._return(may_return):
                    del failed[index]
                if failed and session.failure is None:
                    await self._replace_and_tell(failed)
        except QuireError as error:
            session.fail(error)
        if session.failure is None:
            session.pipeline.frozen = False
            session.after_acks()

    async def _return(self, indexes: Collection[int]) -> list[int]:
        """Resume with those of these members that can be connected to at once, and return their
        indexes.

        The metadata does not change, and the members are not trusted: each is sent all entries that
        are not confirmed, and refuses them if the ledger was fenced meanwhile.
        """
        session = self._session
        now = asyncio.get_running_loop().time()
        rested = [
            i for i in indexes if now - self._returned.get(i, -RETURN_REST_S) >= RETURN_REST_S
        ]
        reached = await asyncio.gather(*(self._reached(session.ensemble[i]) for i in rested))
        back = [index for index, there in zip(rested, reached, strict=True) if there]
        for index in set(indexes).difference(back):
            session.pool.mark_failed(session.ensemble[index])
        if back and session.failure is None:
            self._returned.update(dict.fromkeys(back, now))
            session.begin_again(set(back))
            log_event(
                logging.INFO, "bookie_reconnected", ledger=session.ledger_id,
                entry=session.pipeline.last_confirmed + 1,
                bookie=[session.ensemble[index] for index in back],
            )  # fmt: skip
        return back

    async def _reached(self, bookie_id: str) -> bool:
        session = self._session
        try:
            async with asyncio.timeout(session.config.probe_timeout_s):
                await session.connect(bookie_id)
        except (QuireError, TimeoutError):
            return False
        return True

    async def _replace_and_tell(self, failed: dict[int, str]) -> None:
        session = self._session
        bookies = [failed[index] for index in sorted(failed)]
        spans = session.spans
        with nullcontext() if spans is None else spans.ensemble_change(bookies) as span:
            await self._replace(failed)
            now = {index: session.ensemble[index] for index in sorted(failed)}
            added = [bookie for index, bookie in now.items() if bookie != failed[index]]
            first = session.pipeline.last_confirmed + 1
            outcome = "replaced"
            if session.away is not None and session.away.indexes.intersection(failed):
                outcome = "fewer" if session.bearable() else "waits"
            note(span, added=added, outcome=outcome, first_entry=first)
        log_event(
            logging.INFO, "ensemble_changed", ledger=session.ledger_id,
            entry=first, bookie=bookies, added=added, outcome=outcome,
            error="; ".join(str(session.causes[b]) for b in bookies if b in session.causes),
        )  # fmt: skip

    async def _replace(self, failed: dict[int, str]) -> None:
        session = self._session
        self._changes += 1
        session.pool.counters.ensemble_changes += 1
        if self._changes > session.config.max_ensemble_changes:
            raise WriteError(
                f"ledger {session.ledger_id}: more than {session.config.max_ensemble_changes} "
                "ensemble changes",
                ledger_id=session.ledger_id,
                causes=session.causes,
            )
        if session.no_room is not None:
            replacements = {}
        elif session.bearable(failed):
            replacements = session.pool.pick_now(session.wanted(failed), rested=True)
        else:
            replacements = await session.pool.pick(session.wanted(failed), rested=True)
        ensemble = session.ensemble
        if replacements:
            gone = {index: failed[index] for index in replacements}
            first = session.pipeline.last_confirmed + 1
            try:
                ensemble = await self._change_ensemble(gone, replacements, first)
            except MetadataTooLargeError as error:
                self._no_room(error, first)
        # Every index that failed starts again, also where the bookie is the same in the end
        # (A replaced by B, B by A: rule 43).
        unreplaced = {index for index, bookie in failed.items() if ensemble[index] == bookie}
        changed = session.take_ensemble(ensemble)
        if unreplaced:
            session.go_on_without(unreplaced)
        session.begin_again(changed | (set(failed) - unreplaced))

    def _no_room(self, error: MetadataTooLargeError, first: int) -> None:
        """Keep the ensemble for the rest of the session, because the metadata cannot name another
        one. Members that fail are tried again, and entries go to the remaining ones."""
        session = self._session
        session.no_room = error
        session.pool.counters.ensemble_changes_without_room += 1
        log_event(
            logging.WARNING, "ensemble_change_does_not_fit", ledger=session.ledger_id, entry=first,
            error=str(error),
        )  # fmt: skip
