"""The permanent removal of a bookie.

The bookie gets no new ledgers, its entries are copied to others, and when no metadata names it any
more, its cookie is removed. If the metadata of a ledger cannot be read, or the list of ledgers may
not be complete, a ledger may name the bookie. Then everything else is done, and the cookie stays.

    order DRAIN     The bookie makes itself read-only, so that no client places a ledger on it and
                    writers replace it. A stopped bookie reads the order when it starts.
    copies          They are made ledger by ledger, also from the bookie if it is running.
    another pass    All ledgers are checked again from the beginning, after the last copy.
    order RETIRED   From here on, the job cannot be cancelled.
    cookie          It is removed, unless the bookie was created again since the beginning. The
                    bookie notices the removal and ends. Then the order is withdrawn.

The metadata store shows which step was reached, so a job that was interrupted at any moment
continues there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from quire.client import Client
from quire.errors import (
    JobError,
    KeyExistsError,
    NoSuchKeyError,
    UsageError,
    VersionConflictError,
    nothing_done,
)
from quire.metadata.bookies.collection import check_not_back
from quire.metadata.bookies.directories import forget_bookie
from quire.metadata.bookies.orders import (
    Order,
    What,
    give_order,
    stored_order,
    withdraw_order,
)
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.naming import check_all_listed
from quire.metadata.ledgers.unreadable import Unread
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.moves.cookie_removal import identity_of, remove_cookie
from quire.replication.moves.preflight import Shapes, check_removal
from quire.replication.moves.recover import (
    DEFAULT_OPTIONS,
    JobProgress,
    MoveOptions,
    RecoverResult,
    moves_of,
    refuse_unknown,
    take_out_of,
    with_unread,
)

DRAIN_WAIT_S = 20.0
"""Seconds that a bookie may take to make itself read-only."""
RETIRE_WAIT_S = 20.0
"""Seconds that a decommissioned bookie may take to end."""
SETTLE_S = 3.0
"""Seconds between the observation that the bookie is read-only and the last pass over all ledgers.
By then, clients have noticed too that the bookie is read-only."""
POLL_S = 0.2
ORDER_ATTEMPTS = 5
"""The number of attempts to change an order that other commands change meanwhile."""
PASSES_MAX = 20
"""The largest number of passes over all ledgers. Passes are repeated while ledgers that name the
bookie are found and copied."""


@dataclass(frozen=True, slots=True)
class Decommissioned:
    """The result of a decommissioning."""

    moved: RecoverResult
    alive: bool
    """Whether the bookie was registered when the job began."""
    drained: bool = False
    """Whether no metadata names the bookie any more."""
    cookie_removed: bool = False
    ended: bool = False
    """Whether the job saw, after it removed the cookie, that the bookie is not registered."""

    def as_json(self, limit: int | None = None) -> dict[str, Any]:
        return {
            **self.moved.as_json(limit),
            "alive": self.alive,
            "drained": self.drained,
            "cookie_removed": self.cookie_removed,
            "ended": self.ended,
        }


async def decommission(
    client: Client,
    locks: ReplicationLocks,
    bookie: str,
    *,
    owner: str,
    now_ms: Callable[[], int],
    dry_run: bool = False,
    keep_cookie: bool = False,
    options: MoveOptions = DEFAULT_OPTIONS,
    progress: JobProgress | None = None,
) -> Decommissioned:
    """Empty a bookie, running or stopped, and remove its cookie.

    With `keep_cookie`, the bookie stays read-only and empty until `take_back` withdraws the
    order. On return, the copies that the result counts are durable and named in the metadata.
    `owner` is the name that the order to the bookie contains, and `now_ms` returns the Unix
    time in milliseconds. `dry_run` changes nothing; the result has the ledgers that would be
    copied. `progress` receives the progress of the job, unless it is None. The job may be repeated,
    and run several times at once. If it is cancelled, the bookie stays read-only and the copies
    made so far remain: run the job again, or call `take_back`.

    Raises:
        UsageError: The bookie is not known.
        JobRefusedError: Some of its ledgers cannot be moved now, or the other bookies have too
            little space, and `options.check` is set. Nothing was changed. A dry run raises it as
            well.
        JobError: The bookie continues to accept entries (Apache's bookies do not know the order),
            was created again meanwhile, or another process called `take_back`. Or search after
            search found ledgers that name the bookie.
        MetadataWentBackError: The store went back to an older state: ledgers that it does not have
            may be only on this bookie.
        MetadataError: The metadata store failed, or its list of ledgers may not be complete. If the
            list may not be complete, the cookie was kept; if the store failed, the cookie may be
            removed. Run the job again: it continues.
    """
    job = _Decommissioning(client, locks, bookie, options, progress)
    before = await identity_of(client.metadata, bookie)
    order = await stored_order(client.metadata, bookie)
    alive = await job.registered()
    unread, shapes = Unread(), Shapes(bookie)
    moves = await moves_of(
        client, bookie, unread, password=options.password, progress=progress, shapes=shapes
    )
    if before.cookie is None and order is None and not alive and not moves:
        await refuse_unknown(client, bookie, len(unread))
    if moves and options.check:
        what = f"bookie {bookie} cannot be emptied"
        size = sum(one.bytes for one in moves)
        await check_removal(client, shapes, size, len(moves), partly=False, what=what)
    if dry_run:
        return Decommissioned(with_unread(RecoverResult(bookie, True, tuple(moves)), unread), alive)
    await check_not_back(client.metadata)
    if order is None or order.value.what is not What.RETIRED:
        await job.drain(Order(What.DRAIN, now_ms(), owner), order)
    moved = await job.empty()
    result = Decommissioned(moved, alive, drained=moved.complete)
    if not result.drained or keep_cookie:
        return result
    # If the store went back in time, ledgers that it lacks may be on this bookie alone. The same
    # holds for ledgers that are not listed.
    await check_not_back(client.metadata)
    await check_all_listed(client.metadata)
    version = await job.retire(Order(What.RETIRED, now_ms(), owner))
    if before.cookie is not None:
        await remove_cookie(client.metadata, bookie, before)
    ended = await job.end(version)
    # A client that did not know yet that the bookie is read-only may have used it once more.
    unread = Unread()
    late = await job.run_pass(unread)
    moved = with_unread(moved if late is None else together(moved, late), unread)
    if ended and moved.complete:
        await forget_bookie(client.metadata, bookie, before.directories)
    return replace(result, moved=moved, drained=moved.complete, cookie_removed=True, ended=ended)


async def take_back(client: Client, bookie: str) -> bool:
    """Withdraw the order of a decommissioning, so that the bookie becomes writable again.

    Return False if there was no order. Copies stay where they are. Raises UsageError if the bookie
    was already decommissioned, JobError if other commands changed the order again and again, and
    MetadataError. Cancel-safe.
    """
    for _ in range(ORDER_ATTEMPTS):
        found = await stored_order(client.metadata, bookie)
        if found is None:
            return False
        if found.value.what is What.RETIRED:
            raise UsageError(
                f"the decommissioning of bookie {bookie} cannot be cancelled, because no ledger "
                "names the bookie any more",
                remedy="Start a new bookie on an empty directory. If the cookie of this one is "
                "still there (`quire bookie cookie show`), run the command again without --cancel",
            )
        try:
            await withdraw_order(client.metadata, bookie, found.version)
        except VersionConflictError:
            continue  # the job has just made it irrevocable, or another job gave it again
        return True
    raise nothing_done(
        JobError(
            f"the decommissioning of bookie {bookie} was not cancelled: other commands changed "
            f"its order {ORDER_ATTEMPTS} times in a row. Nothing was changed",
            remedy="Run the command again",
        )
    )


@dataclass(slots=True)
class _Decommissioning:
    client: Client
    locks: ReplicationLocks
    bookie: str
    options: MoveOptions
    progress: JobProgress | None
    drained_by: Order | None = None
    """The order that has kept the bookie read-only since `drain`, of this job or another one."""

    async def cookie(self) -> Versioned[bytes] | None:
        try:
            return await self.client.metadata.read_cookie(self.bookie)
        except NoSuchKeyError:
            return None

    async def registered(self) -> bool:
        return self.bookie in await self.client.metadata.registered()

    async def drain(self, order: Order, found: Versioned[Order] | None) -> None:
        """Give the order and wait until the bookie is not writable.

        `found` is an order from before the job, which is not replaced. If the bookie stays writable
        for `DRAIN_WAIT_S`, JobError is raised. The order is withdrawn then if this job gave it, and
        nobody has changed it since.
        """
        given: int | None = None
        if found is None:
            # Another job may have given it at the same time.
            with suppress(KeyExistsError):
                given = await give_order(self.client.metadata, self.bookie, order, None)
            found = await stored_order(self.client.metadata, self.bookie)
        self.drained_by = None if found is None else found.value
        if await self._within(DRAIN_WAIT_S, self._read_only):
            return
        done = "nothing was changed"
        if given is None:
            done = "the order of another command, which began earlier, stays"
        else:
            with suppress(VersionConflictError):
                await withdraw_order(self.client.metadata, self.bookie, given)
        raise JobError(
            f"bookie {self.bookie} still accepts entries: it does not follow Quire's orders, or "
            f"does not respond; {done}",
            remedy="If it is a bookie of Apache, make it read-only (PUT "
            '/api/v1/bookie/state/readonly with the body {"readOnly": true}). Otherwise stop the '
            "bookie. Then run the command again",
        )

    async def _read_only(self) -> bool:
        # Only the list matters, and it is read several times a second.
        return self.bookie not in (await self.client.metadata.bookies(addresses=False)).writable

    async def empty(self) -> RecoverResult:
        """Make passes over all ledgers until one finds none that names the bookie, or nothing more
        can be done.

        A ledger that the last pass could not read may name the bookie. Then the result is not
        complete, and the bookie keeps its cookie. Raises JobError if each of `PASSES_MAX` passes
        finds ledgers that name it.
        """
        loop = asyncio.get_running_loop()
        settled = loop.time() + SETTLE_S
        total: RecoverResult | None = None
        for _ in range(PASSES_MAX):
            began, unread = loop.time(), Unread()
            found = await self.run_pass(unread)
            if found is not None:
                total = found if total is None else together(total, found)
                if not found.complete:
                    break
            elif began >= settled:
                break
            else:
                await asyncio.sleep(settled - began)
        else:
            raise JobError(
                f"bookie {self.bookie} is not empty: each of {PASSES_MAX} searches of all ledgers "
                "found some that name it, so other programs still place ledgers on it. Their "
                "copies were made, and the bookie keeps its cookie",
                remedy="Find out which programs do not notice that the bookie is read-only, and "
                "run the command again",
            )
        return with_unread(total or RecoverResult(self.bookie, False, ()), unread)

    async def run_pass(self, unread: Unread) -> RecoverResult | None:
        """Replace the bookie in the ledgers that name it, in one pass over all ledgers.

        Return None if no ledger names it, as far as their metadata can be read. Ledgers whose
        metadata cannot be read are recorded in `unread`.
        """
        moves = await moves_of(
            self.client,
            self.bookie,
            unread,
            password=self.options.password,
            progress=self.progress,
        )
        if not moves:
            return None
        return await take_out_of(
            self.client,
            self.locks,
            self.bookie,
            moves,
            options=self.options,
            progress=self.progress,
        )

    async def retire(self, order: Order) -> int | None:
        """Make the decommissioning irrevocable, and return the version of the order.

        The result is None if another job completed the decommissioning meanwhile. Raises JobError
        if the order was withdrawn before, even if it was given again: ledgers may have been placed
        on the bookie in between.
        """
        store = self.client.metadata
        for _ in range(ORDER_ATTEMPTS):
            found = await stored_order(store, self.bookie)
            if found is None and await self.cookie() is None:
                return None
            if found is None:
                break
            if found.value.what is What.RETIRED:
                return found.version
            if found.value != self.drained_by:
                break
            try:
                return await give_order(store, self.bookie, order, found.version)
            except (VersionConflictError, NoSuchKeyError):
                continue
        raise JobError(
            f"the decommissioning of bookie {self.bookie} was cancelled by another command: the "
            "bookie may accept entries again, and keeps its cookie",
            remedy="If it is to be decommissioned after all, run the command again",
        )

    async def end(self, version: int | None) -> bool:
        """Wait until the bookie is no longer registered, and withdraw the order.

        `version` is the version of the order, or None if there is none to withdraw. Return False,
        and keep the order, if the bookie stays registered for `RETIRE_WAIT_S`.
        """
        if not await self._within(RETIRE_WAIT_S, self._unregistered):
            return False  # the order stays, so that the bookie does not become writable again
        if version is not None:
            try:
                await withdraw_order(self.client.metadata, self.bookie, version)
            except VersionConflictError:
                pass  # another bookie with this id is already being decommissioned
        return True

    async def _unregistered(self) -> bool:
        return not await self.registered()

    async def _within(self, limit_s: float, holds: Callable[[], Any]) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not await holds():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True


def together(before: RecoverResult, now: RecoverResult) -> RecoverResult:
    """Combine the results of two passes.

    Counts are added, and a ledger in both is once in `moves`. The ledgers that remain are those of
    the second pass.
    """
    again = {one.ledger for one in before.moves}
    return replace(
        now,
        moves=(*before.moves, *(one for one in now.moves if one.ledger not in again)),
        ledgers=before.ledgers + now.ledgers,
        fragments=before.fragments + now.fragments,
        entries=before.entries + now.entries,
        bytes=before.bytes + now.bytes,
        recovered=(*before.recovered, *now.recovered),
        fenced=(*before.fenced, *now.fenced),
    )
