"""The registration of a bookie, which shows whether it accepts entries of writers, and why not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quire._runtime.event_log import EventLog
from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.errors import KeyExistsError, QuireError
from quire.metadata.bookies.unwritable import Unwritable, as_properties
from quire.metadata.interface import BookieAddress, MetadataStore, Registration

ANNOUNCE_BACKOFF = Backoff(1.0, 1.0)
"""The pauses between attempts to update the registration of a bookie after an attempt has
failed."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The state of a bookie that its registration shows to the cluster."""

    writable: bool
    reasons: tuple[Unwritable, ...] = ()
    """The reasons why the bookie, or one of its data directories, does not accept all adds."""


class Announcement:
    """The registration of one bookie, which shows what the bookie's `state` function returns.

    Call `soon` when the result of that function may have changed.
    """

    def __init__(
        self,
        state: Callable[[], Announced],
        log: EventLog,
        tasks: TaskSet,
        rng: random.Random,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create it. `properties` are those of the registration that never change."""
        self._properties = dict(properties or {})
        self._rng = rng
        self._state = state
        self._log = log
        self._tasks = tasks
        self._registration: Registration | None = None
        self._announcing = False

    async def register(
        self, metadata: MetadataStore, address: BookieAddress, state: Announced
    ) -> asyncio.Future[KeyExistsError]:
        """Register the bookie with `state`, and return a future for the loss of the registration.

        If the bookie's state has changed in the meantime, the registration is updated soon. If
        another process takes the bookie's id later, the future gets a KeyExistsError as its result.
        This bookie is then no longer registered.

        Raises:
            KeyExistsError: Another process has the bookie's id.
            UsageError: The address cannot be registered.
            MetadataError: The metadata store fails.
        """
        address = replace(address, properties=self._with_reasons(state))
        self._registration = await metadata.register_bookie(address, readonly=not state.writable)
        if self._state() != state:
            self.soon()
        return self._registration.lost

    async def withdraw(self) -> None:
        """Remove the registration of the bookie.

        If this fails, the error is logged, and the registration ends when its session times out.
        """
        if self._registration is not None:
            registration, self._registration = self._registration, None
            try:
                await registration.close()
            except QuireError as error:
                self._log("withdraw_failed", error=str(error))

    def soon(self) -> None:
        """Update the registration in the background. Before `register` this does nothing."""
        if self._registration is not None and not self._announcing:
            self._announcing = True
            self._tasks.start(self._announce(self._registration))

    def _with_reasons(self, state: Announced) -> dict[str, str]:
        """Return all properties of a registration with this state."""
        return {**self._properties, **as_properties(state.reasons)}

    async def _announce(self, registration: Registration) -> None:
        """Update the registration until it matches the bookie's state.

        One update runs at a time, so that the last one decides. An update that fails is repeated
        after a pause, because its outcome may be unknown.
        """
        announced: Announced | None = None
        retry = Retry(ANNOUNCE_BACKOFF, self._rng)
        try:
            while announced != self._state():
                state = self._state()
                try:
                    await registration.set_readonly(not state.writable, self._with_reasons(state))
                    announced = state
                except QuireError as error:
                    self._log("registration_failed", error=str(error))
                    await retry.pause()
        finally:
            self._announcing = False
