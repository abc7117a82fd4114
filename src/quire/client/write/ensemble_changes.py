"""Changes of the ensemble of a ledger while it is written.

Members that fail return, are replaced, or are left out. One change runs at a time, and nothing is
confirmed meanwhile (rule 10 of docs/internals/replication-rules.md):

    only its connection is lost   The member returns over a new connection, if that is made at once.
    another bookie is available   It replaces the member, once the metadata names it.
    no bookie is available        The session continues without the member while every write set has
                                  its ack quorum. Otherwise it waits, at most `lost_quorum_limit_s`.

A member that is absent is tried again until it rejoins or another bookie replaces it. Connections
to several bookies that break at the same moment usually break because of the network between (a
switch restarts), and the bookies are alive. Apache's client gives up the ledger in this case. A
ledger whose metadata has no room to name another ensemble is treated in the same way: its members
are tried again, and no other bookie is used.

Continuing without a member changes nothing in the metadata, and relies on no assumption about the
member. Entries that it had acknowledged are on its disk, and count. With deferred sync they may be
gone, and do not count (`DeferredPipeline.park`). A member that returns, restarted or not, is sent
everything after the last confirmed entry. It refuses these entries if the ledger was fenced
meanwhile. A member that returns at once is also sent earlier entries that it has not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from quire._runtime.retry import Backoff
from quire._runtime.tasks import TaskSet
from quire._runtime.units import some_of
from quire.client.cluster.placement import SEE_BOOKIES
from quire.client.cluster.pool import BookiePool
from quire.client.observability.logs import log_event
from quire.client.observability.tracing import SessionSpans, note
from quire.config import ClientConfig
from quire.core.append.member_changes import members_after_change
from quire.core.append.pipeline import AddPipeline
from quire.core.append.quorum import bearable
from quire.core.append.spread_pipeline import SpreadPipeline
from quire.core.placement import Wanted
from quire.core.placement.descriptions import NAMES_MAX
from quire.errors import (
    BookieIOError,
    MetadataTooLargeError,
    NotEnoughBookiesError,
    QuireError,
    TlsError,
    UnauthorizedError,
    WriteError,
)
from quire.net.handshake import is_expired

RETURN_REST_S = 30.0
"""Seconds after a member has returned over a new connection during which it may not return so
again. If that connection is lost within this time, the member is replaced."""
REJOIN_DELAY_S = 1.0
"""The longest pause, in seconds, before the first attempt to reconnect to an absent member. While
no ack quorum is left, it is the longest pause between all attempts."""
REJOIN_BACKOFF = Backoff(REJOIN_DELAY_S, 30.0)
"""The pauses between attempts to reconnect to an absent member."""

ChangeEnsemble = Callable[[dict[int, str], dict[int, str], int], Awaitable[tuple[str, ...]]]
"""A function that records an ensemble change, and returns the ensemble that is now in force.

It receives the failed bookies and the replacements by index, and the first entry of the new
ensemble. It raises the error that ends the session.
"""


class EnsembleMember(Protocol):
    """One member of a session's ensemble: a bookie at an index, until it is replaced."""

    index: int
    bookie_id: str

    def leave(self) -> None:
        """Send nothing more to the member, and ignore its further answers."""
        ...


class ChangingSession(Protocol):
    """The attributes and methods of an `AddSession` that changes of its ensemble use."""

    @property
    def ledger_id(self) -> int: ...
    @property
    def config(self) -> ClientConfig: ...
    @property
    def pool(self) -> BookiePool: ...
    @property
    def tasks(self) -> TaskSet: ...
    @property
    def spans(self) -> SessionSpans | None: ...
    @property
    def pipeline(self) -> AddPipeline: ...
    @property
    def ensemble(self) -> tuple[str, ...]: ...
    @property
    def write_quorum(self) -> int: ...
    @property
    def ack_quorum(self) -> int: ...
    @property
    def failure(self) -> QuireError | None: ...
    @property
    def causes(self) -> Mapping[str, BaseException | str]: ...

    @property
    def met(self) -> bool:
        """Whether any member of the session was ever connected."""
        ...

    @property
    def owes(self) -> bool:
        """Whether callers may be waiting for entries that are not acknowledged yet."""
        ...

    def member(self, index: int) -> EnsembleMember: ...

    def connect(self, bookie_id: str) -> Coroutine[Any, Any, object]:
        """Connect to a bookie. Raises the errors of `BookiePool.channel`."""
        ...

    def take_ensemble(self, ensemble: tuple[str, ...]) -> None:
        """Use this ensemble from now on, which `ChangeEnsemble` has returned."""
        ...

    def begin_again(self, indexes: set[int], *, same: bool = False) -> None:
        """Send every entry after the last confirmed one to the members at these indexes.

        With `same`, each is the same bookie as before, and is also sent the earlier entries that it
        has not acknowledged.
        """
        ...

    def after_acks(self) -> None:
        """Confirm the entries that now have their quorums, and wake the callers that wait."""
        ...

    def fail_member(self, member: EnsembleMember) -> None: ...
    def fail(self, error: QuireError) -> None: ...

    def end_with_client(self) -> None:
        """End the session because the client was closed."""
        ...


class EnsembleChanges:
    """The ensemble changes of one session: its failed and absent members, and their replacement.

    A session creates this object when its first member fails.
    """

    def __init__(self, session: ChangingSession, change_ensemble: ChangeEnsemble) -> None:
        self.absent: frozenset[int] = frozenset()
        """The ensemble indexes of the members that failed, have no replacement and are left out."""
        self._session = session
        self._change_ensemble = change_ensemble
        self._failed: dict[int, EnsembleMember] = {}
        self._may_return: set[int] = set()
        """The indexes of the failed members of which only the connection is known to be lost."""
        self._returned: dict[int, float] = {}
        """The loop time at which each member last returned over a new connection, by its index."""
        self._changes = 0
        """The number of ensembles that this session has begun after its first one."""
        self._no_room: MetadataTooLargeError | None = None
        """The error of an ensemble change that did not fit into the metadata, or None. Once it is
        set, the ensemble is not changed any more."""
        self._attempts: dict[int, int] = {}
        self._giving_up: asyncio.TimerHandle | None = None
        """The timer that ends the session if it has no ack quorum then, or None. It starts when no
        ack quorum is left, and continues even if there is one again."""
        self._done: tuple[int, int] | None = None
        """The value of `_progress` when the timer `_giving_up` was last started."""
        self._late = False
        """Whether the timer ended when an ack quorum was connected again, but had acknowledged
        nothing since. If the quorum is lost once more, the session then fails at once."""

    # -- what is left -------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether appends must wait, because an ack quorum is missing and too much is unconfirmed.

        The limit is `max_unacked_bytes`.
        """
        session = self._session
        if self.bearable():
            return False
        return session.pipeline.unconfirmed_bytes >= session.config.max_unacked_bytes

    def bearable(self, missing: Iterable[int] = ()) -> bool:
        """Return whether every write set has an ack quorum without the given and absent members.

        `missing` has ensemble indexes. The fault domains of `spread_acks` are checked as well.
        """
        session, absent = self._session, self.absent.union(missing)
        pipeline = session.pipeline
        if isinstance(pipeline, SpreadPipeline) and not pipeline.spread_without(absent):
            return False
        return bearable(absent, len(session.ensemble), session.write_quorum, session.ack_quorum)

    @property
    def _patience_s(self) -> float:
        """Seconds that the session waits for a lost ack quorum.

        It is 0 if no member was ever connected, which usually shows a mistake in the configuration.
        """
        return self._session.config.lost_quorum_limit_s if self._session.met else 0.0

    def _wanted(self, failed: dict[int, str]) -> Wanted:
        session = self._session
        quorums = session.write_quorum, session.ack_quorum
        return Wanted.replacing(session.ensemble, failed, *quorums)

    async def _reached(self, bookie_id: str, limit_s: float | None = None) -> bool:
        """Return whether a connection to the bookie could be made within `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._session.connect(bookie_id)
        except (QuireError, TimeoutError):
            return False
        return True

    # -- replacing ----------------------------------------------------------------------------

    def replace(self, member: EnsembleMember, *, may_return: bool = False) -> None:
        """Replace a member as soon as no other change of the ensemble is in progress.

        With `may_return`, a new connection to the same bookie is tried first.
        """
        session = self._session
        if session.pool.closed:
            session.end_with_client()
            return
        self._failed[member.index] = member
        self._may_return.discard(member.index)
        if may_return:
            self._may_return.add(member.index)
        if not session.pipeline.frozen:
            session.pipeline.frozen = True
            session.tasks.start(self._run())

    async def _run(self) -> None:
        """Return, replace or leave out failed members until none is left, then confirm again."""
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
        except Exception as error:  # noqa: BLE001 - a defect must not make appends wait forever
            fail_with_defect(session, error)
        if session.failure is None:
            session.pipeline.frozen = False
            session.after_acks()

    async def _return(self, indexes: Collection[int]) -> list[int]:
        """Reconnect to failed members, and resume with those that can be reached at once.

        Returns the ensemble indexes of the members that resumed. A member that returned within the
        last `RETURN_REST_S` is not tried. The metadata does not change. Each member is sent all
        entries that are not confirmed, and refuses them if the ledger was fenced meanwhile. It is
        also sent the confirmed ones that it has not acknowledged. Otherwise it would lack them for
        good, because nothing replaces or repairs a member that is alive.
        """
        session = self._session
        now = asyncio.get_running_loop().time()
        rested = [
            i for i in indexes if now - self._returned.get(i, -RETURN_REST_S) >= RETURN_REST_S
        ]
        limit_s = session.config.probe_timeout_s
        attempts = (self._reached(session.ensemble[index], limit_s) for index in rested)
        reached = await asyncio.gather(*attempts)
        back = [index for index, there in zip(rested, reached, strict=True) if there]
        for index in set(indexes).difference(back):
            session.pool.mark_failed(session.ensemble[index])
        if back and session.failure is None:
            self._returned.update(dict.fromkeys(back, now))
            session.begin_again(set(back), same=True)
            log_event(
                logging.INFO, "bookie_reconnected", ledger=session.ledger_id,
                entry=session.pipeline.last_confirmed + 1,
                bookie=[session.ensemble[index] for index in back],
            )  # fmt: skip
        return back

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
            if self.absent.intersection(failed):
                outcome = "fewer" if self.bearable() else "waits"
            note(span, added=added, outcome=outcome, first_entry=first)
        log_event(
            logging.INFO, "ensemble_changed", ledger=session.ledger_id,
            entry=first, bookie=bookies, added=added, outcome=outcome,
            error="; ".join(str(session.causes[b]) for b in bookies if b in session.causes),
        )  # fmt: skip

    async def _replace(self, failed: dict[int, str]) -> None:
        session = self._session
        if self._no_room is not None:
            replacements = {}
        else:
            wait = not self.bearable(failed)
            replacements = await session.pool.pick(self._wanted(failed), rested=True, wait=wait)
            if session.failure is not None:
                raise session.failure.with_traceback(None)  # it changes nothing any more
        ensemble = session.ensemble
        if replacements:
            self._check_changes()
            gone = {index: failed[index] for index in replacements}
            first = session.pipeline.last_confirmed + 1
            try:
                ensemble = await self._change_ensemble(gone, replacements, first)
            except MetadataTooLargeError as error:
                self._keep_the_ensemble(error, first)
            else:
                self._changes += 1
                session.pool.counters.ensemble_changes += 1
        after = members_after_change(session.ensemble, ensemble, failed, self.absent)
        session.take_ensemble(ensemble)
        self.absent = after.absent
        if session.failure is not None:
            return
        if after.left_out:
            self._go_on_without(after.left_out)
        session.begin_again(set(after.restarted))

    def _check_changes(self) -> None:
        """Raise WriteError if the session may not change its ensemble once more."""
        session = self._session
        if self._changes < session.config.max_ensemble_changes:
            return
        raise WriteError(
            f"the writer of ledger {session.ledger_id} gave up after "
            f"{session.config.max_ensemble_changes} ensemble changes (max_ensemble_changes). "
            "Entries in flight may or may not be in the ledger",
            ledger_id=session.ledger_id,
            causes=session.causes,
            remedy="Check why bookies fail so often, and open the ledger with recovery to "
            "see which entries it has",
        )

    def _keep_the_ensemble(self, error: MetadataTooLargeError, first: int) -> None:
        """Keep the ensemble from now on, because the metadata has no room for another one.

        Members that fail are tried again, and meanwhile entries go to the other members.
        """
        session = self._session
        self._no_room = error
        session.pool.counters.ensemble_changes_without_room += 1
        log_event(
            logging.WARNING, "ensemble_change_does_not_fit", ledger=session.ledger_id, entry=first,
            error=str(error),
        )  # fmt: skip

    # -- going on with fewer ------------------------------------------------------------------

    def _go_on_without(self, indexes: Collection[int]) -> None:
        """Continue without the members at these indexes, for which there is no replacement.

        Background tasks try to bring them back. Raises NotEnoughBookiesError if no ack quorum is
        left and the session may not wait for one (`_patience_s`).
        """
        session = self._session
        if not self._patience_s and not self.bearable(indexes):
            raise self._nobody_left(indexes)
        session.pipeline.park(indexes)
        new = [index for index in indexes if index not in self.absent]
        self.absent = self.absent.union(new)
        if not self.bearable():
            self._limit_the_wait()
        for index in new:
            session.tasks.start(self._bring_back(index))

    def _limit_the_wait(self) -> None:
        """Start the timer that limits how long the session waits for an ack quorum.

        A running timer starts anew only if an entry was acknowledged since its start, or if no
        entry waits to be acknowledged. Otherwise members that accept connections and break them
        again, or never answer, could prolong the wait.
        """
        session = self._session
        moved = self._progress != self._done or not session.owes
        if self._late and not moved:
            session.fail(self._nobody_left(self.absent))
        elif self._giving_up is None or moved:
            self.stop()
            self._done, self._late = self._progress, False
            limit_s = session.config.lost_quorum_limit_s
            self._giving_up = asyncio.get_running_loop().call_later(limit_s, self._give_up)

    @property
    def _progress(self) -> tuple[int, int]:
        """The ids of the last accepted and the last confirmed entry, which show any progress."""
        return self._session.pipeline.accepted, self._session.pipeline.last_confirmed

    def _give_up(self) -> None:
        session = self._session
        self._giving_up = None
        if not self.bearable():
            session.fail(self._nobody_left(self.absent))
        else:
            self._late = session.owes and self._progress == self._done

    def stop(self) -> None:
        """Stop the timer that ends the session."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    async def _bring_back(self, index: int) -> None:
        """Replace an absent member as soon as another bookie is available, or let it rejoin.

        It rejoins as soon as it can be reached.
        """
        session = self._session
        member, pool = session.member(index), session.pool
        await self._pause(index, longer=True)
        while session.failure is None and index in self.absent and session.member(index) is member:
            try:
                wanted = self._wanted({index: member.bookie_id})
                found = self._no_room is None and pool.pick_now(wanted, rested=True)
            except QuireError as error:  # the placement policy does not work
                session.fail(error)
                return
            if found:
                self.absent = self.absent.difference((index,))
                session.fail_member(member)
                return
            there = pool.bookies.find(member.bookie_id) is not None
            reached = there and await self._reached(member.bookie_id)
            if not reached:
                await self._pause(index, longer=there)
            elif session.pipeline.frozen:
                await self._pause(index, longer=False)
            elif session.failure is None and index in self.absent:
                self.absent = self.absent.difference((index,))
                session.begin_again({index})
                log_event(
                    logging.INFO, "bookie_rejoined", ledger=session.ledger_id,
                    entry=session.pipeline.last_confirmed + 1, bookie=member.bookie_id,
                )  # fmt: skip
                return

    async def _pause(self, index: int, *, longer: bool) -> None:
        """Wait until the registered bookies change, or until it is time for another attempt.

        With `longer`, later pauses for the member at this index are longer than this one.
        """
        attempts = self._attempts.get(index, 0) + 1
        if longer:
            self._attempts[index] = attempts
        pool = self._session.pool
        pause_s = REJOIN_BACKOFF.pause_s(attempts if self.bearable() else 1, pool.rng)
        await pool.changed(asyncio.get_running_loop().time() + pause_s)

    def _nobody_left(self, indexes: Iterable[int]) -> NotEnoughBookiesError:
        """Return the error that ends the session because these members cannot be replaced."""
        session = self._session
        lost = {index: session.ensemble[index] for index in sorted(indexes)}
        placement = session.pool.placement
        limit_s = self._patience_s
        tried = f" (tried again for {limit_s:g} s): " if limit_s else ": "
        see = ""
        if self._no_room is None:
            see = f". {SEE_BOOKIES}"
            what = "no bookie is left to replace"
            remedy = _advice([session.causes.get(bookie) for bookie in lost.values()])
            try:
                why = placement.why(self._wanted(lost), placement.view())
            except QuireError as error:  # the placement policy does not work
                why = str(error)
        else:
            what, remedy = "the metadata has no room to replace", "Start these bookies again"
            why = self._no_room.args[0]
        reason = f"{what} {some_of(lost.values(), NAMES_MAX)}{tried}{why}"
        nobody = NotEnoughBookiesError(
            f"the writer of ledger {session.ledger_id} gave up, because {reason}",
            ledger_id=session.ledger_id,
            causes=session.causes,
            remedy=f"{remedy}, then open the ledger with recovery{see}",
        )
        nobody.reason = reason
        return nobody


def fail_with_defect(session: ChangingSession, error: Exception) -> None:
    """Report an unexpected error to the event loop, and end the session of a writer with it."""
    message = f"unexpected error in the writer of ledger {session.ledger_id}"
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
    failure = WriteError(
        f"the writer of ledger {session.ledger_id} failed because of a bug: {error!r}. "
        "Entries in flight may or may not be in the ledger",
        ledger_id=session.ledger_id,
        causes=session.causes,
        remedy="Open the ledger with recovery to see which entries it has, and report this error",
    )
    failure.outcome_known = False
    session.fail(failure)


def _advice(causes: Sequence[BaseException | str | None]) -> str:
    """Return the first step of a remedy for bookies that were lost for the given causes."""
    refusals = [one for one in causes if isinstance(one, TlsError | UnauthorizedError)]
    if refusals and len(refusals) == len(causes):
        # Another bookie may not accept this client either. The causes say which side is wrong.
        if all(map(is_expired, refusals)):
            return "Renew the certificates of these bookies, as the causes say"
        if all(isinstance(one, UnauthorizedError) for one in refusals):
            return "Correct the client's password or certificate, as the causes say"
        return "Correct the certificate, the password or the TLS settings that the causes name"
    if all(isinstance(one, BookieIOError) for one in causes):
        return "Look for the reason in the logs of these bookies, or start another bookie"
    return "Start another bookie"
