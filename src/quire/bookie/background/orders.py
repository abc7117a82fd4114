"""The orders of operators to a bookie, in the metadata store (`metadata.bookies.orders`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire._runtime.event_log import EventLog
from quire._runtime.tasks import TaskSet
from quire.errors import CookieError, LaterMetadataError, NoSuchKeyError, QuireError
from quire.metadata.bookies.orders import Order, What, order_path, stored_order, withdraw_order
from quire.metadata.interface import MetadataStore, Versioned, Watch

COOKIE_POLL_S = 0.5
"""Seconds between two checks whether the cookie of a decommissioned bookie is gone."""


async def forget_predecessor(metadata: MetadataStore, bookie_id: str) -> None:
    """Withdraw the order to a decommissioned bookie, so that a new bookie can use its id.

    This does nothing if there is no such order. Raises MetadataError.
    """
    found = await stored_order(metadata, bookie_id)
    if found is not None and found.value.what is What.RETIRED:
        await withdraw_order(metadata, bookie_id, found.version)


class Orders:
    """The orders to one bookie, whose cookie was checked before."""

    def __init__(
        self,
        metadata: MetadataStore,
        bookie_id: str,
        changed: Callable[[], None],
        retired: Callable[[CookieError], None],
        log: EventLog,
        tasks: TaskSet,
    ) -> None:
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._changed = changed
        self._retired = retired
        self._log = log
        self._tasks = tasks
        self._watch: Watch | None = None
        self._order: Order | None = None
        self._ending = False
        self.draining = False
        """Whether an order of any kind keeps the bookie read-only."""

    @classmethod
    async def follow(
        cls,
        metadata: MetadataStore,
        bookie_id: str,
        changed: Callable[[], None],
        retired: Callable[[CookieError], None],
        log: EventLog,
        tasks: TaskSet,
    ) -> Orders:
        """Read the current order to a bookie, watch for changes, and return the orders.

        `changed` is called when `draining` has changed. `retired` is called when the bookie was
        decommissioned while it runs, once its cookie is gone. Raises MetadataError.
        """
        orders = cls(metadata, bookie_id, changed, retired, log, tasks)
        found = await stored_order(metadata, bookie_id)
        orders.draining = found is not None
        path = order_path(metadata.uri, bookie_id)
        orders._watch = metadata.tree.watch_value(path, orders._seen)
        return orders

    def sentence(self) -> str:
        """Return a clause about the bookie for messages: what it is ordered to do, and by whom."""
        if self._order is None:
            return "it is ordered to accept no entries, because it is being decommissioned"
        what = (
            "was decommissioned" if self._order.what is What.RETIRED else "is being decommissioned"
        )
        return f"it {what}, as {self._order.by} ordered"

    def close(self) -> None:
        """Stop watching for changes of the order."""
        if self._watch is not None:
            self._watch.close()

    def _seen(self, found: Versioned[bytes] | None) -> None:
        try:
            self._order = None if found is None else Order.decode(found.value)
        except (LaterMetadataError, ValueError) as error:
            self._log("order_not_understood", bookie=self._bookie_id, error=str(error))
            return
        if self._order is not None and self._order.what is What.RETIRED and not self._ending:
            self._ending = True
            self._tasks.start(self._end())
        self._look()

    def _look(self) -> None:
        # A bookie that is about to end stays read-only even if the order is withdrawn.
        draining = self._order is not None or self._ending
        if draining is not self.draining:
            self.draining = draining
            self._changed()

    async def _end(self) -> None:
        """Wait until the cookie of the decommissioned bookie is gone, then call `retired`.

        If the order is withdrawn or replaced before that, the bookie continues.
        """
        retired = True
        while retired:
            try:
                await self._metadata.read_cookie(self._bookie_id)
            except NoSuchKeyError:
                self._retired(
                    CookieError(
                        f"bookie {self._bookie_id} was decommissioned: no ledger names it any more",
                        remedy="Erase its data directory. A new bookie needs an empty one",
                    )
                )
                return
            except QuireError as error:
                self._log("cookie_not_checked", bookie=self._bookie_id, error=str(error))
            else:
                retired = self._order is not None and self._order.what is What.RETIRED
            await asyncio.sleep(COOKIE_POLL_S)
        self._ending = False
        self._look()
