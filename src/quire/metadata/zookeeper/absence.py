"""The log of a client that loses ZooKeeper: one event when it is away, and one when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from quire._runtime.units import duration_text
from quire.metadata.common import EventWatches

logger = logging.getLogger("quire.metadata.zookeeper")

AWAY_S = 2.0
"""Seconds without a connection after which ZooKeeper is reported as lost. A client moves to another
server of the ensemble in less time, which is not worth an event."""


class AbsenceLog:
    """A log that writes the events `metadata_lost` and `metadata_back` of one connection.

    Call its methods on the event loop of the connection.
    """

    def __init__(self, servers: str, causes: Callable[[], Mapping[str, str]]) -> None:
        """Create the log of a connection to these servers.

        `causes` returns why each server could not be reached, by server.
        """
        self._servers = servers
        self._causes = causes
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        """When the connection was lost, on the clock of the event loop, or None while there is a
        connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._told = False
        self.watches: EventWatches[[float]] = EventWatches()
        """Called with the seconds of each absence that was logged, when it is over."""

    def lost(self) -> None:
        """Note that there is no connection. Log it if there is still none after `AWAY_S`.

        Repeated calls do nothing.
        """
        if self._since_s is None:
            self._since_s = self._loop.time()
            self._timer = self._loop.call_later(AWAY_S, self._tell)

    def back(self) -> None:
        """Note that there is a connection again. Log it if its loss was logged."""
        if self._since_s is None:
            return
        away_s = self._loop.time() - self._since_s
        told = self._told
        self.close()
        if told:
            logger.warning(
                "the metadata store at %s answers again, after %s without a connection",
                self._servers,
                duration_text(away_s),
                extra={
                    "event": "metadata_back",
                    "servers": self._servers,
                    "seconds": round(away_s, 3),
                },
            )
            self.watches.tell(away_s)

    def close(self) -> None:
        """Forget that the connection is lost, and log nothing more about it."""
        if self._timer is not None:
            self._timer.cancel()
        self._since_s, self._timer, self._told = None, None, False

    def _tell(self) -> None:
        self._timer, self._told = None, True
        causes = "; ".join(f"{server}: {why}" for server, why in self._causes().items())
        logger.warning(
            "the metadata store at %s does not answer%s. Open ledgers can still be written and "
            "read; nothing can be created, opened or repaired until it is back",
            self._servers,
            f" ({causes})" if causes else "",
            extra={"event": "metadata_lost", "servers": self._servers, "why": causes},
        )
