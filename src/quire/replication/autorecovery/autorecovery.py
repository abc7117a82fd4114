"""Autorecovery in one process: an auditor candidate and workers.

Any number of processes may run it, also together with Java's. One of them is elected auditor, and
all of them are workers. Their state is in the metadata store, so each process may end at any
moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.opening import opening
from quire._runtime.retry import Retry
from quire._runtime.tasks import TaskGroup
from quire.client import Client
from quire.client.client import connected
from quire.config import ClientConfig
from quire.errors import MetadataError
from quire.metadata.outages import forget_old_outages
from quire.replication.autorecovery.auditor import Adheres, Auditor, Log
from quire.replication.autorecovery.election import Election
from quire.replication.autorecovery.outage_log import OutageLog
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.autorecovery.worker import ReplicationWorker, forget_old_failures
from quire.replication.budget import Budget
from quire.replication.marks.locks import ReplicationLocks

SETTLE_S = 15.0
"""Seconds after this process has lost its session before an unregistered bookie can count as lost.
If the metadata store was away, bookies have lost their sessions too, and register again one by one.
Without the wait, the first process that is back would mark the ledgers of all of them."""


def _silent(event: str, **fields: object) -> None:
    pass


@opening
async def autorecovery_client(uri: str, config: ClientConfig) -> Client:
    """Connect a client for an autorecovery process to the cluster at `uri`.

    A large cluster has as many of these processes as bookies, and each of them uses few bookies.
    So the client reads the address of a bookie when it first uses the bookie. While the metadata
    store is away, it cannot do so, but autorecovery then repairs nothing anyway.

    Raises the errors of `quire.connect`.
    """
    return await connected(
        Client, uri, config=config, zookeeper=None, tracer=None, meter=None, lazy_addresses=True
    )


class Autorecovery:
    """A candidate in the election of the auditor, and replication workers, in one process.

    `run` runs both, and `stats` counts what they do.
    """

    def __init__(
        self,
        client: Client,
        owner: str,
        *,
        settings: AutorecoverySettings | None = None,
        auditor: bool = True,
        worker: bool = True,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        adheres: Adheres | None = None,
        log: Log = _silent,
        stats: AutorecoveryStats | None = None,
    ) -> None:
        """Prepare autorecovery.

        `owner` is the name of this process in votes and locks, in the form of a bookie id.
        `auditor` and `worker` say which of the two parts run. `adheres` decides whether a ledger is
        placed correctly, instead of the client's policy. `stats` has counters to continue from.

        Raises UsageError if `owner` cannot be a bookie id.
        """
        self.stats = stats if stats is not None else AutorecoveryStats()
        self._client = client
        self._store = client.metadata
        self._owner = owner
        self._settings = settings or AutorecoverySettings()
        self._parts: list[Callable[[], Awaitable[None]]] = []
        self._parts += [self._stand_and_audit] if auditor else []
        self._parts += [self._work] if worker else []
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._adheres = adheres
        self._log = log
        self._budget = Budget(self._settings.bytes_per_s)
        # One candidate and one set of locks for all calls of `run`: the next one withdraws a vote
        # and releases the locks that an earlier one could not release, because the store did not
        # answer when it was cancelled. Their session may go on.
        self._election = Election(self._store, self._owner, self._clock)
        self._locks = ReplicationLocks(self._store, self._owner, self._clock)
        self._settled_s = 0.0
        """The time, on the clock of the event loop, before which no bookie counts as lost."""

    async def run(self) -> None:
        """Run until cancelled.

        Cancellation is safe at any moment, and releases the vote and the locks. Errors of the
        metadata store and of bookies are not raised: the operation is retried. If the session with
        the metadata store is lost, the vote and the locks are lost too. Then everything under way
        is cancelled, and starts again in the next session.
        """
        while True:
            lost = asyncio.Event()
            watch = self._store.tree.on_session_lost(lost.set)
            try:
                async with TaskGroup() as group:
                    tasks = [group.create_task(_as_coroutine(part)) for part in self._parts]
                    await lost.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                watch.close()
            self.stats.sessions_lost += 1
            self._log("session_lost")
            self._settled_s = asyncio.get_running_loop().time() + SETTLE_S

    async def _stand_and_audit(self) -> None:
        election = self._election
        retry = Retry(self._settings.election_backoff, self._rng)
        log = OutageLog(self._log)
        while True:
            try:
                async with election.won() as lost:
                    log.worked()
                    self.stats.elections_won += 1
                    self._log("elected")
                    await self._audit_until(lost)
                    self._log("vote_lost")
            except MetadataError as error:
                self.stats.store_errors += 1
                log.failed("election_failed", error)
            await retry.pause()

    async def _audit_until(self, lost: asyncio.Event) -> None:
        auditor = Auditor(
            self._client,
            self._locks,
            settings=self._settings,
            stats=self.stats,
            clock=self._clock,
            rng=self._rng,
            adheres=self._adheres,
            settle_s=max(0.0, self._settled_s - asyncio.get_running_loop().time()),
            log=self._log,
        )
        async with TaskGroup() as group:
            task = group.create_task(auditor.run())
            await lost.wait()
            task.cancel()

    async def _work(self) -> None:
        worker = ReplicationWorker(
            self._client,
            self._locks,
            owner=self._owner,
            settings=self._settings,
            stats=self.stats,
            clock=self._clock,
            rng=self._rng,
            budget=self._budget,
            log=self._log,
        )
        async with TaskGroup() as group:
            group.create_task(worker.run())
            group.create_task(self._forget())

    async def _forget(self) -> None:
        while True:
            try:
                await forget_old_failures(self._client, self._locks)
                await forget_old_outages(self._store, self._clock.now_ms())
            except MetadataError:
                self.stats.store_errors += 1
            await asyncio.sleep(self._settings.backoff_max_s)


async def _as_coroutine(part: Callable[[], Awaitable[None]]) -> None:
    await part()
