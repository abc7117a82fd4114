"""What the cluster is told of a bookie: that it is there, and whether it takes writers' entries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from quire._runtime.event_log import EventLog
from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.errors import KeyExistsError, QuireError
from quire.metadata.interface import BookieAddress, MetadataStore, Registration

ANNOUNCE_BACKOFF = Backoff(1.0, 1.0)
"""The pauses before a bookie tells its state again."""


class Announcement:
    """The registration of a bookie, kept as what `writable` says. It is told by `soon` when that
    may have changed."""

    def __init__(
        self, writable: Callable[[], bool], log: EventLog, tasks: TaskSet, rng: random.Random
    ) -> None:
        self._rng = rng
        self._writable = writable
        self._log = log
        self._tasks = tasks
        self._registration: Registration | None = None
        self._announcing = False

    async def register(
        self, metadata: MetadataStore, address: BookieAddress, *, writable: bool
    ) -> asyncio.Future[KeyExistsError]:
        """The future is set when another process has the id: then it is registered no more."""
        self._registration = await metadata.register_bookie(address, readonly=not writable)
        return self._registration.lost

    async def withdraw(self) -> None:
        """An error is logged: then it lapses by itself."""
        if self._registration is not None:
            registration, self._registration = self._registration, None
            try:
                await registration.close()
            except QuireError as error:
                self._log("withdraw_failed", error=str(error))

    def soon(self) -> None:
        """Nothing before it is registered, which says it anyway."""
        if self._registration is not None and not self._announcing:
            self._announcing = True
            self._tasks.start(self._announce(self._registration))

    async def _announce(self, registration: Registration) -> None:
        """Register as what the bookie is now: one call at a time, so that the last word counts, and
        again where its outcome is unknown."""
        announced: bool | None = None
        retry = Retry(ANNOUNCE_BACKOFF, self._rng)
        try:
            while announced is not self._writable():
                writable = self._writable()
                try:
                    await registration.set_readonly(not writable)
                    announced = writable
                except QuireError as error:
                    self._log("registration_failed", error=str(error))
                    await retry.pause()
        finally:
            self._announcing = False
