"""Checks of replicas that deny an entry which another replica has.

A ledger may be closed while a member of its ensemble still writes entries that an ack quorum has.
Its replica merely lags, and has everything a moment later. So a single denial proves nothing. The
check runs in the background, where no reader waits. It reads the metadata again, because the bookie
may have been replaced. Then it asks the bookie again, up to `CHECKS` times, with each pause twice
as long as the one before. Only a replica that denies the entry each time counts as missing, and is
reported for repair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from quire._runtime.retry import Backoff
from quire._runtime.tasks import TaskSet
from quire.client.observability.logs import log_event
from quire.config import ClientConfig

CHECKS = 3
"""The default for the number of times that a bookie is asked again before its replica counts as
missing."""
PENDING_MAX = 1_000
"""The largest number of replicas that may wait to be asked again. Denials by further replicas are
ignored until a later read meets them again."""
CONFIRMED_MAX = 100_000
"""The largest number of missing replicas to remember. When it is reached, all of them are
forgotten."""
COUNTED_MAX = 10_000
"""The largest number of bookies for which lagging replicas are counted separately."""

Replica = tuple[int, str]
"""A ledger id, and the id of a bookie that should have entries of the ledger."""
AskAgain = Callable[[], Awaitable[bool | None]]
"""A function that asks a replica again.

It returns True if the replica still denies the entry and should have it. It returns False if the
replica has the entry, or need not have it any more, and None if the check failed.
"""


class Absences:
    """The checks of the replicas that have denied entries to one client."""

    def __init__(self, config: ClientConfig, tasks: TaskSet) -> None:
        self._pauses = Backoff(config.absence_recheck_s)
        self._tasks = tasks
        self._pending: set[Replica] = set()
        self._confirmed: set[Replica] = set()
        self._lags: dict[str, int] = {}
        self.lagged = 0
        """The number of replicas that denied an entry and had it when they were asked again."""

    def denied(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        ask_again: AskAgain,
        confirmed: Callable[[], None],
        checks: int = CHECKS,
    ) -> None:
        """Record that a bookie denied an entry, and check this in the background.

        `confirmed` is called when the bookie has repeated the denial `checks` times. It is called
        immediately if the replica is known to be missing, or if `absence_recheck_s` is 0.
        """
        replica = (ledger_id, bookie)
        if replica in self._confirmed or not self._pauses.first_s:
            confirmed()
            return
        if replica in self._pending or len(self._pending) >= PENDING_MAX:
            return
        self._pending.add(replica)
        self._tasks.start(self._check(replica, entry_id, ask_again, confirmed, checks))

    async def _check(
        self,
        replica: Replica,
        entry_id: int,
        ask_again: AskAgain,
        confirmed: Callable[[], None],
        checks: int,
    ) -> None:
        waited_s = 0.0
        try:
            for number in range(checks):
                # No jitter: a replica is given at least this time.
                pause_s = self._pauses.longest_s(number + 1)
                await asyncio.sleep(pause_s)
                waited_s += pause_s
                denies = await ask_again()
                if denies is None:
                    return
                if not denies:
                    self._lagged(replica, entry_id, waited_s)
                    return
            if len(self._confirmed) >= CONFIRMED_MAX:
                self._confirmed.clear()
            self._confirmed.add(replica)
            confirmed()
        finally:
            self._pending.discard(replica)

    def _lagged(self, replica: Replica, entry_id: int, waited_s: float) -> None:
        """Count a replica that was late with an entry."""
        ledger_id, bookie = replica
        self.lagged += 1
        count = self._lags.get(bookie, 0) + 1
        if bookie in self._lags or len(self._lags) < COUNTED_MAX:
            self._lags[bookie] = count
        if str(count).strip("0") == "1":  # log at 1, 10, 100 ...: nothing is wrong with the bookie
            log_event(
                logging.INFO, "replica_lagged", bookie=bookie, ledger=ledger_id, entry=entry_id,
                count=count, seconds=waited_s,
            )  # fmt: skip
